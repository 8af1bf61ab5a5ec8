"""Cycles and paths of complete graphs: every size, against the verifier and against an independent count."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.collectives.decompositions.shared import arcs_of

from megatile.collectives.decompositions import (
    DecompositionError,
    doubled_cycles,
    gen_hamilton_circle,
    partial_rings,
)


@pytest.mark.parametrize("n", range(1, 131))
def test_every_ordered_pair_is_used_equally(n):
    cycles = gen_hamilton_circle(n)
    times = 2 if n in (4, 6) else 1
    assert len(cycles) == times * (n - 1)
    assert all(sorted(c) == list(range(n)) for c in cycles)
    assert arcs_of(cycles) == Counter({(a, b): times for a in range(n) for b in range(n) if a != b})
    cycles.verify()


def test_doubled_form_of_any_even_size():
    for n in (2, 4, 6, 8, 30):
        cycles = doubled_cycles(n).verify()
        assert len(cycles) == 2 * (n - 1)
    with pytest.raises(DecompositionError, match="even numbers"):
        doubled_cycles(5)


@pytest.mark.parametrize("n", [0, -3, 2.5, True])
def test_sizes_that_are_none(n):
    with pytest.raises(DecompositionError, match="positive integer"):
        gen_hamilton_circle(n)


@pytest.mark.parametrize("n", range(2, 20))
def test_partial_rings_share_no_link(n):
    most = n - 2 if n in (4, 6) else n - 1
    for count in range(most + 1):
        rings = partial_rings(n, count).verify()
        assert len(rings) == count
        assert max(arcs_of(rings).values(), default=0) <= 1
    with pytest.raises(DecompositionError, match=f"at most {most}"):
        partial_rings(n, most + 1)
