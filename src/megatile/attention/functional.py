"""Sequence-parallel attention as one differentiable function over the ranks of a process group."""

from __future__ import annotations

from dataclasses import replace
from math import log2
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from megatile.attention.agreement import Members, refuse_unsharded
from megatile.attention.arguments import (
    SAME,
    device_of,
    find_problem,
    from_inner_order,
    make_record,
    mask_text,
    to_inner,
)
from megatile.attention.communication import Communicator, choose_transport
from megatile.attention.engine import Engine
from megatile.attention.errors import AttentionError
from megatile.attention.heads import HeadExchange, exchange_heads
from megatile.attention.kernels import KernelOptions, choose_kernel
from megatile.attention.ownership import Ownership, own_lengths, sequence_lengths
from megatile.attention.profile import Profile, span
from megatile.attention.schedules import Mask, Schedule, make_schedule
from megatile.attention.schedules.division import is_dense
from megatile.core.errors import MegatileError


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
    packed = cu_seqlens is not None
    problem = find_problem(q, k, v, window_size, dropout_p, alibi_slopes, layout, cu_seqlens, softmax_scale)
    chosen, problem = _schedule(schedule, members.size, machine, _problem or problem)
    scale, record = 1.0, {}
    if problem is None:
        q, k, v = (to_inner(x, layout, packed) for x in (q, k, v))
        scale = max(1, q.shape[-1]) ** -0.5 if softmax_scale is None else float(softmax_scale)
        text = mask_text(causal, window_size)
        record = make_record(q, k, v, text, chosen, scale, cu_seqlens, alibi_slopes)
        record["gradient"] = _wants_gradient(q, k, v)  # all ranks take part in the way back, or none
        record["machine"] = getattr(machine, "name", machine) if schedule == "auto" else None
    records = members.agree(record, problem, device_of(q), SAME)
    assert chosen is not None
    mask = Mask.of(causal, window_size)
    refuse_unsharded(records)
    cut = sequence_lengths(records, cu_seqlens)
    if schedule == "auto" and machine is not None:
        chosen = _predicted(machine, chosen, q, k, causal, sum(cut[0]), sum(cut[1]))
    ownership = Ownership.of(chosen, mask, causal, alibi_slopes is not None, *cut, *own_lengths(records))
    options = KernelOptions(scale, alibi_slopes, deterministic, partial=chosen.routes.exchanges > 0)
    out, lse = _attend(q, k, v, members, chosen, ownership, options, _profile)
    out = out.squeeze(0) if packed else out.permute(from_inner_order(layout))
    return (out, lse.squeeze(0) if packed else lse) if return_lse else out


class _Attention(torch.autograd.Function):
    """The engine's forward and backward. The chunks held last are kept for the way back."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, engine: Engine) -> tuple[Tensor, Tensor]:
        keys, values = _sequence_first(k, v, engine)
        out, lse, last = engine.forward(q, keys, values)
        ctx.engine, ctx.last = engine, last
        ctx.save_for_backward(q, keys, values, out, lse)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, lse = ctx.saved_tensors
        d_q, home = ctx.engine.backward(d_out, q, k, v, out, lse, ctx.last)
        d_k, d_v = (x.transpose(0, 1) for x in home)
        return d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), None


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
        out, lse = _Attention.apply(q, k, v, engine)
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


def _schedule(
    schedule: str | Schedule, ranks: int, machine: Any, problem: str | None
) -> tuple[Schedule | None, str | None]:
    try:
        if schedule == "auto" and machine is not None:
            schedule = _for_machine(machine, ranks)
        chosen = make_schedule(schedule, ranks) if isinstance(schedule, str) else schedule
        if not isinstance(chosen, Schedule):
            return None, problem or f"schedule is a name or a Schedule, got {type(schedule).__name__}"
    except MegatileError as error:
        return None, problem or str(error)
    if chosen.ranks != ranks:
        return (
            chosen,
            problem or f"the schedule '{chosen.name}' is for {chosen.ranks} ranks, the group has {ranks}",
        )
    return chosen, problem


def _for_machine(machine: Any, ranks: int) -> str:
    """Paths inside nodes when the ranks fill several nodes of the machine, one full mesh otherwise."""
    if isinstance(machine, str):
        from megatile.hda import machine as load

        machine = load(machine)
    if not hasattr(machine, "count"):
        raise AttentionError(f"machine is an HDA or its name, got {type(machine).__name__}")
    inside = machine.count("device", within="node")
    return (
        f"hamilton:{inside}x{ranks // inside}" if 1 < inside < ranks and ranks % inside == 0 else "hamilton"
    )


def _predicted(
    machine: Any, otherwise: Schedule, q: Tensor, k: Tensor, causal: bool, tokens_q: int, tokens_kv: int
) -> Schedule:
    """The schedule that prediction finds fastest, of those that divide sequences alike.

    Lengths are rounded to powers of two, so that a few predictions serve all calls.
    """
    from megatile.attention.plans import Problem
    from megatile.attention.predict import best_schedule

    try:
        problem = Problem(
            1 << round(log2(max(1, tokens_q))), q.shape[2], q.shape[3], k.shape[2],
            kv_length=1 << round(log2(max(1, tokens_kv))), batch=q.shape[0], causal=causal,
            dtype="f32" if q.dtype == torch.float32 else "bf16",
        )  # fmt: skip
        return make_schedule(best_schedule(machine, otherwise.ranks, problem), otherwise.ranks)
    except MegatileError:  # a machine that does not describe what prediction needs, or has fewer devices
        return otherwise
