"""``sim/queries.py``: what the engine asks about the machine."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.sim.shared import ENGINES, everything
from tests.sim.toys import toy

from megatile.sim import simulate
from megatile.sim.queries import MachineQueries


@ENGINES
def test_few_questions_are_asked_however_many_units_there_are(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[int] = Counter()
    answer = MachineQueries.answer

    def counted(self: MachineQueries, question: int, of: list[int]) -> int:
        asked[question] += 1
        return answer(self, question, of)

    monkeypatch.setattr(MachineQueries, "answer", counted)
    found = []
    for units in (4, 40):
        asked.clear()
        simulate(everything(3, units), machine=toy(units), engine=engine, assume={"times": 2})
        found.append(dict(asked))
    assert found[0] == found[1]
    assert sum(found[0].values()) < 12
