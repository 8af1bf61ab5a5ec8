"""``tuning/best_on_machines.py``: ``sweep(factory, over, tune=choices)``."""

from functools import partial

import pytest
from tests.tuning import factories
from tests.tuning.factories import gemm
from tests.tuning.shared import FAST, SIZES
from typer.testing import CliRunner

import megatile as mt
from megatile.cli.main import app
from megatile.core.errors import MegatileError


def test_the_best_program_of_every_machine_is_what_tune_finds():
    choices = {"bM": [64, 128, 32], "bK": [64, 128], "stages": [2, 4]}
    product = partial(gemm, 512, 512, 512, bN=64)
    found = mt.sweep(product, {"memory.shared.size": SIZES}, tune=choices, **FAST)
    rows = found.rows()
    for row, size in zip(rows, SIZES, strict=True):
        machine = mt.machine("dgx-h100", **{"memory.shared.size": size})
        alone = mt.tune(product, choices, machine=machine, progress=False, verify=False)
        assert row["time_us"] == alone.time_us
        assert {name: row[name] for name in choices} == alone.best
        assert row["fixed_us"] == (None if alone.default is None else alone.default / 1e6)
    assert [row["knee"] for row in rows].count(True) == 1
    knee = next(row for row in rows if row["knee"])
    assert knee["time_us"] <= 1.05 * min(row["time_us"] for row in rows)
    assert sum(found.counts.values()) == 3 * 12
    assert "TunedSweep(3 machines like dgx-h100, 12 choices" in repr(found)


def test_an_architects_question_is_one_command(tmp_path):
    own, picture = tmp_path / "own.yaml", tmp_path / "knee.png"
    own.write_text("extends: dgx-h100\nname: own\n")
    target = f"{factories.__file__}:gemm(512, 512, 512, bN=64, bK=64)"
    arguments = ["sweep", target, "-m", str(own), "--plot", str(picture)]
    arguments += ["-o", "memory.shared.size=" + ",".join(SIZES), "-t", "bM=64,128", "--tune", "stages=2,4"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "first choice (us)" in result.output
    assert "knee" in result.output
    assert "3 machines × 4 choices" in result.output
    assert picture.stat().st_size > 1000


def test_a_name_of_machine_and_program_is_refused():
    with pytest.raises(MegatileError, match="'gpus' is a parameter of both the machine and the program"):
        mt.sweep(lambda gpus=1: None, {"gpus": [4, 8]}, tune={"gpus": [1, 2]}, **FAST)
