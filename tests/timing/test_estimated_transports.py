"""Machines without measured rows: transports are estimates that follow from the sources of NCCL and RCCL."""

from itertools import pairwise

import pytest

from megatile.hda import machine, machine_names
from megatile.timing.collective_choice import rule_of, times_ps

ESTIMATED = (
    "h200-8", "h800-8", "b200-8", "gb200-nvl72", "a100-cluster", "h100-cluster-efa", "h100-cluster-tcpxo",
    "mi300x-cluster", "mi325x-8", "v100-8", "l20-8",
)  # fmt: skip


def us(name: str, operation: str, ranks: int, size: int) -> float:
    return float(times_ps(rule_of(machine(name)), operation, ranks, size)) / 1e6


@pytest.mark.parametrize("name", [n for n in machine_names() if machine(n).transports])
def test_every_protocol_of_a_machine_has_a_source(name):
    for libraries in machine(name).spec.transports.values():
        for library, spec in libraries.items():
            unsaid = [p for p, figures in spec.protocols.items() if not figures.source and not spec.source]
            assert not unsaid, (library, unsaid)


@pytest.mark.parametrize("name", ESTIMATED)
def test_times_grow_with_bytes_up_to_a_protocol(name):
    ranks = min(16, machine(name).count("device"))
    for operation in ("all_reduce", "all_gather", "all_to_all"):
        times = [us(name, operation, ranks, 4**i) for i in range(5, 16)]
        assert all(b > 0.6 * a for a, b in pairwise(times)), (operation, times)
        assert times[-1] > 10 * times[0]


def test_twice_the_links_are_nearly_twice_as_fast():
    for operation in ("all_gather", "all_to_all"):
        ratio = us("h200-8", operation, 8, 1 << 32) / us("b200-8", operation, 8, 1 << 32)
        assert 1.8 < ratio < 2
    assert us("h200-8", "all_reduce", 8, 1 << 32) / us("b200-8", "all_reduce", 8, 1 << 32) == pytest.approx(
        2 * 0.74 / 0.85, rel=0.02
    )


def test_nodes_and_slower_networks_cost_time():
    for size in (4096, 1 << 20, 1 << 30):
        infiniband, efa, tcp = (
            us(name, "all_reduce", 32, size)
            for name in ("h100-cluster", "h100-cluster-efa", "h100-cluster-tcpxo")
        )
        assert infiniband < efa < tcp
        assert us("h100-cluster", "all_to_all", 8, size) < us("h100-cluster", "all_to_all", 32, size)


def test_two_nodes_of_a_mesh_are_bound_by_its_links():
    """Bytes pass the links of a node twice (7/8), 8 cards of 400 Gb/s carry half as much time."""
    link = machine("mi300x-cluster").network("xgmi").effective_bandwidth
    share = rule_of(machine("mi300x-cluster")).figures.protocols["Simple"].share
    assert us("mi300x-cluster", "all_reduce", 16, 1 << 34) == pytest.approx(
        2 * 7 / 8 * 2**34 / (7 * link * share) * 1e6, rel=0.01
    )


@pytest.mark.parametrize(("name", "longer_us"), [("h100-cluster-efa", 8), ("h100-cluster-tcpxo", 12)])
def test_steps_between_nodes_are_longer_by_what_the_file_says(name: str, longer_us: int) -> None:
    """As long as those of h100-cluster, which are fitted anew now and then, and so much more."""
    fitted, other = (machine(m).transports["device"]["nccl"].protocols for m in ("h100-cluster", name))
    far = {key: p.far_step_ps for key, p in fitted.items() if p.far_step_ps}
    assert len(far) == 9
    assert {key: other[key].far_step_ps - ps for key, ps in far.items()} == dict.fromkeys(
        far, longer_us * 10**6
    )
