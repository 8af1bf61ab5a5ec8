"""A schedule in numbers: the load of its links and the work of its ranks, step by step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from megatile.attention.schedules.bands import Mask
from megatile.attention.schedules.division import Division, division_for
from megatile.attention.schedules.schedule import Schedule, ScheduleError
from megatile.core.placement import Piece, Pieces

MAX_MESSAGES_SENT = 20_000_000
"""Messages that a summary counts one by one; more take seconds."""
MAX_TOKENS = 2**62  # integers of arrays end soon after


def schedule_summary(schedule: Schedule, length: int = 0, causal: bool = False) -> dict[str, Any]:
    """Return plain data: the division of ``length`` tokens (default: a small number that divides evenly),
    cycles, steps.
    """
    routes = schedule.routes
    length = length or schedule.ranks * routes.chunks * 2
    if length >= MAX_TOKENS:
        raise ScheduleError(f"{length} tokens are too many to count")
    moved = schedule.ranks * routes.chunks * routes.exchanges
    if moved > MAX_MESSAGES_SENT:
        raise ScheduleError(
            f"{schedule.name} over {schedule.ranks} ranks sends {moved} chunks, too many to list",
            advice="ask for fewer ranks; a larger schedule has the same form",
        )
    layout = schedule.layout(causal).outer()
    pieces = layout.pieces([length])
    division = division_for(routes, pieces, pieces, Mask.of(causal), [length], [length])
    work = StepWork(division)
    return {
        "schedule": schedule.name,
        "ranks": schedule.ranks,
        "layout": layout.name,
        "ranks that divide the heads": schedule.heads,
        "chunks of KV": routes.chunks,
        "exchanges": routes.exchanges,
        "tokens": length,
        "cycles": [list(cycle) for cycle in getattr(routes, "cycles", ())],
        "steps": [_step(division, work, step) for step in range(routes.exchanges + 1)],
    }


def _step(division: Division, work: StepWork, step: int) -> dict[str, Any]:
    """Return what the exchange that starts with the step carries, and what the ranks compute in it."""
    load = division.link_loads(step)[1].tolist() if step < division.routes.exchanges else []
    return {
        "step": step,
        "links used": len(load),
        "tokens per link": _range(load),
        "visible pairs per rank": _range(work.pairs(step).tolist()),
        "kernels of rank 0": len(division.calls(step, 0)),
    }


def _range(values: Collection[int]) -> list[int]:
    """Return the least and the largest, once if they agree."""
    return sorted({min(values), max(values)}) if values else []


Array = Any
_NOTHING = Piece(0, 0)
_MAX_PIECE_PAIRS = 16
"""Pairs of pieces of a rank and a chunk; beyond, arrays would be larger than they are worth."""
_MAX_EXACT_TOKENS = 2**30
"""Positions whose pairs the integers of arrays hold, with room for the sums of them."""


class StepWork:
    """Visible pairs of a division, step by step."""

    def __init__(self, division: Division) -> None:
        self._division = division
        per_rank, per_chunk = _most(division.q), max(map(_most, division.chunks))
        tokens = max(map(_end, (*division.q, *division.kv)))
        self._small = per_rank * per_chunk <= _MAX_PIECE_PAIRS and tokens <= _MAX_EXACT_TOKENS
        if self._small:
            self._q = _table(division.q, per_rank)
            self._k = _table([own for rank in division.chunks for own in rank], per_chunk)

    def pairs(self, step: int) -> Array:
        """Return what every rank works on at a step: ``division.pairs(step, rank)`` for all ranks."""
        division = self._division
        ranks = division.routes.ranks
        if step == 0 or not self._small:
            return np.array([division.pairs(step, rank) for rank in range(ranks)])
        sources, chunks = division.routes.all_held(step)
        keys = self._k[:, sources * division.routes.chunks + chunks]
        each = _visible(division, self._q[:, :, None, :, None], keys[:, :, :, None, :])
        return each.sum(axis=(1, 2, 3))


def _most(pieces: Sequence[Pieces]) -> int:
    return max(1, *map(len, pieces))


def _end(pieces: Pieces) -> int:
    """Return the position after the last one."""
    return max((piece.start + piece.length * piece.stride for piece in pieces), default=0)


def _table(held: Sequence[Pieces], width: int) -> Array:
    """Return fields of pieces, [field, holder, piece]; none has no length."""
    filled = [[*pieces, *[_NOTHING] * (width - len(pieces))] for pieces in held]
    return np.array(filled, dtype=np.int64).transpose(2, 0, 1)


def _visible(division: Division, q: Array, k: Array) -> Array:
    """Return ``visible_pairs`` of the mask's tile of two pieces, for arrays of them."""
    (q_start, rows, q_stride, q_sequence), (k_start, columns, k_stride, k_sequence) = q, k
    together = q_sequence == k_sequence
    if division.mask.none:
        return rows * columns * together
    whole = rows * columns * together
    stride = np.where(columns > 1, k_stride, q_stride)
    offset = k_start - q_start - np.array(division.shift)[k_sequence]
    left, right = division.mask.left, division.mask.right
    lower = 1 - rows if left is None else np.maximum(1 - rows, -((left + offset) // stride))
    upper = columns - 1 if right is None else np.minimum(columns - 1, (right - offset) // stride)
    # Most tiles are seen as a whole or not at all; only the others are counted.
    seen = (lower < columns) & (upper > -rows)
    part = np.nonzero(seen & ((lower > 1 - rows) | (upper < columns - 1)) & (whole > 0))
    pairs = np.where(seen, whole, 0)
    low, up, height, width = (np.broadcast_to(x, whole.shape)[part] for x in (lower, upper, rows, columns))
    pairs[part] = np.maximum(0, _below(up, height, width) - _below(low - 1, height, width))
    return pairs


def _below(limit: Array, rows: Array, columns: Array) -> Array:
    """As in ``bands``: pairs with j - i <= limit."""
    first = np.maximum(0, -limit)
    full = np.minimum(np.maximum(first, columns - limit - 1), rows)
    growing = np.maximum(0, full - first)
    ahead = growing * (first + limit + 1) + growing * (growing - 1) // 2
    return ahead + np.maximum(0, rows - np.maximum(full, first)) * columns
