"""Sequence-parallel attention as one differentiable function over the ranks of a process group."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from megatile.attention.agreement import Members, refuse_unsharded
from megatile.attention.arguments import (
    SAME,
    as_autocast,
    device_of,
    find_problem,
    from_inner_order,
    make_record,
    mask_text,
    problem_between_ranks,
    to_inner,
)
from megatile.attention.choice import choose, machine_text, predicted
from megatile.attention.communication import Communicator, choose_transport
from megatile.attention.engine import Chunks, Engine
from megatile.attention.errors import AttentionError
from megatile.attention.heads import HeadExchange, exchange_heads
from megatile.attention.kernels import KernelOptions, attend_by_torch, choose_kernel
from megatile.attention.ownership import Ownership, own_lengths, sequence_lengths
from megatile.attention.profile import Profile, span
from megatile.attention.schedules import Mask, Schedule, make_schedule
from megatile.attention.schedules.division import is_dense
from megatile.attention.uncompiled import uncompiled


def hamilton_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Any = None,
    causal: bool = False,
    softmax_scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    dropout_p: float = 0.0,
    alibi_slopes: Tensor | None = None,
    cu_seqlens: Any = None,
    max_seqlen: int | None = None,
    schedule: str | Schedule = "auto",
    machine: Any = None,
    layout: str = "BSND",
    return_lse: bool = False,
    deterministic: bool = False,
    _profile: Profile | None = None,
    _problem: str | None = None,
) -> Any:
    """Exact attention of a sequence that is divided over the ranks of ``group``; forward and backward.

    Each rank gives its own tokens, as :func:`shard_sequence` with the same ``causal`` and ``schedule``
    divides them (zig-zag for causal attention, consecutive otherwise; lengths need not divide evenly), and
    receives their results. KV may have fewer heads (GQA, MQA) and another length than q; causal masks and
    windows align the ends.

    ``cu_seqlens`` packs sequences: the boundaries in the *whole* packed sequence (a pair for q and k if they
    differ); tensors are then [tokens, heads, dim] and every sequence is divided by itself. ``schedule`` is a
    name for :func:`make_schedule` or a Schedule; with ``machine``, "auto" takes the one predicted fastest
    there. ``layout`` names the order of the dimensions: BSND, BNSD or SBND. ``return_lse`` adds the
    log-sum-exp [batch, heads, tokens] in f32.

        >>> out = hamilton_attention(q, k, v, causal=True)     # in every process of the group
    """
    members = Members(group)
    q, k, v = as_autocast(q, k, v)
    problem = _problem or find_problem(
        q, k, v, causal, window_size, dropout_p, alibi_slopes, layout, cu_seqlens, softmax_scale
    )
    chosen = None
    if members.size > 1 or schedule != "auto" or machine is not None:
        chosen, machine, problem = choose(schedule, members.size, machine, problem)
    scale = None if softmax_scale is None or problem else float(softmax_scale)
    whole = members.size == 1 and not (problem or return_lse or _profile)
    if whole and cu_seqlens is None and alibi_slopes is None:
        out = attend_by_torch(q, k, v, layout, causal, window_size, scale)
        if out is not None:
            return out
    if scale is None and problem is None:
        scale = max(1, q.shape[-1]) ** -0.5
    options = KernelOptions(1.0 if scale is None else scale, alibi_slopes, deterministic)
    out, lse = _divided(
        q, k, v, members, chosen, machine, problem, causal, window_size, options, cu_seqlens, layout, _profile
    )
    return (out, lse) if return_lse else out


@uncompiled
def _divided(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    members: Members,
    chosen: Schedule | None,
    machine: Any,
    problem: str | None,
    causal: bool,
    window_size: tuple[int, int],
    options: KernelOptions,
    cu_seqlens: Any,
    layout: str,
    profile: Profile | None,
) -> tuple[Tensor, Tensor]:
    """Compare with the other ranks what each was given (also a problem), and attend."""
    packed, record, slopes = cu_seqlens is not None, {}, options.slopes
    problem = problem or (problem_between_ranks(q, k, v) if members.size > 1 else None)
    if problem is None:
        q, k, v = (to_inner(x, layout, packed) for x in (q, k, v))
        causal = bool(causal)
        record = make_record(q, k, v, mask_text(causal, window_size), chosen, options, cu_seqlens)
        record["gradient"] = _wants_gradient(q, k, v)  # all ranks take part in the way back, or none
        record["machine"] = machine_text(machine)
    records = members.agree(record, problem, device_of(q), SAME)
    chosen = chosen or make_schedule("auto", 1)
    mask = Mask.of(causal, window_size)
    refuse_unsharded(records)
    cut = sequence_lengths(records, cu_seqlens)
    if machine is not None:
        chosen = predicted(machine, chosen, q, k, causal, sum(cut[0]), sum(cut[1]))
    ownership = Ownership.of(chosen, mask, causal, slopes is not None, *cut, *own_lengths(records))
    options = replace(options, partial=chosen.routes.exchanges > 0)
    with torch.autocast(q.device.type, enabled=False):  # what is merged and summed in f32 stays there
        out, lse = _attend(q, k, v, members, chosen, ownership, options, profile)
    if packed:
        return out.squeeze(0), lse.squeeze(0)
    return out.permute(from_inner_order(layout)), lse


@dataclass
class _Way:
    """An engine and, once it went forward, the chunks it held last: the way back begins with them."""

    engine: Engine
    last: Chunks = field(default_factory=dict)


class _Attention(torch.autograd.Function):
    """The engine's forward and backward."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, way: _Way) -> tuple[Tensor, Tensor]:
        out, lse, way.last = way.engine.forward(q, *_sequence_first(k, v, way.engine))
        return out, lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        q, k, v, ctx.way = inputs
        ctx.save_for_backward(q, k, v, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        engine, last = ctx.way.engine, ctx.way.last
        with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            keys, values = _sequence_first(k, v, engine)
            d_q, home = engine.backward(d_out, q, keys, values, out, lse, last)
            d_k, d_v = (x.transpose(0, 1) for x in home)
            grads = d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype)
        if torch.is_grad_enabled():  # create_graph=True
            grads = _Once.apply(*grads, q, k, v, d_out)
        return *grads, None


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
    ownership: Ownership,
    q: Tensor,
    v: Tensor,
    options: KernelOptions,
    profile: Profile | None = None,
) -> Engine:
    """The engine of this rank. Routes connect ranks that have the same place in their head groups."""
    width = ownership.schedule.heads
    transport = choose_transport(members.group, is_dense(ownership.division.routes))
    communicator = Communicator(members.group, transport, width, members.rank % width)
    kernel = choose_kernel(q, v, options)
    return Engine(ownership.division, members.rank // width, communicator, kernel, options, profile)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    members: Members,
    schedule: Schedule,
    ownership: Ownership,
    options: KernelOptions,
    profile: Profile | None,
) -> tuple[Tensor, Tensor]:
    if schedule.heads == 1:
        return _run(q, k, v, engine_for(members, ownership, q, v, options, profile))
    width, heads = schedule.heads, q.shape[2]
    index, first = members.rank % width, members.rank - members.rank % width
    transport = choose_transport(members.group, dense=True)
    communicator = Communicator(members.group, transport, 1, first)
    tokens_q, tokens_kv = ownership.head_group(members.rank)
    exchange_q = HeadExchange(communicator, index, tokens_q)
    exchange_kv = HeadExchange(communicator, index, tokens_kv)
    if heads % width or k.shape[2] % width:  # groups of query heads would be torn apart: one KV head for each
        k, v = (x.repeat_interleave(heads // x.shape[2], dim=2) for x in (k, v))
    slopes = None if options.slopes is None else options.slopes[..., exchange_q.own_heads(heads)]
    options = replace(options, slopes=slopes)
    with span(profile, "communication"):
        exchanges = (exchange_q, exchange_kv, exchange_kv)
        q, k, v = exchange_heads(exchanges, (q, k, v), (heads, k.shape[2], v.shape[2]), to_heads=True)
    out, lse = _run(q, k, v, engine_for(members, ownership, q, v, options, profile))
    with span(profile, "communication"):
        column = lse.transpose(1, 2).unsqueeze(-1).contiguous()
        whole = exchange_q.start(column, heads, to_heads=False)
        (out,) = exchange_heads((exchange_q,), (out,), (heads,), to_heads=False)
        return out, whole().squeeze(-1).transpose(1, 2).contiguous()


def _run(q: Tensor, k: Tensor, v: Tensor, engine: Engine) -> tuple[Tensor, Tensor]:
    if _wants_gradient(q, k, v):
        out, lse = _Attention.apply(q, k, v, _Way(engine))
    else:
        out, lse, _ = engine.forward(q, *_sequence_first(k, v, engine))
    return out, lse


def _wants_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _sequence_first(k: Tensor, v: Tensor, engine: Engine) -> tuple[Tensor, Tensor]:
    """[S, B, H, D], so that chunks are pieces of memory; where none travel that does not matter."""
    travels = engine.division.routes.exchanges > 0
    k, v = k.transpose(0, 1), v.transpose(0, 1)
    return (k.contiguous(), v.contiguous()) if travels else (k, v)
