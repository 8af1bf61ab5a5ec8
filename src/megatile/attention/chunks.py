"""Chunks of keys and values that travel between ranks, and rows of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megatile.attention.schedules.division import AnyRun, Run
from megatile.attention.schedules.routes import Held

Pair = tuple[Tensor, Tensor]  # K and V (or their gradients), sequence first: [S, B, H, D]


class Chunk(NamedTuple):
    """Keys and values (or their gradients), views of one piece of memory: ``flat`` is what is sent."""

    k: Tensor
    v: Tensor
    flat: Tensor


Chunks = dict[Held, Chunk]


class ChunkShape:
    """The shape of chunks: that of keys and values [S, B, H, D], with any number of tokens."""

    def __init__(self, pair: Pair):
        k, v = pair
        self._k, self._v, self._key_width = k.shape[1:], v.shape[1:], k.shape[1:].numel()
        self.width = self._key_width + self._v.numel()
        """Elements of a token."""

    def chunk(self, flat: Tensor, tokens: int) -> Chunk:
        """Return a message as a chunk: all keys, then all values."""
        if self._k == self._v:
            k, v = flat.view(2, tokens, *self._k).unbind()
            return Chunk(k, v, flat)
        k, v = flat.split([tokens * self._key_width, flat.numel() - tokens * self._key_width])
        return Chunk(k.view(tokens, *self._k), v.view(tokens, *self._v), flat)

    def copied(self, pair: Pair, runs: Sequence[Run]) -> Chunk:
        """Return a copy of these rows."""
        parts = [x[begin:end].reshape(-1) for x in pair for begin, end in runs]
        flat = torch.cat(parts) if parts else pair[0].new_empty(0)
        return self.chunk(flat, sum(end - begin for begin, end in runs))


@dataclass(frozen=True)
class Windows:
    """Runs of rows of one ``length``, at equal distances from the ``first``."""

    first: int
    count: int
    length: int
    distance: int

    def of(self, x: Tensor, dim: int) -> Tensor:
        """Return a view in which ``dim`` is divided: [count, length]."""
        size, stride = [*x.shape], [*x.stride()]
        first, row = x.storage_offset() + self.first * stride[dim], stride[dim]
        size[dim : dim + 1], stride[dim : dim + 1] = (self.count, self.length), (self.distance * row, row)
        return x.as_strided(size, stride, first)

    def batched(self, x: Tensor) -> Tensor:
        """Return the rows of [B, S, …] as [B·count, length, …]."""
        return self.of(x, 1).flatten(0, 1)

    def batched_lse(self, lse: Tensor) -> Tensor:
        """Return those of [B, H, S] as [B·count, H, length]."""
        return self.of(lse, 2).transpose(1, 2).flatten(0, 1)


def joined(parts: list[Tensor], dim: int = 0) -> Tensor:
    """Return tensors one after the other; one alone is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def rows_of(x: Tensor, run: Run, dim: int = 0) -> Tensor:
    """Return these rows; all of them are the tensor itself."""
    begin, end = run
    return x if end - begin == x.shape[dim] else x.narrow(dim, begin, end - begin)


def batch_rows(x: Tensor, runs: Sequence[Run]) -> Tensor:
    """Return these rows of [B, S, …]."""
    return rows_of(x, runs[0], 1) if len(runs) == 1 else torch.cat([rows_of(x, run, 1) for run in runs], 1)


def runs_within(runs: Sequence[AnyRun], first: int, end: int) -> list[AnyRun]:
    """Return rows first..end-1 of joined runs, as local rows."""
    result: list[Any] = []
    at = 0
    slot: list[Any]
    for *slot, begin, stop in runs:
        low, high = max(first, at), min(end, at + stop - begin)
        if low < high:
            result.append((*slot, begin + low - at, begin + high - at))
        at += stop - begin
    return result
