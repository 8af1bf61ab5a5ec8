"""A session times a launch on an idle machine once; the same launch again ends as it did before."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.test_session import TRIP, doubling
from tests.sim.toys import toy

from megatile.sim import Session, TimeBudgetExceeded
from megatile.timing.faults import faults


def test_data_are_computed_at_every_launch() -> None:
    x = np.arange(128, dtype="f4").reshape(2, 64)
    s = Session(toy(2, control=True))
    plan = doubling()
    results = [s.launch(plan, None if i else {"x": x}) for i in range(4)]
    assert [r.time_ps for r in results] == [TRIP + 69] * 4
    np.testing.assert_array_equal(results[-1].outputs["x"], 16 * x)
    assert results[1].trace.columns["start_ps"].tolist() == results[2].trace.columns["start_ps"].tolist()


def test_faults_are_seen_by_a_launch_that_was_timed_without() -> None:
    s, plan = Session(toy(2, control=True)), doubling()
    assert [s.launch(plan).time_ps for _ in range(2)] == [TRIP + 69] * 2
    with faults(straggler={1: 2.0}):
        assert [s.launch(plan).time_ps for _ in range(2)] == [TRIP + 2 * 69] * 2
    assert s.launch(plan).time_ps == TRIP + 69


def test_what_comes_beside_a_launch_that_was_timed_alone_changes_it() -> None:
    s, plan = Session(toy(2, control=True)), doubling()
    s.launch(plan)
    begin = s.time_ps
    first, second = s.submit(plan), s.submit(plan)
    s.wait()
    assert [first.end_ps, second.end_ps] == [begin + TRIP + 69, begin + TRIP + 2 * 69]


def test_a_cancelled_launch_is_not_taken_for_an_idle_machine() -> None:
    s, plan = Session(toy(2, control=True)), doubling()
    for _ in range(3):
        first, second = s.submit(plan), s.submit(plan)
        s.cancel(second)
        assert s.wait(first).time_ps == TRIP + 69
        assert s.launch(plan).time_ps == TRIP + 69


def test_a_budget_stops_a_launch_that_was_timed_before() -> None:
    s, plan = Session(toy(2, control=True)), doubling()
    s.launch(plan)
    timed = [*s._known_times._timed]
    for _ in range(3):
        launch = s.submit(plan)
        with pytest.raises(TimeBudgetExceeded):
            s.wait(launch, budget_ps=100)
        assert s.wait(launch).time_ps == TRIP + 69
    assert [*s._known_times._timed] == timed
    assert [known.recorded_commands > 0 for *_, known in timed] == [True]
