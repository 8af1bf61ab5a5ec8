"""Sequence-parallel attention as one differentiable function over the ranks of a process group."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megatile.attention.arguments import (
    agreed,
    as_autocast,
    find_problem,
    from_inner_order,
    make_record,
    mask_text,
    problem_between_ranks,
    read_layout,
    refuse_unknown,
    refuse_unsharded,
    to_inner,
)
from megatile.attention.block_kernels import KernelOptions, attend_by_torch
from megatile.attention.choice import choose, machine_text, predicted, uncompiled
from megatile.attention.communication import Communicator, choose_transport
from megatile.attention.engine import AttentionEngine, Chunks
from megatile.attention.errors import AttentionError
from megatile.attention.flash import choose_kernel
from megatile.attention.heads import HeadExchange, exchange_heads
from megatile.attention.ownership import (
    Ownership,
    laid_out,
    layout_problem,
    own_lengths,
    sequence_lengths,
    set_shard_tag,
    shard_tag,
    unknown_division,
)
from megatile.attention.profile import Profile, span
from megatile.attention.schedules import Division, Layout, Mask, Schedule, make_schedule
from megatile.attention.schedules.division import is_dense
from megatile.runtime.agreement import Members


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
    layout: Any = "BSND",
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
    there. ``layout`` is the order of the dimensions (BSND, BNSD or SBND), how the tokens are divided if not
    as the schedule does (contiguous, zigzag, striped, slices or a Layout), or both as a pair. ``return_lse``
    adds the log-sum-exp [batch, heads, tokens] in f32.

        >>> out = hamilton_attention(q, k, v, causal=True)     # in every process of the group
    """
    members = Members(group, AttentionError)
    q, k, v = as_autocast(q, k, v)
    order, division, problem = read_layout(layout)
    problem = _problem or problem or find_problem(
        q, k, v, causal, window_size, dropout_p, alibi_slopes, order, cu_seqlens, softmax_scale
    )  # fmt: skip
    chosen = None
    if members.size > 1 or schedule != "auto" or machine is not None:
        chosen, machine, problem = choose(schedule, members.size, machine, problem)
    scale = None if softmax_scale is None or problem else float(softmax_scale)
    whole = members.size == 1 and not (problem or return_lse or _profile)
    if whole and cu_seqlens is None and alibi_slopes is None:
        out = attend_by_torch(q, k, v, order, causal, window_size, scale)
        if out is not None:
            return out
    if scale is None and problem is None:
        scale = max(1, q.shape[-1]) ** -0.5
    options = KernelOptions(1.0 if scale is None else scale, alibi_slopes, deterministic)
    call = _Call(
        members, chosen, machine, problem, causal, window_size, options, cu_seqlens, order, division, _profile
    )
    out, lse = _divided(q, k, v, call)
    return (out, lse) if return_lse else out


class _Call(NamedTuple):
    """What a call of ``hamilton_attention`` was given besides its tensors."""

    members: Members
    schedule: Schedule | None
    machine: Any
    problem: str | None
    causal: bool
    window_size: tuple[int, int]
    options: KernelOptions
    cu_seqlens: Any
    order: str
    division: str | Layout | None
    profile: Profile | None


@uncompiled
def _divided(q: Tensor, k: Tensor, v: Tensor, call: _Call) -> tuple[Tensor, Tensor]:
    """Compare with the other ranks what each was given (also a problem), and attend."""
    members, options, tags = call.members, call.options, [shard_tag(x) for x in (q, k, v)]
    packed, causal, record, problem = call.cu_seqlens is not None, False, {}, call.problem
    if members.size > 1:
        problem = problem or problem_between_ranks(q, k, v)
    schedule, mask, matters = call.schedule or make_schedule("auto", 1), Mask(), False
    if problem is None:
        q, k, v = (to_inner(x, call.order, packed) for x in (q, k, v))
        causal = bool(call.causal)
        mask = Mask.of(causal, call.window_size)
        matters = packed or not mask.none or options.slopes is not None
        problem = layout_problem(schedule, call.division, causal, tags, call.cu_seqlens, matters)
    if problem is None:
        schedule = laid_out(schedule, call.division)
        record = make_record(q, k, v, mask_text(causal, call.window_size), schedule, options, call.cu_seqlens)
        record["gradient"] = _wants_gradient(q, k, v)  # all ranks take part in the backward pass, or none
        record["machine"] = machine_text(call.machine)
        if matters:
            tokens = [x.shape[1] for x in (q, k, v)]
            record["unknown"] = unknown_division(
                schedule, call.division, causal, tags, call.cu_seqlens, tokens
            )
    records = agreed(members, record, problem, q)
    refuse_unsharded(records)
    cut = sequence_lengths(records, call.cu_seqlens)
    if call.machine is not None:
        found = predicted(call.machine, schedule, q, k, causal, sum(cut[0]), sum(cut[1]))
        schedule = laid_out(found, call.division)
    biased = options.slopes is not None
    ownership = Ownership.of(schedule, mask, causal, biased, *cut, *own_lengths(records))
    refuse_unknown(records)
    with torch.autocast(q.device.type, enabled=False):  # what is merged and summed in f32 stays there
        out, lse = _attend(q, k, v, members, ownership, options, call.profile)
    if packed:
        out, lse = out.squeeze(0), lse.squeeze(0)
    else:
        out = out.permute(from_inner_order(call.order))
    return set_shard_tag(out, tags[0]), lse


@dataclass
class _Run:
    """An engine and, once it went forward, the chunks it held last: the backward pass begins with them."""

    engine: AttentionEngine
    last: Chunks = field(default_factory=dict)


class _Attention(torch.autograd.Function):
    """The engine's forward and backward."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, run: _Run) -> tuple[Tensor, Tensor]:
        out, lse, run.last = run.engine.forward(q, *_sequence_first(k, v, run.engine))
        return out, lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        q, k, v, ctx.run = inputs
        ctx.save_for_backward(q, k, v, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        engine, last = ctx.run.engine, ctx.run.last
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
    division: Division,
    q: Tensor,
    v: Tensor,
    options: KernelOptions,
    profile: Profile | None = None,
    width: int = 1,
) -> AttentionEngine:
    """The engine of this rank. Routes connect ranks that have the same place in their groups of ``width``
    ranks, which divide the heads."""
    transport = choose_transport(members.group, is_dense(division.routes))
    communicator = Communicator(members.group, transport, width, members.rank % width)
    return AttentionEngine(
        division, members.rank // width, communicator, choose_kernel(q, v, options), options, profile
    )


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    members: Members,
    ownership: Ownership,
    options: KernelOptions,
    profile: Profile | None,
) -> tuple[Tensor, Tensor]:
    division, width, heads = ownership.division, ownership.schedule.heads, q.shape[2]
    if width == 1:
        return _run(q, k, v, engine_for(members, division, q, v, options, profile))
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
    out, lse = _run(q, k, v, engine_for(members, division, q, v, options, profile, width))
    with span(profile, "communication"):
        column = lse.transpose(1, 2).unsqueeze(-1).contiguous()
        whole = exchange_q.start(column, heads, to_heads=False)
        (out,) = exchange_heads((exchange_q,), (out,), (heads,), to_heads=False)
        return out, whole().squeeze(-1).transpose(1, 2).contiguous()


def _run(q: Tensor, k: Tensor, v: Tensor, engine: AttentionEngine) -> tuple[Tensor, Tensor]:
    if _wants_gradient(q, k, v):
        out, lse = _Attention.apply(q, k, v, _Run(engine))
    else:
        out, lse, _ = engine.forward(q, *_sequence_first(k, v, engine))
    return out, lse


def _wants_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _sequence_first(k: Tensor, v: Tensor, engine: AttentionEngine) -> tuple[Tensor, Tensor]:
    """[S, B, H, D], so that chunks are pieces of memory; where none travel that does not matter."""
    travels = engine.division.routes.exchanges > 0
    k, v = k.transpose(0, 1), v.transpose(0, 1)
    return (k.contiguous(), v.contiguous()) if travels else (k, v)
