"""A figure without a better source is an estimate in every text."""

import pytest

import megatile as mt


@pytest.mark.parametrize(
    ("machine", "algorithm", "kind"),
    [
        ("h100-cluster", "in_network_tree", "measured"),
        ("h100-cluster", "rail_rings", "assumed"),
        ("h100-cluster-roce", "node_tree", "assumed"),
    ],
)
def test_no_estimate_is_called_measured(machine, algorithm, kind):
    plan = mt.collective("all_reduce", machine=machine, nbytes="16M", algorithm=algorithm)
    origin = mt.simulate(plan, machine=machine).origins["messages"]
    assert origin.kind == kind
    assert ("estimate" in origin.source) == (kind == "assumed")
