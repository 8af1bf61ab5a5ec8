"""The elements of tensors and tiles: arrays with a leading dimension of copies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from megatile.core.dtypes import numpy_dtype
from megatile.targets.interpret.history import History


class Flags:
    """Signals to a flag: how much has arrived, and by sender the amounts and clocks of all that were sent."""

    def __init__(self) -> None:
        self.count = 0
        self.sent: dict[int, list[tuple[int, dict[int, int]]]] = {}

    def certain(self, value: int) -> Iterator[dict[int, int]]:
        """Yield the clocks of signals without which the flag cannot have counted to ``value``, whichever of
        those that were sent came first; those of one sender come in their order."""
        total = sum(amount for signals in self.sent.values() for amount, _ in signals)
        for signals in self.sent.values():
            rest = sum(amount for amount, _ in signals)
            for amount, clock in signals:
                if total - rest < value:
                    yield clock
                rest -= amount


class Arrivals:
    """Atomics on an element that others wait for: what it held at first, and what was added or put in."""

    def __init__(self, first: Any):
        self.first = first
        self.added = Flags()
        self.set: list[tuple[Any, dict[int, int]]] = []
        self.countable = True
        """Whether nothing but amounts was added, or nothing but values were put in."""

    def note(self, op: str, value: Any, sender: int, clock: dict[int, int]) -> None:
        if op == "exchange":
            self.set.append((value, clock))
        elif op == "add" and value > 0:
            self.added.sent.setdefault(sender, []).append((int(value), clock))
        else:
            self.countable = self.countable and op == "add" and value == 0
        self.countable = self.countable and not (self.set and self.added.sent)

    def certain(self, value: Any) -> list[dict[int, int]] | None:
        """Return the clocks of what must have come before the element can be ``value`` or more; None: all of
        it."""
        if self.first >= value:
            return []
        if not self.countable or (self.set and sum(v >= value for v, _ in self.set) > 1):
            return None
        if self.set:
            return [clock for v, clock in self.set if v >= value]
        return list(self.added.certain(int(value) - int(self.first)))


class StoredArray:
    """``array[copy, ...]``; ``written`` marks initialised elements (None when all are)."""

    def __init__(self, name: str, array: np.ndarray, written: np.ndarray | None, dtype: str):
        self.name = name
        self.array = array
        self.written = written
        self.dtype = dtype
        self.history = History(array.ndim)
        self.root = self
        """The storage whose elements these are, under another shape."""
        self.partial = False
        self.gathered = False
        """Whether units have been given each other's parts."""
        self.reduced = False
        """Whether its partial terms have been reduced into another tile."""
        self.scattered: list[Any] | None = None
        """Per copy, the part that is valid after a reduce-scatter of a Partial view."""
        self.others: dict[Any, StoredArray] = {}
        """The same elements with other shapes and dtypes."""
        self.flags: dict[tuple[int, ...], Flags] = {}
        self.ordered: dict[tuple[int, ...], dict[int, int]] = {}
        """Per element, what its fetching atomics have ordered so far."""
        self.arrivals: dict[tuple[int, ...], Arrivals] = {}
        self.writers: np.ndarray | None = None

    @classmethod
    def tile(
        cls, name: str, shape: tuple[int, ...], dtype: str, copies: int, zero: bool = False
    ) -> StoredArray:
        """Return a new tile: NaN in floats, so that a missed check shows, and nothing written."""
        full = (copies, *shape)
        kind = numpy_dtype(dtype)
        if zero:
            return cls(name, np.zeros(full, kind), None, dtype)
        filler: Any = np.nan if dtype[0] in "fb" and dtype != "bool" else 0
        with np.errstate(invalid="ignore"):
            array = np.full(full, filler, kind)
        return cls(name, array, np.zeros(full, bool), dtype)

    @classmethod
    def tensor(cls, name: str, array: np.ndarray, dtype: str, copies: int) -> StoredArray:
        full = array[None] if copies == 1 else np.repeat(array[None], copies, axis=0)
        return cls(name, np.array(full), None, dtype)

    def reshaped(self, shape: tuple[int, ...], dtype: str) -> StoredArray:
        """Return the same elements with another shape or dtype."""
        if (shape, dtype) not in self.others:
            array = self.array.reshape(self.copies, -1).view(numpy_dtype(dtype)).reshape(self.copies, *shape)
            same = self.written is not None and array.size == self.array.size
            written = self.written.reshape(array.shape) if same and self.written is not None else None
            self.others[shape, dtype] = StoredArray(self.name, array, written, dtype)
            self.others[shape, dtype].root = self
        return self.others[shape, dtype]

    @cached_property
    def by_bytes(self) -> History:
        """Accesses to elements that are read under several shapes, as runs of bytes."""
        return History(1)

    def bytes_of(self, items: Any, points: Any) -> tuple[Any]:
        """Return the bytes of some elements, copies first: a run, or a sorted array."""
        size, shape = self.array.itemsize, self.array.shape
        if points is not None:
            numbers = np.unique(np.ravel_multi_index(tuple(points.T), shape))
        else:
            axes = [np.arange(*item) if isinstance(item, tuple) else np.asarray(item) for item in items]
            numbers = np.ravel_multi_index(np.ix_(*axes), shape).ravel()
        if not numbers.size:
            return ((0, 0),)
        first, last = int(numbers[0]), int(numbers[-1])
        if last - first + 1 == len(numbers):
            return ((first * size, (last + 1) * size),)
        return ((numbers[:, None] * size + np.arange(size)).ravel(),)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape[1:]

    @property
    def copies(self) -> int:
        return int(self.array.shape[0])

    def mark(self, index: tuple[Any, ...], size: int) -> None:
        """Mark elements as written."""
        if self.written is None:
            return
        self.written[index] = True
        if size >= math.prod(self.shape) and self.written.all():
            self.written = None

    def note_writer(self, index: tuple[Any, ...], entry: int) -> None:
        if self.writers is None:
            self.writers = np.full(self.array.shape, -1, np.int32)
        self.writers[index] = entry
