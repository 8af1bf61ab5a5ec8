"""Dividing whole sequences over ranks as the schedules expect it, and putting them together again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatile.attention.arguments import agreed, boundaries_text
from megatile.attention.errors import AttentionError
from megatile.attention.ownership import ShardTag, remember_shard, sequence_lengths, set_shard_tag, shard_tag
from megatile.attention.schedules import Layout, Schedule, make_schedule, positions
from megatile.core.errors import MegatileError
from megatile.core.placement import Pieces
from megatile.runtime.agreement import Members, Record
from megatile.runtime.failures import wait_for


def shard_sequence(
    x: Tensor,
    *,
    dim: int = 1,
    group: Any = None,
    causal: bool = False,
    schedule: str | Schedule = "auto",
    layout: str | Layout | None = None,
    cu_seqlens: Any = None,
    rank: int | None = None,
    ranks: int | None = None,
) -> Tensor:
    """Return this rank's part of a whole tensor along ``dim``, in the order its kernels want it.
    Differentiable.

    The layout follows from ``schedule`` and ``causal`` as in :func:`hamilton_attention`, or is named by
    ``layout``. ``rank`` and ``ranks`` answer for a rank of a group that does not exist (yet). The result
    carries its layout: given to an attention that expects another one it is refused. What is computed from
    it carries none; attention refuses it where shards so long were made, but none of them divided as it
    expects, until ``layout=`` says how.
    """
    problem = _problem(x, dim)
    if problem:
        raise AttentionError(problem)
    me, found = _place(group, causal, schedule, layout, rank, ranks)
    lengths = _lengths(x.shape[dim], cu_seqlens)
    where = _indices(found, lengths, me)
    tag = ShardTag(found, None if cu_seqlens is None else tuple(lengths))
    if rank is None:
        remember_shard(len(where), tag)
    return set_shard_tag(x.index_select(dim, where.to(x.device)), tag)


def unshard_sequence(
    x: Tensor,
    *,
    dim: int = 1,
    group: Any = None,
    causal: bool = False,
    schedule: str | Schedule = "auto",
    layout: str | Layout | None = None,
    cu_seqlens: Any = None,
) -> Tensor:
    """Return the whole tensor on every rank: the inverse of :func:`shard_sequence`. Differentiable: the
    gradient of a rank's part is the sum of what all ranks find for it."""
    members, problem, found = Members(group, AttentionError), _problem(x, dim), None
    record: Record = {}
    try:
        _, found = _place(group, causal, schedule, layout, None, None)
        record = {} if problem else _record(x, dim, found, cu_seqlens)
    except MegatileError as error:  # reported to all ranks, none may wait for this one
        problem = problem or str(error)
    tag = shard_tag(x)
    if tag is not None and found is not None and tag.layout != found:
        problem = problem or f"the tensor was divided in {tag}, not in {ShardTag(found, tag.packed)}"
    records = agreed(members, record, problem, x, ("shape", "dtype", "layout", "cu_seqlens"))
    assert found is not None
    sizes = [record["tokens"] for record in records]
    lengths = _lengths(sum(sizes), cu_seqlens)
    where = [_indices(found, lengths, r) for r in range(members.size)]
    if [len(w) for w in where] != sizes:
        raise AttentionError(
            f"the ranks hold {sizes} tokens, layout {found.name} gives them {[len(w) for w in where]}"
        )
    parts: tuple[Tensor, ...] = _Gathered.apply(x.movedim(dim, 0).contiguous(), tuple(sizes), members)
    order = torch.argsort(torch.cat(where)).to(x.device)
    return torch.cat(parts).index_select(0, order).movedim(0, dim)


def position_ids(
    length: int,
    *,
    group: Any = None,
    causal: bool = False,
    schedule: str | Schedule = "auto",
    layout: str | Layout | None = None,
    cu_seqlens: Any = None,
    rank: int | None = None,
    ranks: int | None = None,
) -> Tensor:
    """Return the position of each local token in its whole sequence, for rotary or learned position
    embeddings."""
    if not isinstance(length, int) or length < 0:
        raise AttentionError(f"length must be a whole number of tokens, got {length!r}")
    me, found = _place(group, causal, schedule, layout, rank, ranks)
    lengths = _lengths(length, cu_seqlens)
    ids = torch.tensor(positions(found.pieces(lengths)[me]), dtype=torch.long)
    if rank is None:
        remember_shard(len(ids), ShardTag(found, None if cu_seqlens is None else tuple(lengths)))
    return ids


def _place(
    group: Any,
    causal: bool,
    schedule: str | Schedule,
    layout: str | Layout | None,
    rank: int | None,
    ranks: int | None,
) -> tuple[int, Layout]:
    """Return a rank, and how sequences are divided over all of them."""
    members = Members(group, AttentionError) if rank is None or ranks is None else None
    size = ranks if ranks is not None else members.size if members else 1
    me = rank if rank is not None else members.rank if members else 0
    if not 0 <= me < size:
        raise AttentionError(f"there is no rank {me} among {size}")
    return me, _layout(layout, schedule, causal, size)


def _layout(layout: str | Layout | None, schedule: str | Schedule, causal: bool, ranks: int) -> Layout:
    if isinstance(layout, Layout):
        _check_ranks(f"layout '{layout.name}'", layout.ranks, ranks)
        return layout
    chosen = make_schedule(schedule, ranks) if isinstance(schedule, str) else schedule
    if not isinstance(chosen, Schedule):
        raise AttentionError(f"schedule is a name or a Schedule, got {type(schedule).__name__}")
    _check_ranks(f"schedule '{chosen.name}'", chosen.ranks, ranks)
    if layout is None:
        return chosen.layout(causal)
    cycles = getattr(chosen.routes, "cycles", ()) if layout == "cycles" else ()
    return Layout(layout, ranks, chosen.heads, cycles, causal and layout == "balanced")


def _check_ranks(what: str, expected: int, ranks: int) -> None:
    if expected != ranks:
        raise AttentionError(f"{what} is for {expected} ranks, there are {ranks}")


def _problem(x: Any, dim: Any) -> str | None:
    if not isinstance(x, Tensor):
        return f"what is divided must be a tensor, got {type(x).__name__}"
    if not isinstance(dim, int) or not -x.dim() <= dim < x.dim():
        return f"the tensor has no dimension {dim}, it has {x.dim()}"
    return None


def _record(x: Tensor, dim: int, layout: Layout, cu_seqlens: Any) -> Record:
    """Return what ranks compare before they gather: transports end the process where sizes differ."""
    others = list(x.movedim(dim, 0).shape[1:])
    kind = str(x.dtype).removeprefix("torch.")
    packed = None if cu_seqlens is None else boundaries_text(cu_seqlens)
    return {
        "tokens": x.shape[dim],
        "shape": others,
        "dtype": kind,
        "layout": layout.name,
        "cu_seqlens": packed,
    }


def _lengths(length: int, cu_seqlens: Any) -> Sequence[int]:
    lengths = sequence_lengths([{"query tokens": length, "key tokens": length}], cu_seqlens)[0]
    if sum(lengths) != length:
        raise AttentionError(f"cu_seqlens ends at {sum(lengths)}, the whole sequence has {length} tokens")
    return lengths


def _indices(layout: Layout, lengths: Sequence[int], rank: int) -> Tensor:
    starts = [0, *accumulate(lengths)]
    pieces: Pieces = layout.pieces(lengths)[rank]
    rows = [starts[p.sequence] + x for p in pieces for x in positions([p])]
    return torch.tensor(rows, dtype=torch.long)


class _Gathered(torch.autograd.Function):
    """The parts of all ranks; backwards, every rank adds up what the ranks found for its own part."""

    @staticmethod
    def forward(x: Tensor, sizes: tuple[int, ...], members: Members) -> tuple[Tensor, ...]:
        return tuple(part.clone() for part in _gathered(x, sizes, members))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, _, ctx.members = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        members, sizes = ctx.members, [len(grad) for grad in grads]
        if members.group is None or members.size == 1:
            return grads[0], None, None
        whole = torch.cat(grads).contiguous()
        work = dist.all_reduce(whole, group=members.group, async_op=True)
        wait_for(work, members.group, None, "adding the gradients of a sequence")
        return whole.split(sizes)[members.rank], None, None


def _gathered(x: Tensor, sizes: Sequence[int], members: Members) -> list[Tensor]:
    if members.group is None or members.size == 1:
        return [x]
    longest = max(sizes)
    padded = x.new_zeros((longest, *x.shape[1:]))
    padded[: x.shape[0]] = x
    buffers = [torch.empty_like(padded) for _ in sizes]
    work = dist.all_gather(buffers, padded, group=members.group, async_op=True)
    wait_for(work, members.group, None, "gathering a sequence")
    return [buffer[:size] for buffer, size in zip(buffers, sizes, strict=True)]
