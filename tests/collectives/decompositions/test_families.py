"""``collectives/decompositions/families.py``: what the generators return."""

from __future__ import annotations

import pytest

from megatile.collectives.decompositions import (
    CycleFamily,
    DecompositionError,
    PathFamily,
    gen_hamilton_circle,
    verify_cycles,
)


def test_the_verifier_sees_defects():
    good = gen_hamilton_circle(8)
    twice = CycleFamily([*good[:-1], good[0]], ranks=8)
    with pytest.raises(DecompositionError, match=r"is used [02] times"):
        twice.verify()
    with pytest.raises(DecompositionError, match="does not visit"):
        CycleFamily([[0, 1, 1]], ranks=3, complete=False).verify()
    with pytest.raises(DecompositionError):
        verify_cycles(good[:-1])
    with pytest.raises(DecompositionError, match="arc"):
        PathFamily([[0, 1, 2], [0, 2, 1], [1, 0, 2], [2, 0, 1]], ranks=3).verify()
    verify_cycles(good)
