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
    Piece,
    ScheduleError,
    division_for,
    make_schedule,
    positions,
)
from megatile.attention.schedules.bands import visible_columns, visible_pairs, visible_rows
from megatile.attention.schedules.summary import StepWork, schedule_summary
from megatile.collectives.decompositions import DecompositionError
from megatile.core.errors import MegatileError
from megatile.core.placement import local_length, split

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


@given(
    st.integers(0, 40),
    st.integers(1, 9),
    st.sampled_from(["contiguous", "zigzag", "striped"]),
    st.integers(1, 3),
)
def test_layouts_give_every_token_to_one_rank(length, groups, name, heads):
    layout = Layout(name, groups * heads, heads)
    pieces = layout.pieces([length, 5])
    owned = sorted((p.sequence, x) for rank in pieces for p in rank for x in positions([p]))
    assert owned == [(0, x) for x in range(length)] + [(1, x) for x in range(5)]
    assert len(pieces) == groups * heads


def test_layout_of_the_cycles_of_full_attention():
    cycles = make_schedule("hamilton", 3).routes.cycles
    pieces = Layout("cycles", 3, cycles=cycles).pieces([12])
    for i, cycle in enumerate(cycles):
        for j, rank in enumerate(cycle):
            assert pieces[rank][i].start == 2 * (i * 3 + j)


def test_zigzag_layout_example():
    assert [positions(p) for p in Layout("zigzag", 2).pieces([9])] == [[0, 1, 2, 7, 8], [3, 4, 5, 6]]


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


@given(st.integers(1, 9), st.integers(1, 9), st.one_of(st.none(), st.integers(-9, 9)), st.integers(-9, 9))
def test_band_arithmetic_against_counting(rows, columns, left, right):
    mask = Mask(None if left is None else left + 9, right)
    tile = mask.tile(Piece(9, rows), Piece(7, columns), 0)
    distance = (7 + np.arange(columns)[None, :]) - (9 + np.arange(rows)[:, None])
    seen = (distance <= right) & (True if left is None else distance >= -(left + 9))
    if tile is None:
        assert not seen.any()
        return
    assert visible_pairs(tile.band, rows, columns) == seen.sum()
    if seen.any():
        first, end = visible_rows(tile.band, rows, columns)
        assert seen.any(1).nonzero()[0].tolist() == list(range(first, end))
        first, end = visible_columns(tile.band, rows, columns)
        assert seen.any(0).nonzero()[0].tolist() == list(range(first, end))
    assert tile.band.full == seen.all()


def test_hamilton_loads_every_link_equally_and_ring_one():
    for ranks in (2, 3, 4, 5, 6, 8, 16):
        length = ranks * (ranks - 1) * 2
        loads = {}
        for name in ("hamilton", "ring", "direct"):
            schedule = make_schedule(name, ranks)
            pieces = schedule.layout(False).pieces([length])
            division = division_for(schedule.routes, pieces, pieces, Mask(), [length], [length])
            loads[name] = [division.link_tokens(e) for e in range(ranks - 1)]
        share = length // ranks
        for name in ("hamilton", "direct"):
            for load in loads[name]:
                assert len(load) == ranks * (ranks - 1)
                assert set(load.values()) == {share // (ranks - 1)}
        assert all(set(load.values()) == {share} and len(load) == ranks for load in loads["ring"])


MANY = ("ring", "zigzag", "striped", "direct", "hamilton", "hamilton:2", "hamilton:3x3", "hamilton:4x2")


@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 6, 8, 9])
def test_tables_of_all_ranks_are_those_of_each(name, ranks):
    try:
        routes = make_schedule(name, ranks).routes
    except MegatileError:
        return
    for step in range(ranks):
        sources, chunks = routes.all_held(step)
        for rank in range(ranks):
            held = routes.held(step, rank)
            assert list(zip(sources[rank].tolist(), chunks[rank].tolist(), strict=True)) == list(held)
    for exchange in range(ranks - 1):
        table = [x.tolist() for x in routes.all_sends(exchange)]
        for rank in range(ranks):
            sent = [(peer, *held) for peer, held in routes.sends(exchange, rank)]
            assert list(zip(*(x[rank] for x in table), strict=True)) == sent
            came = [(t.peer, *t.held) for t in routes.receives(exchange, rank)]
            to_me = [
                (p, table[1][p][i], table[2][p][i])
                for p in range(ranks)
                for i in range(len(sent))
                if table[0][p][i] == rank
            ]
            assert sorted(came) == sorted(to_me)


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


def test_causal_work_is_balanced_and_needs_two_kernels():
    ranks, length = 8, 8 * 2 * 7 * 3
    schedule = make_schedule("hamilton", ranks)
    pieces = schedule.layout(True).pieces([length])
    division = division_for(schedule.routes, pieces, pieces, Mask.of(True), [length], [length])
    for step in range(1, ranks):
        work = {division.pairs(step, rank) for rank in range(ranks)}
        assert work == {(length // ranks) ** 2 // 2}
        for rank in range(ranks):
            assert len(division.calls(step, rank)) in (1, 2)
    assert all(len(division.calls(0, rank)) == 1 for rank in range(ranks))
    total = sum(division.pairs(step, rank) for step in range(ranks) for rank in range(ranks))
    assert total == length * (length + 1) // 2
    assert division.pairs(3, 0) == (length // ranks) ** 2 // 2
    assert set(division.link_tokens(2).values()) == {length // ranks // (ranks - 1)}


def test_split_and_lengths():
    assert split(10, 4) == [3, 3, 2, 2]
    assert local_length((Piece(0, 3), Piece(9, 2))) == 5


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


# Shares of documents by length in Ki tokens, as MagiAttention's benchmark of varlen attention gives them
# (github.com/SandAI-org/MagiAttention, exps/dist_attn/benchmark: packs up to 64 Ki tokens, and longer ones).
PUBLISHED = {
    "short": [
        (0, 0.25, 0.0766), (0.25, 0.5, 0.1651), (0.5, 0.75, 0.1246), (0.75, 1, 0.0972), (1, 1.5, 0.1324),
        (1.5, 2, 0.0927), (2, 2.5, 0.0720), (2.5, 3, 0.0519), (3, 3.5, 0.0379), (3.5, 4, 0.0264),
        (4, 5, 0.0380), (5, 6, 0.0245), (6, 7, 0.0145), (7, 8, 0.0097), (8, 10, 0.0122), (10, 15, 0.0128),
        (15, 20, 0.0051), (20, 64, 0.0064),
    ],
    "long": [
        (0, 2, 0.16), (2, 4, 0.05), (4, 8, 0.04), (8, 16, 0.06), (16, 32, 0.08), (32, 64, 0.21),
        (64, 128, 0.4), (128, 256, 0.2), (256, 512, 0.05), (512, 1024, 0.04), (1024, 2048, 0.01),
        (2048, 4096, 0.01),
    ],
}  # fmt: skip


def pack_of(kind, total):
    """Lengths of documents: of a published distribution, with a heavy tail, only one."""
    random, lengths = np.random.default_rng(0), []

    def draw():
        if kind not in PUBLISHED:
            return 500 * (1 + random.pareto(1.1)) if kind == "tail" else total
        shares = np.array([share for *_, share in PUBLISHED[kind]])
        low, high, _ = PUBLISHED[kind][random.choice(len(shares), p=shares / shares.sum())]
        return 1024 * random.uniform(low, high)

    while sum(lengths) < total:
        lengths.append(max(1, min(int(draw()), total - sum(lengths))))
    return tuple(lengths)


@pytest.mark.parametrize("kind", ["short", "long", "tail", "one"])
@pytest.mark.parametrize("causal", [False, True])
def test_packs_are_balanced_over_64_ranks(kind, causal):
    lengths = pack_of(kind, 2**19)
    held = Layout("balanced", 64, causal=causal).pieces(lengths)
    work = [
        sum(
            p.length * p.start + p.length * (p.length + 1) / 2 if causal else p.length * lengths[p.sequence]
            for p in own
        )
        for own in held
    ]
    assert max(work) <= 1.05 * sum(work) / 64
    assert {local_length(own) for own in held} == {2**13}
    tokens = sorted((p.sequence, p.start + i) for own in held for p in own for i in range(p.length))
    assert tokens == [(s, i) for s, length in enumerate(lengths) for i in range(length)]
