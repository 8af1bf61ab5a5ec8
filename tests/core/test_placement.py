"""Layouts: who holds which indices."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from megatile.core.errors import MegatileError
from megatile.core.placement import (
    ORDERS,
    Mesh,
    Replicate,
    Shard,
    coordinates,
    from_function,
    part,
    positions,
    share_length,
    written_out,
)


def indices(share) -> list[int]:
    return list(range(*share)) if isinstance(share, tuple) else list(share)


@given(st.integers(1, 40), st.integers(1, 9))
def test_shards_cover_every_index_once(length: int, units: int) -> None:
    held = [i for r in range(units) for i in indices(part(Shard(0), (length,), (units,), r)[0])]
    assert held == list(range(length))


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.integers(1, 3))
def test_a_mesh_cuts_along_its_axes(rows: int, columns: int, x: int, y: int) -> None:
    seen = np.zeros((rows, columns), int)
    for rank in range(x * y):
        held = part(Mesh((Shard(0), Shard(1))), (rows, columns), (x, y), rank)
        seen[np.ix_(*(indices(s) for s in held))] += 1
    assert (seen == 1).all()


def test_axes_and_replicas() -> None:
    assert part(Shard(0, axis=1), (8,), (2, 4), 5) == ((4, 6),)
    assert part(Mesh((Replicate(), Shard(0))), (8,), (2, 4), 5) == ((4, 6),)
    assert part(Replicate(), (8,), (4,), 3) == ((0, 8),)
    assert coordinates(5, (2, 4)) == (1, 2)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 4), st.integers(1, 4))
def test_owner_functions_cover_every_element_once(rows: int, columns: int, a: int, b: int) -> None:
    layout = from_function(lambda i, j: i % a + a * (j // 3 % b), (rows, columns), (a * b,))
    seen = np.zeros((rows, columns), int)
    for rank in range(a * b):
        seen[np.ix_(*(indices(s) for s in part(layout, (rows, columns), (a * b,), rank)))] += 1
    assert (seen == 1).all()


def test_owner_functions_for_single_indices_and_coordinates() -> None:
    one = from_function(lambda i: 0 if i < 3 else 1, (8,), (2,))
    assert [share_length(part(one, (8,), (2,), r)[0]) for r in range(2)] == [3, 5]
    grid = from_function(lambda i, j: (i // 4, j // 2), (8, 4), (2, 2))
    assert math.prod(share_length(s) for s in part(grid, (8, 4), (2, 2), 3)) == 8


@pytest.mark.parametrize(
    ("owner", "message"),
    [
        (lambda i: i, "names unit 7, but there are 2 units"),
        (lambda i: i - 3, "names unit"),
        (lambda i: i / 8, "must return a whole number.*// instead of /"),
    ],
)
def test_wrong_owners(owner, message: str) -> None:
    with pytest.raises(MegatileError, match=message):
        from_function(owner, (8,), (2,))


@pytest.mark.parametrize("order", ORDERS)
@given(length=st.integers(0, 40), units=st.integers(1, 9))
def test_every_order_shares_out_every_element_once(order: str, length: int, units: int) -> None:
    pieces = ORDERS[order](length, units, 0)
    assert sorted(p for held in pieces for p in positions(held)) == list(range(length))
    shard = Shard(0, order=order)
    shares = [indices(part(shard, (length,), (units,), rank)[0]) for rank in range(units)]
    assert sorted(i for share in shares for i in share) == list(range(length))
    if order != "contiguous":
        assert shares == [positions(held) for held in pieces]
    assert [list(held[0]) for held in written_out(shard, (length,), (units,)).sets] == shares


def test_zigzag_balances_causal_work() -> None:
    work = [sum(i + 1 for i in positions(held)) for held in ORDERS["zigzag"](64, 4, 0)]
    assert len(set(work)) == 1
