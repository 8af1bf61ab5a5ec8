"""Sequence-parallel attention as one differentiable function over the ranks of a process group."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megatile.attention.arguments import (
    agreed,
    as_autocast,
    checks,
    checksum,
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
from megatile.attention.block_kernels import BackwardInputs, Blocked, KernelOptions, attend_by_torch
from megatile.attention.choice import choose, machine_text, predicted, uncompiled
from megatile.attention.communication import Communicator, choose_transport
from megatile.attention.compiled import compilable
from megatile.attention.engine import AttentionEngine, Chunks
from megatile.attention.errors import AttentionError
from megatile.attention.extras import Extras
from megatile.attention.flash import choose_kernel
from megatile.attention.heads import HeadExchange, exchange_heads
from megatile.attention.mask_functions import MaskFunction
from megatile.attention.ownership import (
    Ownership,
    laid_out,
    layout_problem,
    own_lengths,
    packed_lengths,
    refuse_positions,
    sequence_lengths,
    set_shard_tag,
    shard_tag,
    unknown_division,
)
from megatile.attention.profile import Profile, span
from megatile.attention.schedules import Division, Layout, Mask, Schedule, make_schedule
from megatile.attention.schedules.division import is_dense
from megatile.attention.settings import setting
from megatile.runtime.agreement import Members, Record
from megatile.runtime.torch_rules import wide


@compilable
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
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    mask_mod: Any = None,
    position_ids: Tensor | None = None,
    cu_seqlens_padded: Any = None,
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
    as the schedule does (contiguous, zigzag, striped, slices, balanced or a Layout), or both as a pair.
    ``return_lse`` adds the log-sum-exp [batch, heads, tokens] in f32; it has a gradient too.

    Scores s become softcap·tanh(s/softcap) where ``softcap`` is given; ``sinks`` [heads] are the scores of
    one more key with value 0 (their gradient is this rank's part); ``mask_mod`` hides pairs as in
    flex_attention (see ``mask_functions``). ``cu_seqlens_padded``: where the packed sequences begin if
    padding follows them; its rows are 0.

    Where a mask makes the order of tokens matter, something must say which tokens a rank has: shard_sequence,
    ``layout`` or ``position_ids`` (of the local tokens, in their sequences). ``MEGATILE_ATTENTION_CHECK=0``
    turns this and all comparisons between ranks off.

        >>> out = hamilton_attention(q, k, v, causal=True)     # in every process of the group
    """
    members = Members(group, AttentionError)
    q, k, v = as_autocast(q, k, v)
    order, division, problem = read_layout(layout)
    problem = _problem or problem or find_problem(
        q, k, v, causal, window_size, dropout_p, alibi_slopes, order, cu_seqlens, softmax_scale
    )  # fmt: skip
    extras = Extras(softcap, sinks, mask_mod, position_ids, cu_seqlens_padded)
    special = any(x is not None for x in extras[1:]) or softcap != 0.0
    problem = problem or (extras.problem(q, cu_seqlens, order) if special else None)
    chosen = None
    if members.size > 1 or schedule != "auto" or machine is not None:
        chosen, machine, problem = choose(schedule, members.size, machine, problem)
    scale = None if softmax_scale is None or problem else float(softmax_scale)
    whole = members.size == 1 and not (problem or return_lse or _profile or special)
    if whole and cu_seqlens is None and alibi_slopes is None:
        out = attend_by_torch(q, k, v, order, causal, window_size, scale)
        if out is not None:
            return out
    if scale is None and problem is None:
        scale = max(1, q.shape[-1]) ** -0.5
    options = KernelOptions(1.0 if scale is None else scale, alibi_slopes, deterministic)
    if special and problem is None:
        options = replace(options, softcap=float(softcap), mask=MaskFunction.of(mask_mod))
    call = _Call(
        members, chosen, machine, problem, causal, window_size, options, cu_seqlens, order, division, extras,
        _profile,
    )  # fmt: skip
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
    extras: Extras
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
        matters = packed or not mask.none or options.slopes is not None or options.mask is not None
        places = call.extras.places(call.cu_seqlens)
        problem = layout_problem(schedule, call.division, causal, tags, places, matters)
    if problem is None:
        schedule = laid_out(schedule, call.division)
        record = make_record(q, k, v, mask_text(causal, call.window_size), schedule, options, call.cu_seqlens)
        record |= call.extras.record()
        # All ranks take part in the backward pass, or none.
        record["gradient"] = _wants_gradient(q, k, v, call.extras.sinks)
        record["machine"] = machine_text(call.machine)
    details = None
    if problem is None and members.size > 1 and checks():
        tokens = [x.shape[1] for x in (q, k, v)]
        said = schedule.layout(causal).name if record["positions"] is not None else call.division
        unknown = unknown_division(schedule, said, causal, tags, call.extras.places(call.cu_seqlens), tokens)
        record["unknown"] = unknown if matters else None
        if setting("DEBUG") == "1" or (unknown and not matters):
            details = partial(_checksum_of, k)
    records = agreed(members, record, problem, q, details=details)
    refuse_unsharded(records)
    cut = sequence_lengths(records, call.cu_seqlens)
    if call.machine is not None:
        found = predicted(call.machine, schedule, q, k, causal, sum(cut[0]), sum(cut[1]))
        schedule = laid_out(found, call.division)
    padded = cut if call.extras.padded is None else packed_lengths(call.extras.padded)
    biased = options.slopes is not None or options.mask is not None
    ownership = Ownership.of(schedule, mask, causal, biased, *cut, *own_lengths(records), *padded)
    refuse_unknown(records)
    refuse_positions(records, schedule.layout(causal), padded[0])
    with torch.autocast(q.device.type, enabled=False):  # what is merged and summed in f32 stays there
        out, lse = _attend(q, k, v, members, ownership, options, call.profile, call.extras.sinks)
    if packed:
        out, lse = out.squeeze(0), lse.squeeze(0)
    else:
        out = out.permute(from_inner_order(call.order))
    return set_shard_tag(out, tags[0]), lse


def _checksum_of(k: Tensor) -> Record:
    return {"checksum": checksum(k)}


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
        with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            keys, values = _sequence_first(k, v, engine)
            d_q, home = engine.backward(BackwardInputs(d_out, q, keys, values, out, lse, d_lse), last)
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
    if _wants_gradient(q, k, v, sinks):
        out, lse = _Attention.apply(q, k, v, sinks, _Run(engine))
    else:
        out, lse, _ = engine.forward(q, *_sequence_first(k, v, engine), sinks=sinks)
    return out, lse


def _wants_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _sequence_first(k: Tensor, v: Tensor, engine: AttentionEngine) -> tuple[Tensor, Tensor]:
    """[S, B, H, D], so that chunks are pieces of memory; where none travel that does not matter."""
    travels = engine.division.routes.exchanges > 0
    k, v = k.transpose(0, 1), v.transpose(0, 1)
    return (k.contiguous(), v.contiguous()) if travels else (k, v)
