"""What several files of tests/collectives share."""

import megatile as mt
from megatile.collectives.planner import predict
from megatile.hda import machine

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
