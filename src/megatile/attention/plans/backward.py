"""The backward half: chunks go back along their routes, the gradients of keys and values travel with them."""

from __future__ import annotations

from typing import Any

from megatile.attention.plans.context import PlanContext, block
from megatile.attention.plans.forward import Forward
from megatile.core.expr import IntLike
from megatile.plan.build import Handle
from megatile.plan.model import Channel

KV_FLOPS, Q_FLOPS = 8, 2
"""Per visible pair and dimension: scores again, dP, dV and dK; and dQ."""


class Backward:
    """Writes the statements of a backward pass after those of ``forward``; gradients are f32.

    Inputs: ``d_out``; outputs: ``d_q`` and ``d_kv``. Relayed chunks run their cycles in reverse, starting
    with those held last; where chunks come straight from their owners they come once more, and their
    gradients go straight home.
    """

    def __init__(self, context: PlanContext, forward: Forward):
        self.context, self.forward = context, forward
        problem = context.problem
        q_own, kv_own = forward.q_own.shape, forward.kv_own.shape
        self.d_out_own = context.tile("d_out", q_own, problem.dtype, "input")  # type: ignore[arg-type]
        self.d_q_own = context.tile("d_q", q_own, "f32", "output")  # type: ignore[arg-type]
        self.d_kv_own = context.tile("d_kv", kv_own, "f32", "output")  # type: ignore[arg-type]
        self.d_out, self.d_q, self.d_kv = self.d_out_own, self.d_q_own, self.d_kv_own
        if context.divided.width > 1:
            self.d_out = context.tile("d_out_of_heads", forward.q_shape(problem.dim), problem.dtype)
            self.d_q = context.tile("d_q_of_heads", forward.q_shape(problem.dim), "f32")
            self.d_kv = context.tile("d_kv_of_heads", forward.kv.shape, "f32")  # type: ignore[arg-type]
        self.slots = forward.exchange.slots
        self.home = context.tile("d_chunks", context.all_chunks_shape, "f32") if self.slots else None
        self.local = [context.tile(f"d_chunk_{j}", context.chunk_shape, "f32") for j in self.slots]

    def write(self, last: list[Handle]) -> None:
        context, builder = self.context, self.context.builder
        if context.divided.width > 1:
            self.forward.exchange_q.to_heads(self.d_out_own, self.d_out, "heads_of_d_out")
        for tile in (self.d_q, self.d_kv, *([self.home] if self.home else [])):
            builder.compute("fill", tile, value=0)
        if self.slots:
            self._relayed(last) if context.routes.relays else self._direct()
        self._kernels(self.forward.kv, self.d_kv)
        if self.home is not None:
            self.forward.pack(self.home, self.d_kv, unpack=True)
        if context.divided.width > 1:
            self.forward.exchange_q.to_tokens(self.d_q, self.d_q_own, "tokens_of_d_q")
            self.forward.exchange_kv.to_tokens(self.d_kv, self.d_kv_own, "tokens_of_d_kv")

    # --- cycles in reverse -----------------------------------------------------------------------

    def _relayed(self, last: list[Handle]) -> None:
        """Step s works on what was held at step s; then KV and its gradients go to the rank before."""
        context, builder, exchange = self.context, self.context.builder, self.forward.exchange
        gradients = exchange.channel("d_chunks_back", reverse=True)
        if context.steps == 2:
            self._work(last, 1)
            self._back(gradients, self.local)
        else:
            chunks = exchange.channel("kv_chunks_back", reverse=True)
            self._back(chunks, last)
            self._work(last, context.steps - 1)
            self._back(gradients, self.local)
            carried = {f"back_{j}": handle for j, handle in enumerate(exchange.receive(chunks, "kv_back"))}
            with builder.loop(context.steps - 2, 1, -1, index="step_back", **carried) as loop:
                current: list[Any] = [loop.carried[name] for name in carried]
                self._work(current, loop.index)
                self._back(chunks, current)
                self._add_arrived(gradients)
                self._back(gradients, self.local)
                loop.next(**dict(zip(carried, exchange.receive(chunks, "kv_back"), strict=True)))
            first: list[Any] = [loop.carried[name] for name in carried]
            self._work(first, 1)
            self._add_arrived(gradients)
            self._back(gradients, self.local)
        for slot, arrived in enumerate(exchange.receive(gradients, "d_home")):
            target = block(self.home, (2 * slot, 2))  # type: ignore[arg-type]
            builder.copy(target, arrived, engine="vector")

    def _back(self, channel: Channel, held: list[Handle]) -> None:
        for slot in self.slots:
            to = self.forward.exchange.feeder_of(slot)
            self.context.builder.send(channel, held[slot], to=to, member=slot)

    def _add_arrived(self, channel: Channel) -> None:
        for slot, arrived in enumerate(self.forward.exchange.receive(channel, "d_arrived")):
            self.context.builder.compute("add", self.local[slot], [self.local[slot], arrived])

    # --- straight from the owners ----------------------------------------------------------------

    def _direct(self) -> None:
        """Exchange e brings the same chunks as in the forward pass; their gradients go straight home."""
        context, builder, exchange = self.context, self.context.builder, self.forward.exchange
        chunks = exchange.channel("kv_chunks_again")
        gradients = exchange.channel("d_chunks_home", reverse=True)
        with builder.loop(1, context.steps, index="step_again") as loop:
            for slot in self.slots:
                to, place, chunk = exchange.numbers(slot, loop.index - 1)
                builder.send(chunks, self.forward.own_chunk(chunk), to=to, member=place)
            self._work(exchange.receive(chunks, "kv_again"), loop.index)
            for slot in self.slots:
                builder.send(
                    gradients, self.local[slot], to=exchange.feeder_of(slot), member=exchange.sent_as(slot)
                )
            for slot, arrived in enumerate(exchange.receive(gradients, "d_home")):
                chunk = exchange.numbers(slot, loop.index - 1)[2]
                target = block(self.home, (chunk * 2, 2))  # type: ignore[arg-type]
                builder.compute("add", target, [target, arrived])

    # --- kernels ---------------------------------------------------------------------------------

    def _work(self, held: list[Handle], step: IntLike) -> None:
        """Write the gradients of the chunks held, in ``local``, and the part of dQ that comes from them."""
        for slot, handle in enumerate(held):
            self.context.builder.compute("fill", self.local[slot], value=0)
            self._kernels(handle, self.local[slot], slot, step)

    def _kernels(self, kv: Handle, d_kv: Handle, slot: int | None = None, step: IntLike = 0) -> None:
        forward = self.forward
        for kernel in self.context.kernels(slot, step):
            queries, result, d_out = map(kernel.rows, (forward.q, forward.result, self.d_out))
            reads = [queries, kernel.columns(kv), result, d_out]
            kernel.write("attention_grad_kv_add", kernel.columns(d_kv), reads, KV_FLOPS)
            kernel.write("attention_grad_q_add", kernel.rows(self.d_q), reads, Q_FLOPS)
