"""Attention of one rank's tokens over the whole group, with its gradient."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from megatile.attention.backward import attention_backward
from megatile.attention.block_kernels import BackwardInputs, Blocked, KernelOptions
from megatile.attention.chunks import Chunks
from megatile.attention.communication import Communicator, choose_transport
from megatile.attention.engine import AttentionEngine
from megatile.attention.errors import AttentionError
from megatile.attention.flash import choose_kernel
from megatile.attention.heads import HeadExchange, exchange_heads
from megatile.attention.ownership import Ownership
from megatile.attention.profile import Profile, span
from megatile.attention.schedules import Division
from megatile.attention.schedules.division import is_dense
from megatile.runtime.agreement import Members
from megatile.runtime.torch_rules import wide


@dataclass
class _Run:
    """An engine and, once it went forward, the chunks it held last: the backward pass begins with them."""

    engine: AttentionEngine
    last: Chunks = field(default_factory=dict)


class _Attention(torch.autograd.Function):
    """The engine's forward and backward."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, run: _Run) -> tuple[Tensor, Tensor]:
        out, lse, run.last = run.engine.forward(q, *_sequence_first(k, v, run.engine), sinks=sinks)
        return out, lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        q, k, v, sinks, ctx.run = inputs
        ctx.save_for_backward(q, k, v, sinks, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, out, lse = ctx.saved_tensors
        engine, last = ctx.run.engine, ctx.run.last
        d_out = torch.zeros_like(out) if d_out is None else d_out
        if d_lse is not None:  # no other kernel takes it
            engine = replace(engine, kernel=Blocked())
        with torch.no_grad(), without_autocast(q):
            keys, values = _sequence_first(k, v, engine)
            given = BackwardInputs(d_out, q, keys, values, out, lse, d_lse)
            d_q, home = attention_backward(engine, given, last)
            d_k, d_v = (x.transpose(0, 1) for x in home)
            grads = d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype)
            d_sinks = None if sinks is None else _gradient_of_sinks(sinks, out, lse, d_out, d_lse)
        if torch.is_grad_enabled():  # create_graph=True
            grads = _Once.apply(*grads, q, k, v, d_out)
        return *grads, d_sinks, None


def _gradient_of_sinks(
    sinks: Tensor, out: Tensor, lse: Tensor, d_out: Tensor, d_lse: Tensor | None
) -> Tensor:
    """Of this rank's rows: a sink takes its weight from the output of each."""
    change = -(wide(d_out) * wide(out)).sum(-1).transpose(1, 2)
    if d_lse is not None:
        change = change + d_lse
    return (torch.exp(sinks.to(lse.dtype)[:, None] - lse) * change).sum((0, 2)).to(sinks.dtype)


class _Once(torch.autograd.Function):
    """Gradients that cannot be differentiated again. Without this they would pass for constants."""

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.clone() for x in tensors[:3])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is needed."""

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise AttentionError("attention can be differentiated once: its gradients have no gradient")


def engine_for(
    members: Members,
    division: Division,
    q: Tensor,
    v: Tensor,
    options: KernelOptions,
    profile: Profile | None = None,
    width: int = 1,
) -> AttentionEngine:
    """Return the engine of this rank. Routes connect ranks that have the same place in their groups of
    ``width`` ranks, which divide the heads."""
    transport = choose_transport(members.group, is_dense(division.routes))
    communicator = Communicator(members.group, transport, width, members.rank % width)
    return AttentionEngine(
        division, members.rank // width, communicator, choose_kernel(q, v, options), options, profile
    )


def attend_divided(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    members: Members,
    ownership: Ownership,
    options: KernelOptions,
    profile: Profile | None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    division, width, heads = ownership.division, ownership.schedule.heads, q.shape[2]
    if width == 1:
        return _run(q, k, v, sinks, engine_for(members, division, q, v, options, profile))
    index, first = members.rank % width, members.rank - members.rank % width
    transport = choose_transport(members.group, dense=True)
    communicator = Communicator(members.group, transport, 1, first)
    tokens_q, tokens_kv = ownership.head_group(members.rank)
    exchange_q = HeadExchange(communicator, index, tokens_q)
    exchange_kv = HeadExchange(communicator, index, tokens_kv)
    if heads % width or k.shape[2] % width:  # groups of query heads would be torn apart: one KV head for each
        k, v = (x.repeat_interleave(heads // x.shape[2], dim=2) for x in (k, v))
    own = exchange_q.own_heads(heads)
    slopes, sinks = (None if x is None else x[..., own] for x in (options.slopes, sinks))
    options = replace(options, slopes=slopes, first_head=own.start)
    with span(profile, "communication"):
        exchanges = (exchange_q, exchange_kv, exchange_kv)
        q, k, v = exchange_heads(exchanges, (q, k, v), (heads, k.shape[2], v.shape[2]), to_heads=True)
    out, lse = _run(q, k, v, sinks, engine_for(members, division, q, v, options, profile, width))
    with span(profile, "communication"):
        column = lse.transpose(1, 2).unsqueeze(-1).contiguous()
        # One by one: the second exchange has a backward pass only where the log-sum-exp is used.
        (out,) = exchange_heads((exchange_q,), (out,), (heads,), to_heads=False)
        (whole,) = exchange_heads((exchange_q,), (column,), (heads,), to_heads=False)
        return out, whole.squeeze(-1).transpose(1, 2).contiguous()


def _run(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, engine: AttentionEngine
) -> tuple[Tensor, Tensor]:
    if wants_gradient(q, k, v, sinks):
        out, lse = _Attention.apply(q, k, v, sinks, _Run(engine))
    else:
        out, lse, _ = engine.forward(q, *_sequence_first(k, v, engine), sinks=sinks)
    return out, lse


def wants_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _sequence_first(k: Tensor, v: Tensor, engine: AttentionEngine) -> tuple[Tensor, Tensor]:
    """[S, B, H, D], so that chunks are pieces of memory; where none travel that does not matter."""
    travels = engine.division.routes.exchanges > 0
    k, v = k.transpose(0, 1), v.transpose(0, 1)
    return (k.contiguous(), v.contiguous()) if travels else (k, v)


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Operations in the dtypes that they are given."""
    found: AbstractContextManager[Any] = nullcontext()
    if torch._C._is_any_autocast_enabled():
        found = torch.autocast(x.device.type, enabled=False)
    return found
