"""Random sets of launches beside each other: times as the SimPy reader says, data as of one launch."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.sim.judge import between_launches
from tests.sim.random_cases import toy_place
from tests.sim.random_launches import TALKING, parts_of, random_blocks, random_launches, random_plan

from megatile.plan.deadlock import PlanDeadlock
from megatile.plan.execute import execute
from megatile.plan.model import Plan
from megatile.sim import Session


@pytest.mark.parametrize("engine", ["plain", "compiled"])
@pytest.mark.parametrize("first", [0, 12, 24])
def test_engine_and_reader_agree_on_launches(first: int, engine: str) -> None:
    """A sample; ``python -m tests.sim.judge 0 2000 launches`` takes more of them."""
    seeds, ended = range(first, first + 12), list[int]()
    found = {seed: between_launches(random_launches(seed), engine, ended) for seed in seeds}
    assert not {seed: text for seed, text in found.items() if text}
    assert len(ended) >= 20, "most launches shall come to their end, not only wait alike"


@pytest.mark.parametrize("engine", ["plain", "compiled"])
def test_engine_and_reader_agree_on_launches_of_blocks(engine: str) -> None:
    """Levels, slots and caches that launches share; ``judge.py 0 2000 launches blocks`` takes more."""
    seeds, ended = range(15), list[int]()
    found = {seed: between_launches(random_blocks(seed), engine, ended) for seed in seeds}
    assert not {seed: text for seed, text in found.items() if text}
    assert len(ended) >= 30


ORDERED = tuple(name for name in TALKING if not name.startswith("any"))


def divided(seed: int) -> tuple[Plan, list[Plan], Session]:
    rng = random.Random(seed)
    while True:
        place = toy_place(rng)
        plan = random_plan(rng, place, 0, ORDERED, spoil=False)
        if len({int(plan.place.evaluate({"unit": u})) for u in range(plan.units)}) == plan.units:
            return plan, parts_of(rng, plan), Session(place.hda)


@pytest.mark.parametrize("first", range(0, 15, 5))
def test_the_parts_of_a_plan_compute_what_the_plan_does(first: int) -> None:
    """Whatever the times: without receive-from-any the data do not depend on them."""
    assert sum(parts_agree(seed) for seed in range(first, first + 5)) >= 3, "too many are stuck"


def parts_agree(seed: int) -> bool:
    """Compare the data of a plan and of its parts; False where the plan is stuck."""
    plan, parts, session = divided(seed)
    x = np.random.default_rng(seed).integers(0, 4, (plan.units, *plan.tile("x").shape)).astype("f4")
    try:
        whole = execute(plan, {"x": x})
    except PlanDeadlock:
        return False
    rng = random.Random(seed)
    for part in parts:
        session.submit(part, {"x": x}, at=rng.choice([0, 100, 3000]))
    results = session.wait()
    for part, result in zip(parts, results, strict=True):
        mine = [u for stream in part.streams for u in stream.unit_numbers()]
        for name in ("x", "z"):
            np.testing.assert_array_equal(result.outputs[name][mine], whole[name][mine])
    np.testing.assert_array_equal(session.read("x"), whole["x"])
    return True
