"""One engine for every schedule: work on what is held while the next chunks travel; then in reverse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from megatile.attention.block_kernels import (
    BackwardInputs,
    BlockKernel,
    KernelOptions,
    accumulation_dtype,
)
from megatile.attention.communication import Communicator, Pending
from megatile.attention.merge import Accumulator
from megatile.attention.packed import Batch, batches
from megatile.attention.profile import Profile, span
from megatile.attention.schedules.bands import Part
from megatile.attention.schedules.division import OWN, Division, KernelCall, Run
from megatile.attention.schedules.routes import Held, Transfer

Pair = tuple[Tensor, Tensor]  # K and V (or their gradients), sequence first: [S, B, H, D]
Chunks = dict[Held, Pair]
Block = tuple[list[Run], Tensor, Tensor]  # rows, their results and log-sum-exps
MIN_BLOCKS_JOINED = 4  # fewer are merged one by one: joining copies them


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
        routes = self.division.routes
        batch, rows, heads, _ = q.shape
        result = Accumulator(batch, rows, heads, v.shape[-1], q.device, accumulation_dtype(q.dtype))
        own = self.own_chunks((k, v)) if own is None else own
        held = own
        for step in range(routes.exchanges + 1):
            pending = None
            if step < routes.exchanges:
                with span(self.profile, "communication"):
                    source = held if routes.relays else own
                    pending = self._start(
                        routes.sends(step, self.rank), routes.receives(step, self.rank), source, k, v
                    )
            with span(self.profile, "computation"):
                alone, together = self._work(step, q.shape[2] * q.shape[3])
                blocks: list[Block] = []
                for call in alone:
                    blocks += self._forward_call(call, q, self._keys(step, call, (k, v), held))
                for runs, *block in _without_overlap(blocks):
                    result.add(runs, *block)
                if together and q.numel():
                    keys = self._all_keys(step, (k, v), held)
                    for batch in together:
                        parts = q[0], keys[0][:, 0], keys[1][:, 0]
                        out, lse = self.kernel.forward_many(*parts, batch, self.options)
                        result.add(batch.runs, out[None], lse[None])
            if pending is not None:
                with span(self.profile, "communication"):
                    held = self._arrived(pending, routes.receives(step, self.rank), k, v)
        out, lse = result.result(q.dtype, sinks)
        return out, lse, held

    def backward(self, block: BackwardInputs, last: Chunks) -> tuple[Tensor, Pair]:
        """Gradients of q and of the rank's own k and v (sequence first), as wide as sums are taken."""
        grads = _Gradients(self, block)
        if self.division.routes.relays:
            self._backward_relayed(grads, last)
        else:
            self._backward_direct(grads)
        return grads.d_q, grads.home

    def own_chunks(self, pair: Pair) -> Chunks:
        """The rank's KV cut into the chunks of the routes; none where nothing travels."""
        if not self.division.routes.exchanges:
            return {}
        rows = self.division.chunk_rows(self.rank)
        return {Held(self.rank, c): _pair(_rows(x, runs) for x in pair) for c, runs in enumerate(rows)}

    def _backward_relayed(self, grads: _Gradients, last: Chunks) -> None:
        """Cycles in reverse: KV goes back; dK and dV, one step behind, come home along the same routes."""
        routes, rank = self.division.routes, self.rank
        k, v = grads.pair
        held, coming = last, None
        for step in range(routes.exchanges, -1, -1):
            back = None
            if step > 1:  # the rank's own chunks, held at step 0, never left it
                back = self._start(routes.receives(step - 1, rank), routes.sends(step - 1, rank), held, k, v)
            local = grads.step(step, held)
            if coming is not None:
                arrived = self._arrived(coming, routes.sends(step, rank), *grads.home)
                _add(local, arrived) if step > 0 else grads.bring_home(arrived)
            if step > 0:
                backwards = routes.receives(step - 1, rank), routes.sends(step - 1, rank)
                coming = self._start(*backwards, local, *grads.home)
            if back is not None:
                held = self._arrived(back, routes.sends(step - 1, rank), k, v)

    def _backward_direct(self, grads: _Gradients) -> None:
        """KV comes straight from its owner once more, dK and dV go straight back."""
        routes, rank = self.division.routes, self.rank
        k, v = grads.pair
        own = self.own_chunks(grads.pair)
        held, going = own, None
        for step in range(routes.exchanges + 1):
            ahead = None
            if step < routes.exchanges:
                ahead = self._start(routes.sends(step, rank), routes.receives(step, rank), own, k, v)
            local = grads.step(step, held)
            if going is not None:
                grads.bring_home(self._arrived(going, routes.sends(step - 2, rank), *grads.home))
                going = None
            if step > 0:
                backwards = routes.receives(step - 1, rank), routes.sends(step - 1, rank)
                going = self._start(*backwards, local, *grads.home)
            if ahead is not None:
                held = self._arrived(ahead, routes.receives(step, rank), k, v)
        if going is not None:
            grads.bring_home(self._arrived(going, routes.sends(routes.exchanges - 1, rank), *grads.home))

    def _work(self, step: int, width: int) -> tuple[Sequence[KernelCall], Sequence[Batch]]:
        """The kernel calls of a step; those of packed sequences that can share a call do."""
        calls = self.division.calls(step, self.rank)
        if len(self.division.shift) == 1 or self.division.biased or len(calls) < 2:
            return calls, ()
        cached, key = self.division.batches, (step, self.rank, type(self.kernel), width)
        if key not in cached:
            order = self.division.routes.held(step, self.rank) if step else ()
            offsets = [0, *accumulate(self.division.chunk_length(h) for h in order)]
            cached[key] = batches(calls, offsets, lambda segment: self.kernel.kind(segment, width))
        found: tuple[Sequence[KernelCall], Sequence[Batch]] = cached[key]
        return found

    def _all_keys(self, step: int, own: Pair, held: Chunks) -> Pair:
        """All keys and values of a step, one slot after the other."""
        if not step:
            return own
        order = self.division.routes.held(step, self.rank)
        return _pair(_joined([held[h][side] for h in order]) for side in (0, 1))

    def _forward_call(self, call: KernelCall, q: Tensor, keys: Pair) -> Iterator[Block]:
        queries = _batch_rows(q, call.q)
        k, v = (x.transpose(0, 1) for x in keys)
        if not queries.numel():
            return
        for part in self._parts(call, q, forward=True):
            (top, bottom), (left, right) = part.rows, part.columns
            block = self.kernel.forward(
                queries[:, top:bottom], k[:, left:right], v[:, left:right], part.tile, self.options
            )
            yield _runs_within(call.q, top, bottom), *block

    def _parts(self, call: KernelCall, like: Tensor, forward: bool) -> Iterator[Part]:
        """What kernels do of a call, one after the other."""
        mask = self.options.mask
        for part in self.kernel.divide(call.tile, call.rows, call.columns):
            if mask is None:
                yield part
            else:
                yield from mask.parts(part, call.at, like, self.options.first_head, counted=forward)

    def _keys(self, step: int, call: KernelCall, own: Pair, held: Chunks) -> Pair:
        order = self.division.routes.held(step, self.rank)
        runs = [((own if slot == OWN else held[order[slot]]), begin, end) for slot, begin, end in call.kv]
        return _pair(_joined([pair[side][begin:end] for pair, begin, end in runs]) for side in (0, 1))

    def _start(
        self, sends: Sequence[Transfer], receives: Sequence[Transfer], chunks: Chunks, k: Tensor, v: Tensor
    ) -> Pending:
        packed: dict[int, list[Tensor]] = {}
        for peer, held in sends:
            packed.setdefault(peer, []).extend(x.reshape(-1) for x in chunks[held])
        messages = {peer: _joined(parts) for peer, parts in packed.items()}
        sizes: dict[int, int] = {}
        for peer, held in receives:
            sizes[peer] = sizes.get(peer, 0) + self.division.chunk_length(held) * (_width(k) + _width(v))
        return self.communicator.exchange(messages, sizes, k, "the exchange of KV chunks")

    def _arrived(self, pending: Pending, receives: Sequence[Transfer], k: Tensor, v: Tensor) -> Chunks:
        flat = pending.wait()
        at: dict[int, int] = {}
        chunks: Chunks = {}
        for peer, held in receives:
            length, start = self.division.chunk_length(held), at.get(peer, 0)
            middle = start + length * _width(k)
            end = middle + length * _width(v)
            chunks[held] = (
                flat[peer][start:middle].view(length, *k.shape[1:]),
                flat[peer][middle:end].view(length, *v.shape[1:]),
            )
            at[peer] = end
        return chunks


class _Gradients:
    """What a backward run collects on one rank."""

    def __init__(self, engine: AttentionEngine, block: BackwardInputs):
        self.engine, (self.d_out, self.q, k, v, self.out, self.lse, self.d_lse) = engine, block
        self.pair, self.dtype = (k, v), accumulation_dtype(self.q.dtype)
        self.d_q = torch.zeros_like(self.q, dtype=self.dtype, memory_format=torch.contiguous_format)
        self.home = _pair(torch.zeros(x.shape, dtype=self.dtype, device=x.device) for x in self.pair)

    def step(self, step: int, held: Chunks) -> Chunks:
        """Do the kernels of a step; returns this rank's part of the gradients of the chunks held.

        At step 0 these are the rank's own, and their gradients are at home already.
        """
        engine = self.engine
        order = engine.division.routes.held(step, engine.rank) if step else ()
        local, whole = self._zeros(order, held)
        alone, together = engine._work(step, self.q.shape[2] * self.q.shape[3])
        if together and self.q.numel():
            target = whole if step else self.home
            self._calls(together, engine._all_keys(step, self.pair, held), target)
        for call in alone:
            keys = engine._keys(step, call, self.pair, held)
            targets = [((self.home if slot == OWN else local[order[slot]]), a, b) for slot, a, b in call.kv]
            self._call(call, keys, targets)
        return local

    def _zeros(self, order: Sequence[Held], held: Chunks) -> tuple[Chunks, Pair]:
        """Gradients of the chunks held, and those of all of them one after the other."""
        lengths = [len(held[h][0]) for h in order]
        whole = _pair(x.new_zeros((sum(lengths), *x.shape[1:]), dtype=self.dtype) for x in self.pair)
        parts = zip(*(x.split(lengths) for x in whole), strict=True)
        return dict(zip(order, parts, strict=True)), whole

    def _calls(self, together: Sequence[Batch], keys: Pair, target: Pair) -> None:
        """The documents of each batch in one kernel call."""
        for batch in together:
            k, v = (x[:, 0] for x in keys)
            d_lse = None if self.d_lse is None else self.d_lse[0]
            block = BackwardInputs(self.d_out[0], self.q[0], k, v, self.out[0], self.lse[0], d_lse)
            d_q, d_k, d_v = self.engine.kernel.backward_many(block, batch, self.engine.options)
            rows, columns = (torch.from_numpy(x).to(k.device) for x in (batch.rows, batch.columns))
            self.d_q[0].index_add_(0, rows, d_q.to(self.dtype))
            for side, grad in enumerate((d_k, d_v)):
                target[side][:, 0].index_add_(0, columns, grad.to(self.dtype))

    def bring_home(self, chunks: Mapping[Held, Pair]) -> None:
        """Add gradients of the rank's own chunks to those of its KV."""
        rows = self.engine.division.chunk_rows(self.engine.rank)
        for held, pair in chunks.items():
            for target, grad in zip(self.home, pair, strict=True):
                at = 0
                for begin, end in rows[held.chunk]:
                    target[begin:end] += grad[at : at + end - begin]
                    at += end - begin

    def _call(self, call: KernelCall, keys: Pair, targets: list[tuple[Pair, int, int]]) -> None:
        queries, d_out, out = (_batch_rows(x, call.q) for x in (self.q, self.d_out, self.out))
        if not queries.numel():
            return
        lse, d_lse = (
            None if x is None else _joined([x[:, :, begin:end] for begin, end in call.q], dim=2)
            for x in (self.lse, self.d_lse)
        )
        assert lse is not None
        k, v = (x.transpose(0, 1) for x in keys)
        d_keys = _pair(torch.zeros_like(x, dtype=self.dtype) for x in keys)
        for part in self.engine._parts(call, self.q, forward=False):
            rows, columns = slice(*part.rows), slice(*part.columns)
            block = BackwardInputs(
                d_out[:, rows], queries[:, rows], k[:, columns], v[:, columns], out[:, rows], lse[:, :, rows],
                None if d_lse is None else d_lse[:, :, rows],
            )  # fmt: skip
            d_q, d_k, d_v = self.engine.kernel.backward(block, part.tile, self.engine.options)
            at = 0
            for begin, end in _runs_within(call.q, *part.rows):
                self.d_q[:, begin:end] += d_q[:, at : at + end - begin]
                at += end - begin
            d_keys[0][columns] += d_k.transpose(0, 1)
            d_keys[1][columns] += d_v.transpose(0, 1)
        at = 0
        for target, begin, end in targets:
            for side in (0, 1):
                target[side][begin:end] += d_keys[side][at : at + end - begin]
            at += end - begin


def _without_overlap(blocks: list[Block]) -> list[Block]:
    """Many blocks, if no two have a row in common, as one: they are merged at once."""
    ordered = sorted(blocks, key=lambda block: block[0])
    runs = [run for block in ordered for run in block[0]]
    if len(blocks) < MIN_BLOCKS_JOINED or any(a[1] > b[0] for a, b in pairwise(runs)):
        return blocks
    return [(runs, torch.cat([b[1] for b in ordered], 1), torch.cat([b[2] for b in ordered], 2))]


def _add(target: Chunks, more: Mapping[Held, Pair]) -> None:
    for held, pair in more.items():
        for x, y in zip(target[held], pair, strict=True):
            x += y


def _pair(two: Iterator[Tensor]) -> Pair:
    first, second = two
    return first, second


def _joined(parts: list[Tensor], dim: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _rows(x: Tensor, runs: Sequence[Run]) -> Tensor:
    return _joined([x[begin:end] for begin, end in runs]) if runs else x[:0]


def _batch_rows(x: Tensor, runs: Sequence[Run]) -> Tensor:
    return _joined([x[:, begin:end] for begin, end in runs], dim=1)


def _runs_within(runs: Sequence[Run], first: int, end: int) -> list[Run]:
    """Rows first..end-1 of joined runs, as local rows."""
    result, at = [], 0
    for begin, stop in runs:
        low, high = max(first, at), min(end, at + stop - begin)
        if low < high:
            result.append((begin + low - at, begin + high - at))
        at += stop - begin
    return result


def _width(x: Tensor) -> int:
    """Elements of one token."""
    return x.shape[1] * x.shape[2] * x.shape[3]
