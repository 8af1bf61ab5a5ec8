"""``report/machine_text.py``: a machine in words."""

import pytest
from typer.testing import CliRunner

from megatile.cli.main import app


@pytest.mark.parametrize("kind", ["roce", "efa", "tcpxo"])
def test_assumed_figures_are_marked(kind):
    shown = CliRunner().invoke(app, ["machine", "show", f"h100-cluster-{kind}"]).stdout
    network = next(line for line in shown.splitlines() if f"network   {kind}" in line)
    assert "estimate: " in network
    assert any("nccl: " in line and "estimate: protocols" in line for line in shown.splitlines())


def test_rates_say_what_share_of_them_is_reached():
    result = CliRunner().invoke(app, ["machine", "show", "dgx-h100"])
    assert "80 GB, 3.35 TB/s × 96.7%, 370 ns" in result.output
