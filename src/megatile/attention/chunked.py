"""Attention over KV that is already cut into chunks, one per cycle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor

from megatile.attention.arguments import (
    NO_WINDOW,
    agreed,
    find_problem,
    from_inner_order,
    make_record,
    mask_text,
    to_inner,
)
from megatile.attention.block_kernels import KernelOptions
from megatile.attention.chunks import Chunks, ChunkShape, Pair
from megatile.attention.differentiable import engine_for
from megatile.attention.ownership import refuse_lengths
from megatile.attention.profile import Profile
from megatile.attention.schedules import Division, Layout, Mask, Piece, Schedule, cycle_schedule
from megatile.attention.schedules.routes import Held
from megatile.core.arguments import no_none
from megatile.core.placement import Pieces, cut_pieces, local_length, split
from megatile.runtime.agreement import Members, Record


@no_none
def kv_chunks(x: Tensor, count: int, *, causal: bool = False, dim: int = 1) -> list[Tensor]:
    """Return a rank's own K or V cut into ``count`` chunks (at least one) along ``dim``.

    With ``causal`` (zig-zag layout) chunk c joins sub-slice c of the first half and sub-slice c of the
    second; of an odd length the first half is the longer one, as :func:`shard_sequence` divides it.
    """
    count = max(1, count)
    halves = x.split(split(x.shape[dim], 2), dim) if causal else (x,)
    parts = [half.split(split(half.shape[dim], count), dim) for half in halves]
    return [torch.cat([part[c] for part in parts], dim) for c in range(count)]


def run_chunks(
    members: Members,
    cycles: list[list[int]] | str,
    q: Tensor,
    k: Sequence[Tensor],
    v: Sequence[Tensor],
    scale: float | None,
    dropout_p: float,
    causal: bool,
    layout: str,
    profile: Profile | None,
) -> tuple[Tensor, Tensor]:
    """Forward of one rank: its queries, its chunks of KV, and the cycles they travel along (or why none)."""
    mask = Mask.of(causal)
    problem, schedule = _chunk_problem(cycles, members.size, q, k, v, causal, dropout_p, layout, scale), None
    if problem is None and not isinstance(cycles, str):
        schedule = cycle_schedule("given cycles", cycles, members.size)
    record: Record = {}
    options = KernelOptions(1.0)
    if problem is None:
        options = replace(options, scale=max(1, q.shape[-1]) ** -0.5 if scale is None else float(scale))
        q, k, v = to_inner(q, layout), [to_inner(x, layout) for x in k], [to_inner(x, layout) for x in v]
        record = make_record(q, k[0], v[0], mask_text(causal, NO_WINDOW), schedule, options, None)
        record["chunk lengths"] = [[size, len(list(run))] for size, run in groupby(x.shape[1] for x in k)]
    records = agreed(members, record, problem, q)
    assert schedule is not None
    with torch.no_grad():
        out, lse = _forward(members, schedule, records, mask, q, k, v, options, profile)
    return out.permute(from_inner_order(layout)), lse


def _forward(
    members: Members,
    schedule: Schedule,
    records: Sequence[Record],
    mask: Mask,
    q: Tensor,
    k: Sequence[Tensor],
    v: Sequence[Tensor],
    options: KernelOptions,
    profile: Profile | None,
) -> tuple[Tensor, Tensor]:
    engine = engine_for(members, _division(schedule, records, mask), q, v[0], options, profile)
    pairs = [
        (a.transpose(0, 1).contiguous(), b.transpose(0, 1).contiguous()) for a, b in zip(k, v, strict=True)
    ]
    shape = ChunkShape(pairs[0])
    own: Chunks = {
        Held(members.rank, c): shape.copied(pair, [(0, len(pair[0]))]) for c, pair in enumerate(pairs)
    }
    whole = _whole(pairs, halves=not mask.none)
    out, lse, _ = engine.forward(q, *whole, own=own)
    return out, lse


def _whole(pairs: Sequence[Pair], halves: bool) -> Pair:
    """Return the rank's KV in order of positions: with halves, the first halves of all chunks, then the
    second."""
    if not halves:
        return torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs])
    sides = []
    for side in (0, 1):
        parts = [pair[side].split(split(len(pair[side]), 2)) for pair in pairs]
        sides.append(torch.cat([first for first, _ in parts] + [second for _, second in parts]))
    return sides[0], sides[1]


def _division(schedule: Schedule, records: Sequence[Record], mask: Mask) -> Division:
    lengths = [[size for size, count in r["chunk lengths"] for _ in range(count)] for r in records]
    queries = [int(r["query tokens"]) for r in records]
    if mask.none:
        chunks = tuple(tuple((Piece(0, size),) if size else () for size in row) for row in lengths)
        whole: list[Pieces] = [(Piece(0, sum(row)),) if sum(row) else () for row in lengths]
        q: list[Pieces] = [(Piece(0, size),) if size else () for size in queries]
        return Division(schedule.routes, tuple(q), tuple(whole), chunks, mask, (0,))
    layout, total = Layout("zigzag", len(records)), sum(map(sum, lengths))
    held = layout.pieces([total])
    local, expected = tuple(map(sum, lengths)), tuple(map(local_length, held))
    if local != expected:
        refuse_lengths("key", schedule, layout.name, (total,), local, expected)
    halved = tuple(tuple(_halves(own, row)) for own, row in zip(held, lengths, strict=True))
    return Division(schedule.routes, tuple(held), tuple(held), halved, mask, (0,))


def _halves(held: Pieces, sizes: Sequence[int]) -> Iterator[Pieces]:
    """Yield the pieces of chunks of these sizes: each takes from both halves of what a rank holds."""
    first, second = 0, split(sum(sizes), 2)[0]
    for size in sizes:
        a, b = split(size, 2)
        yield cut_pieces(held, first, first + a) + cut_pieces(held, second, second + b)
        first, second = first + a, second + b


def _chunk_problem(
    cycles: list[list[int]] | str,
    ranks: int,
    q: Tensor,
    k: Sequence[Tensor],
    v: Sequence[Tensor],
    causal: bool,
    dropout_p: float,
    layout: str,
    scale: float | None,
) -> str | None:
    """Return what is wrong with one rank's chunks, or None."""
    if isinstance(cycles, str):
        return cycles
    if not all(isinstance(x, (list, tuple, Tensor)) for x in (k, v)):
        return f"k and v are lists of chunks (see kv_chunks), got {type(k).__name__} and {type(v).__name__}"
    wanted = max(1, len(cycles))
    if len(k) != wanted or len(v) != wanted:
        return f"{wanted} cycles need {wanted} chunks (see kv_chunks), got {len(k)} of k and {len(v)} of v"
    if any(sorted(cycle) != list(range(ranks)) for cycle in cycles):
        return f"the cycles must visit each of the group's {ranks} ranks once"
    for a, b in zip(k, v, strict=True):
        problem = find_problem(q, a, b, causal, NO_WINDOW, dropout_p, None, layout, scale=scale)
        if problem:
            return problem
    if causal:
        sizes = [to_inner(x, layout).shape[1] for x in k]
        if sum(size % 2 for size in sizes) > 1:
            return f"at most one causal chunk may have an odd length (see kv_chunks), got lengths {sizes}"
        if sum(sizes) != to_inner(q, layout).shape[1]:
            return f"q has {to_inner(q, layout).shape[1]} tokens, the causal chunks have {sum(sizes)}"
    return None
