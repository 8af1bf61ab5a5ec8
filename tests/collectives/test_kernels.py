"""``collectives/kernels``: what the shipped kernels share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from megatile.collectives.kernels import in_pieces


@pytest.mark.parametrize(
    ("piece", "parts"),
    [
        (0, [(1020, 10)]),
        (4, [(1020, 4), (1028, 4), (1036, 2)]),
        (5, [(1020, 5), (1030, 5)]),
        (10, [(1020, 10)]),
    ],
)
def test_a_tensor_goes_in_pieces(piece: int, parts: list[tuple[int, int]]) -> None:
    """Ten f16 of rank 1, whose tensor begins 20 bytes behind the first; 0: all at once."""
    found: list[tuple[int, int]] = []
    in_pieces(SimpleNamespace(rank=1), lambda _, at, count: found.append((at, count)), 1000, 10, "f16", piece)
    assert found == parts
