"""``attention/schedules/pieces.py``: layouts divide sequences over ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from megatile.attention.schedules import Layout, Piece, make_schedule, positions
from megatile.core.placement import local_length, split


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


def test_split_and_lengths():
    assert split(10, 4) == [3, 3, 2, 2]
    assert local_length((Piece(0, 3), Piece(9, 2))) == 5


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
            if kind == "third":  # a document that cannot go round in few slices
                return 50_000_000 if not lengths else 100 + random.exponential(900)
            return 500 * (1 + random.pareto(1.1)) if kind == "tail" else total
        shares = np.array([share for *_, share in PUBLISHED[kind]])
        low, high, _ = PUBLISHED[kind][random.choice(len(shares), p=shares / shares.sum())]
        return 1024 * random.uniform(low, high)

    while sum(lengths) < total:
        most = total - sum(lengths) if kind != "third" or lengths else int(0.322 * total)
        lengths.append(max(1, min(int(draw()), most)))
    return tuple(lengths)


@pytest.mark.parametrize("kind", ["short", "long", "tail", "third", "one"])
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
