"""A figure without a better source is an estimate in every text."""

import pytest
from typer.testing import CliRunner

import megatile as mt
from megatile.cli.main import app


@pytest.mark.parametrize("kind", ["roce", "efa", "tcpxo"])
def test_assumed_figures_are_marked(kind):
    shown = CliRunner().invoke(app, ["machine", "show", f"h100-cluster-{kind}"]).stdout
    network = next(line for line in shown.splitlines() if f"network   {kind}" in line)
    assert "estimate: " in network
    assert any("nccl: " in line and "estimate: protocols" in line for line in shown.splitlines())


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
