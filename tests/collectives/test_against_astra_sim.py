"""Times beside those of ASTRA-sim's analytical network, where both model the same.

For a message ASTRA-sim (astra-network-analytical, ``BasicTopology.cpp``) takes hops × latency + bytes /
bandwidth: one hop between neighbours of a ring and on a full mesh, two over a switch. Its ring, direct and
halving-doubling collectives are those of the textbook.
"""

from math import log2

import pytest

from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.requests import make_job
from megatile.hda import HDA
from megatile.sim import simulate
from megatile.timing.collective_choice import rule_of
from megatile.timing.collective_rule import Way

BANDWIDTH, LATENCY_NS = 50.0, 500.0
"""GB/s and ns of its example inputs (``input/Ring.yml`` …)."""


def wires(topology: str, count: int) -> HDA:
    """Chips with nothing but links: no engine that has to start, a memory that costs nothing."""
    memory = {"name": "hbm", "level": "chip", "aliases": ["l2"], "size": "1 TB", "bandwidth": "100 TB/s"}
    network = {"name": "links", "level": "system", "connects": "chip", "topology": topology}
    return HDA.from_dict(
        {
            "name": "astra",
            "hw_spec": {
                "pe": [{"name": "chip", "num_units": 1}],
                "pe_groups": [{"name": "system", "num_units": count}],
            },
            "hw_abstr": [{"name": "device", "target": "chip"}],
            "memory": [{**memory, "latency": "1 ps"}],
            "networks": [{**network, "bandwidth": f"{BANDWIDTH} GB/s", "latency": f"{LATENCY_NS} ns"}],
            "engines": [
                {"name": "alu", "kind": "vector", "level": "chip", "throughput": {"any": "100 TFLOP/s"}},
                {"name": "ports", "kind": "dma", "level": "chip", "channels": 129},
            ],
        }
    )


def astra_us(topology: str, algorithm: str, operation: str, n: int, nbytes: int) -> float:
    hops = 2 if topology == "switch" else 1
    message = lambda size: hops * LATENCY_NS + size / BANDWIDTH  # noqa: E731
    phases = 2 if operation == "all_reduce" else 1
    if algorithm == "ring":
        return phases * (n - 1) * message(nbytes / n) / 1e3
    if algorithm == "direct":
        return phases * message(nbytes / n) / 1e3
    return phases * sum(message(nbytes / 2 ** (i + 1)) for i in range(int(log2(n)))) / 1e3


CASES = [
    ("ring", "ring", "all_reduce"),
    ("ring", "ring", "all_gather"),
    ("ring", "ring", "reduce_scatter"),
    ("full_mesh", "direct", "all_reduce"),
    ("full_mesh", "direct", "all_gather"),
    ("full_mesh", "direct", "all_to_all"),
    ("switch", "ring", "all_reduce"),
    ("switch", "halving_doubling", "all_reduce"),
]


@pytest.mark.parametrize("nbytes", [1 << 16, 1 << 22, 1 << 28])
@pytest.mark.parametrize("n", [4, 16])
@pytest.mark.parametrize(("topology", "algorithm", "operation"), CASES)
def test_simulated_plans_take_as_long(topology, algorithm, operation, n, nbytes):
    hda = wires(topology, n)
    job, _ = make_job(operation, machine=hda, nbytes=nbytes, in_place=operation != "all_to_all")
    found = simulate(find_algorithm(algorithm).plan(job), machine=hda).time_ps / 1e6
    assert found == pytest.approx(astra_us(topology, algorithm, operation, n, nbytes), rel=0.1)


@pytest.mark.parametrize(("topology", "algorithm", "operation"), [c for c in CASES if "halving" not in c[1]])
def test_closed_forms_take_as_long(topology, algorithm, operation):
    for n in (2, 5, 16):
        rule = rule_of(wires(topology, n))
        for nbytes in (1 << 16, 1 << 28):
            found = float(rule.time_ps(Way(algorithm, "Simple"), operation, n, nbytes)) / 1e6
            assert found == pytest.approx(astra_us(topology, algorithm, operation, n, nbytes), rel=0.1)
