"""Meetings of groups for many units at once: when everybody has come, and what the network adds."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.sim.lowering import Lowering, bytes_moved
from megatile.sim.program import Program
from megatile.sim.rows import Row
from megatile.sim.values import Value


class Meetings:
    """Times of meetings in which all members of every group come with the same command."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def done(self, low: Lowering, row: Row, ready: Value) -> Value | None:
        """When each unit's group has met and is served; None if somebody of a group is not in this row."""
        size = low.size
        active = np.arange(size) if row.mask is None else np.flatnonzero(row.mask)
        keys = np.broadcast_to(row.group, (size,))[active]
        times = np.broadcast_to(np.asarray(ready, dtype=np.int64), (size,))[active]
        numbers = np.broadcast_to(row.number, (size,))[active]
        found, first, inverse, counts = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        members = [self._program.members.get((row.statement.group, key), ()) for key in found.tolist()]
        if [len(m) for m in members] != counts.tolist() or (numbers != numbers[first][inverse]).any():
            return None
        met = np.full(len(found), 0, dtype=np.int64)
        np.maximum.at(met, inverse, times)
        result = np.zeros(size, dtype=np.int64)
        result[active] = met[inverse] + self._costs(low, row, active, inverse, members)
        return int(result[0]) if row.mask is None and (result == result[0]).all() else result

    def _costs(
        self, low: Lowering, row: Row, active: np.ndarray, inverse: np.ndarray, members: list[Any]
    ) -> np.ndarray:
        """What the network adds for every active unit; worked out once per group and size."""
        nbytes = [bytes_moved(row, i) if row.accesses else 0 for i in self._sizes_of(row, active)]
        sizes = np.broadcast_to(np.asarray(nbytes, dtype=np.int64), active.shape)
        pairs = np.stack([inverse, sizes])
        distinct, place = np.unique(pairs, axis=1, return_inverse=True)
        machine, statement = low.machine, row.statement
        each = [machine.collective_ps(statement, members[g], b) for g, b in distinct.T.tolist()]
        return np.asarray(each, dtype=np.int64)[place.reshape(-1)]

    def _sizes_of(self, row: Row, active: np.ndarray) -> list[int]:
        """The units whose bytes must be looked at: one where all move the same."""
        same = isinstance(row.nbytes, int) and row.nbytes
        return active[:1].tolist() if same or not row.accesses else active.tolist()
