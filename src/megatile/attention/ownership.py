"""Which tokens every rank holds in a call, checked against what the ranks say they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from megatile.attention.errors import AttentionError
from megatile.attention.schedules import Division, Layout, Mask, Schedule, division_for, positions
from megatile.attention.settings import setting
from megatile.core.cached import cached
from megatile.core.errors import MegatileError
from megatile.core.placement import ORDERS, Piece, Pieces, local_length
from megatile.runtime.agreement import Record

Lengths = tuple[int, ...]
_TAG = "_megatile_layout"


@dataclass(frozen=True)
class Ownership:
    """The division of a call over the schedule's outer ranks, and the tokens of each rank."""

    schedule: Schedule
    division: Division
    tokens_q: Lengths
    tokens_kv: Lengths

    @staticmethod
    @cached(most=64)
    def of(
        schedule: Schedule,
        mask: Mask,
        causal: bool,
        biased: bool,
        lengths_q: Lengths,
        lengths_kv: Lengths,
        local_q: Lengths,
        local_kv: Lengths,
        padded_q: Lengths | None = None,
        padded_kv: Lengths | None = None,
    ) -> Ownership:
        """``lengths``: of the whole sequences; ``local``: what each rank says it holds; ``padded``: how long
        the sequences are with their padding, which is divided as they are."""
        padded_q, padded_kv = padded_q or lengths_q, padded_kv or lengths_kv
        layout, outer = schedule.layout(causal), []
        alone = len(lengths_q) == 1 and schedule.heads == 1 and padded_q == lengths_q
        # Without a mask any cut will do; so it does where positions follow from the local lengths.
        free = alone and ((mask.none and not biased) or layout.name == "contiguous")
        sides = ("query", lengths_q, local_q, padded_q), ("key", lengths_kv, local_kv, padded_kv)
        for side, (what, lengths, local, padded) in enumerate(sides):
            expected = tuple(map(local_length, layout.pieces(padded)))
            if local == expected:
                held = layout.outer().pieces(padded)
                outer.append(held if padded == lengths else [_apart(own, lengths, side) for own in held])
            elif free and sum(local) == sum(lengths):
                outer.append(_in_a_row(local))
            else:
                refuse_lengths(what, schedule, layout.name, padded, local, expected)
        division = division_for(schedule.routes, outer[0], outer[1], mask, lengths_q, lengths_kv, biased)
        return Ownership(schedule, division, local_q, local_kv)

    def head_group(self, rank: int) -> tuple[Lengths, Lengths]:
        """Return the tokens of the ranks that exchange heads with ``rank``."""
        width = self.schedule.heads
        first = rank - rank % width
        return self.tokens_q[first : first + width], self.tokens_kv[first : first + width]


class ShardTag(NamedTuple):
    """How a tensor was divided: its layout, and the lengths of packed sequences (None: one sequence)."""

    layout: Layout
    packed: Lengths | None

    def __str__(self) -> str:
        packed = "" if self.packed is None else f" of {len(self.packed)} packed sequences"
        heads = f", {self.layout.heads} ranks for the heads" if self.layout.heads > 1 else ""
        return f"{self.layout.name} layout{packed} over {self.layout.ranks} ranks{heads}"


def shard_tag(x: Any) -> ShardTag | None:
    """Return the tag of a tensor that :func:`shard_sequence` made; what is computed from it has none."""
    return getattr(x, _TAG, None)


def set_shard_tag(x: Any, tag: ShardTag | None) -> Any:
    """Return the same tensor with a tag."""
    if tag is not None:
        setattr(x, _TAG, tag)
    return x


_MADE: dict[int, set[ShardTag]] = {}
"""The tags of shards that were made here, by their number of tokens, those made last at the end."""
_MAX_CACHED_OWNERS = 1024
"""Lengths of shards that are remembered; the oldest goes first."""


def remember_shard(tokens: int, tag: ShardTag) -> None:
    _MADE[tokens] = {*_MADE.pop(tokens, ()), tag}
    if len(_MADE) > _MAX_CACHED_OWNERS:
        del _MADE[next(iter(_MADE))]


def laid_out(schedule: Schedule, division: str | Layout | None) -> Schedule:
    """Return the schedule for tokens that are divided in another layout than its own."""
    if division is None:
        return schedule
    if isinstance(division, Layout) and (division.ranks, division.heads) != (schedule.ranks, schedule.heads):
        raise AttentionError(
            f"the {ShardTag(division, None)} does not fit schedule '{schedule.name}', which has "
            f"{schedule.heads} of {schedule.ranks} ranks for the heads"
        )
    name = division.name if isinstance(division, Layout) else division
    found = replace(schedule, full_layout=name, causal_layout=name)
    if isinstance(division, Layout) and found.layout(causal=False) != division:
        raise AttentionError(f"the {ShardTag(division, None)} has other cycles than '{schedule.name}'")
    return found


def layout_problem(
    schedule: Schedule,
    division: str | Layout | None,
    causal: bool,
    tags: Sequence[ShardTag | None],
    cu_seqlens: Any,
    matters: bool,
) -> str | None:
    """Return why the tokens of q, k and v cannot be what the schedule expects, or None.

    Without a mask it does not ``matter`` which tokens a rank has, only how many.
    """
    try:
        layout = laid_out(schedule, division).layout(causal)
        lengths = (None, None) if cu_seqlens is None else packed_lengths(cu_seqlens)
    except MegatileError as error:
        return str(error)
    if not matters or layout.ranks == 1:
        return None
    for name, tag, packed in zip("qkv", tags, (lengths[0], lengths[1], lengths[1]), strict=True):
        if tag is not None and tag != (layout, packed):
            other = " (other lengths)" if tag.packed and packed and tag.layout == layout else ""
            return (
                f"{name} was divided in {tag}{other}, schedule '{schedule.name}' expects "
                f"{ShardTag(layout, packed)}: use the same schedule, causal and cu_seqlens, or pass layout="
            )
    return None


def unknown_division(
    schedule: Schedule,
    division: str | Layout | None,
    causal: bool,
    tags: Sequence[ShardTag | None],
    cu_seqlens: Any,
    tokens: Sequence[int],
) -> str | None:
    """Return why q, k and v may be divided otherwise than the schedule expects, or None. What is computed
    from a shard has no tag, but as many tokens: if shards of that many (of these sequences, where they are
    packed) were made, one of them was divided so. In debug mode all of them must have been."""
    layout = schedule.layout(causal)
    if division is not None or layout.ranks == 1:
        return None
    strict = setting("DEBUG") == "1"
    lengths = (None, None) if cu_seqlens is None else packed_lengths(cu_seqlens)
    for name, tag, count, packed in zip("qkv", tags, tokens, (*lengths, lengths[1]), strict=True):
        made, expected = {t for t in _MADE.get(count, ()) if t.packed == packed}, ShardTag(layout, packed)
        sure = expected in made and {other.layout for other in made} == {layout}
        if tag is not None or sure or (not strict and expected in made):
            continue
        shown = sorted({str(ShardTag(other.layout, None)) for other in made - {expected}})
        known = "made no shard" if not made else f"made shards in {' and '.join(shown[:3])}"
        return (
            f"the layout of {name} is unknown: shard_sequence {known} of its {count} tokens, "
            f"and {expected} is expected: use the same schedule, causal and cu_seqlens, "
            f"give position_ids, or pass layout='{layout.name}' if {name} has that layout"
        )
    return None


_WEIGHTS = 0x9E3779B97F4A7C15 & (2**63 - 1)
"""Multiplier of the position hash: the golden ratio in 63 bits."""


def position_checksum(ids: Any) -> int:
    """Return a number of the positions of tokens in their order."""
    numbers = np.asarray(ids, dtype=np.int64)
    with np.errstate(over="ignore"):
        return int(((numbers + 1) * (np.arange(1, len(numbers) + 1) * _WEIGHTS)).sum())


def refuse_positions(records: Sequence[Record], layout: Layout, lengths: Lengths) -> None:
    """Raise if the positions of a rank's tokens are not those that the layout gives it."""
    if all(record.get("positions") is None for record in records):
        return
    expected = _checksums(layout, lengths)
    for rank, record in enumerate(records):
        found = record.get("positions")
        if found in (None, expected[rank]):
            continue
        others = [Layout(name, layout.ranks, layout.heads) for name in (*ORDERS, "slices")]
        named = [other.name for other in others if _checksums(other, lengths)[rank] == found]
        what = f"those of {named[0]} layout" if named else "those of no known layout"
        raise AttentionError(
            f"rank {rank}: position_ids are {what}, {ShardTag(layout, None)} is expected",
            advice=f"divide with shard_sequence, or pass layout='{named[0]}'" if named else None,
        )


@cached(most=64)
def _checksums(layout: Layout, lengths: Lengths) -> list[int]:
    return [position_checksum(positions(own)) for own in layout.pieces(lengths)]


def sequence_lengths(records: Sequence[Record], cu_seqlens: Any) -> tuple[Lengths, Lengths]:
    """Return the lengths of the whole sequences: from their boundaries, or all local tokens together."""
    if cu_seqlens is None:
        return (sum(r["query tokens"] for r in records),), (sum(r["key tokens"] for r in records),)
    return packed_lengths(cu_seqlens)


def packed_lengths(cu_seqlens: Any) -> tuple[Lengths, Lengths]:
    """Return the lengths of packed sequences of q and of k, from their boundaries or a pair of them."""
    pair = isinstance(cu_seqlens, tuple) and not all(isinstance(x, Real) for x in cu_seqlens)
    if pair and len(cu_seqlens) != 2:
        raise AttentionError(
            f"cu_seqlens are boundaries or a pair for q and k, got {len(cu_seqlens)} of them"
        )
    lengths_q, lengths_kv = map(_differences, cu_seqlens if pair else (cu_seqlens, cu_seqlens))
    if len(lengths_q) != len(lengths_kv):
        raise AttentionError(f"cu_seqlens names {len(lengths_q)} query but {len(lengths_kv)} key sequences")
    return lengths_q, lengths_kv


def own_lengths(records: Sequence[Record]) -> tuple[Lengths, Lengths]:
    """Return the local tokens of every rank."""
    return tuple(r["query tokens"] for r in records), tuple(r["key tokens"] for r in records)


def _differences(boundaries: Any) -> Lengths:
    try:
        listed = boundaries.tolist() if hasattr(boundaries, "tolist") else boundaries
    except RuntimeError as error:  # a meta tensor, for example
        raise AttentionError(f"cu_seqlens cannot be read: {error}") from error
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not len(listed):
        raise AttentionError(f"cu_seqlens must be the boundaries of sequences, got {boundaries!r}")
    if not all(hasattr(x, "__int__") and int(x) == x for x in listed):
        raise AttentionError(f"cu_seqlens must be whole numbers, got {list(listed[:8])}")
    at = [int(x) for x in listed]
    if len(at) < 2 or at[0] != 0 or any(b < a for a, b in pairwise(at)):
        raise AttentionError(f"cu_seqlens must begin with 0 and not fall, got {at[:8]}")
    return tuple(b - a for a, b in pairwise(at))


def _apart(pieces: Pieces, lengths: Lengths, side: int) -> Pieces:
    """Return the same tokens, but padding as pieces of sequences that no other piece belongs to."""
    found: list[Piece] = []
    for piece in pieces:
        real = min(piece.length, max(0, -((piece.start - lengths[piece.sequence]) // piece.stride)))
        padding = piece.part(real, piece.length)._replace(sequence=(side + 1) * len(lengths) + piece.sequence)
        found += [part for part in (piece.part(0, real), padding) if part.length]
    return tuple(found)


def _in_a_row(local: Lengths) -> list[Pieces]:
    starts = accumulate(local, initial=0)
    return [(Piece(at, length),) if length else () for at, length in zip(starts, local, strict=False)]


def refuse_lengths(
    what: str, schedule: Schedule, layout: str, lengths: Lengths, local: Lengths, expected: Lengths
) -> None:
    """Raise the error about the first rank that does not hold what the layout gives it."""
    rank = next(r for r, (a, b) in enumerate(zip(local, expected, strict=True)) if a != b)
    raise AttentionError(
        f"rank {rank} holds {local[rank]} {what} tokens, but schedule '{schedule.name}' ({layout} layout) "
        f"gives it {expected[rank]} of {sum(lengths)}",
        advice="divide the sequence with shard_sequence and the same schedule, causal and cu_seqlens",
    )
