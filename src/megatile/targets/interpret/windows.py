"""Arrays of all units at once: the grid of the launch in front, 1 where all units have the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from megatile.core.operations import OPERATIONS

MAX_INNER_EXTENT = 2048
"""Inner extent of products that are made at once."""


class Doubt(Exception):
    """A mistake of some unit, which the units, one by one, then make again."""


class GridIndex:
    """The number of every unit below its parent at one scale: its coordinates apart, x first."""

    __array_ufunc__ = None  # arrays leave the sum to it

    def __init__(self, coords: list[Any], extents: tuple[int, ...]):
        self.coords = coords
        self.flat: Any = 0
        for coord, extent in zip(reversed(coords), reversed(extents), strict=True):
            self.flat = self.flat * extent + coord

    def __radd__(self, other: Any) -> Any:
        return other + self.flat


class LockstepTile:
    """A tile of every unit: ``array`` has the grid in front, 1 where all units have the same."""

    def __init__(self, shape: tuple[int, ...], dtype: str, rank: int):
        self.shape, self.dtype = shape, dtype
        self._array: Any = None
        self.products: list[tuple[Any, Any]] = []
        """Matrix products still to be added: several are one with a longer inner dimension."""
        self.owned = False
        self.written: Any = np.zeros((1,) * rank + shape, bool)
        """Which elements have been written; likewise with the grid (of ``rank`` dimensions) in front."""

    @property
    def array(self) -> Any:
        if self.products:
            left = np.concatenate([a for a, _ in self.products], -1)
            right = np.concatenate([b for _, b in self.products], -2)
            self.products = []
            total = products(left, right)
            total += self._array
            self._array, self.owned = total, True
        return self._array

    @array.setter
    def array(self, value: Any) -> None:
        self._array, self.products = value, []

    def add_product(self, a: Any, b: Any) -> None:
        """``a @ b`` is added, sooner or later."""
        inner = sum(left.shape[-1] for left, _ in self.products)
        if self.products and (
            inner > MAX_INNER_EXTENT or [x.shape for x in self.products[0]] != [a.shape, b.shape]
        ):
            self.array = self.array
        self.products.append((a, b))


def put_at(index: Any) -> Callable[[Any, Any], None]:
    return lambda array, value: array.__setitem__(index, value)


class Watch:
    """Which unit wrote, and which read, every element of a tensor: -1 none, -2 several."""

    def __init__(self, shape: tuple[int, ...]):
        self.writer, self.reader = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64)

    def touch(
        self, at: Callable[[Any], Any], owner: Any, write: bool, put: Callable[[Any, Any], None]
    ) -> None:
        wrote = at(self.writer)
        if ((wrote != -1) & (wrote != owner)).any():
            raise Doubt
        if write:
            read = at(self.reader)
            if ((read != -1) & (read != owner)).any():
                raise Doubt
            put(self.writer, owner)
            if (at(self.writer) != owner).any():  # two units wrote it at once
                raise Doubt
            return
        before = at(self.reader).copy()
        put(self.reader, owner)
        shared = (at(self.reader) != owner) | ((before != -1) & (before != owner))
        if shared.any():
            put(self.reader, np.where(shared, -2, owner))


def products(a: Any, b: Any) -> Any:
    """Return matrix products of all units. Where rows depend on some dimensions of the grid and columns on
    others, they are one large product."""
    grid = len(a.shape) - 2
    rows = [d for d in range(grid) if a.shape[d] > 1]
    columns = [d for d in range(grid) if b.shape[d] > 1]
    meaning = OPERATIONS["gemm"].meaning
    if set(rows) & set(columns):
        return meaning(a, b)
    (m, k), n_ = a.shape[-2:], b.shape[-1]
    left = a.reshape([a.shape[d] for d in rows] + [m, k]).reshape(-1, k)
    right = np.moveaxis(b.reshape([b.shape[d] for d in columns] + [k, n_]), -2, 0).reshape(k, -1)
    product = meaning(left, right)
    product = product.reshape([a.shape[d] for d in rows] + [m] + [b.shape[d] for d in columns] + [n_])
    at = {d: number for number, d in enumerate(rows)} | {d: len(rows) + 1 + i for i, d in enumerate(columns)}
    order = [at[d] for d in sorted(at)] + [len(rows), product.ndim - 1]
    shape = [max(a.shape[d], b.shape[d]) for d in range(grid)]
    kept = product.transpose(order)
    return kept[tuple(slice(None) if s > 1 else np.newaxis for s in shape)] if grid else kept


def window_of(array: Any, starts: list[Any], sizes: list[Any], grid: tuple[int, ...], keep: bool) -> Any:
    """Return the region of every unit as one strided array; None if its starts are not evenly spaced.

    ``keep`` has an entry for every unit; else dimensions of the grid that make no difference have 1.
    """
    strides = [0] * len(grid)
    first = 0
    for start, stride in zip(starts, array.strides, strict=True):
        origin = start.reshape(-1)[0] if start.ndim else start[()]
        first += int(origin) * stride
        if not start.ndim:
            continue
        even: Any = int(origin)
        for axis, extent in enumerate(start.shape):
            if extent > 1:
                step = int(np.take(start, 1, axis).reshape(-1)[0] - origin)
                shape = [1] * start.ndim
                shape[axis] = extent
                even = even + step * np.arange(extent).reshape(shape)
                strides[axis] += step * stride
        if not np.array_equal(start, np.broadcast_to(even, start.shape)):
            return None
    shape = [e if keep or s else 1 for e, s in zip(grid, strides, strict=True)]
    inner = [(z, s) for z, s in zip(sizes, array.strides, strict=True) if z is not None]
    flat = array.reshape(-1).view(array.dtype)[first // array.itemsize :]
    return np.lib.stride_tricks.as_strided(
        flat, (*shape, *(z for z, _ in inner)), (*strides, *(s for _, s in inner))
    )
