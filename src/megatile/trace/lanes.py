"""Tracks and lanes: what a viewer draws in one row must not overlap.

A track is a unit and a kind of engine (``dma.0`` and ``dma.17`` are both ``dma``). Events of one track that
run at the same time lie in lanes beside each other.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from megatile.trace.events import Trace
from megatile.trace.exposure import WAITING, engine_kind


@dataclass(frozen=True)
class Row:
    """One line of a picture: the unit, the kind of engine, and which of its lanes."""

    unit: int
    kind: str
    lane: int

    @property
    def name(self) -> str:
        """``dma``, and ``dma 2`` for the second lane."""
        return f"{self.kind} {self.lane + 1}" if self.lane else self.kind

    @property
    def waiting(self) -> bool:
        """Whether its events are waiting, not work."""
        return self.kind in WAITING


def rows_of(trace: Trace) -> tuple[list[Row], np.ndarray]:
    """Return the rows in the order of units and engines, and the row of every event."""
    names = [engine_kind(name) for name in trace.engines]
    kinds = list(dict.fromkeys(names))
    kind = np.array([kinds.index(name) for name in names], dtype=np.int64)
    track = trace.columns["unit"].astype(np.int64) * max(1, len(kinds))
    track += kind[trace.columns["engine"]] if len(trace) else 0
    lane = _lanes(track, trace.columns["start_ps"], trace.columns["end_ps"])
    width = int(lane.max()) + 1 if len(lane) else 1
    keys, row = np.unique(track * width + lane, return_inverse=True)
    rows = [
        Row(key // width // len(kinds), kinds[key // width % len(kinds)], key % width)
        for key in keys.tolist()
    ]
    return rows, row


def _lanes(track: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the lane of every event: the first that is free when it starts."""
    lane = np.zeros(len(track), dtype=np.int64)
    order = np.lexsort((end, start, track))
    sorted_track = track[order]
    same = sorted_track[1:] == sorted_track[:-1]
    crowded = np.unique(sorted_track[1:][same & (end[order][:-1] > start[order][1:])])
    chosen = order[np.isin(sorted_track, crowded)]
    current, free, busy, lanes = -1, [0], [(0, 0)], 0
    columns = (track[chosen].tolist(), start[chosen].tolist(), end[chosen].tolist())
    for event, number, begin, stop in zip(chosen.tolist(), *columns, strict=True):
        if number != current:
            current, free, busy, lanes = number, [], [], 0
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            free.append(lanes)
            lanes += 1
        lane[event] = heapq.heappop(free)
        heapq.heappush(busy, (stop, int(lane[event])))
    return lane
