"""Programs of both generators on every target: a few of those that ``python -m tests.differential`` tries."""

from __future__ import annotations

import numpy as np
import pytest
from tests.differential.__main__ import Case, findings, outcome
from tests.differential.page_programs import page_program
from tests.differential.phases import KINDS
from tests.differential.values import converted


@pytest.mark.parametrize("number", [3, 13])
def test_a_program_on_every_target(number: int) -> None:
    case = Case("b", number)
    said = {target: outcome(case, target) for target in ("interpreter", "plan", "cpu")}
    assert set(said.values()) == {"equal"}


def test_a_wrong_element_is_a_finding() -> None:
    case = Case("b", 17)
    arrays = case.arrays()
    results = arrays[5 : 5 + len(page_program(17).phases)]
    for array, wanted in zip(results, page_program(17).expected(), strict=True):
        array[:] = wanted
    assert case.wrong(arrays) is None
    results[-1].flat[-1] += 1
    said = case.wrong(arrays)
    assert said is not None
    assert findings({"cpu": said, "cuda": "refused: too few", "plan": "equal"}) == [f"cpu: {said}"]


def test_every_kind_of_phase_is_drawn() -> None:
    assert {phase.kind for seed in range(200) for phase in page_program(seed).phases} == {*KINDS}


def test_conversions_are_those_of_the_page() -> None:
    assert converted(np.array([2.9, -2.9, 300.0]), "i8").tolist() == [2, -2, 127]
    assert converted(np.array([300]), "i8").tolist() == [44]
    assert converted(np.array([2049.0, 2051.0]), "f16").tolist() == [2048, 2052]
