"""``timing/faults.py``: faults around a simulation."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sim.toys import ring, toy

from megatile.core.errors import RouteError
from megatile.core.expr import unit
from megatile.hda.routing import Link
from megatile.plan.build import PlanBuilder
from megatile.sim import FaultError, faults, simulate


def data(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(-9, 9, (n, n, 16)).astype("f4")


FAULTS = {
    "slow_link": {"slow_link": {("core:1", "core:2"): 4.0}},
    "link_down": {"link_down": [("core:1", "core:2")]},
    "jitter": {"jitter": 3},
    "straggler": {"straggler": {2: 5.0}},
}


@pytest.mark.parametrize("name", FAULTS)
def test_results_stay_right_and_times_grow(name: str) -> None:
    n = 5
    plan, hda, x = ring(n, 16), toy(n), data(5)
    sound = simulate(plan, machine=hda)
    with faults(**FAULTS[name]):
        ill = simulate(plan, {"x": x}, machine=hda)
        oracle = simulate(plan, machine=hda, engine="compiled")
    assert ill.time_ps > sound.time_ps
    assert oracle.time_ps == ill.time_ps
    np.testing.assert_array_equal(ill.outputs["x"], np.broadcast_to(x.sum(0), x.shape))
    # What is recorded later is the run under the faults that held then.
    assert ill.trace.end_ps == ill.time_ps
    assert simulate(plan, machine=hda).time_ps == sound.time_ps


def test_a_slow_link_is_slow_by_its_factor() -> None:
    """256 bytes over a link of a quarter of its speed take 3 * 256 longer."""
    from tests.sim.test_tables import messages

    plan, hda = messages(2, [(0, 1)]), toy(2, "line")
    with faults(slow_link={("core:0", "core:1"): 4.0}):
        assert simulate(plan, machine=hda).time_ps == 396 + 3 * 256
    with faults(slow_link={("core:1", "core:0"): 4.0}):
        assert simulate(plan, machine=hda).time_ps == 396


def test_a_detour_is_longer() -> None:
    """1→2 is down: the message goes the other way round, n-1 links instead of one."""
    from tests.sim.test_tables import messages

    hda = toy(5)
    plan = messages(5, [(1, 2)])
    with faults(link_down=[("core:1", "core:2")]):
        assert simulate(plan, machine=hda).time_ps == 396 + 3 * 100


def test_jitter_repeats_with_its_seed() -> None:
    plan, hda = ring(5, 16), toy(5)
    times = []
    for seed in (1, 1, 2):
        with faults(jitter=seed):
            times.append(simulate(plan, machine=hda).time_ps)
    assert times[0] == times[1] != times[2]


def test_what_cannot_be_reached_is_named() -> None:
    with (
        faults(link_down=[("core:1", "core:2")]),
        pytest.raises(
            RouteError, match=r"core:\d cannot reach core:\d: net has no route left .*\(down: 1->2\)"
        ),
    ):
        simulate(ring(4, 4), machine=toy(4, "line"))


def test_a_copy_through_a_memory_above_needs_no_link() -> None:
    """The copies lie in the memory of the box: no link between cores is on their way."""
    b = PlanBuilder("gets", scale="core", units=4)
    far = b.tile("far", (16,), "f32", memory="common", role="inout")
    b.copy(b.tile("got", (16,), "f32", memory="common"), far.at((unit + 2) % 4))
    plan, hda = b.finish(), toy(4, "line")
    with faults(link_down=[("core:2", "core:1")]):
        assert simulate(plan, machine=hda).time_ps == simulate(plan, machine=hda, engine="compiled").time_ps


def test_faults_that_make_no_sense() -> None:
    hda, plan = toy(3), ring(3, 4)
    with faults(link_down=["core:1"]), pytest.raises(FaultError, match="names no link"):
        simulate(plan, machine=hda)
    with faults(link_down=[Link("net", 0, 999)]), pytest.raises(FaultError, match="is not a link"):
        simulate(plan, machine=hda)
    with faults(link_down=[("core:1", "core:1")]), pytest.raises(FaultError, match="no link between"):
        simulate(plan, machine=hda)
    with pytest.raises(FaultError, match="would make it faster"), faults(straggler={0: 0.5}):
        pass
    for wrong in (
        {"slow_link": {("core:0", "core:1"): float("inf")}},
        {"slow_link": {("core:0", "core:1"): "slow"}},
        {"straggler": {0: float("inf")}},
        {"straggler": {"core:0": 2.0}},
        {"straggler": {-1: 2.0}},
        {"jitter": "seed"},
        {"jitter": 1.5},
    ):
        with pytest.raises(FaultError), faults(**wrong):
            pass
    with (
        faults(straggler={3: 2.0}),
        pytest.raises(FaultError, match="not a unit of plan 'ring', which has 3"),
    ):
        simulate(plan, machine=hda)
