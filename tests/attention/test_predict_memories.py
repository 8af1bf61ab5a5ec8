"""Predictions for machines whose memories have any names, as a user describes them."""

from __future__ import annotations

import pytest
import yaml
from tests.attention.attention_machines import HBM, own_mesh
from typer.testing import CliRunner

from megatile.attention.plans import Problem
from megatile.attention.predict import predict, predict_one
from megatile.cli.main import app
from megatile.core.errors import MegatileError


def memory(name: str, **changed: object) -> dict[str, object]:
    return {**HBM, "aliases": [], "name": name, **changed}


ONE = [memory("dram")]
CACHE = memory("llc", size="32 MB", bandwidth="8 TB/s", cache=True)
SCRATCH = memory("scratchpad", size="4 MB", bandwidth="8 TB/s")
SMALL = memory("tile_sram", level="core", size="256 kB", bandwidth="1 TB/s")
REGISTERS = memory("regs", level="core", size="64 kB", shared=False)
POOL = memory("pool", level="node", size="1 TB")


@pytest.mark.parametrize(
    ("memories", "length", "chosen"),
    [
        (ONE, 8000, "dram"),
        ([CACHE, *ONE], 8000, "dram"),
        ([REGISTERS, SMALL, CACHE, *ONE], 8000, "dram"),
        ([SMALL, SCRATCH, *ONE, POOL], 8000, "dram"),
        ([SCRATCH, *ONE], 8, "scratchpad"),
        ([SMALL, POOL], 8000, "pool"),
        ([SMALL], 8000, "tile_sram"),
        ([HBM], 10**8, "hbm"),
    ],
)
def test_everything_lies_in_the_nearest_memory_that_holds_it(memories, length, chosen):
    hda = own_mesh(4, memories)
    for name in ("ring", "hamilton", "ulysses:2+ring"):
        found = predict_one(hda, Problem(length, 8), name, 4, backward=name == "hamilton")
        plan = found.result.plan
        assert {x.memory for x in (*plan.tiles, *plan.channels)} == {chosen}
        assert found.time_ps > 0


def test_work_beyond_the_integers_of_plans_is_refused():
    with pytest.raises(MegatileError, match="larger than 63 bits can hold"):
        predict_one(own_mesh(4, [HBM]), Problem(10**9, 8), "ring", 4)


def test_the_name_of_the_memory_does_not_matter():
    times = [
        predict_one(own_mesh(4, memories), Problem(8000, 8), "hamilton", 4).time_ps
        for memories in ([HBM], ONE, [*ONE, POOL], [SMALL, *ONE])
    ]
    assert len(set(times)) == 1


def test_the_command_line_takes_such_a_file(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(own_mesh(4, [CACHE, *ONE]).to_dict()), encoding="utf-8")
    command = ["attention", "predict", "-m", str(file), "--seqlen", "10K", "--heads", "8"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0
    assert "hamilton" in result.output


def test_a_machine_without_usable_memory_is_reported():
    with pytest.raises(MegatileError, match="has no memory that units of 'device' can use"):
        predict(own_mesh(4, [CACHE]), Problem(8000, 8), schedules=["ring"])
