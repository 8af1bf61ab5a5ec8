"""Benches of divided models: the same numbers on every machine, other times."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from megatile.cli.main import app

NAMES = ["tp_mlp", "dtensor_mlp", "tp_transformer_block", "moe_all_to_all"]


@pytest.mark.parametrize("name", NAMES)
def test_a_bench_is_right_on_every_machine(name: str) -> None:
    times = set()
    for machine in ("ahbm", "dgx-h100", "mi300x-8"):
        done = CliRunner().invoke(app, ["bench", name, "-m", machine, "--json"])
        assert done.exit_code == 0, done.output
        times.add(json.loads(done.stdout)["total_ns"])
    assert len(times) == 3
