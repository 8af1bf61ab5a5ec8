"""What the threads of a warp or block tell each other: votes, shuffles, reductions over lanes.

Threads run in lockstep, so each value is put into a register of its thread and read there by the others.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

from megatile.compat.tilelang import buffers as b
from megatile.compat.tilelang.functions import cast
from megatile.compat.tilelang.threads import WARP, get_thread_binding
from megatile.core.dtypes import is_float
from megatile.core.expr import Const, Symbol
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.language.tile import operations as ops
from megatile.language.tile.builder import current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.functions import if_then_else, max as maximum, min as minimum
from megatile.language.tile.scalars import Value, as_expr, operate

FULL = 0xFFFFFFFF
"""The mask of all lanes of a warp."""
WARPGROUP = 4
"""Warps of a warp group."""


def get_lane_idx(warp_size: Any = None) -> Any:
    """The thread's number in its warp."""
    return _linear() % (warp_size or WARP)


def get_warp_idx(warp_size: Any = None) -> Any:
    """The number of the thread's warp."""
    return _linear() // (warp_size or WARP)


get_warp_idx_sync = get_warp_idx


def get_warp_group_idx(warp_size: Any = None, warps_per_group: Any = None) -> Any:
    """The number of the thread's warp group."""
    return _linear() // ((warp_size or WARP) * (warps_per_group or WARPGROUP))


def shuffle_elect(thread_extent: int) -> Any:
    """Whether this is the first thread of so many; of the block for 0."""
    return operate("==", _linear() % thread_extent if thread_extent else _linear(), 0)


def _linear() -> Value:
    """The thread's number in its block."""
    number: Any = 0
    for d, extent in reversed(list(enumerate(b.state().threads))):
        number = number * extent + get_thread_binding(d)
    return number


def _hold(value: Any, word: str) -> b.Buffer:
    """A register of each thread that holds a value."""
    if len(b.state().threads) != 1:
        raise ProgramError(f"T.{word} needs threads of one dimension", advice="T.Kernel(..., threads=128)")
    current().open_implied()
    kind = as_expr(value).dtype
    held = b.alloc_local((1,), {"int": "int32", "float": "float32", "bool": "int32"}.get(kind, kind))
    held[0] = value
    return held


def _of(held: b.Buffer, thread: Any) -> Value:
    """What another thread holds."""
    return Value(Load(held.name, (as_expr(thread), Const(0)), held.dtype))


def _named(value: Any) -> Value:
    """A variable with a value, so that expressions of it stay short."""
    builder = current()
    expr = as_expr(value)
    name = builder.variable("lane")
    builder.emit(n.Let, name=name, value=expr)
    return Value(Symbol(name, expr.dtype))


def _lanes(held: b.Buffer, word: str, mask: Any = FULL) -> dict[int, Value]:
    """What the lanes of a warp hold, by their numbers."""
    if not isinstance(mask, int):
        raise ProgramError(f"T.{word} with a mask known only at run time", advice="give a number, or none")
    threads = b.state().threads[0]
    if threads > WARP and threads % WARP:
        raise ProgramError(f"T.{word} in a block of {threads} threads", advice=f"use a multiple of {WARP}")
    first = get_thread_binding(0) // WARP * WARP
    return {i: _of(held, first + i) for i in range(min(WARP, threads)) if mask >> i & 1}


def _in_pairs(values: list[Any], combine: Any) -> Any:
    """Combined as a butterfly does it."""
    while len(values) > 1:
        half = len(values) // 2
        rest = values[2 * half :]
        values = [combine(values[i], values[i + half]) for i in range(half)] + rest
    return values[0]


# --- reductions and shuffles ----------------------------------------------------------------------------

_COMBINED: dict[str, Any] = {
    "sum": lambda x, y: x + y, "max": maximum, "min": minimum,
    "bitand": lambda x, y: x & y, "bitor": lambda x, y: x | y, "bitxor": lambda x, y: x ^ y,
}  # fmt: skip


def _warp_reduction(op: str) -> Any:
    def reduce_warp(value: Any) -> Value:
        word = f"warp_reduce_{op}"
        return _in_pairs(list(_lanes(_hold(value, word), word).values()), _COMBINED[op])

    reduce_warp.__doc__ = f"The {op} of what the threads of a warp have; each of them gets it."
    return reduce_warp


warp_reduce_sum, warp_reduce_max, warp_reduce_min = map(_warp_reduction, ("sum", "max", "min"))
warp_reduce_bitand, warp_reduce_bitor, warp_reduce_bitxor = map(
    _warp_reduction, ("bitand", "bitor", "bitxor")
)


def _shuffle(word: str, lane_of: Any) -> Any:
    def shuffle(value: Any, lane: Any, width: int = WARP, mask: Any = FULL) -> Value:
        """The value of another lane of the same ``width``; the thread's own where there is none."""
        held, thread = _hold(value, word), get_thread_binding(0)
        own, first = thread % width, thread // width * width
        other = lane_of(own, lane, width)
        inside = operate("and", operate(">=", other, 0), operate("<", other, width))
        return _of(held, first + if_then_else(inside, other, own))

    shuffle.__name__ = shuffle.__qualname__ = word
    return shuffle


shfl_sync = _shuffle("shfl_sync", lambda own, lane, width: operate("%", lane, width))
shfl_xor = _shuffle("shfl_xor", lambda own, lane, width: own ^ lane)
shfl_down = _shuffle("shfl_down", lambda own, lane, width: own + lane)
shfl_up = _shuffle("shfl_up", lambda own, lane, width: own - lane)


def tvm_warp_shuffle(mask: Any, value: Any, lane: Any, width: int = WARP, warp_size: int = WARP) -> Value:
    """The value that another thread of the warp has in an element of its own."""
    tile = getattr(value, "tile", None)
    if tile is None or tile.name not in b.state().private or len(b.state().threads) != 1:
        raise ProgramError(
            "T.tvm_warp_shuffle reads what each thread has for itself, in one dimension of threads",
            advice="T.alloc_local((n,), dtype), T.Kernel(..., threads=128)",
        )
    other = get_thread_binding(0) // warp_size * warp_size + lane
    return Value(Load(tile.name, (as_expr(other), *value.index), value.dtype))


# --- votes ------------------------------------------------------------------------------------------------


def _vote(predicate: Any, word: str) -> Any:
    """One where the predicate holds, otherwise zero."""
    if isinstance(predicate, float) or (isinstance(predicate, Value) and is_float(predicate.dtype)):
        raise VoteError(
            f"T.{word} requires an integer or boolean predicate", advice="compare: T.any_sync(x != 0)"
        )
    if isinstance(predicate, Value):
        return if_then_else(operate("!=", predicate, 0), 1, 0)
    return int(bool(predicate))


class VoteError(ProgramError, TypeError):
    """A vote on what is neither true nor false."""


def ballot_sync(predicate: Any, mask: Any = FULL) -> Any:
    """The lanes of the warp whose predicate holds, as bits of a uint64."""
    lanes = _lanes(_hold(_vote(predicate, "ballot_sync"), "ballot_sync"), "ballot_sync", mask)
    return _in_pairs([cast(lane, "uint64") << i for i, lane in lanes.items()], lambda x, y: x | y)


def ballot(predicate: Any) -> Any:
    return ballot_sync(predicate)


def activemask() -> Any:
    """All lanes: they run in lockstep."""
    return ballot_sync(1)


def any_sync(predicate: Any, mask: Any = FULL) -> Any:
    """1 if the predicate holds in any lane of the warp."""
    lanes = _lanes(_hold(_vote(predicate, "any_sync"), "any_sync"), "any_sync", mask)
    return _in_pairs(list(lanes.values()), lambda x, y: x | y)


def all_sync(predicate: Any, mask: Any = FULL) -> Any:
    """1 if the predicate holds in every lane of the warp."""
    lanes = _lanes(_hold(_vote(predicate, "all_sync"), "all_sync"), "all_sync", mask)
    return _in_pairs(list(lanes.values()), lambda x, y: x & y)


def match_any_sync(value: Any, mask: Any = FULL) -> Any:
    """The lanes of the warp that have the same value, as bits."""
    held = _hold(value, "match_any_sync")
    lanes = _lanes(held, "match_any_sync", mask)
    own = _of(held, get_thread_binding(0))
    return _in_pairs(
        [if_then_else(operate("==", lane, own), cast(1, "uint32") << i, 0) for i, lane in lanes.items()],
        lambda x, y: x | y,
    )


def match_all_sync(value: Any, mask: Any = FULL) -> Any:
    """The mask if all lanes have the same value, otherwise 0."""
    lanes = list(_lanes(_hold(value, "match_all_sync"), "match_all_sync", mask).values())
    same = reduce(lambda x, y: operate("and", x, y), [operate("==", lane, lanes[0]) for lane in lanes[1:]])
    return if_then_else(same, cast(mask, "uint32"), cast(0, "uint32"))


def ffs(value: Any) -> Any:
    """The place of the lowest bit that is set, from 1; 0 where none is."""
    if isinstance(value, int):
        return (value & -value).bit_length()
    rest, place = _named(cast(value, "uint64")), _named(if_then_else(operate("==", value, 0), 0, 1))
    for step in (32, 16, 8, 4, 2, 1):
        empty = _named(if_then_else(operate("==", rest & ((1 << step) - 1), 0), step, 0))
        none = operate("==", place, 0)
        rest, place = _named(rest >> empty), _named(if_then_else(none, 0, place + empty))
    return place


# --- the block --------------------------------------------------------------------------------------------


def _count(predicate: Any, word: str) -> Value:
    """Threads of the block for which the predicate holds."""
    vote = _of(_hold(_vote(predicate, word), word), get_thread_binding(0))
    total = b.allocate((1,), "int32", "l1")
    ops.clear(total)
    current().store(n.Atomic, op="add", target=total.name, index=(Const(0),), value=as_expr(vote))
    return _named(total[0])


def syncthreads_count(predicate: Any) -> Any:
    """How many threads of the block have a predicate that holds."""
    return _count(predicate, "syncthreads_count")


def syncthreads_and(predicate: Any) -> Any:
    """1 if the predicate holds for every thread of the block."""
    count = _count(predicate, "syncthreads_and")
    return if_then_else(operate("==", count, math.prod(b.state().threads)), 1, 0)


def syncthreads_or(predicate: Any) -> Any:
    """1 if the predicate holds for any thread of the block."""
    return if_then_else(operate(">", _count(predicate, "syncthreads_or"), 0), 1, 0)


WORDS = (
    "get_lane_idx get_warp_idx get_warp_idx_sync get_warp_group_idx shuffle_elect shfl_sync shfl_xor "
    "shfl_down shfl_up tvm_warp_shuffle warp_reduce_sum warp_reduce_max warp_reduce_min warp_reduce_bitand "
    "warp_reduce_bitor warp_reduce_bitxor ballot ballot_sync activemask any_sync all_sync match_any_sync "
    "match_all_sync syncthreads_count syncthreads_and syncthreads_or"
)
