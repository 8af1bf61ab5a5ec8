"""Values for many units at once: a plain int while all agree, an array over the units where they differ."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.sim.rows import Access, Row

Value = Any  # picoseconds: an int, or an int64 array over the units of a stream


def latest(a: Value, b: Value) -> Value:
    if type(a) is int and type(b) is int:
        return a if a > b else b
    return np.maximum(a, b)


def level(values: list[int]) -> Value:
    """One int if all are equal, else an array."""
    return values[0] if all(v == values[0] for v in values) else np.array(values, dtype=np.int64)


def within(mask: Any, new: Value, old: Value) -> Value:
    return new if mask is None else np.where(mask, new, old)


def same_units(a: Any, b: Any) -> bool:
    """Whether two masks choose the same units."""
    return a is b or (a is not None and b is not None and np.array_equal(a, b))


def plain_int(value: Any) -> int | None:
    """A field as part of a key: only ints can be."""
    return value if type(value) is int else None


def storages_of(row: Row) -> tuple[int, ...] | None:
    storages = tuple(a.storage for a in row.accesses)
    return storages if all(type(s) is int for s in storages) else None


def same_block(a: Access, b: Access) -> Any:
    """Whether two blocks overlap: True, False, or an array where the units differ."""
    if type(a.storage) is int and type(b.storage) is int:
        if a.storage != b.storage:
            return False
        same: Any = True
    else:
        same = a.storage == b.storage
        if not same.any():
            return False
    if not a.bounds or not b.bounds or a.bounds is b.bounds:
        return same
    for (low, extent), (bottom, height) in zip(a.bounds, b.bounds, strict=False):
        if low is bottom and extent is height:
            continue
        apart = low - bottom
        both = _all_or_any((apart < height) & (apart > -extent))
        if both is False:
            return False
        if both is not True:
            same = both if same is True else same & both
    return same


def _all_or_any(both: Any) -> Any:
    if not isinstance(both, np.ndarray):
        return bool(both)
    count = np.count_nonzero(both)
    return both if 0 < count < both.size else bool(count)
