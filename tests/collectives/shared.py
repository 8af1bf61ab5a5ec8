"""What several files of tests/collectives share."""

import zlib

import pytest

import megatile as mt
from megatile.collectives.algorithms import algorithms
from megatile.collectives.job import OPERATIONS, REDUCING
from megatile.collectives.planner import predict
from megatile.collectives.requests import make_job
from megatile.hda import machine
from toy_machines import chips

NIC = mt.machine("h100-cluster").network("infiniband").effective_bandwidth


def nccl(name="dgx-h100", library="nccl", **figures):
    """A machine with other figures of its library's protocols: LL_start="7 us"."""
    changes = {}
    for key, value in figures.items():
        protocol, _, figure = key.partition("_")
        changes[f"transports.device.{library}.protocols.{protocol}.{figure}"] = value
    return machine(name, **changes)


def us(hda, nbytes, algorithm, protocol, **settings):
    found = predict(
        "all_reduce", machine=hda, nbytes=nbytes, algorithm=algorithm, protocol=protocol, settings=settings,
        in_place=True,
    )  # fmt: skip
    return found.time_ps / 1e6


def alone(machine, ranks, nbytes, operation="all_reduce"):
    found = predict(operation, machine=machine, ranks=ranks, nbytes=nbytes, launch=False, in_place=True)
    assert mt.simulate(found.plan, machine=machine, launch=False).time_ps == found.time_ps
    return found


MACHINES = {
    "ring": chips("ring", 7),
    "line": chips("line", 5),
    "full mesh": chips("full_mesh", 6),
    "switch": chips("switch", 9, in_network_reduction=["sum", "max", "min", "prod"]),
    "torus": chips("torus", 12, dims=[4, 3]),
    "mesh": chips("mesh", 6, dims=[3, 2]),
    "torus of three dimensions": chips("torus", 12, dims=[3, 2, 2]),
    "nodes": mt.machine("h100-cluster", nodes=3),
    "full mesh of devices": mt.machine("mi300x-8"),
}


def cases():
    for where, hda in MACHINES.items():
        for operation in OPERATIONS:
            for name, known in algorithms().items():
                if operation not in known.operations:
                    continue
                pick = zlib.crc32(f"{where} {operation} {name}".encode())
                count = (17, 5, 36 * 12)[pick % 3]
                reduction = ("sum", "max", "min", "avg", "prod")[pick // 3 % 5]
                fields = {"reduction": reduction if operation in REDUCING else "sum", "nbytes": 4 * count}
                fields["in_place"] = bool(pick // 15 % 2) and operation != "all_to_all"
                fields["dtype"] = ("f32", "i32")[pick // 30 % 2]
                if known.reason_against(make_job(operation, machine=hda, **fields)[0]) is None:
                    yield pytest.param(hda, operation, name, fields, id=f"{where}-{operation}-{name}")
