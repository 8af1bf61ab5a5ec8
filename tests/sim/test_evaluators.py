"""Three evaluators, one result: to the picosecond, for every operation of every unit of random plans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from random_plans import FAST, PATTERNS, REGULAR, random_plan
from toys import ring, toy

from megatile.core.expr import unit
from megatile.hda import HDA
from megatile.plan.build import PlanBuilder
from megatile.plan.execute import execute
from megatile.plan.model import Plan
from megatile.sim import TimingError, simulate
from megatile.sim.arrays import NotRegular
from megatile.sim.evaluate import arrays, bucket, fill, run_ahead
from megatile.sim.pending import known
from megatile.sim.program import CONSUME, COPY, GENERAL, LOAD, PUT, RUN, SEND, SIGNAL, WAIT, Program
from megatile.sim.runahead import RunAhead
from megatile.sim.times import Times
from megatile.sim.unit import UnitState
from megatile.timing.faults import Faults
from megatile.timing.resources import Resources

machines = st.builds(
    lambda topology, duplex, granule, control: {
        "topology": topology,
        "control": control,
        "network": {"duplex": duplex, **({"granule": "32 B"} if granule else {})},
    },
    st.sampled_from(["ring", "line", "switch", "full_mesh"]),
    st.sampled_from(["full", "half"]),
    st.booleans(),
    st.booleans(),
)
many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def same(a: Times, b: Times) -> None:
    assert a.end_ps == b.end_ps
    assert a.start == b.start
    assert a.end == b.end


def no_scalars(*_: object) -> int:
    raise AssertionError("these plans read no scalars")


def run(evaluator, plan: Plan, hda: HDA, faults: Faults, **options) -> Times:
    return evaluator(Resources(hda, plan, faults), no_scalars, **options)[1]


@many
@given(st.integers(0, 10**6), machines, st.booleans())
def test_run_ahead_equals_the_plain_event_queue(seed: int, machine, jitter: bool) -> None:
    plan = random_plan(seed)
    hda = toy(plan.units, **machine)
    faults = Faults(jitter=seed if jitter else None, straggler=((0, 2.5),) if seed % 3 == 0 else ())
    ahead = run(run_ahead, plan, hda, faults, record=True)
    assert ahead.stuck is None
    oracle = run(bucket, plan, hda, faults)
    assert oracle.complete
    same(ahead, oracle)
    assert ahead.choices == oracle.choices


def clocks(plan: Plan, hda: HDA, faults: Faults, record: bool) -> tuple[int, list[int], list[list[int]]]:
    """End of a run-ahead evaluation, and of every unit: its clock and when its engines were free."""
    machine = Resources(hda, plan, faults)
    program = Program(machine)
    engines = len(program.engine_names)
    states = [UnitState(u, machine.start_ps(u), engines, []) for u in range(plan.units)]
    fill(program, [s.operations for s in states], no_scalars, record)
    times = RunAhead(program, states, record=record).run()
    assert times.stuck is None
    return times.end_ps, [s.now for s in states], [[known(t) for t in s.free] for s in states]


LOADS_THEN_SENDS = (246, {"topology": "ring", "control": False, "network": {"duplex": "half"}}, False)
"""The sends overtake the loads, which may not hold them up."""


@many
@given(st.integers(0, 10**6), machines, st.booleans())
@example(*LOADS_THEN_SENDS)
def test_what_is_not_recorded_takes_the_same_time(seed: int, machine, slow: bool) -> None:
    plan = random_plan(seed, patterns=FAST, rounds=2)
    hda = toy(plan.units, **machine)
    faults = Faults(straggler=((0, 2.5),)) if slow else Faults()
    quick = clocks(plan, hda, faults, record=False)
    assert quick == clocks(plan, hda, faults, record=True)
    assert quick[0] == run(bucket, plan, hda, faults).end_ps


@many
@given(st.integers(0, 10**6), machines, st.booleans())
def test_loads_counted_in_the_run_are_those_of_a_recorded_one(seed: int, machine, fast: bool) -> None:
    plan = random_plan(seed, patterns=FAST if fast else PATTERNS, rounds=3)
    hda = toy(plan.units, **machine)
    counted, recorded = simulate(plan, machine=hda, loads=True), simulate(plan, machine=hda)
    assert recorded.loads is None
    assert counted.links == pytest.approx(recorded.links)
    for engine in ("tensor", "vector"):
        assert counted.work_ps(engine) == recorded.work_ps(engine)


def test_a_message_in_granules_is_counted_without_a_record() -> None:
    plan = ring(4, 3)
    hda = toy(4, "switch", network={"granule": "32 B"})
    counted = simulate(plan, machine=hda, loads=True)
    assert counted.loads is not None
    assert sum(counted.links.values()) > 0
    assert "recorded" not in vars(counted)


def test_fast_plans_use_the_fast_operations() -> None:
    kinds: set[int] = set()
    for seed in range(60):
        plan = random_plan(seed, patterns=FAST)
        machine = Resources(toy(plan.units), plan, Faults())
        courses: list[list[tuple]] = [[] for _ in range(plan.units)]
        fill(Program(machine), courses, no_scalars, record=False)
        kinds |= {op[0] for course in courses for op in course}
    assert kinds >= {LOAD, PUT, SIGNAL, WAIT, CONSUME, COPY, RUN, SEND, GENERAL}


@pytest.mark.parametrize(("sent", "stands_still"), [("near", True), ("other", False)])
def test_a_unit_stands_still_only_where_nothing_may_overtake(sent: str, stands_still: bool) -> None:
    """What is made of a load waits for it; another tile may be sent before the load has its turn."""
    b = PlanBuilder("feed", scale="core", units=4)
    far = b.tile("far", (16,), "f32", memory="common", role="input")
    tiles = {name: b.tile(name, (16,), "f32", memory="local") for name in ("near", "other")}
    c = b.channel("c", source=(unit - 1) % 4, slot_bytes=64, memory="local")
    b.copy(tiles["near"], far, fresh=True)
    b.send(c, tiles[sent], to=(unit + 1) % 4)
    b.receive(c, (16,), "f32", into=tiles["near"])
    plan = b.finish()
    courses: list[list[tuple]] = [[] for _ in range(4)]
    fill(Program(Resources(toy(4), plan, Faults())), courses, no_scalars, record=False)
    assert (courses[0][0][0] == LOAD) is stands_still
    quick = clocks(plan, toy(4), Faults(), record=False)
    assert quick == clocks(plan, toy(4), Faults(), record=True)
    assert quick[0] == run(bucket, plan, toy(4), Faults()).end_ps


@many
@given(st.integers(0, 10**6), st.sampled_from(["ring", "full_mesh"]), st.booleans())
def test_arrays_equal_run_ahead_on_regular_plans(seed: int, topology: str, slow: bool) -> None:
    plan = random_plan(seed, patterns=REGULAR, memories=("local",), least=3, rounds=3)
    hda = toy(plan.units, topology)
    faults = Faults(straggler=((1, 3.0),)) if slow else Faults()
    try:
        fast = run(arrays, plan, hda, faults, record=True)
    except NotRegular:
        return
    same(fast, run(run_ahead, plan, hda, faults, record=True))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_data_in_simulated_order_is_what_execute_gives(seed: int) -> None:
    plan = random_plan(seed)
    rng = np.random.default_rng(seed)
    shape = next(t.shape for t in plan.tiles if t.name == "x")
    x = rng.integers(-2, 3, (plan.units, *shape)).astype("f4")
    r = simulate(plan, {"x": x}, machine=toy(plan.units))
    again = execute(plan, {"x": x}, order=r)
    for name, array in again.items():
        np.testing.assert_array_equal(r.outputs[name], array)


@pytest.mark.parametrize("n", [2, 3, 8, 17])
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_ring_all_reduce_is_right_and_the_same_by_all(n: int, slots: int) -> None:
    plan, hda = ring(n, 16, slots), toy(n)
    x = np.random.default_rng(n).integers(-9, 9, (n, n, 16)).astype("f4")
    engines = ("run-ahead", "bucket") if n == 2 else ("run-ahead", "arrays", "bucket")
    found = {e: simulate(plan, {"x": x}, machine=hda, engine=e) for e in engines}
    assert len({r.time_ps for r in found.values()}) == 1
    for r in found.values():
        np.testing.assert_array_equal(r.outputs["x"], np.broadcast_to(x.sum(0), x.shape))


def test_the_evaluator_is_chosen_by_itself() -> None:
    assert simulate(ring(8, 4), machine=toy(8)).engine == "run-ahead"
    large = simulate(ring(64, 4), machine=toy(64))
    assert large.engine == "arrays"
    assert large.time_ps == simulate(ring(64, 4), machine=toy(64), engine="run-ahead").time_ps
    shared = simulate(ring(64, 4, memory="common"), machine=toy(64))
    assert shared.engine == "run-ahead"


def test_forcing_arrays_on_an_irregular_plan_says_why() -> None:
    with pytest.raises(TimingError, match=r"cannot be evaluated by arrays: two messages meet on a link"):
        simulate(ring(4, 4, memory="common"), machine=toy(4), engine="arrays")
    with pytest.raises(TimingError, match=r"no evaluator 'array'.*did you mean 'arrays'"):
        simulate(ring(4, 4), machine=toy(4), engine="array")


def test_runs_repeat_byte_for_byte(tmp_path) -> None:
    plan, hda = random_plan(5), toy(6)
    paths = [simulate(plan, machine=hda).write_trace(tmp_path / f"{i}.json.gz") for i in range(2)]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_plan_larger_than_the_machine_is_refused() -> None:
    with pytest.raises(TimingError, match=r"needs 8 units of 'core', machine 'toy' has 4"):
        simulate(ring(8, 4), machine=toy(4))
