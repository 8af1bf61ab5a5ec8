"""The examples on several machines and schedules; their programs as text; passes that keep their meaning."""

import warnings

import numpy as np
import pytest
from tests.language.tile.language_examples import NAMES, load, runs

import megatile as mt
from megatile.ir.parser import parse
from megatile.ir.passes.driver import steps
from megatile.ir.passes.normalise import Normalise
from megatile.language.tile.errors import ProgramWarning

NEEDS_FOUR_DEVICES = ("32_summa", "33_cannon")
MACHINES = ("ahbm", "mi300x-8", "cerebras-wse2")


@pytest.mark.parametrize("name", NAMES)
def test_text_parses_back_and_passes_keep_the_meaning(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ProgramWarning)
        found = runs(name, monkeypatch)
    assert found
    for prog, before, after in found:
        program = prog.build("dgx-h100")
        assert parse(str(program)) == program
        *_, last = steps(program, [Normalise()])
        lowered = last.program
        assert parse(str(lowered)) == lowered
        again = tuple(a.copy() for a in before)
        mt.run(lowered, *again)
        for left, right in zip(again, after, strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", NAMES)
def test_the_same_program_on_other_machines(name: str, machine: str) -> None:
    if name in NEEDS_FOUR_DEVICES and machine == "cerebras-wse2":
        pytest.skip("one wafer has no grid of devices")
    hda = mt.machine("ahbm", sips=4) if name in NEEDS_FOUR_DEVICES and machine == "ahbm" else machine
    load(name).main(hda)


@pytest.mark.parametrize("schedule", ["random", "adversarial"])
@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_gives_the_same(name: str, schedule: str) -> None:
    load(name).main("dgx-h100", schedule=schedule, seed=7)
