"""What is computed, how it is divided over the ranks of a schedule, and tensors in and out of a Plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from megatile.attention.schedules import Division, Mask, Schedule, ScheduleError, division_for, positions
from megatile.attention.schedules.pieces import Layout
from megatile.core.dtypes import dtype as dtype_name
from megatile.core.placement import Pieces, local_length, split

Array = Any


@dataclass(frozen=True)
class Problem:
    """Attention of ``length`` queries over ``kv_length`` keys (as many, unless given), in all of the ranks.

    ``kv_heads`` below ``heads`` is GQA. ``window``: keys visible to the left and right of a query, -1 for
    all. ``scale`` is 1/sqrt(dim) unless given. ``packed``: the lengths of several sequences, one after the
    other, that attend to themselves only; then ``length`` is their sum.
    """

    length: int
    heads: int = 32
    dim: int = 128
    kv_heads: int | None = None
    kv_length: int | None = None
    batch: int = 1
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    dtype: str = "bf16"
    scale: float | None = None
    packed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype_name(self.dtype))
        if self.packed and (sum(self.packed) != self.length or min(self.packed) < 1):
            raise ScheduleError(
                f"packed sequences must have at least 1 token each, {self.length} in all, got {self.packed}"
            )
        if self.packed and self.keys != self.length:
            raise ScheduleError(f"packed sequences have as many keys as queries, got kv_length={self.keys}")
        for name in ("length", "heads", "dim", "batch", "keys", "groups"):
            if getattr(self, name) < 1:
                raise ScheduleError(f"attention extents must be at least 1, got {name}={getattr(self, name)}")
        if self.heads % self.groups:
            raise ScheduleError(f"{self.heads} query heads cannot share {self.groups} KV heads")

    @property
    def keys(self) -> int:
        return self.length if self.kv_length is None else self.kv_length

    @property
    def sequences(self) -> tuple[list[int], list[int]]:
        """The lengths of the queries and of the keys of every sequence."""
        return (list(self.packed), list(self.packed)) if self.packed else ([self.length], [self.keys])

    @property
    def groups(self) -> int:
        """KV heads."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def mask(self) -> Mask:
        return Mask.of(self.causal, self.window)

    @property
    def factor(self) -> float:
        return self.dim**-0.5 if self.scale is None else self.scale


@dataclass(frozen=True)
class Divided:
    """A problem under a schedule: who holds which tokens, chunks and heads."""

    schedule: Schedule
    problem: Problem

    @property
    def width(self) -> int:
        """Ranks that divide the heads among them."""
        return self.schedule.heads

    @cached_property
    def layout(self) -> Layout:
        return self.schedule.layout(self.problem.causal)

    @cached_property
    def tokens(self) -> tuple[list[Pieces], list[Pieces]]:
        """Per rank, the pieces of its queries and of its keys."""
        queries, keys = self.problem.sequences
        return self.layout.pieces(queries), self.layout.pieces(keys)

    @cached_property
    def division(self) -> Division:
        """What the groups of ranks that share a part of the sequence do."""
        lengths = self.problem.sequences
        outer = self.layout.outer()
        pieces = outer.pieces(lengths[0]), outer.pieces(lengths[1])
        return division_for(self.schedule.routes, *pieces, self.problem.mask, *lengths)

    @property
    def kv_heads(self) -> int:
        """KV heads that travel: one for each query head where groups of heads would be torn apart."""
        problem = self.problem
        torn = problem.heads % self.width or problem.groups % self.width
        return problem.heads if torn else problem.groups

    def head_shares(self, heads: int) -> list[int]:
        """Return how many of ``heads`` each rank of a head group takes."""
        return split(heads, self.width)

    # --- tensors ---------------------------------------------------------------------------------

    @property
    def starts(self) -> list[int]:
        """Where every sequence begins among all tokens."""
        return [0, *accumulate(self.problem.packed)][: max(1, len(self.problem.packed))]

    def inputs(self, q: Array, k: Array, v: Array, d_out: Array | None = None) -> dict[str, Array]:
        """Return whole tensors [batch, length, heads, dim] as the inputs of the plan, one block per rank."""
        repeat = self.kv_heads // self.problem.groups
        kv = np.stack([np.repeat(np.asarray(x), repeat, axis=2) for x in (k, v)])
        queries, keys = self.tokens
        starts = self.starts
        arrays = {"q": _blocks(np.asarray(q), queries, 1, starts), "kv": _blocks(kv, keys, 2, starts)}
        if d_out is not None:
            arrays["d_out"] = _blocks(np.asarray(d_out), queries, 1, starts)
        return arrays

    def outputs(self, results: Mapping[str, Array]) -> tuple[Array, Array]:
        """Return whole tensors from the results: [batch, length, heads, dim] and lse [batch, length,
        heads]."""
        queries, _ = self.tokens
        out, lse = (_whole(results[name], queries, 1, self.starts) for name in ("out", "lse"))
        return out, lse[..., 0]

    def gradients(self, results: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        """Return dQ, dK and dV of the whole tensors, in f32."""
        queries, keys = self.tokens
        d_kv = _whole(results["d_kv"], keys, 2, self.starts)
        repeat = self.kv_heads // self.problem.groups
        d_kv = d_kv.reshape(*d_kv.shape[:3], self.problem.groups, repeat, d_kv.shape[-1]).sum(4)
        return _whole(results["d_q"], queries, 1, self.starts), d_kv[0], d_kv[1]


def longest(pieces: list[Pieces]) -> int:
    """Return the tokens of the rank that has most, at least 1: a tile must have a size."""
    return max(1, *map(local_length, pieces))


def _blocks(whole: Array, pieces: list[Pieces], axis: int, starts: list[int]) -> Array:
    """Return every rank's tokens along ``axis``, filled up with zeros to the same length."""
    shape = [len(pieces), *whole.shape]
    shape[axis + 1] = longest(pieces)
    blocks = np.zeros(shape, dtype=whole.dtype)
    for rank, own in enumerate(pieces):
        where = _places(own, starts)
        target = np.moveaxis(blocks[rank], axis, 0)
        target[: len(where)] = np.moveaxis(whole, axis, 0)[where]
    return blocks


def _places(own: Pieces, starts: list[int]) -> list[int]:
    """Return where the tokens of pieces are among those of all sequences."""
    return [starts[piece.sequence] + place for piece in own for place in positions((piece,))]


def _whole(blocks: Array, pieces: list[Pieces], axis: int, starts: list[int]) -> Array:
    shape = list(blocks.shape[1:])
    shape[axis] = sum(map(local_length, pieces))
    whole = np.zeros(shape, dtype=blocks.dtype)
    for rank, own in enumerate(pieces):
        where = _places(own, starts)
        np.moveaxis(whole, axis, 0)[where] = np.moveaxis(blocks[rank], axis, 0)[: len(where)]
    return whole
