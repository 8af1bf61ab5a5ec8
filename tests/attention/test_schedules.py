"""Schedules as data: layouts, bands, routes, and exactness of every schedule by a NumPy executor."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.attention.attention_reference import Run, attention, attention_gradients, visible

from megatile.attention.schedules import (
    CycleRoutes,
    Layout,
    LayoutError,
    Mask,
    ScheduleError,
    division_for,
    make_schedule,
)
from megatile.attention.schedules.summary import StepWork, schedule_summary
from megatile.collectives.decompositions import DecompositionError
from megatile.core.errors import MegatileError

SIMPLE = ["ring", "zigzag", "striped", "direct", "hamilton"]


def run_against_reference(name, ranks, mask, q_length, k_length, heads=(2, 1), dim=3, seed=0):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(q_length, heads[0], dim))
    k, v = rng.normal(size=(2, k_length, heads[1], dim))
    d_out = rng.normal(size=q.shape)
    seen = visible(mask, q_length, k_length)
    out, lse, _ = attention(q, k, v, seen, 0.5)
    run = Run(make_schedule(name, ranks), mask, q, k, v, 0.5)
    np.testing.assert_allclose(run.forward(), out, rtol=0, atol=1e-11)
    expected = attention_gradients(q, k, v, seen, 0.5, out, lse, d_out)
    for got, want in zip(run.backward(d_out), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-11)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.parametrize("name", SIMPLE)
def test_every_schedule_is_exact(name, ranks, causal):
    mask = Mask.of(causal)
    run_against_reference(name, ranks, mask, 4 * ranks, 4 * ranks)
    run_against_reference(name, ranks, mask, 5 * ranks + 3, 5 * ranks + 3, heads=(4, 2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "name", ["hamilton:2x2", "hamilton:2x3", "hamilton:3x2", "hamilton:4x2", "hamilton:5x3"]
)
def test_nodes_and_paths_are_exact(name, causal):
    m, u = map(int, name.split(":")[1].split("x"))
    run_against_reference(name, m * u, Mask.of(causal), 7 * m * u + 1, 7 * m * u + 1)


@pytest.mark.parametrize(
    ("name", "ranks", "masks"),
    [
        ("hamilton", 16, (False, True)),
        ("direct", 16, (False, True)),
        ("hamilton:8x2", 16, (False, True)),
        ("hamilton", 24, (False, True)),
        ("hamilton", 32, (False, True)),
        ("hamilton:8x4", 32, (False, True)),
        ("zigzag", 32, (True,)),
        ("hamilton", 64, (True,)),
        ("hamilton:8x8", 64, (False, True)),
    ],
)
def test_many_ranks_are_exact(name, ranks, masks):
    length = 2 * ranks + 5 if ranks == 64 else 4 * ranks + 5
    for causal in masks:
        run_against_reference(name, ranks, Mask.of(causal), length, length, heads=(1, 1), dim=2)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([*SIMPLE, "hamilton:2"]),
    st.integers(3, 6),
    st.integers(1, 23),
    st.integers(1, 23),
    st.sampled_from([-1, 0, 2, 7]),
    st.sampled_from([-1, 0, 3]),
    st.booleans(),
)
def test_windows_cross_lengths_and_tiny_sequences(name, ranks, q_length, k_length, left, right, causal):
    run_against_reference(
        name, ranks, Mask.of(causal, (left, right)), q_length, k_length, heads=(1, 1), dim=2
    )


def test_unknown_names_are_explained():
    with pytest.raises(LayoutError, match="did you mean 'zigzag'"):
        Layout("zigzg", 2)
    with pytest.raises(ScheduleError, match="did you mean 'hamilton'"):
        make_schedule("hamiltonian", 4)
    for bad, ranks, message in [
        ("hamilton:4x2", 6, "is for 8 ranks"),
        ("ring:3", 4, "no argument"),
        ("hamilton:x", 4, "unknown"),
        ("ulysses:3", 8, r"one of \[1, 2, 4, 8\]"),
        ("ulysses:2+ulysses:2+ring", 8, "twice"),
        ("ring", 0, "at least one"),
    ]:
        with pytest.raises(ScheduleError, match=message):
            make_schedule(bad, ranks)
    with pytest.raises(DecompositionError, match="does not visit"):
        CycleRoutes.along([[0, 0, 1]], 3)


MANY = ("ring", "zigzag", "striped", "direct", "hamilton", "hamilton:2", "hamilton:3x3", "hamilton:4x2")


@given(
    st.sampled_from(MANY),
    st.integers(1, 9),
    st.lists(st.integers(0, 60), min_size=1, max_size=3),
    st.sampled_from([Mask(), Mask(right=0), Mask(5, 0), Mask(3, 4), Mask(left=0), Mask(0, 0)]),
    st.integers(0, 5),
)
def test_work_of_all_ranks_at_once(name, ranks, lengths, mask, more):
    try:
        schedule = make_schedule(name, ranks)
    except MegatileError:
        return
    layout = schedule.layout(mask.right == 0)
    keys = [length + more for length in lengths]
    division = division_for(schedule.routes, layout.pieces(lengths), layout.pieces(keys), mask, lengths, keys)
    work = StepWork(division)
    for step in range(ranks):
        assert work.pairs(step).tolist() == [division.pairs(step, rank) for rank in range(ranks)]


@pytest.mark.parametrize("length", [10**11, 10**18])
def test_work_of_any_length_is_counted_exactly(length):
    ranks = 2
    for causal in (False, True):
        steps = schedule_summary(make_schedule("hamilton", ranks), length, causal)["steps"]
        each = [step["visible pairs per rank"] for step in steps]
        pairs = sum(least + most for least, *_, most in (found * 2 for found in each))
        assert pairs == (length * (length + 1) // 2 if causal else length**2)
    with pytest.raises(MegatileError, match="too many to count"):
        schedule_summary(make_schedule("hamilton", ranks), 100 ** length.bit_length())


INNER = r"(ring|zigzag|striped|direct|auto|hamilton(:[0-9]{1,9}(x[0-9]{1,9})?)?)"
GRAMMAR = rf"{INNER}|ulysses(:[0-9]{{1,9}}(\+{INNER})?)?"
NUMBERS = st.integers(0, 12).map(str)
HAMILTON = st.one_of(
    st.just("hamilton"),
    st.builds("hamilton:{}".format, NUMBERS),
    st.builds("hamilton:{}x{}".format, NUMBERS, NUMBERS),
)
SIMPLE_NAMES = st.sampled_from(["ring", "zigzag", "striped", "direct", "auto"]) | HAMILTON
NAMES = st.one_of(
    SIMPLE_NAMES,
    st.just("ulysses"),
    st.builds("ulysses:{}".format, NUMBERS),
    st.builds("ulysses:{}+{}".format, NUMBERS, SIMPLE_NAMES),
)


def outcome(name, ranks):
    """The schedule of a name, or None where it is refused in words."""
    try:
        return make_schedule(name, ranks)
    except (ScheduleError, DecompositionError):
        return None


def assert_read_as_written(name, ranks):
    """What is not in the grammar is refused; a schedule's own name makes it again."""
    found = outcome(name, ranks)
    if found is None:
        return
    assert re.fullmatch(GRAMMAR, name.strip().lower()), name
    assert re.fullmatch(GRAMMAR, found.name)
    assert found.ranks == ranks
    assert make_schedule(found.name, ranks) == found
    assert make_schedule(f" {name.upper()}\n", ranks) == found


@settings(max_examples=300, deadline=None)
@given(NAMES, st.integers(1, 12))
def test_good_names_are_read_as_written(name, ranks):
    assert_read_as_written(name, ranks)


@settings(max_examples=300, deadline=None)
@given(NAMES, st.integers(1, 12), st.data())
def test_one_wrong_character_is_not_overlooked(name, ranks, data):
    at = data.draw(st.integers(0, len(name)))
    cut = data.draw(st.integers(0, 2))
    wrong = data.draw(
        st.sampled_from(["", ":", "+", "x", "0", "-1", " ", "²", "٣", "ring", "."]) | st.text(max_size=3)
    )
    assert_read_as_written(name[:at] + wrong + name[at + cut :], ranks)


@given(
    st.text(alphabet="ringulyseshamto:+x0123456789 ", max_size=30) | st.text(max_size=10), st.integers(1, 9)
)
def test_any_text_is_a_name_or_refused(name, ranks):
    assert_read_as_written(name, ranks)


@pytest.mark.parametrize(
    ("name", "told"),
    [("ulysses:2+", "write ulysses, ulysses:2 or ulysses:2[+]ring"), ("ulysses:+ring", "write ulysses"),
     ("ulysses:", "'ulysses:' is incomplete"), ("ring:", "write ring"),
     ("hamilton:", "write hamilton, hamilton:3"), ("hamilton:²", "is unknown"),
     ("hamilton:" + "9" * 5000, "is unknown"), ("ulysses:2+ ring", "is unknown"),
     ("ulysses:3+ring", r"heads over one of \[1, 2, 4\]"), ("ulysses:2+rong", "did you mean 'ring'"),
     ("ring:2", "takes no argument"), (3, "called by a name, got 3"), (None, "got None")],
)  # fmt: skip
def test_malformed_names_are_one_clear_error(name, told):
    with pytest.raises(ScheduleError, match=told):
        make_schedule(name, 4)


def test_ranks_are_a_number():
    for ranks in (0, -1, "4", 2.5, None):
        with pytest.raises(ScheduleError, match="at least one rank"):
            make_schedule("ring", ranks)
