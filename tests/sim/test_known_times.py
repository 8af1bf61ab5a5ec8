"""``sim/known_times.py``: times of launches that had an idle machine for themselves."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.sim.random_cases import PLACES, toy_place
from tests.sim.random_launches import ALL, Launches, random_blocks, random_plan

from megatile.core.errors import MegatileError
from megatile.sim import Session
from megatile.sim.known_times import KnownTimes
from megatile.sim.machine_run import MachineRun
from megatile.timing.faults import Faults


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
