"""Many small blocks in one kernel call: the documents of a pack at one step.

A batch has its queries and its keys one document after the other, as the varlen functions of flash-attn
want them. Kernels without such a function fill the documents up to one length (:class:`Padding`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from megatile.attention.chunks import Windows
from megatile.attention.schedules.bands import FULL, Band, MaskTile, part_of
from megatile.attention.schedules.division import OWN, KernelCall, Run

Array = Any
CAUSAL = Band(None, 0)


class Segment(NamedTuple):
    """One document: how many rows and columns it has, and which pairs of them are visible."""

    rows: int
    columns: int
    band: Band


class LargeDocument(NamedTuple):
    """The kind of a document that shares a call with others only where none of them is copied."""

    rows: int
    columns: int
    causal: bool

    @classmethod
    def of(cls, segment: Segment) -> LargeDocument | None:
        causal = segment.band == CAUSAL and segment.rows == segment.columns
        return cls(*segment[:2], causal) if causal or segment.band.full else None


@dataclass(frozen=True)
class Batch:
    """Documents with no common query row. ``rows`` are local ones, ``columns`` those of all keys held."""

    segments: tuple[Segment, ...]
    runs: tuple[Run, ...]
    rows: Array
    columns: Array

    def take(self, x: Tensor, rows: bool) -> Tensor:
        """Return the rows (or columns) of the batch, one document after the other."""
        run = self.run(rows)
        if run is not None:
            return x.narrow(0, run[0], run[1] - run[0])
        return x.index_select(0, torch.from_numpy(self.rows if rows else self.columns).to(x.device))

    def fill(self, x: Tensor, rows: bool, value: float | None = None) -> Tensor:
        """Return the same as [documents, longest, …]; places that are filled in hold ``value``, or
        anything. A view where documents of one length stand at equal distances."""
        windows = self.windows[rows]
        if windows is not None:
            return windows.of(x, 0)
        places = self.padding.rows if rows else self.padding.columns
        wanted = (self.rows if rows else self.columns)[np.maximum(places, 0).ravel()]
        filled = x.index_select(0, torch.from_numpy(wanted).to(x.device))
        if value is not None:
            filled[torch.from_numpy(places.ravel() < 0).to(x.device)] = value
        return filled.unflatten(0, places.shape)

    def run(self, rows: bool) -> Run | None:
        """Return all rows (or columns) as one run, None where they are several."""
        return self._whole[rows]

    @cached_property
    def _whole(self) -> dict[bool, Run | None]:
        found = {rows: _runs(self.rows if rows else self.columns) for rows in (True, False)}
        return {rows: runs[0] if len(runs) == 1 else None for rows, runs in found.items()}

    def place(self, rows: bool, device: torch.device) -> Run | Windows | Tensor:
        """Return where the rows (or columns) are: one run, documents at equal distances or an index."""
        return (
            self.run(rows)
            or self.windows[rows]
            or torch.from_numpy(self.rows if rows else self.columns).to(device)
        )

    @cached_property
    def windows(self) -> dict[bool, Windows | None]:
        """By rows or columns: documents of one length at equal distances, or None."""
        found = {}
        for rows, at in ((True, self.rows), (False, self.columns)):
            places = self.padding.rows if rows else self.padding.columns
            count, length = places.shape
            distance = length if count == 1 else int(at[length] - at[0]) if length < len(at) else 0
            regular = at[0] + np.arange(count)[:, None] * distance + np.arange(length)[None, :]
            same = distance > 0 and len(at) == regular.size and bool((at == regular.ravel()).all())
            found[rows] = Windows(int(at[0]), count, length, distance) if same else None
        return found

    @cached_property
    def padding(self) -> Padding:
        return Padding.of(self.segments)


def batches(
    calls: Sequence[KernelCall], offsets: Sequence[int], key_of: Callable[[Segment], Hashable]
) -> tuple[list[KernelCall], list[Batch]]:
    """Return calls that stay alone, and the others by kind. ``offsets``: where each slot begins among all
    keys.

    ``key_of`` names the kind of a segment, None for one that is better done alone.
    """
    alone: list[KernelCall] = []
    kinds: dict[Hashable, list[list[tuple[int, int, Segment, Array, Array, KernelCall]]]] = defaultdict(list)
    for call in sorted(calls, key=lambda call: call.q):
        part = part_of(call.tile, (0, call.rows), (0, call.columns))
        if part is None:
            continue
        (top, bottom), (left, right) = part.rows, part.columns
        # A causal document of one row stays a causal one, like the others.
        band = call.tile.band if (top, left) == (0, 0) else part.tile.band
        segment = Segment(bottom - top, right - left, band)
        kind = key_of(segment)
        if kind is None:
            alone.append(call)
            continue
        rows = _expanded(call.q)[top:bottom]
        keys = [(begin + offset, end + offset) for slot, begin, end in call.kv
                for offset in [0 if slot == OWN else offsets[slot]]]  # fmt: skip
        item = (int(rows[0]), int(rows[-1]) + 1, segment, rows, _expanded(keys)[left:right], call)
        layers = kinds[kind]
        free = next((layer for layer in layers if layer[-1][1] <= item[0]), None)
        layers.append([item]) if free is None else free.append(item)
    found = []
    for kind, layers in kinds.items():
        for layer in layers:
            rows, columns = (np.concatenate([item[i] for item in layer]) for i in (3, 4))
            batch = Batch(tuple(item[2] for item in layer), _runs(rows), rows, columns)
            if isinstance(kind, LargeDocument) and (len(layer) == 1 or None in batch.windows.values()):
                alone += [item[5] for item in layer]
            else:
                found.append(batch)
    return alone, found


def _expanded(runs: Sequence[Run]) -> Array:
    return np.concatenate([np.arange(begin, end) for begin, end in runs])


def _runs(rows: Array) -> tuple[Run, ...]:
    """Return rows as runs of consecutive ones."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    starts, ends = [0, *breaks.tolist()], [*breaks.tolist(), len(rows)]
    return tuple((int(rows[a]), int(rows[b - 1]) + 1) for a, b in zip(starts, ends, strict=True))


@dataclass(frozen=True)
class Padding:
    """Documents side by side, filled up to the longest: [documents, rows] and [documents, columns].

    ``tile`` is the mask of all of them where one will do, else ``hidden`` [documents, rows, columns] is it.
    """

    rows: Array
    columns: Array
    tile: MaskTile
    hidden: Array | None

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Padding:
        heights, widths = (np.array([s[i] for s in segments]) for i in (0, 1))
        rows, columns = _places(heights), _places(widths)
        bands = {s.band for s in segments}
        causal = bands == {CAUSAL} and (heights == widths).all()  # only rows that are filled in see too much
        if causal or (bands == {FULL} and (columns >= 0).all()):
            return cls(rows, columns, MaskTile(CAUSAL if causal else FULL), None)
        hidden = np.broadcast_to((columns < 0)[:, None, :], (*rows.shape, columns.shape[1])).copy()
        distance = np.arange(columns.shape[1])[None, :] - np.arange(rows.shape[1])[:, None]
        for document, segment in enumerate(segments):
            lower, upper = segment.band
            inside = hidden[document, : segment.rows]
            if lower is not None:
                inside |= (distance < lower)[: segment.rows]
            if upper is not None:
                inside |= (distance > upper)[: segment.rows]
        return cls(rows, columns, MaskTile(FULL), hidden)

    def mask(self, device: torch.device) -> MaskTile | Tensor:
        """Return the mask of all documents, as kernels want it."""
        return self.tile if self.hidden is None else torch.from_numpy(self.hidden).to(device)

    def strip(self, x: Tensor, rows: bool) -> Tensor:
        """Return what was filled up, one document after the other."""
        filled = self.rows if rows else self.columns
        if filled.min() >= 0:
            return x.flatten(0, 1)
        places = np.flatnonzero(filled >= 0)
        return x.flatten(0, 1).index_select(0, torch.from_numpy(places).to(x.device))


def _places(lengths: Array) -> Array:
    """Return where the tokens of each document are, one document after the other; -1 where it has none."""
    at = np.arange(int(lengths.max()))[None, :]
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])[:, None]
    return np.where(at < lengths[:, None], starts + at, -1)
