"""What the forward and the backward half of a Plan share: the builder, its symbols, chunks, and kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from megatile.attention.plans.problem import Divided
from megatile.attention.plans.tables import Key, shortest
from megatile.attention.schedules.division import KernelCall
from megatile.attention.schedules.routes import CycleRoutes, Held
from megatile.core.attention_operations import UNLIMITED
from megatile.core.dtypes import itemsize
from megatile.core.expr import ONE, ZERO, Const, Expr, IntLike, constant, expr, unit
from megatile.core.placement import local_length
from megatile.plan.build import Handle, Operand, Part, PlanBuilder, part
from megatile.plan.model import Region, Work

Array = Any
QUERY_AXES = 4
"""Axes of queries and what belongs to them; keys and values have one more."""
Span = tuple[IntLike, IntLike]  # first and count
FIELDS = ("q", "rows", "k", "columns", "lower", "upper", "pairs", "begins")
"""Of a kernel's part; ``begins``: it is the first part of its kernel for these rows."""


def block(handle: Handle, *spans: Span | None) -> Part:
    """Return a region of a tile: per dimension (first, count), None for all of it."""
    full = [*spans, *[None] * (len(handle.shape) - len(spans))]
    chosen = [(0, extent) if span is None else span for span, extent in zip(full, handle.shape, strict=True)]
    return Part(
        handle, Region(handle.name, tuple(expr(a) for a, _ in chosen), tuple(expr(n) for _, n in chosen))
    )


@dataclass(frozen=True)
class Blocks:
    """One kernel for all ranks and steps: [ranks, steps] of rows, columns and band; ``where`` it runs."""

    where: Array
    numbers: dict[str, Array]


class PlanContext:
    """A builder with the symbols of a schedule.

    ``rank`` is the unit's place among the groups that share a part of the sequence, ``seat`` its place in
    its group; without a division of heads ``rank`` is the unit itself.
    """

    def __init__(self, divided: Divided, name: str, memory: str, scale: str):
        self.divided = divided
        self.problem = divided.problem
        self.routes = divided.schedule.routes
        self.division = divided.division
        self.memory = memory
        self.builder = PlanBuilder(name, scale=scale, units=divided.schedule.ranks)
        self.rank = unit // divided.width
        self.seat = unit % divided.width
        self.steps = self.routes.exchanges + 1

    def tile(self, name: str, shape: Sequence[int], dtype: str, role: str = "local") -> Handle:
        return self.builder.tile(name, shape, dtype, memory=self.memory, role=role)

    def unit_of(self, rank: Expr) -> Expr:
        """Return the unit of another group that stands at the same seat."""
        return rank * self.divided.width + self.seat

    # --- numbers by rank and step ----------------------------------------------------------------

    @cached_property
    def rank_key(self) -> Key:
        return Key(self.rank, np.arange(self.routes.ranks)[:, None])

    def by_rank(self, numbers: Sequence[int]) -> Expr:
        return shortest(np.asarray(numbers)[:, None], [self.rank_key])

    def by_unit(self, numbers: Sequence[int]) -> Expr:
        return shortest(np.asarray(numbers)[:, None], [Key(unit, np.arange(len(numbers))[:, None])])

    def step_keys(self, step: IntLike, first: int, count: int) -> list[Key]:
        """Return the keys of steps first..first+count-1; ``step`` is the current one."""
        at = np.arange(first, first + count)[None, :]
        whole = Key(self.rank * self.steps + step, self.rank_key.values * self.steps + at)
        return [Key(expr(step), at), self.rank_key, whole]

    def slot_keys(self, slot: int, step: IntLike) -> list[Key]:
        """Return keys for what is held in a slot at steps 1, 2, …: also where the chunk comes from."""
        by_step, by_rank, whole = self.step_keys(step, 1, self.steps - 1)
        sources = self.held_in(slot)[0]
        candidates = [by_step, by_rank, whole]
        if isinstance(self.routes, CycleRoutes):
            # Chunk c is at step s where it was one rank further back on its cycle at step s - 1.
            place = np.argsort(np.asarray(self.routes.cycles[slot]))
            back = place[:, None] - np.arange(1, self.steps)[None, :]
            ranks = self.routes.ranks
            along = Key((self.by_rank(place.tolist()) - step) % ranks, back % ranks)
            candidates.insert(2, along)
        source = Key(shortest(sources, candidates), sources)
        before = Key(source.expression < self.rank, (sources < self.rank_key.values).astype(int))
        both = Key(source.expression * 2 + before.expression, sources * 2 + before.values)
        return [before, by_step, by_rank, source, both, whole]

    def held_in(self, slot: int) -> tuple[Array, Array]:
        """Return the source and the number of the chunk in a slot, [ranks, steps 1, 2, …]."""
        return self._held[:, :, slot, 0], self._held[:, :, slot, 1]

    @cached_property
    def _held(self) -> Array:
        """Source and number of all chunks held: [ranks, steps 1, 2, …, slots, 2]."""
        ranks, steps = range(self.routes.ranks), range(1, self.steps)
        return np.array([[self.routes.held(step, rank) for step in steps] for rank in ranks])

    # --- chunks ----------------------------------------------------------------------------------

    @cached_property
    def chunk_length(self) -> int:
        """Return the rows of a message: those of the longest chunk, so that all messages have one size."""
        chunks = self.division.chunks
        return max(1, *(local_length(pieces) for own in chunks for pieces in own))

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        return (2, self.problem.batch, self.chunk_length, self.kv_heads, self.problem.dim)

    @property
    def all_chunks_shape(self) -> tuple[int, ...]:
        """Of all chunks of a rank one after the other: K and V of chunk c are blocks 2c and 2c + 1."""
        return (2 * self.routes.chunks, *self.chunk_shape[1:])

    @property
    def kv_heads(self) -> int:
        """KV heads of a rank once heads are divided (of the rank that has most)."""
        return self.divided.head_shares(self.divided.kv_heads)[0]

    @cached_property
    def chunk_runs(self) -> list[list[tuple[Expr, Expr, Expr, Expr]]]:
        """Per chunk, its runs of rows: (first local row, first row in the chunk, rows, if any)."""
        every = [self.division.chunk_rows(rank) for rank in range(self.routes.ranks)]
        result = []
        for c in range(self.routes.chunks):
            count = max(len(rows[c]) for rows in every)
            result.append([self._run([rows[c] for rows in every], k) for k in range(count)])
        return result

    def _run(self, runs: list[list[tuple[int, int]]], k: int) -> tuple[Expr, Expr, Expr, Expr]:
        there = np.array([len(own) > k for own in runs])[:, None]
        begin = [own[k][0] if len(own) > k else 0 for own in runs]
        count = [own[k][1] - own[k][0] if len(own) > k else 0 for own in runs]
        before = [sum(b - a for a, b in own[:k]) for own in runs]
        numbers = (shortest(np.array(x)[:, None], [self.rank_key], there) for x in (begin, before, count))
        first, at, rows = numbers
        return first, at, rows, shortest(there.astype(int), [self.rank_key])

    def only_where(self, condition: Expr) -> Any:
        """Open an ``If`` unless the condition is known to hold."""
        return nullcontext() if constant(condition) else self.builder.when(condition)

    # --- kernels ---------------------------------------------------------------------------------

    @cached_property
    def own_blocks(self) -> list[Blocks]:
        """The kernels of step 0, on the rank's own KV in local order."""
        own = [self.division.calls(0, rank) for rank in range(self.routes.ranks)]
        return _aligned([[_rectangles(calls, RowsOfStep())] for calls in own])

    @cached_property
    def slot_blocks(self) -> list[list[Blocks]]:
        """Per slot, the kernels of steps 1, 2, … on the chunk in it."""
        every = []
        # Where all is visible, rows have one kernel for the slots of a step: by rank and step, where such
        # rows begin and end, and which of them have begun.
        rows: list[list[RowsOfStep]] = [
            [RowsOfStep() for _ in range(1, self.steps)] for _ in range(self.routes.ranks)
        ]
        for slot in range(len(self.routes.held(1, 0)) if self.steps > 1 else 0):
            sources, chunks = self.held_in(slot)
            every.append(
                [
                    [self.division.calls_on(Held(s, c), rank) for s, c in zip(*row, strict=True)]
                    for rank, row in enumerate(zip(sources.tolist(), chunks.tolist(), strict=True))
                ]
            )
            for steps, own in zip(every[-1], rows, strict=True):
                for calls, of_step in zip(steps, own, strict=True):
                    of_step.note(calls)
        by_slot = (zip(calls, rows, strict=True) for calls in every)
        return [_aligned([[_rectangles(*x) for x in zip(*of_rank, strict=True)] for of_rank in slot])
                for slot in by_slot]  # fmt: skip

    def kernels(self, slot: int | None = None, step: IntLike = 0) -> Iterator[KernelCommand]:
        """Yield the kernels on what is held in a slot at a step (None: on the rank's own KV), to be written
        one after the other, each under the condition that it runs."""
        every = self.own_blocks if slot is None else self.slot_blocks[slot]
        keys = [self.rank_key] if slot is None else self.slot_keys(slot, step)
        if isinstance(step, int) and slot is not None:  # of a known step only its column
            one = slice(step - 1, step)
            every = [Blocks(b.where[:, one], {k: x[:, one] for k, x in b.numbers.items()}) for b in every]
            keys = [Key(k.expression, k.values if k.values.shape[1] == 1 else k.values[:, one]) for k in keys]
        for blocks in every:
            fields = {name: shortest(blocks.numbers[name], keys, blocks.where) for name in FIELDS}
            there = shortest(blocks.where.astype(int), keys)
            if constant(there) != 0:
                with self.only_where(there):
                    yield KernelCommand(self, fields)

    @cached_property
    def own_heads(self) -> tuple[Expr, Expr]:
        """The unit's query heads and KV heads."""
        shares = [self.divided.head_shares(h) for h in (self.problem.heads, self.divided.kv_heads)]
        seat = Key(self.seat, np.arange(self.divided.width)[:, None])
        first, second = (shortest(np.array(share)[:, None], [seat]) for share in shares)
        return first, second


class KernelCommand:
    """One kernel of all ranks: the rows, columns and band of it as expressions."""

    def __init__(self, context: PlanContext, fields: dict[str, Expr]):
        self.context, self.fields = context, fields
        heads, kv_heads = context.own_heads
        self._rows = None, (fields["q"], fields["rows"]), (0, heads)
        self._columns = None, None, (fields["k"], fields["columns"]), (0, kv_heads)

    def rows(self, handle: Handle) -> Part:
        """Return the queries of the kernel, or what belongs to them."""
        return block(handle, *self._rows)

    def columns(self, handle: Handle) -> Part:
        """Return its keys and values."""
        return block(handle, *self._columns)

    def write(self, operation: str, target: Part, reads: Sequence[Operand], per_pair: int) -> None:
        """Write a command: ``per_pair`` flops for each visible pair, head and dimension; bytes of everything
        touched, of queries and what belongs to them only where the kernel begins."""
        problem = self.context.problem
        flops = self.fields["pairs"] * per_pair * problem.dim * problem.batch * self.context.own_heads[0]
        moved: Expr = ZERO
        for touched in map(part, (*reads, target)):
            once = expr(itemsize(touched.dtype))
            times = self.fields["begins"] if len(touched.shape) == QUERY_AXES else ONE
            moved = moved + prod(touched.shape, start=once * times)
        limits = {name: self.fields[name] for name in ("lower", "upper")}
        known = {name: x.value if isinstance(x, Const) else x for name, x in limits.items()}
        given: dict[str, Any] = {
            name: x for name, x in known.items() if not isinstance(x, int) or abs(x) != UNLIMITED
        }
        self.context.builder.compute(
            operation,
            target,
            [*reads, target] if operation.endswith("_add") else reads,
            work=Work(flops, moved, problem.dtype),
            scale=problem.factor,
            **given,
        )


@dataclass
class RowsOfStep:
    """Rows of a rank at a step: ``ends`` of runs that see the same keys, and the runs that have ``begun``."""

    ends: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)

    def note(self, calls: list[KernelCall]) -> None:
        """Note where the rows of calls begin and end that see all of their keys."""
        self.ends |= {end for call in calls if call.tile.band.full for run in call.q for end in run}

    def runs(self, begin: int, end: int) -> list[tuple[int, int]]:
        inside = sorted(x for x in self.ends if begin < x < end)
        return list(pairwise([begin, *inside, end]))


def _rectangles(calls: list[KernelCall], of_step: RowsOfStep) -> list[tuple[int, ...]]:
    """Return calls as rectangles of one run each, with `FIELDS`."""
    result: list[tuple[int, ...]] = []
    for call in calls:
        band = call.tile.band
        lower = -UNLIMITED if band.lower is None else band.lower
        upper = UNLIMITED if band.upper is None else band.upper
        single = len(call.q) == 1 and len(call.kv) == 1
        full = call.tile.band.full
        runs = [part for run in call.q for part in (of_step.runs(*run) if full else [run])]
        for q_begin, q_end in runs:
            for number, (_, k_begin, k_end) in enumerate(call.kv):
                rows, columns = q_end - q_begin, k_end - k_begin
                pairs = call.pairs if single and not full else rows * columns
                begins = number == 0 and not (full and q_begin in of_step.begun)
                result.append((q_begin, rows, k_begin, columns, lower, upper, pairs, int(begins)))
            if full:
                of_step.begun.add(q_begin)
    return result


def _aligned(rectangles: list[list[list[tuple[int, ...]]]]) -> list[Blocks]:
    """[ranks][steps] lists of rectangles as the k-th kernel of all ranks and steps, for k = 0, 1, …"""
    count = max((len(some) for row in rectangles for some in row), default=0)
    result = []
    for k in range(count):
        where = np.array([[len(some) > k for some in row] for row in rectangles])
        filled = np.array(
            [[some[k] if len(some) > k else (0,) * len(FIELDS) for some in row] for row in rectangles]
        )
        result.append(Blocks(where, {name: filled[..., i] for i, name in enumerate(FIELDS)}))
    return result
