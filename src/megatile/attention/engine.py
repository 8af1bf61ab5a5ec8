"""One engine for every schedule: work on what is held while the next chunks travel; then in reverse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from megatile.attention.block_kernels import (
    BlockKernel,
    KernelOptions,
    accumulation_dtype,
)
from megatile.attention.chunks import (
    Chunk,
    Chunks,
    ChunkShape,
    Pair,
    batch_rows,
    joined,
    rows_of,
    runs_within,
)
from megatile.attention.communication import Communicator, Pending
from megatile.attention.merge import Accumulator
from megatile.attention.packed import Batch, batches
from megatile.attention.profile import Profile, span
from megatile.attention.schedules.bands import Part
from megatile.attention.schedules.division import (
    OWN,
    Division,
    Exchange,
    KernelCall,
    Messages,
    Run,
    joined_runs,
)
from megatile.attention.schedules.routes import Held

Block = tuple[list[Run], Tensor, Tensor]  # rows, their results and log-sum-exps
MIN_BLOCKS_JOINED = 4  # fewer are merged one by one: joining copies them


class PreparedCall(NamedTuple):
    """A kernel call with the parts that its kernel divides it into."""

    call: KernelCall
    parts: tuple[Part, ...]
    whole: bool
    """There is one part, which is all of it."""
    keys: tuple[tuple[Held | None, Run], ...]
    """Rows of the chunks held, or of the rank's own (None)."""

    @classmethod
    def of(cls, call: KernelCall, kernel: BlockKernel, held: Sequence[Held]) -> PreparedCall:
        parts = tuple(kernel.divide(call.tile, call.rows, call.columns))
        everything = [((0, call.rows), (0, call.columns))]
        whole = [(tuple(p.rows), tuple(p.columns)) for p in parts] == everything
        keys = tuple((None if slot == OWN else held[slot], (a, b)) for slot, a, b in call.kv)
        return cls(call, parts, whole, keys)

    def pair(self, own: Pair, held: Chunks) -> Pair:
        """Return the keys and values of the call."""
        if len(self.keys) == 1:
            ((chunk, run),) = self.keys
            k, v = own if chunk is None else held[chunk][:2]
            return rows_of(k, run), rows_of(v, run)
        found = [(own if chunk is None else held[chunk], run) for chunk, run in self.keys]
        k, v = (joined([rows_of(pair[i], run) for pair, run in found]) for i in (0, 1))
        return k, v


class StepWork(NamedTuple):
    """The kernel calls of a step; those of packed sequences that can share a call do."""

    alone: tuple[PreparedCall, ...]
    together: tuple[Batch, ...]


@dataclass(frozen=True)
class AttentionEngine:
    """Attention of one rank: its part of a division, with a kernel and a communicator."""

    division: Division
    rank: int
    communicator: Communicator
    kernel: BlockKernel
    options: KernelOptions
    profile: Profile | None = None

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, own: Chunks | None = None, sinks: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Chunks]:
        """``q`` [B, S, H, D], ``k``, ``v`` [S, B, H, D] → out, lse [B, H, S] and the chunks held last."""
        routes, profile = self.division.routes, self.profile
        batch, rows, heads, _ = q.shape
        result = Accumulator(batch, rows, heads, v.shape[-1], q.device, accumulation_dtype(q.dtype))
        shape = ChunkShape((k, v))
        own = self.own_chunks((k, v), shape) if own is None else own
        held = own
        for step in range(routes.exchanges + 1):
            pending = None
            if step < routes.exchanges:
                exchange = self.division.exchange(step, self.rank)
                with span(profile, "communication"):
                    pending = self.start(exchange, held if routes.relays else own, shape, k)
            with span(profile, "computation"):
                self._forward_step(step, q, (k, v), held, result)
            if pending is not None:
                with span(profile, "communication"):
                    held = arrived(pending, exchange.receives, shape)
        out, lse = result.result(q.dtype, sinks)
        return out, lse, held

    def own_chunks(self, pair: Pair, shape: ChunkShape) -> Chunks:
        """Return the rank's KV cut into the chunks of the routes; none where nothing travels."""
        if not self.division.routes.exchanges:
            return {}
        rows = self.division.chunk_runs(self.rank)
        return {Held(self.rank, c): shape.copied(pair, runs) for c, runs in enumerate(rows)}

    def work(self, step: int, width: int) -> StepWork:
        """Return the kernel calls of a step, for queries of ``width`` elements."""
        cached, key = self.division.batches, (step, self.rank, type(self.kernel), width)
        if key not in cached:
            calls, together = self.division.calls(step, self.rank), list[Batch]()
            order = self.division.held(step, self.rank)
            if len(self.division.shift) > 1 and not self.division.biased and len(calls) > 1:
                offsets = [0, *accumulate(self.division.chunk_length(h) for h in order)]
                calls, together = batches(calls, offsets, lambda s: self.kernel.kind(s, width))
            alone = tuple(PreparedCall.of(call, self.kernel, order) for call in calls)
            cached[key] = StepWork(alone, tuple(together))
        found: StepWork = cached[key]
        return found

    def all_keys(self, step: int, own: Pair, held: Chunks) -> Pair:
        """Return all keys and values of a step, one slot after the other."""
        if not step:
            return own
        order = self.division.held(step, self.rank)
        return joined([held[h].k for h in order]), joined([held[h].v for h in order])

    def parts(self, prepared: PreparedCall, like: Tensor, forward: bool) -> Iterator[Part]:
        """Yield what kernels do of a call, one after the other."""
        mask = self.options.mask
        if mask is None:
            yield from prepared.parts
            return
        for part in prepared.parts:
            yield from mask.parts(part, prepared.call.at, like, self.options.first_head, counted=forward)

    def _forward_step(self, step: int, q: Tensor, own: Pair, held: Chunks, result: Accumulator) -> None:
        alone, together = self.work(step, q.shape[2] * q.shape[3])
        blocks: list[Block] = []
        for prepared in alone:
            blocks += self._forward_call(prepared, q, prepared.pair(own, held))
        for block in _without_overlap(blocks):
            result.add(*block)
        if together and q.numel():
            k, v = self.all_keys(step, own, held)
            for batch in together:
                out, lse = self.kernel.forward_many(q[0], k[:, 0], v[:, 0], batch, self.options)
                result.add(batch.runs, out[None], lse[None], batch.windows[True])

    def _forward_call(self, prepared: PreparedCall, q: Tensor, pair: Pair) -> list[Block]:
        runs, kernel, options = prepared.call.q, self.kernel, self.options
        queries = batch_rows(q, runs)
        k, v = pair[0].transpose(0, 1), pair[1].transpose(0, 1)
        if not queries.numel():
            return []
        if prepared.whole and options.mask is None:
            return [(list(runs), *kernel.forward(queries, k, v, prepared.parts[0].tile, options))]
        return [
            (
                runs_within(runs, *rows),
                *kernel.forward(
                    rows_of(queries, rows, 1), rows_of(k, columns, 1), rows_of(v, columns, 1), tile, options
                ),
            )
            for rows, columns, tile in self.parts(prepared, q, forward=True)
        ]

    def start(self, exchange: Exchange, chunks: Chunks, shape: ChunkShape, like: Tensor) -> Pending:
        """Send chunks and receive others of that shape, in the dtype of ``like``."""
        sends, receives = exchange.sends.items(), exchange.receives.items()
        messages = {peer: joined([chunks[h].flat for h, _ in parts]) for peer, parts in sends}
        sizes = {peer: shape.width * sum(tokens for _, tokens in parts) for peer, parts in receives}
        return self.communicator.exchange(messages, sizes, like, "the exchange of KV chunks")


def arrived(pending: Pending, receives: Messages, shape: ChunkShape) -> Chunks:
    """Wait for an exchange; the chunks that it brought."""
    return dict(arrivals(pending, receives, shape))


def arrivals(pending: Pending, receives: Messages, shape: ChunkShape) -> Iterator[tuple[Held, Chunk]]:
    """Do the same where several peers send gradients of one chunk."""
    received = pending.wait()
    for peer, parts in receives.items():
        sizes = [tokens * shape.width for _, tokens in parts]
        flats = received[peer].split(sizes) if len(parts) > 1 else [received[peer]]
        for (held, tokens), flat in zip(parts, flats, strict=True):
            yield held, shape.chunk(flat, tokens)


def _without_overlap(blocks: list[Block]) -> list[Block]:
    """Many blocks, if no two have a row in common, as one: they are merged at once."""
    if len(blocks) < MIN_BLOCKS_JOINED:
        return blocks
    ordered = sorted(blocks, key=lambda block: block[0])
    runs = [run for block in ordered for run in block[0]]
    if any(a[1] > b[0] for a, b in pairwise(runs)):
        return blocks
    whole = [torch.cat([block[i] for block in ordered], i) for i in (1, 2)]
    return [(list(joined_runs(runs)), whole[0], whole[1])]
