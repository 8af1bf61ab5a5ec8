"""``collectives/algorithms/direct.py``: every rank to every other."""

import pytest
from hypothesis import given, strategies as st
from tests.collectives.closed_forms import BANDWIDTH, SIZE, alpha, block, elements, few, seconds
from tests.collectives.shared import NIC

import megatile as mt
from megatile.collectives.planner import predict
from megatile.timing.collective_choice import rule_of, times_ps
from toy_machines import chips


@pytest.mark.parametrize("nodes", [2, 4])
def test_all_to_all_is_bound_by_network_cards(nodes):
    nbytes, n = 64 << 20, 8 * nodes
    found = predict(
        "all_to_all", machine=mt.machine("h100-cluster", nodes=nodes), nbytes=nbytes, algorithm="direct"
    )
    wire = nbytes * (n - 8) / n / NIC * 1e12
    assert wire <= found.time_ps <= 1.1 * wire


@pytest.mark.parametrize("machine", ["h100-cluster", "a100-cluster", "mi300x-cluster"])
@pytest.mark.parametrize("operation", ["all_to_all", "scatter"])
def test_exchanges_over_nodes_take_the_rules_time_without_a_factor(machine: str, operation: str) -> None:
    hda = mt.machine(machine, nodes=2)
    for nbytes in (4096, 1 << 20, 64 << 20):
        found = predict(operation, machine=hda, nbytes=nbytes)
        (transport,) = found.plan.transports
        assert transport.pace == pytest.approx(1, abs=0.01)
        rule = float(times_ps(rule_of(hda), operation, hda.count("device"), nbytes))
        assert found.time_ps == pytest.approx(rule, rel=0.02)


FLOPS = 100e12


@pytest.mark.parametrize("n", [4, 8])
def test_direct_on_a_full_mesh(n):
    """Both phases send a block over every link at once."""
    formula = 2 * (alpha() + SIZE / n / BANDWIDTH)
    assert seconds(chips("full_mesh", n), "direct") == pytest.approx(formula, rel=1e-3)


def test_direct_is_several_times_slower_on_a_ring():
    assert seconds(chips("ring", 8), "direct") > 3 * seconds(chips("full_mesh", 8), "direct")


@few
@given(st.integers(2, 24), elements)
def test_direct_of_any_size(n, count):
    """All blocks come at once and are added one after the other."""
    adding = (n - 1) * block(count, n) / 4 / FLOPS
    formula = 2 * (alpha() + block(count, n) / BANDWIDTH) + adding
    assert seconds(chips("full_mesh", n), "direct", 4 * count) == pytest.approx(formula, rel=1e-3)
