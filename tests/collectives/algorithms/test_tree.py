"""``collectives/algorithms/tree.py``: binary trees."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from tests.collectives.closed_forms import BANDWIDTH, SIZE, alpha, elements, few, seconds

from megatile.collectives.planner import predict
from megatile.hda import machine
from megatile.timing.collective_choice import rule_of, times_ps
from toy_machines import chips


def test_tree_on_a_full_mesh():
    """15 ranks, three levels: three messages of everything up and three down; each inner node sends to its
    children over different links."""
    formula = 6 * (alpha() + SIZE / BANDWIDTH)
    assert seconds(chips("full_mesh", 15), "tree") == pytest.approx(formula, rel=1e-3)


@few
@given(st.integers(2, 40), elements)
def test_tree_of_any_size(n, count):
    """As many messages of everything up and down as the deepest rank has ranks above it."""
    depth = n.bit_length() - 1
    formula = 2 * depth * (alpha() + 4 * count / BANDWIDTH)
    assert seconds(chips("full_mesh", n), "tree", 4 * count) == pytest.approx(formula, rel=1e-3)


@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 20, 1 << 24])
def test_trees_inside_a_node_are_shown_and_bound_by_channels(nbytes):
    asked = {"machine": "dgx-h100", "nbytes": nbytes}
    tree, few = (
        predict("all_reduce", **asked, env={"NCCL_ALGO": "Tree", **more})
        for more in ({}, {"NCCL_MAX_NCHANNELS": "1"})
    )
    assert tree.algorithm == "node_tree"
    assert tree.model.startswith("NCCL tree")
    rule = rule_of(machine("dgx-h100"))
    assert tree.time_ps == pytest.approx(
        float(times_ps(rule, "all_reduce", 8, nbytes, env={"NCCL_ALGO": "Tree"})), rel=0.02
    )
    # One channel carries 20 GB/s and sends everything up and down.
    assert few.time_ps == tree.time_ps if nbytes == 1 << 10 else few.time_ps > 2 * tree.time_ps
