"""Rings on graphs of cables."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings, strategies as st

import megatile as mt
from megatile.collectives.decompositions.graph import rings_on_graph
from megatile.hda import machine

CUBE = machine("v100-8").network("nvlink").topology.edges  # type: ignore[attr-defined]


def steps(ring: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(pairwise((*ring, ring[0])))


def test_the_cube_mesh_has_six_rings_on_all_its_cables() -> None:
    rings = rings_on_graph(8, CUBE)
    assert len(rings) == 6
    used = Counter(step for ring in rings for step in steps(ring))
    assert used == Counter({pair: n for a, b, n in CUBE for pair in ((a, b), (b, a))})


@pytest.mark.parametrize(
    ("ranks", "cables", "count"),
    [
        (2, ((0, 1, 2),), 2),
        (2, (), 0),
        (3, ((0, 1, 1), (1, 2, 1)), 0),
        (4, ((0, 1, 1), (1, 2, 1), (2, 3, 1), (0, 3, 1)), 2),
        (5, tuple((a, b, 1) for a, b in combinations(range(5), 2)), 4),
    ],
)
def test_as_many_as_there_are(ranks: int, cables: tuple[tuple[int, int, int], ...], count: int) -> None:
    assert len(rings_on_graph(ranks, cables)) == count


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 7), st.data())
def test_no_cable_is_used_twice(ranks: int, data: st.DataObject) -> None:
    pairs = list(combinations(range(ranks), 2))
    counts = data.draw(st.lists(st.integers(0, 2), min_size=len(pairs), max_size=len(pairs)))
    cables = tuple((a, b, n) for (a, b), n in zip(pairs, counts, strict=True) if n)
    rings = rings_on_graph(ranks, cables)
    free = {frozenset((a, b)): n for a, b, n in cables}
    for way in (rings[::2], rings[1::2]):
        used = Counter(frozenset(step) for ring in way for step in steps(ring))
        assert all(used[link] <= free.get(link, 0) for link in used)
    assert all(sorted(ring) == list(range(ranks)) for ring in rings)


@pytest.mark.parametrize("ranks", [2, 4, 8, [0, 1, 4, 5], [3, 4]])
def test_the_ring_of_a_cube_mesh_goes_along_its_links(ranks: int | list[int]) -> None:
    hda = machine("v100-8")
    plan = mt.collective("all_reduce", machine=hda, nbytes=1 << 12, algorithm="ring", ranks=ranks)
    mt.check(plan, machine=hda)
    chosen = list(range(ranks)) if isinstance(ranks, int) else ranks
    if ranks != [3, 4]:  # which nothing joins
        for channel in plan.channels:
            for member in range(channel.members):
                for unit in range(plan.units):
                    source = int(channel.source.evaluate({"unit": unit, "member": member}))
                    assert hda.route(("gpu", chosen[source]), ("gpu", chosen[unit])).hop_count == 1
