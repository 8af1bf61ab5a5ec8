"""The forward half: chunks of KV travel along the routes while kernels work on what is held."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.attention.plans.context import PlanContext, block
from megatile.attention.plans.heads import HeadMoves
from megatile.attention.plans.problem import longest
from megatile.attention.plans.tables import Key, shortest
from megatile.attention.schedules.routes import Transfer
from megatile.core.attention_operations import LSE_COLUMNS
from megatile.core.dtypes import itemsize
from megatile.core.expr import Const, Expr, IntLike, member
from megatile.plan.build import Handle, Part
from megatile.plan.model import Channel

FORWARD_FLOPS = 4
"""Per visible pair and dimension: two products, a multiplication and an addition each."""


class Exchange:
    """The messages of the routes: slot i of a rank goes to a peer's slot, in every exchange."""

    def __init__(self, context: PlanContext):
        self.context = context
        routes = context.routes
        ranks, count = range(routes.ranks), len(routes.sends(0, 0)) if routes.exchanges else 0
        self.slots = range(count)
        numbers = np.zeros((3, count, len(ranks), routes.exchanges), dtype=int)
        for e in range(routes.exchanges):
            slot_of = [{t: j for j, t in enumerate(routes.receives(e, rank))} for rank in ranks]
            for rank in ranks:
                for i, (peer, held) in enumerate(routes.sends(e, rank)):
                    numbers[:, i, rank, e] = peer, slot_of[peer][Transfer(rank, held)], held.chunk
        self.peer, self.member, self.chunk = numbers
        # Who feeds a slot is the same in every exchange, so that one queue per slot is enough.
        self.feeder = np.array([[t.peer for t in routes.receives(0, r)] for r in ranks if count])

    def feeder_of(self, slot: int) -> Expr:
        """Return the unit that feeds a slot: where gradients go back to."""
        return self.context.unit_of(self.context.by_rank(self.feeder[:, slot].tolist()))

    def sent_as(self, slot: int) -> int:
        """Return the number, among what the feeder of a slot sends, of what it sends to this slot."""
        return next(i for i in self.slots if int(self.member[i, int(self.feeder[0, slot]), 0]) == slot)

    def channel(self, name: str, reverse: bool = False) -> Channel:
        """Queues for chunks (or gradients of them, of names that begin with ``d_``), one per slot, fed by the
        peers that send to it; ``reverse``: by those it sends to."""
        context, ranks = self.context, self.context.routes.ranks
        slots = np.arange(len(self.slots))[None, :]
        feeder = self.peer[:, :, 0].T if reverse else self.feeder
        whole = Key(member * ranks + context.rank, slots * ranks + context.rank_key.values)
        return context.builder.channel(
            name,
            source=context.unit_of(shortest(feeder, [context.rank_key, whole])),
            slot_bytes=int(np.prod(context.chunk_shape)) * itemsize(self._dtype(name)),
            memory=context.memory,
            members=len(self.slots),
        )

    def _dtype(self, channel: str) -> str:
        return "f32" if channel.startswith("d_") else self.context.problem.dtype

    def receive(self, channel: Channel, name: str) -> list[Handle]:
        """Receive the next message of every slot."""
        shape, dtype = self.context.chunk_shape, self._dtype(channel.name)
        return [
            self.context.builder.receive(channel, shape, dtype, member=j, name=f"{name}_{j}")
            for j in self.slots
        ]

    def numbers(
        self, slot: int, exchange: IntLike, first: int = 0, count: int | None = None
    ) -> tuple[Expr, Expr, Expr]:
        """Return the receiving unit, its slot, and the chunk sent, in the current exchange of
        first..first+count-1."""
        end = self.context.steps - 1 if count is None else first + count
        keys = self.context.step_keys(exchange, first, end - first)
        found = (shortest(x[slot][:, first:end], keys) for x in (self.peer, self.member, self.chunk))
        peer, place, chunk = found
        return self.context.unit_of(peer), place, chunk


class Forward:
    """Writes the statements of a forward pass."""

    def __init__(self, context: PlanContext):
        self.context = context
        problem, divided = context.problem, context.divided
        queries, keys = divided.tokens
        self.q_own = context.tile(
            "q", (problem.batch, longest(queries), problem.heads, problem.dim), problem.dtype, "input"
        )
        kv_shape = (2, problem.batch, longest(keys), divided.kv_heads, problem.dim)
        self.kv_own = context.tile("kv", kv_shape, problem.dtype, "input")
        self.out = context.tile("out", self.q_own.shape, problem.dtype, "output")  # type: ignore[arg-type]
        lse_shape = (problem.batch, longest(queries), problem.heads, 1)
        self.lse = context.tile("lse", lse_shape, "f32", "output")
        self.q, self.kv = self.q_own, self.kv_own
        self.exchange_q = HeadMoves(context, queries, problem.heads)
        self.exchange_kv = HeadMoves(context, keys, divided.kv_heads)
        if divided.width > 1:
            self.q = context.tile("q_of_heads", self.q_shape(problem.dim), problem.dtype)
            rows = longest(list(context.division.kv))
            kv_inner = (2, problem.batch, rows, context.kv_heads, problem.dim)
            self.kv = context.tile("kv_of_heads", kv_inner, problem.dtype)
        self.result = context.tile("result", self.q_shape(problem.dim + LSE_COLUMNS), "f32")
        self.exchange = Exchange(context)
        self.chunks = self._chunk_tile() if self.exchange.slots else None

    def q_shape(self, width: int) -> tuple[int, ...]:
        """Return the shape of tiles with the group's queries for the heads of one rank."""
        context = self.context
        heads = context.divided.head_shares(context.problem.heads)[0]
        return (context.problem.batch, longest(list(context.division.q)), heads, width)

    def _chunk_tile(self) -> Handle | None:
        """Return chunks one after the other, where they are not whole blocks of the KV tile already."""
        context = self.context
        length = context.chunk_length
        plain = all(
            rows == [(c * length, (c + 1) * length)]
            for rank in range(context.routes.ranks)
            for c, rows in enumerate(context.division.chunk_rows(rank))
        )
        return None if plain else context.tile("chunks", context.all_chunks_shape, context.problem.dtype)

    # --- the pass --------------------------------------------------------------------------------

    def write(self) -> list[Handle]:
        """Return the statements; returns the chunks held at the end."""
        context, builder = self.context, self.context.builder
        if context.divided.width > 1:
            self.exchange_q.to_heads(self.q_own, self.q, "heads_of_q")
            self.exchange_kv.to_heads(self.kv_own, self.kv, "heads_of_kv")
        builder.compute("attention_start", self.result, width=context.problem.dim + LSE_COLUMNS)
        if not self.exchange.slots:
            self._kernels(self.kv)
            self._finish()
            return []
        self.pack(self.chunks, self.kv)
        channel = self.exchange.channel("kv_chunks")
        self._send_own(channel, 0)
        self._kernels(self.kv)
        held = self.exchange.receive(channel, "chunk")
        carried = {f"held_{j}": handle for j, handle in enumerate(held)}
        with builder.loop(1, context.steps - 1, index="step", **carried) as loop:  # type: ignore[arg-type]
            current: list[Any] = [loop.carried[name] for name in carried]
            # Kernels first: a send may have to wait for a free slot, and nothing is issued while it does.
            for slot, handle in enumerate(current):
                self._kernels(handle, slot, loop.index)
            if context.routes.relays:
                self._send_held(channel, current)
            else:
                self._send_own(channel, loop.index)
            loop.next(**dict(zip(carried, self.exchange.receive(channel, "chunk"), strict=True)))
        last: list[Any] = [loop.carried[name] for name in carried]
        for slot, handle in enumerate(last):
            self._kernels(handle, slot, context.steps - 1)
        self._finish()
        return last

    def pack(self, chunks: Handle | None, kv: Handle, unpack: bool = False) -> None:
        """Pack the rows of each chunk into one buffer (or unpack them, adding to the destination)."""
        context, builder = self.context, self.context.builder
        for c, runs in enumerate(context.chunk_runs if chunks is not None else []):
            for first, at, rows, there in runs:
                with context.only_where(there):
                    local = block(kv, None, None, (first, rows))
                    packed = block(chunks, (2 * c, 2), None, (at, rows))  # type: ignore[arg-type]
                    if unpack:
                        builder.compute("add", local, [local, packed])
                    else:
                        builder.copy(packed, local, engine="vector")

    def own_chunk(self, chunk: IntLike) -> Part:
        """Return a chunk of the rank's own KV."""
        if self.chunks is not None:
            return block(self.chunks, (chunk * 2, 2))
        length = self.context.chunk_length
        first = chunk * length if isinstance(chunk, Expr) else Const(chunk * length)
        return block(self.kv, None, None, (first, length))

    def _send_own(self, channel: Channel, exchange: IntLike) -> None:
        first, count = (0, 1) if isinstance(exchange, int) else (0, None)
        for slot in self.exchange.slots:
            to, place, chunk = self.exchange.numbers(slot, exchange, first, count)
            self.context.builder.send(channel, self.own_chunk(chunk), to=to, member=place)

    def _send_held(self, channel: Channel, held: list[Handle]) -> None:
        for slot in self.exchange.slots:
            to, place, _ = self.exchange.numbers(slot, 0, 0, 1)
            self.context.builder.send(channel, held[slot], to=to, member=place)

    # --- kernels ---------------------------------------------------------------------------------

    def _kernels(self, kv: Handle, slot: int | None = None, step: IntLike = 0) -> None:
        """The result takes in the attention over the rank's own KV, or over what is held in a slot."""
        for number, kernel in enumerate(self.context.kernels(slot, step)):
            result, reads = kernel.rows(self.result), [kernel.rows(self.q), kernel.columns(kv)]
            merges = number > 0 or slot is not None  # the first kernel of all finds no result
            kernel.write("attention_add" if merges else "attention", result, reads, FORWARD_FLOPS)

    def _finish(self) -> None:
        """Write outputs in the type of the inputs, log-sum-exps in f32; both go back to their tokens."""
        context, builder, dim = self.context, self.context.builder, self.context.problem.dim
        out, lse = self.out, self.lse
        if context.divided.width > 1:
            out = context.tile("out_of_heads", self.q_shape(dim), context.problem.dtype)
            lse = context.tile("lse_of_heads", self.q_shape(1), "f32")
        builder.compute("cast", out, [block(self.result, None, None, None, (0, dim))])
        builder.copy(lse, block(self.result, None, None, None, (dim, 1)), engine="vector")
        if context.divided.width > 1:
            self.exchange_q.to_tokens(out, self.out, "tokens_of_out")
            self.exchange_q.to_tokens(lse, self.lse, "tokens_of_lse")
