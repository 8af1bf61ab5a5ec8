"""``T.alloc_reducer``: tiles that many iterations combine their values into.

    acc = T.alloc_reducer((M,), T.float32, op="sum")
    T.reducer_init(acc)
    for i, k in T.Parallel(M, K):
        T.reducer_update(acc[i], a[i, k])
    T.finalize_reducer(acc, result)

The older spelling (``T.clear(acc)``, ``acc[i] += x``, ``T.finalize_reducer(acc)``) has no ``reducer_init``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from megatile.compat.tilelang.buffers import Buffer, alloc_fragment, state
from megatile.compat.tilelang.dtypes import dtype as Dtype
from megatile.core.dtypes import is_float, numpy_dtype
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.language.tile import operations as ops
from megatile.language.tile.builder import current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.scalars import Value, as_expr, as_value
from megatile.language.tile.tiles import Ref

ATOMICS = {"sum": "add", "max": "max", "min": "min", "bitand": "and", "bitor": "or", "bitxor": "xor"}
"""Atomics of the Program by TileLang's names of reductions."""


def identity(op: str, short: str) -> Any:
    """The value that a reduction begins with: combining it with x gives x."""
    if op in ("max", "min"):
        sign = -1 if op == "max" else 1
        if is_float(short):
            return sign * math.inf
        limits = np.iinfo(numpy_dtype(short))
        return int(limits.min if op == "max" else limits.max)
    if op == "bitand":
        return -1 if short[0] == "i" else int(np.iinfo(numpy_dtype(short)).max)
    return 0


class Reducer(Buffer):
    """A tile whose elements are only combined with, until it is finalized."""

    op = "sum"
    opened: tuple[Any, int] | None = None
    """Where ``T.reducer_init`` stands: the bodies and the number of loops around it."""
    closed = False

    def __getitem__(self, index: Any) -> Ref:
        ref = super().__getitem__(index)
        return ReducerRef(self, ref.dims) if self.opened and ref.is_element else ref

    def __setitem__(self, index: Any, value: Any) -> None:
        ref = self[index]
        if self.opened:
            raise ProgramError(f"illegal store to reducer '{self.name}'", advice="T.reducer_update(r[i], x)")
        parts = as_expr(value).children()
        own = [p for p in parts if isinstance(p, Load) and p.source == self.name and p.index == ref.index]
        if len(own) != 1 or len(parts) != 2:
            raise ProgramError(
                f"a reducer is given {as_value(as_expr(value))!r}",
                advice="combine its element with a value: r[i] += x, r[i] = T.max(r[i], x)",
            )
        rest = next(p for p in parts if p is not own[0])
        self.combine(ref, Value(rest))

    def combine(self, ref: Ref, value: Any) -> None:
        current().store(
            n.Atomic, op=ATOMICS[self.op], target=self.name, index=ref.index, value=as_expr(value)
        )


class ReducerRef(Ref):
    """An element of a reducer that is open: it may be updated, not read."""

    @property
    def expr(self) -> Any:
        raise ProgramError(
            f"illegal read of reducer '{self.tile.name}'",
            advice="read the result of T.finalize_reducer(reducer, result)",
        )


def alloc_reducer(shape: Any, dtype: Any = "float32", op: str = "sum", replication: Any = None) -> Reducer:
    """A tile that elementwise code reduces into."""
    if op not in ATOMICS:
        raise ProgramError(f"T.alloc_reducer with op={op!r}", advice=f"one of {', '.join(ATOMICS)}")
    if op.startswith("bit") and is_float(Dtype(dtype).short):
        raise ProgramError(f"T.alloc_reducer: {op} needs an integer dtype", advice="use T.int32")
    tile = alloc_fragment(shape, dtype)
    tile.__class__ = Reducer
    tile.op = op  # type: ignore[attr-defined]
    state().reducers.append(tile)
    return tile  # type: ignore[return-value]


def _place() -> tuple[Any, int]:
    builder = current()
    return tuple(builder.bodies), len(builder.reader.loops)


def _inside(reducer: Reducer) -> bool:
    """Whether this place is in the body of the reducer's ``T.reducer_init``."""
    bodies = reducer.opened[0] if reducer.opened else ()
    now = _place()[0]
    return len(now) >= len(bodies) and all(a is b for a, b in zip(bodies, now, strict=False))


def _checked(reducer: Any, word: str) -> Reducer:
    if not isinstance(reducer, Reducer):
        raise ProgramError(f"{word} of {reducer!r}", advice="give what T.alloc_reducer made")
    return reducer


def reducer_init(reducer: Any, init: Any = None) -> None:
    """Begin a reduction, with the identity of its operation or with ``init``."""
    reducer = _checked(reducer, "T.reducer_init")
    if reducer.opened and _inside(reducer):
        raise ProgramError(f"double T.reducer_init of '{reducer.name}'", advice="finalize it before")
    if isinstance(init, Value) and init.dtype not in (reducer.dtype, "int", "float"):
        raise ProgramError(
            f"the initial value is {init.dtype}, which does not match reducer '{reducer.name}' of "
            f"{reducer.dtype}",
            advice="cast it",
        )
    current().open_implied()
    ops.fill(reducer, identity(reducer.op, reducer.dtype) if init is None else init)
    reducer.opened = _place()


def reducer_update(target: Any, value: Any) -> None:
    """Combine a value with one element of a reducer, once for each iteration of ``T.Parallel``."""
    reducer = _checked(getattr(target, "tile", target), "T.reducer_update")
    if not reducer.opened:
        raise ProgramError(
            f"T.reducer_update of '{reducer.name}' before T.reducer_init", advice="T.reducer_init(reducer)"
        )
    if not current().parallel:
        raise ProgramError(
            f"T.reducer_update of '{reducer.name}' outside any T.Parallel loop",
            advice="each iteration of T.Parallel adds once; a statement of all threads has no such number",
        )
    if not isinstance(target, Ref) or not target.is_element:
        raise ProgramError("T.reducer_update of a region", advice="T.reducer_update(reducer[i], x)")
    reducer.combine(target, value)


class BatchError(ProgramError, ValueError):
    """A number of elements that no all-reduce of a reducer can take at once."""


def _check_batch(reducer: Reducer, batch: Any) -> None:
    total = math.prod(int(e) for e in reducer.shape)
    if batch < 1:
        raise BatchError(f"T.finalize_reducer: batch must be >= 1, got {batch}", advice="leave it out")
    if batch > total:
        raise BatchError(
            f"T.finalize_reducer: batch={batch} exceeds total output elements ({total})",
            advice="leave it out",
        )
    if total % batch:
        raise BatchError(
            f"T.finalize_reducer: batch={batch} must evenly divide the {total} elements",
            advice="give a divisor",
        )


def finalize_reducer(reducer: Any, dst: Any = None, *_: Any, batch: Any = 1, **__: Any) -> None:
    """Copy the result to ``dst``; without it the reducer itself is read from here on."""
    reducer = _checked(reducer, "T.finalize_reducer")
    _check_batch(reducer, batch)
    if reducer.opened:
        if not _inside(reducer) or reducer.opened[1] != _place()[1]:
            raise ProgramError(
                f"T.finalize_reducer of '{reducer.name}' is not in the scope of its T.reducer_init",
                advice="put both into the same loop",
            )
    elif dst is not None:
        raise ProgramError(
            f"T.finalize_reducer of '{reducer.name}' before T.reducer_init", advice="T.reducer_init(reducer)"
        )
    reducer.opened, reducer.closed = None, True
    if dst is not None:
        ops.copy(dst, reducer)


def check_finalized() -> None:
    """Every reducer that was begun must be finalized before its launch ends."""
    tiles = current().tiles
    for reducer in state().reducers:
        kept = tiles.get(reducer.name) is reducer
        if kept and reducer.opened and not reducer.closed:
            raise ProgramError(
                f"reducer '{reducer.name}' is never finalized", advice="T.finalize_reducer(reducer, result)"
            )
    state().reducers.clear()
