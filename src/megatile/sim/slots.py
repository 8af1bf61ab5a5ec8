"""Who still holds a received message: a count of names per slot, for one unit or for many at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from megatile.sim.storage import Storages


class SlotHolds:
    """Counts names per slot. One dict while all units of the cohort agree, a matrix when they do not.

    Storage -1 means "nothing" (a name that ended for this unit already).
    """

    def __init__(self, storages: Storages, size: int) -> None:
        self._first = storages.first_slot
        self._slots = storages.count - storages.first_slot
        self._size = size
        self._common: dict[int, int] = {}
        self._each: np.ndarray | None = None

    def hold(self, storage: Any, mask: Any) -> None:
        """One more name on a slot; storage that is no slot is not counted."""
        if self._uniform(storage, mask):
            if storage >= self._first:
                self._common[storage] = self._common.get(storage, 0) + 1
            return
        rows, units = self._pick(storage, mask)
        np.add.at(self._matrix(), (rows, units), 1)

    def drop(self, storage: Any, mask: Any) -> Iterator[tuple[Any, Any]]:
        """One name less; yields (slot, mask of the units in which nobody holds it any more)."""
        if self._uniform(storage, mask):
            if storage >= self._first:
                self._common[storage] -= 1
                if not self._common[storage]:
                    yield storage, mask
            return
        matrix = self._matrix()
        rows, units = self._pick(storage, mask)
        matrix[rows, units] -= 1
        ended = matrix[rows, units] == 0
        if ended.any():
            who = np.zeros(self._size, dtype=bool)
            who[units[ended]] = True
            slots = np.full(self._size, -1, dtype=np.int64)
            slots[units] = rows + self._first
            yield slots, who

    def _uniform(self, storage: Any, mask: Any) -> bool:
        return self._each is None and mask is None and not isinstance(storage, np.ndarray)

    def _pick(self, storage: Any, mask: Any) -> tuple[np.ndarray, np.ndarray]:
        slots = np.broadcast_to(np.asarray(storage, dtype=np.int64), (self._size,))
        counted = slots >= self._first
        if mask is not None:
            counted = counted & mask
        units = np.flatnonzero(counted)
        return slots[units] - self._first, units

    def _matrix(self) -> np.ndarray:
        if self._each is None:
            self._each = np.zeros((self._slots, self._size), dtype=np.int32)
            for storage, count in self._common.items():
                self._each[storage - self._first] = count
        return self._each
