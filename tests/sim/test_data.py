"""``sim/data.py``: integers that a plan reads at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.sim.shared import ENGINES, everything
from tests.sim.toys import toy

from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.sim import TimingError, plain, simulate
from megatile.sim.data import Assumed
from megatile.sim.simulation import Simulation
from megatile.timing import Resources


def data_dependent() -> PlanBuilder:
    b = PlanBuilder("moe", scale="core", units=2)
    counts = b.tile("counts", (1,), "i32", memory="local", role="input")
    z = b.tile("z", (64,), "f32", memory="local", role="inout")
    n = b.read_scalar(counts[0:1], 8, name="n")
    with b.loop(0, n):
        b.compute("add", z, [z, z])
    return b


def test_data_decides_the_time_or_is_assumed() -> None:
    plan, hda = data_dependent().finish(), toy(2)
    inputs = {"counts": np.array([[3], [5]], "i4"), "z": np.ones((2, 64), "f4")}
    for engine in ("plain", "compiled"):
        r = simulate(plan, inputs, machine=hda, engine=engine)
        assert r.time_ps == 5 * 69
        assert r.outputs["z"][:, 0].tolist() == [8.0, 32.0]
        assert simulate(plan, data=inputs, machine=hda, engine=engine).time_ps == 5 * 69
    assert simulate(plan, machine=hda, assume={"n": 4}).time_ps == 4 * 69
    assert simulate(plan, machine=hda, assume={"n": [1, 2]}).time_ps == 2 * 69
    with pytest.raises(TimingError, match=r"depends on the value of 'n'.*assume=\{'n': 8\}"):
        simulate(plan, machine=hda)
    for wrong, message in (
        (99, "assumed to be 99, outside 0..8"),
        ([1, -1], "assumed to be -1"),
        ("four", "takes a number"),
        ([1], "none for unit 1"),
    ):
        with pytest.raises(TimingError, match=message):
            simulate(plan, machine=hda, assume={"n": wrong})


def started(plan: Plan, engine: str, scalars: Any) -> Simulation:
    simulation = Simulation(engine=engine)
    simulation.add(plan, Resources(toy(4), plan), scalars)
    return simulation


@ENGINES
@pytest.mark.parametrize("error", [ValueError("no such value"), KeyboardInterrupt()])
def test_an_error_in_an_answer_comes_out_whole_and_ends_the_run(engine: str, error: BaseException) -> None:
    def scalars(*_: Any) -> int:
        raise error

    simulation = started(everything(), engine, scalars)
    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            simulation.run()
        assert raised.value is error
    assert not plain.FUNCTIONS.answering
    assert started(everything(), engine, Assumed({"times": 1})).run() is not None
