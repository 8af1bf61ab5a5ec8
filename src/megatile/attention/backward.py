"""The engine's backward pass: chunks of KV travel once more, and their gradients come home."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from megatile.attention.block_kernels import BackwardInputs, accumulation_dtype
from megatile.attention.chunks import (
    Chunk,
    Chunks,
    ChunkShape,
    Pair,
    Windows,
    batch_rows,
    joined,
    rows_of,
    runs_within,
)
from megatile.attention.engine import AttentionEngine, PreparedCall, arrivals, arrived
from megatile.attention.packed import Batch
from megatile.attention.schedules.division import OWN, Exchange, Run
from megatile.attention.schedules.routes import Held


def attention_backward(engine: AttentionEngine, block: BackwardInputs, last: Chunks) -> tuple[Tensor, Pair]:
    """Return gradients of q and of the rank's own k and v (sequence first), as wide as sums are taken.

    ``last``: the chunks that the forward pass held last.
    """
    grads = Gradients(engine, block)
    if engine.division.routes.relays:
        _relayed(engine, grads, last)
    else:
        _direct(engine, grads)
    return grads.result()


def _relayed(engine: AttentionEngine, grads: Gradients, last: Chunks) -> None:
    """Cycles in reverse: KV goes back; dK and dV, one step behind, come home along the same routes."""
    held, coming = last, None
    for step in range(engine.division.routes.exchanges, 0, -1):
        reverse, back = _reverse(engine, step - 1), None
        if step > 1:  # the rank's own chunks, held at step 0, never left it
            back = engine.start(reverse, held, grads.shape, grads.pair[0])
        terms = grads.step(step, held)
        found = None
        if coming is not None:
            found = arrived(coming, _reverse(engine, step).receives, grads.shape)
        coming = engine.start(reverse, grads.of_chunks(step, terms, found), grads.shape, grads.wide)
        if back is not None:
            held = arrived(back, reverse.receives, grads.shape)
    terms = grads.step(0, {})
    if coming is not None:
        grads.bring_home(arrivals(coming, _reverse(engine, 0).receives, grads.shape))
    grads.add_own(terms)


def _direct(engine: AttentionEngine, grads: Gradients) -> None:
    """KV comes straight from its owner once more, dK and dV go straight back."""
    exchanges = engine.division.routes.exchanges
    own = engine.own_chunks(grads.pair, grads.shape)
    held, going = own, None
    for step in range(exchanges + 1):
        ahead = None
        if step < exchanges:
            exchange = engine.division.exchange(step, engine.rank)
            ahead = engine.start(exchange, own, grads.shape, grads.pair[0])
        terms = grads.step(step, held)
        if going is not None:
            grads.bring_home(arrivals(going, _reverse(engine, step - 2).receives, grads.shape))
            going = None
        if step > 0:
            local = grads.of_chunks(step, terms, None)
            going = engine.start(_reverse(engine, step - 1), local, grads.shape, grads.wide)
        else:
            grads.add_own(terms)
        if ahead is not None:
            held = arrived(ahead, exchange.receives, grads.shape)
    if going is not None:
        grads.bring_home(arrivals(going, _reverse(engine, exchanges - 1).receives, grads.shape))


def _reverse(engine: AttentionEngine, number: int) -> Exchange:
    """Return an exchange in the other direction."""
    found = engine.division.exchange(number, engine.rank)
    return Exchange(found.receives, found.sends)


Place: TypeAlias = "Run | Windows | Tensor"  # an index


class Term(NamedTuple):
    """Gradients of some keys and values: those of a slot (or OWN), and which of its rows."""

    slot: int
    rows: Place
    k: Tensor
    v: Tensor


class RowSum:
    """A sum over rows along ``dim``: the first term is written, later ones are added, the rest is 0.

    Its dtype and device are those of ``like``. A ``buffer`` is where it has to be, if that matters;
    ``started``: there is a term in it already.
    """

    def __init__(
        self,
        shape: torch.Size,
        like: Tensor,
        dim: int = 0,
        buffer: Tensor | None = None,
        started: bool = False,
    ):
        self._shape, self._like, self._dim, self._buffer, self._started = shape, like, dim, buffer, started

    def add(self, rows: Place, x: Tensor) -> None:
        """Add a term to these rows. The sum may keep ``x`` itself."""
        if self._started or isinstance(rows, (Tensor, Windows)):
            _add_rows(self.value(), rows, x, self._dim)
        else:
            self._begin(rows, x)

    def _begin(self, rows: Run, x: Tensor) -> None:
        length, self._started = self._shape[self._dim], True
        if self._buffer is None and rows == (0, length) and x.dtype == self._like.dtype:
            self._buffer = x
            return
        buffer = self._made()
        rows_of(buffer, rows, self._dim).copy_(x)
        for begin, end in ((0, rows[0]), (rows[1], length)):
            if begin < end:
                buffer.narrow(self._dim, begin, end - begin).zero_()

    def _made(self) -> Tensor:
        if self._buffer is None:
            self._buffer = self._like.new_empty(self._shape)
        return self._buffer

    def value(self) -> Tensor:
        """Return the sum; without any term it is 0."""
        buffer = self._made()
        if not self._started:
            self._started = True
            buffer.zero_()
        return buffer


def _add_rows(target: Tensor, rows: Place, x: Tensor, dim: int) -> None:
    if isinstance(rows, Tensor):
        target.index_add_(dim, rows, x.to(target.dtype))
    elif isinstance(rows, Windows):
        rows.of(target, dim).add_(x.unflatten(dim, (rows.count, rows.length)))
    else:
        rows_of(target, rows, dim).add_(x)


class Gradients:
    """What a backward pass collects on one rank."""

    def __init__(self, engine: AttentionEngine, block: BackwardInputs):
        self._engine, (self._d_out, self._q, k, v, self._out, self._lse, self._d_lse) = engine, block
        self.pair, self.shape = (k, v), ChunkShape((k, v))
        self.wide = k.new_empty(0, dtype=accumulation_dtype(k.dtype))
        """Of the dtype in which gradients are summed, and sent."""
        self._d_q = RowSum(self._q.shape, self.wide, dim=1)
        self._home = RowSum(k.shape, self.wide), RowSum(v.shape, self.wide)

    def result(self) -> tuple[Tensor, Pair]:
        return self._d_q.value(), (self._home[0].value(), self._home[1].value())

    def step(self, step: int, held: Chunks) -> list[Term]:
        """Do the kernels of a step: this rank's part of the gradients of the chunks held, or of its own."""
        engine, terms = self._engine, list[Term]()
        alone, together = engine.work(step, self._q.shape[2] * self._q.shape[3])
        if together and self._q.numel():
            terms += self._calls(step, together, engine.all_keys(step, self.pair, held))
        for prepared in alone:
            terms += self._call(prepared, prepared.pair(self.pair, held))
        return terms

    def of_chunks(self, step: int, terms: Sequence[Term], found: Chunks | None) -> Chunks:
        """Return the gradients of the chunks held at a step: those found elsewhere so far, and this rank's
        terms."""
        division, rank = self._engine.division, self._engine.rank
        chunks: Chunks = {}
        sums = list[tuple[RowSum, RowSum]]()
        for held in division.held(step, rank):
            tokens = division.chunk_length(held)
            empty = found is None
            flat = self.wide.new_empty(tokens * self.shape.width) if found is None else found[held].flat
            k, v, _ = chunks[held] = self.shape.chunk(flat, tokens)
            sums.append((RowSum(k.shape, k, 0, k, not empty), RowSum(v.shape, v, 0, v, not empty)))
        for slot, rows, d_k, d_v in terms:
            sums[slot][0].add(rows, d_k)
            sums[slot][1].add(rows, d_v)
        for pair in sums:
            for each in pair:
                each.value()
        return chunks

    def add_own(self, terms: Sequence[Term]) -> None:
        """Add gradients of the rank's own keys and values."""
        for _, rows, d_k, d_v in terms:
            self._home[0].add(rows, d_k)
            self._home[1].add(rows, d_v)

    def bring_home(self, chunks: Iterable[tuple[Held, Chunk]]) -> None:
        """Add gradients of the rank's own chunks to those of its KV."""
        rows = self._engine.division.chunk_runs(self._engine.rank)
        for held, chunk in chunks:
            at = 0
            for begin, end in rows[held.chunk]:
                part = at, at + end - begin
                self._home[0].add((begin, end), rows_of(chunk.k, part))
                self._home[1].add((begin, end), rows_of(chunk.v, part))
                at += end - begin

    def _calls(self, step: int, together: Sequence[Batch], keys: Pair) -> Iterator[Term]:
        """Yield the documents of each batch in one kernel call."""
        division, rank = self._engine.division, self._engine.rank
        order, dtype = division.held(step, rank), self.wide.dtype
        k, v = keys[0][:, 0], keys[1][:, 0]
        whole = None if len(order) < 2 else [torch.zeros_like(x, dtype=dtype) for x in keys]
        for batch in together:
            d_lse = None if self._d_lse is None else self._d_lse[0]
            block = BackwardInputs(self._d_out[0], self._q[0], k, v, self._out[0], self._lse[0], d_lse)
            d_q, *grads = self._engine.kernel.backward_many(block, batch, self._engine.options)
            rows, columns = (batch.place(side, k.device) for side in (True, False))
            self._d_q.add(rows, d_q[None])
            d_k, d_v = (x[:, None] for x in grads)
            if whole is None:
                yield Term(0 if step else OWN, columns, d_k, d_v)
            else:
                for target, grad in zip(whole, (d_k, d_v), strict=True):
                    _add_rows(target, columns, grad, 0)
        if whole is not None:
            ends = accumulate((division.chunk_length(h) for h in order), initial=0)
            for slot, (begin, end) in enumerate(pairwise(ends)):
                yield Term(slot, (0, end - begin), whole[0][begin:end], whole[1][begin:end])

    def _call(self, prepared: PreparedCall, keys: Pair) -> Iterator[Term]:
        engine, call = self._engine, prepared.call
        queries, d_out, out = (batch_rows(x, call.q) for x in (self._q, self._d_out, self._out))
        if not queries.numel():
            return
        lse, d_lse = (
            None if x is None else joined([rows_of(x, run, 2) for run in call.q], dim=2)
            for x in (self._lse, self._d_lse)
        )
        assert lse is not None
        k, v = keys[0].transpose(0, 1), keys[1].transpose(0, 1)
        for part in engine.parts(prepared, self._q, forward=False):
            rows, columns = part.rows, part.columns
            block = BackwardInputs(
                rows_of(d_out, rows, 1),
                rows_of(queries, rows, 1),
                rows_of(k, columns, 1),
                rows_of(v, columns, 1),
                rows_of(out, rows, 1),
                rows_of(lse, rows, 2),
                None if d_lse is None else rows_of(d_lse, rows, 2),
            )
            d_q, d_k, d_v = engine.kernel.backward(block, part.tile, engine.options)
            at = 0
            for begin, end in runs_within(call.q, *part.rows):
                self._d_q.add((begin, end), rows_of(d_q, (at, at + end - begin), 1))
                at += end - begin
            d_k, d_v, at = d_k.transpose(0, 1), d_v.transpose(0, 1), 0
            for slot, begin, end in runs_within(call.kv, *part.columns):
                piece = at, at + end - begin
                yield Term(slot, (begin, end), rows_of(d_k, piece), rows_of(d_v, piece))
                at += end - begin
