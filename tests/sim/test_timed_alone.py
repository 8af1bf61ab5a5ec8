"""A session times a launch on an idle machine once; the same launch again ends as it did before."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tests.sim.random_cases import PLACES, toy_place
from tests.sim.random_launches import ALL, Launches, random_blocks, random_plan
from tests.sim.test_session import TRIP, doubling
from tests.sim.toys import toy

from megatile.core.errors import MegatileError
from megatile.sim import Session, TimeBudgetExceeded
from megatile.sim.known_times import KnownTimes
from megatile.sim.machine_run import MachineRun
from megatile.timing.faults import Faults, faults


def random_session(seed: int) -> Launches:
    rng = random.Random(seed)
    place = rng.choice([*[toy_place] * 3, *PLACES])(rng)
    plan = random_plan(rng, place, 0, ALL, spoil=False)
    return Launches(seed, place.hda, [(plan, 0)], Faults(), {})


def history(case: Launches, record: int) -> list[Any]:
    """Launch plans again and again: mostly alone, sometimes two at a time, at odd moments."""
    rng, session, found = random.Random(case.seed), Session(case.hda, record=record), list[Any]()
    try:
        for _ in range(8):
            plans = [rng.choice(case.plans)[0] for _ in range(rng.choice([1, 1, 1, 2]))]
            at = session.time_ps
            for plan in plans:
                at += rng.choice([0, 0, 1, 5, 700])
                session.submit(plan, at=at)
            results = session.wait(worker=session.host)
            found.append([(r.time_ps, r.messages, r.choices, r.timed_by) for r in results])
            found.append((session.now_ps, session.time_ps))
    except MegatileError as problem:
        return [*found, str(problem)]
    if record:
        trace = session.trace
        found += [session.pointers().text(), trace.flows.tolist()]
        found += [(name, values.tolist()) for name, values in sorted(trace.columns.items())]
    return found


@pytest.mark.parametrize("record", [0, 1 << 18])
@pytest.mark.parametrize("make", [random_session, random_blocks])
def test_what_was_timed_before_ends_as_if_it_were_timed_again(
    make: Any, record: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    again, ended = list[int](), MachineRun._end_as_known
    cases = [make(seed) for seed in range(25)]

    def count(*found: Any) -> None:
        again.append(1)
        ended(*found)

    monkeypatch.setattr(MachineRun, "_end_as_known", count)
    quick = [history(case, record) for case in cases]
    assert len(again) > 30
    monkeypatch.setattr(KnownTimes, "keep", lambda *_: None)
    assert quick == [history(case, record) for case in cases]


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
    rows = s._known_times.records
    for _ in range(3):
        launch = s.submit(plan)
        with pytest.raises(TimeBudgetExceeded):
            s.wait(launch, budget_ps=100)
        assert s.wait(launch).time_ps == TRIP + 69
    assert s._known_times.records == rows > 0
