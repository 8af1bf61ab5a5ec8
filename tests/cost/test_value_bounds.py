"""``cost/value_bounds.py``: the least and the most that a plan may have to do, where integers that it reads
decide."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.cost.shared import AHBM

from megatile.core.expr import maximum, minimum, select, unit
from megatile.cost.price import lower_bound, price
from megatile.plan.build import PlanBuilder
from megatile.plan.model import PlanError
from megatile.sim.simulate import simulate


def data_decides(seed):
    """A plan of two units in which integers that are read decide how often, how much and whether to work."""
    rng = random.Random(seed)
    b = PlanBuilder("data", scale="pe", units=2)
    n = b.tile("n", (2,), "i32", memory="tcm", role="input")
    x = b.tile("x", (256,), "f32", memory="tcm", role="inout")
    y = b.tile("y", (256,), "f32", memory="hbm", role="inout")
    queue = b.channel("queue", source=1 - unit, slot_bytes=1024, memory="tcm")
    read = [b.read_scalar(n[0:1], bound=20), b.read_scalar(n[1:2], bound=7)]

    def number():
        k = rng.choice(read)
        forms = [
            k,
            20 - k,
            k * 3 % 5,
            minimum(k, 3) + unit,
            maximum(4 - k, 0),
            k // 2 + 1,
            select(k > 3, 2, k),
        ]
        return rng.choice(forms)

    def work():
        size = rng.choice(read) * 10
        (
            lambda: b.compute("neg", x, [x]),
            lambda: b.copy(y, x),
            lambda: b.compute("add", x[0:size], [x[0:size], x[0:size]]),
        )[rng.randrange(3)]()

    for _ in range(4):
        kind = rng.randrange(4)
        if kind == 0:
            b.send(queue, x, to=1 - unit)
            b.compute("add", x, [x, b.receive(queue, (256,), "f32")])
        elif kind == 1:
            with b.when(number() > 2):
                work()
        else:
            with b.loop(*((0, number()) if kind == 2 else (number(), 21))):
                work()
    return b.finish()


@pytest.mark.parametrize("seed", range(12))
def test_bounds_hold_whatever_is_read(seed):
    plan = data_decides(seed)
    found = price(plan, AHBM)
    zeros = np.zeros((2, 256), "f4")
    for values in ((0, 0), (1, 7), (5, 2), (20, 3)):
        inputs = {"n": np.tile(np.array(values, "i4"), (2, 1)), "x": zeros, "y": zeros}
        time = simulate(plan, inputs, machine=AHBM).time_ps
        assert found.lower_ps <= time <= found.upper_ps, values
        exact = price(plan, AHBM, assume=dict(zip(("scalar", "scalar_1"), values, strict=True)))
        assert found.lower_ps <= exact.lower_ps <= time <= exact.upper_ps <= found.upper_ps, values


def test_what_has_no_least_or_most_needs_a_value():
    b = PlanBuilder("p", scale="pe", units=2)
    n = b.tile("n", (1,), "i32", memory="tcm", role="input")
    queue = b.channel("queue", source=1 - unit, slot_bytes=4, memory="tcm")
    k = b.read_scalar(n, bound=1)
    with b.when(k):
        b.send(queue, n, to=1 - unit)
        b.receive(queue, (1,), "i32")
    plan = b.finish()
    with pytest.raises(
        PlanError, match=r"the value read into 'scalar' changes more .* assume=\{'scalar': …\}"
    ):
        price(plan, AHBM)
    times = [simulate(plan, machine=AHBM, assume={"scalar": value}).time_ps for value in (0, 1)]
    assert times[0] < times[1]
    for value, time in enumerate(times):
        found = price(plan, AHBM, assume={"scalar": value})
        assert found.lower_ps <= time <= found.upper_ps
    assert lower_bound(plan, AHBM) <= times[0]
