"""The flat code of a plan: made once, shared by all who follow it, and left without values."""

from __future__ import annotations

import numpy as np
from tests.sim.toys import ring, toy

from megatile.plan import code
from megatile.plan.check import check
from megatile.plan.execute import Executor, execute
from megatile.sim import Session


def test_check_execute_and_sessions_share_the_code_of_a_plan(monkeypatch) -> None:
    made, make = list[str](), code._compile_stream

    def count(plan, stream):
        made.append(plan.name)
        return make(plan, stream)

    monkeypatch.setattr(code, "_compile_stream", count)
    plan, hda = ring(4, 8), toy(4)
    x = {"x": np.ones((4, 4, 8), "f4")}
    check(plan, hda)
    outputs = [execute(plan, x)["x"] for _ in range(2)]
    with Session(hda) as s:
        s.launch(plan, x)
        np.testing.assert_array_equal(s.launch(plan, x).outputs["x"], outputs[1])
    assert made == [plan.name] * len(plan.streams)


def test_two_walks_of_one_plan_side_by_side_have_their_own_queues() -> None:
    plan = ring(4, 8)
    first, second = (Executor(plan, {"x": np.full((4, 4, 8), n, "f4")}) for n in (1, 2))
    assert first.programs is second.programs
    for walk in (first, second):
        walk.start(walk.residency.begin())
    while first.ready or second.ready or first.waiting or second.waiting:
        for walk in (first, second):
            if walk.ready:
                walk.advance(walk.ready.pop())
            elif walk.waiting:
                assert walk.resume()
    for walk, value in ((first, 4), (second, 8)):
        assert (walk.outputs()["x"] == value).all()


def test_no_values_are_kept_when_a_walk_has_ended() -> None:
    plan = ring(4, 8)
    execute(plan, {"x": np.ones((4, 4, 8), "f4")})
    assert not any(results for c in code.compile_plan(plan) for results in c.values._results)
