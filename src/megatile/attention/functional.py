"""Sequence-parallel attention as one differentiable function over the ranks of a process group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

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
from megatile.attention.block_kernels import KernelOptions
from megatile.attention.by_torch import attend_by_torch
from megatile.attention.choice import choose, gathered, machine_text, predicted, uncompiled
from megatile.attention.compiled import compilable
from megatile.attention.differentiable import attend_divided, wants_gradient, without_autocast
from megatile.attention.errors import AttentionError
from megatile.attention.extras import Extras
from megatile.attention.known_calls import KnownCall, known_call
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
from megatile.attention.profile import Profile
from megatile.attention.schedules import Layout, Mask, Schedule, make_schedule
from megatile.attention.settings import setting
from megatile.runtime.agreement import Agreement, Members, Record


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
    _gather: bool = False,
) -> Any:
    """Exact attention of a sequence that is divided over the ranks of ``group``; forward and backward.

    Each rank gives its own tokens, as :func:`shard_sequence` with the same ``causal`` and ``schedule``
    divides them (zig-zag for causal attention, consecutive otherwise; lengths need not divide evenly), and
    receives their results. KV may have fewer heads (GQA, MQA) and another length than q; causal masks and
    windows align the ends.

    ``cu_seqlens`` packs sequences: the boundaries in the *whole* packed sequence (a pair for q and k if they
    differ); tensors are then [tokens, heads, dim] and every sequence is divided by itself. ``schedule`` is a
    name for :func:`make_schedule` or a Schedule; with ``machine``, "auto" takes the one predicted fastest
    there; without, it gathers all KV at once where gloo has little to send. ``layout`` is the order of the
    dimensions (BSND, BNSD or SBND), how the tokens are divided if not as the schedule does (contiguous,
    zigzag, striped, slices, balanced or a Layout), or both as a pair.
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
    plain = alibi_slopes is sinks is mask_mod is position_ids is cu_seqlens_padded is machine is None
    if plain and not softcap and _profile is None and _problem is None:
        given = (causal, softmax_scale, window_size, dropout_p, schedule, layout, deterministic, _gather)
        known = known_call(q, k, v, members.group, cu_seqlens, given)
    else:
        known = None
    if known is not None and known.found is not None:
        out, lse = _attend_known(q, k, v, members, known.found)
        return (out, lse) if return_lse else out
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
    gather = (_gather or (schedule == "auto" and machine is None)) and members.size > 2
    call = _Call(
        chosen, machine, problem, causal, window_size, options, cu_seqlens, order, division, extras,
        _profile, gather and members.backend == "gloo",
    )  # fmt: skip
    out, lse = _divided(q, k, v, members, call, known)
    return (out, lse) if return_lse else out


class _Call(NamedTuple):
    """What a call of ``hamilton_attention`` was given besides its tensors."""

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
    gather: bool
    """Whether another way to send little KV may be taken than that of the schedule."""


class _Prepared(NamedTuple):
    """What follows from the arguments of a call alone; ``record`` is what ranks compare."""

    call: _Call
    schedule: Schedule
    mask: Mask
    causal: bool
    record: Record
    signature: str | None


@uncompiled
def _divided(
    q: Tensor, k: Tensor, v: Tensor, members: Members, call: _Call, known: KnownCall | None
) -> tuple[Tensor, Tensor]:
    """Compare with the other ranks what each was given (also a problem), and attend."""
    options, tags = call.options, [shard_tag(x) for x in (q, k, v)]
    packed, causal, record, problem = call.cu_seqlens is not None, False, {}, call.problem
    if members.size > 1:
        problem = problem or problem_between_ranks(q, k, v)
    schedule, mask, matters = call.schedule or make_schedule("auto", 1), Mask(), False
    if problem is None:
        causal = bool(call.causal)
        mask = Mask.of(causal, call.window_size)
        matters = packed or not mask.none or options.slopes is not None or options.mask is not None
        places = call.extras.places(call.cu_seqlens)
        problem = layout_problem(schedule, call.division, causal, tags, places, matters)
    details = None
    if problem is None:
        schedule = laid_out(schedule, call.division)
        shown = mask_text(causal, call.window_size)
        inner = (
            to_inner(q, call.order, packed),
            to_inner(k, call.order, packed),
            to_inner(v, call.order, packed),
        )
        record = make_record(*inner, shown, schedule, options, call.cu_seqlens)
        record |= call.extras.record()
        # All ranks take part in the backward pass, or none.
        record["gradient"] = wants_gradient(q, k, v, call.extras.sinks)
        record["machine"] = machine_text(call.machine)
        record["gather"] = call.gather
        if members.size > 1 and checks():
            tokens = [x.shape[1] for x in inner]
            said = schedule.layout(causal).name if record["positions"] is not None else call.division
            unknown = unknown_division(schedule, said, causal, tags, places, tokens)
            record["unknown"] = unknown if matters else None
            if setting("DEBUG") == "1" or (unknown and not matters):
                details = partial(_checksum_of, inner[1])
    declared = call.division is not None or None not in tags
    prepared = _Prepared(call, schedule, mask, causal, record, None)
    if known is not None and problem is None and details is None and declared and members.size > 1:
        known.keep(prepared._replace(signature=Members.signature(record)))
    return _attend_prepared(q, k, v, members, prepared, problem, details)


@uncompiled
def _attend_known(
    q: Tensor, k: Tensor, v: Tensor, members: Members, prepared: _Prepared
) -> tuple[Tensor, Tensor]:
    return _attend_prepared(q, k, v, members, prepared)


def _attend_prepared(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    members: Members,
    prepared: _Prepared,
    problem: str | None = None,
    details: Callable[[], Record] | None = None,
) -> tuple[Tensor, Tensor]:
    call, tag = prepared.call, shard_tag(q)
    records = agreed(members, prepared.record, problem, q, details=details, signature=prepared.signature)
    packed = call.cu_seqlens is not None
    q, k, v = (to_inner(x, call.order, packed) for x in (q, k, v))
    ownership: Ownership | None = records.facts.get("ownership")
    if ownership is None:
        ownership = records.facts["ownership"] = _owned(q, k, prepared, records)
    options, sinks = call.options, call.extras.sinks
    with without_autocast(q):  # what is merged and summed in f32 stays there
        out, lse = attend_divided(q, k, v, members, ownership, options, call.profile, sinks)
    if packed:
        out, lse = out.squeeze(0), lse.squeeze(0)
    elif call.order != "BSND":
        out = out.permute(from_inner_order(call.order))
    return set_shard_tag(out, tag), lse


def _owned(q: Tensor, k: Tensor, prepared: _Prepared, records: Agreement) -> Ownership:
    """Return which tokens each rank holds; all ranks have exchanged what they were given."""
    call, schedule, mask, causal = prepared[:4]
    refuse_unsharded(records)
    cut = sequence_lengths(records, call.cu_seqlens)
    if call.machine is not None:
        found = predicted(call.machine, schedule, q, k, causal, sum(cut[0]), sum(cut[1]))
        schedule = laid_out(found, call.division)
    if call.gather:
        schedule = gathered(schedule, causal, records)
    padded = cut if call.extras.padded is None else packed_lengths(call.extras.padded)
    biased = call.options.slopes is not None or call.options.mask is not None
    ownership = Ownership.of(schedule, mask, causal, biased, *cut, *own_lengths(records), *padded)
    refuse_unknown(records)
    refuse_positions(records, schedule.layout(causal), padded[0])
    return ownership


def _checksum_of(k: Tensor) -> Record:
    return {"checksum": checksum(k)}
