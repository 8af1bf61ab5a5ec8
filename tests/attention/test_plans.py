"""Schedules as Plans: exact by the NumPy executor, small, and the same in text and JSON."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.attention.attention_matrix import WHOLE_MATRIX, executor_cases, long_case
from tests.attention.attention_reference import attention, attention_gradients, visible

from megatile.attention.plans import Divided, Problem, attention_plan
from megatile.attention.plans.tables import Key, shortest
from megatile.attention.schedules import ScheduleError, make_schedule
from megatile.core.expr import Const, Symbol, unit
from megatile.plan.check import check
from megatile.plan.execute import execute
from megatile.plan.model import Plan
from megatile.sim import simulate

SIMPLE = ["ring", "zigzag", "striped", "direct", "hamilton"]


TOLERANCE = 1e-5
"""Of outputs, log-sum-exps and gradients, relative to their scale; where that is large, absolute."""


def assert_close(found, want):
    """Relative to the largest value or absolute, whichever asks for more."""
    scale = float(np.max(abs(want), where=np.isfinite(want), initial=0.0))
    np.testing.assert_allclose(found, want, rtol=0, atol=TOLERANCE * min(scale, 1.0))


def seen_by(problem):
    """Which key each query sees; packed sequences see themselves only."""
    seen = visible(problem.mask, problem.length, problem.keys)
    if problem.packed:
        sequence = np.repeat(np.arange(len(problem.packed)), problem.packed)
        seen = seen & (sequence[:, None] == sequence)
    return seen


def assert_gradients_exact(name, ranks, problem, checked=True):
    """One plan for forward and backward: outputs and all gradients are those of plain attention."""
    schedule = make_schedule(name, ranks)
    plan = attention_plan(schedule, problem, backward=True)
    if checked:
        check(plan)
    rng = np.random.default_rng(1)
    q, d_out = rng.normal(size=(2, 1, problem.length, problem.heads, problem.dim)).astype("f4")
    k, v = rng.normal(size=(2, 1, problem.keys, problem.groups, problem.dim)).astype("f4")
    divided = Divided(schedule, problem)
    results = execute(plan, divided.inputs(q, k, v, d_out))
    seen = seen_by(problem)
    wide = [x[0].astype("f8") for x in (q, k, v)]
    out, lse, _ = attention(*wide, seen, problem.factor)
    for found, want in zip(divided.outputs(results), (out, lse.T), strict=True):
        assert_close(found[0], want)
    wanted = attention_gradients(*wide, seen, problem.factor, out, lse, d_out[0].astype("f8"))
    for found, want in zip(divided.gradients(results), wanted, strict=True):
        assert_close(found[0], want)


def assert_exact(name, ranks, problem, seed=0, checked=True):
    """The plan's result is plain attention, outputs and log-sum-exps."""
    schedule = make_schedule(name, ranks)
    plan = attention_plan(schedule, problem)
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(problem.batch, problem.length, problem.heads, problem.dim)).astype("f4")
    k, v = rng.normal(size=(2, problem.batch, problem.keys, problem.groups, problem.dim)).astype("f4")
    if checked:
        check(plan)
    divided = Divided(schedule, problem)
    out, lse = divided.outputs(execute(plan, divided.inputs(q, k, v)))
    seen = seen_by(problem)
    for b in range(problem.batch):
        wide = [x[b].astype("f8") for x in (q, k, v)]
        want, want_lse, _ = attention(*wide, seen, problem.factor)
        assert_close(out[b], want)
        assert_close(lse[b], want_lse.T)
    return plan


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ranks", range(1, 10))
def test_every_schedule_is_exact(ranks, causal):
    for name in SIMPLE:
        even = Problem(2 * ranks * max(1, ranks - 1), 2, 4, 1, causal=causal, dtype="f32")
        uneven = Problem(5 * ranks + 3, 4, 4, 2, causal=causal, dtype="f32")
        assert_exact(name, ranks, even, checked=False)
        assert_exact(name, ranks, uneven, checked=ranks in (3, 4))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("name", "ranks"),
    [("hamilton:2x2", 4), ("hamilton:2x3", 6), ("hamilton:3x2", 6), ("hamilton:4x2", 8), ("hamilton:2", 5),
     ("ulysses", 4), ("ulysses", 3), ("ulysses:2+ring", 6), ("ulysses:2+hamilton", 8),
     ("ulysses:3+direct", 6)],
)  # fmt: skip
def test_nodes_and_heads_are_exact(name, ranks, causal):
    """Uneven lengths, GQA; three ranks tear four heads apart."""
    assert_exact(name, ranks, Problem(7 * ranks + 1, 4, 4, 2, batch=2, causal=causal, dtype="f32"))


@pytest.mark.parametrize("case", executor_cases(), ids=lambda case: case.label)
def test_many_ranks_are_exact_forward_and_backward(case):
    schedule = make_schedule(case.schedule, case.ranks)
    heads = 1 if long_case(case) else max(2, schedule.heads)  # 8064 tokens are enough to hold in memory
    equal = case.ranks * schedule.routes.chunks * (2 if case.causal else 1)
    length, kv_heads = (equal, heads) if case.lengths == "equal" else (2 * case.ranks + 5, heads // 2)
    problem = Problem(length, heads, 2, kv_heads, causal=case.causal, dtype="f32")
    assert_gradients_exact(case.schedule, case.ranks, problem, checked=False)


def test_a_thousand_merges_are_exact():
    """Equal chunks of one row each: every row merges 962 results (3970 in the whole matrix)."""
    ranks = 64 if WHOLE_MATRIX else 32
    assert_gradients_exact("direct", ranks, Problem(ranks * (ranks - 1), 1, 2, dtype="f32"), checked=False)


def test_a_timed_run_with_data_computes_the_same():
    schedule, problem = make_schedule("hamilton", 8), Problem(61, 4, 4, 2, causal=True, dtype="f32")
    plan, divided = attention_plan(schedule, problem, backward=True), Divided(schedule, problem)
    rng = np.random.default_rng(3)
    q, d_out = rng.normal(size=(2, 1, 61, 4, 4)).astype("f4")
    inputs = divided.inputs(q, *rng.normal(size=(2, 1, 61, 2, 4)).astype("f4"), d_out)
    timed, expected = simulate(plan, inputs, machine="mi300x-8"), execute(plan, inputs)
    for name, array in expected.items():
        np.testing.assert_array_equal(timed.outputs[name], array)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ranks", range(1, 10))
def test_gradients_are_exact(ranks, causal):
    for name in SIMPLE:
        assert_gradients_exact(name, ranks, Problem(5 * ranks + 3, 4, 4, 2, causal=causal, dtype="f32"))


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("hamilton:2x3", 6), ("hamilton:4x2", 8), ("ulysses", 3), ("ulysses:2+hamilton", 8), ("hamilton", 9)],
)
def test_gradients_over_nodes_and_heads_are_exact(name, ranks):
    assert_gradients_exact(name, ranks, Problem(5 * ranks + 3, 4, 4, 2, causal=True, dtype="f32"))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([*SIMPLE, "hamilton:2"]),
    st.integers(3, 5),
    st.integers(1, 23),
    st.integers(1, 23),
    st.sampled_from([-1, 0, 2, 7]),
    st.sampled_from([-1, 0, 3]),
    st.booleans(),
)
def test_windows_cross_lengths_and_tiny_sequences(name, ranks, length, keys, left, right, causal):
    problem = Problem(length, 2, 2, kv_length=keys, causal=causal, window=(left, right), dtype="f32")
    assert_exact(name, ranks, problem, checked=False)


@pytest.mark.parametrize("name", [*SIMPLE, "ulysses:2+zigzag"])
def test_packed_sequences_see_themselves_only(name):
    problem = Problem(97, 4, 8, 2, causal=True, dtype="f32", packed=(40, 1, 33, 23))
    assert_gradients_exact(name, 4, problem)


def test_a_plan_is_one_stream_that_does_not_grow_with_a_ring():
    sizes = []
    for ranks in (8, 32, 128):
        plan = attention_plan("zigzag", Problem(16 * ranks, 2, 4, causal=True, dtype="f32"), ranks=ranks)
        assert len(plan.streams) == 1
        sizes.append(len(str(plan)))
    assert max(sizes) < 1.1 * min(sizes)


def test_plans_survive_text_and_json():
    plan = attention_plan("hamilton", Problem(61, 4, 4, 2, causal=True), ranks=5)
    assert Plan.from_json(plan.to_json()) == plan
    assert Plan.from_text(str(plan)) == plan


def test_work_is_counted_by_visible_pairs():
    """Causal attention does half of the work, evenly divided by the zig-zag layout."""
    from megatile.plan.model import Compute, statements

    def flops(causal):
        plan = attention_plan("zigzag", Problem(64, 2, 4, causal=causal, dtype="f32"), ranks=1)
        commands = [s for s in statements(plan.streams[0].body) if isinstance(s, Compute)]
        (kernel,) = [c for c in commands if c.operation == "attention"]
        return kernel.work.flops.evaluate({"unit": 0})

    assert flops(False) == 4 * 64 * 64 * 2 * 4
    assert flops(True) == 4 * (64 * 65 // 2) * 2 * 4


def test_wrong_problems_are_refused():
    with pytest.raises(ScheduleError, match="4 query heads cannot share 3"):
        Problem(8, 4, 4, 3)
    with pytest.raises(ScheduleError, match="divides heads over 4 ranks, there are 2"):
        attention_plan("ulysses", Problem(8, 2, 4), ranks=4)
    with pytest.raises(ScheduleError, match="extents must be at least 1, got length=0"):
        Problem(0)


@given(st.integers(2, 6), st.integers(1, 5), st.data())
def test_shortest_expressions_have_the_numbers_asked_for(ranks, steps, data):
    numbers = np.array(
        data.draw(
            st.lists(
                st.lists(st.integers(0, 3), min_size=steps, max_size=steps), min_size=ranks, max_size=ranks
            )
        )
    )
    where = np.array(
        data.draw(
            st.lists(st.lists(st.booleans(), min_size=steps, max_size=steps), min_size=ranks, max_size=ranks)
        )
    )
    step = Symbol("step")
    r, s = np.arange(ranks)[:, None], np.arange(steps)[None, :]
    found = shortest(numbers, [Key(step, s), Key(unit, r), Key(unit * steps + step, r * steps + s)], where)
    for i, j in zip(*np.nonzero(where), strict=True):
        assert found.evaluate({"unit": int(i), "step": int(j)}) == numbers[i, j]


def test_arithmetic_is_preferred_to_tables():
    key = Key(unit, np.arange(5)[:, None])
    for numbers, text in [
        ([1, 2, 3, 4, 0], "(unit + 1) % 5"),
        ([3, 4, 5, 6, 7], "unit + 3"),
        ([0, 7, 14, 21, 28], "unit * 7"),
        ([2, 0, 1, 4, 3], "table((2, 0, 1, 4, 3,), unit)"),
    ]:
        assert str(shortest(np.array(numbers)[:, None], [key])) == text
    assert shortest(np.full((5, 1), 9), [key]) == Const(9)
