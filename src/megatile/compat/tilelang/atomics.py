"""Atomics in TileLang's spelling: of elements, regions, and two or four elements at once."""

from __future__ import annotations

import math
from typing import Any

from megatile.compat.tilelang import buffers as b
from megatile.compat.tilelang.dtypes import NAMES, dtype as Dtype
from megatile.compat.tilelang.threads import get_thread_binding
from megatile.compat.tilelang.vectors import Vector, lanes_of
from megatile.core.expr import Binary, Symbol, known, simplify
from megatile.ir import nodes as n
from megatile.language.tile import operations as ops, synchronise
from megatile.language.tile.builder import current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.functions import if_then_else
from megatile.language.tile.regions import operand
from megatile.language.tile.scalars import Value, as_expr
from megatile.language.tile.tiles import Ref, Tile

ORDERS = ("relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst")
"""Memory orders of C++; loads take no release, stores no acquire."""


class OrderError(ProgramError, ValueError):
    """A memory order that an atomic does not have."""


def _is_region(value: Any) -> bool:
    return isinstance(value, Tile) or (isinstance(value, Ref) and not value.is_element)


def _check_order(memory_order: Any, word: str = "an atomic", without: tuple[str, ...] = ()) -> None:
    allowed = [order for order in ORDERS if order not in without]
    if memory_order is not None and memory_order not in allowed:
        raise OrderError(
            f"{word} does not support memory_order={memory_order!r}", advice=f"one of {', '.join(allowed)}"
        )


_BULK = {
    "i32": "int32", "u32": "uint32", "u64": "uint64", "f16": "float16", "bf16": "bfloat16", "f32": "float32",
}  # fmt: skip
"""Types that ``cp.reduce.async.bulk`` adds, by TileLang's names."""


def _check_bulk(dst: Any) -> None:
    """Atomics of the bulk-copy engine exist on GPUs only, and for some types."""
    if b.state().cpu:
        raise ProgramError("an atomic with use_tma=True on a CPU", advice="leave use_tma out")
    kind = dst.dtype if isinstance(dst, Tile) else dst.tile.dtype
    if kind not in _BULK:
        name = next((name for name in NAMES if Dtype(name).short == kind), kind)
        raise ProgramError(
            f"TMA atomic add does not support dtype {name}; supported scalar dtypes: "
            f"{', '.join(_BULK.values())}",
            advice="leave use_tma out",
        )


def _by_each_thread(value: Any) -> Any:
    """The value as each thread has it: a statement of a block, outside of T.Parallel, is done by all."""
    threads = b.state().threads
    if current().parallel or math.prod(threads) == 1:
        return value
    thread = get_thread_binding(0)
    return if_then_else(thread >= 0, value, value)


def _to_each(op: str, target: Any, value: Any) -> None:
    """One number to every element of a region."""
    side = operand(target, f"the target of T.atomic_{op}")
    names = tuple(current().fresh("i") for _ in side.extents)
    with ops.elementwise_nest(names, tuple(side.extents)):
        element = ops.element_of(side, [Symbol(name) for name in names])
        current().store(n.Atomic, op=op, target=element.tile.name, index=element.index, value=as_expr(value))


def _one_element(target: Any) -> Any:
    """A tile of one element is that element."""
    if isinstance(target, b.Variable):
        return target.tile[0]
    if isinstance(target, Tile) and all(known(as_expr(e)) == 1 for e in target.shape):
        return target[(0,) * len(target.shape)]
    return target


def _atomic(op: str) -> Any:
    def atomic(
        dst: Any, value: Any, memory_order: Any = None, return_prev: bool = False, use_tma: bool = False,
        *_: Any, **__: Any,
    ) -> Any:  # fmt: skip
        """To an element or every element of a region, indivisibly; the value before if it is asked for."""
        _check_order(memory_order)
        if use_tma:
            _check_bulk(dst)
        value = _one_element(value)
        if _is_region(dst) and not _is_region(value) and not return_prev:
            return _to_each(op, dst, value)
        if _is_region(value):
            return synchronise.atomic(op, dst, value, return_prev)
        return synchronise.atomic(op, _one_element(dst), _by_each_thread(value), return_prev)

    atomic.__name__ = atomic.__qualname__ = f"atomic_{op}"
    return atomic


atomic_add, atomic_max, atomic_min, atomic_or, atomic_and, atomic_xor = map(
    _atomic, ("add", "max", "min", "or", "and", "xor")
)


def _vector_add(count: int) -> Any:
    def add(
        dst: Any, value: Any, memory_order: Any = None, return_prev: bool = False, *_: Any, **__: Any
    ) -> Any:
        """To so many elements from one on, each indivisibly."""
        places, values = (_lanes(side, count) for side in (dst, value))
        old = [atomic_add(p, v, memory_order, return_prev) for p, v in zip(places, values, strict=True)]
        return Vector(tuple(old)) if return_prev else None

    return add


def _lanes(side: Any, count: int) -> list[Any]:
    if isinstance(side, Vector):
        found = list(side.lanes)
    else:
        found = list(lanes_of(side[(0,) * len(side.shape)] if isinstance(side, Tile) else side, count))
    if len(found) != count:
        raise ProgramError(f"an atomic of {count} elements is given {len(found)}", advice=f"give {count}")
    return found


atomic_addx2, atomic_addx4 = _vector_add(2), _vector_add(4)


def moved(ref: Any, by: Any) -> Ref:
    """The element ``by`` places further in the last dimension."""
    *front, last = ref.dims
    return Ref(ref.tile, (*front, n.Dim(simplify(Binary("+", last.start, as_expr(by))))))


def atomic_load(src: Any, memory_order: str = "seq_cst") -> Any:
    _check_order(memory_order, "atomic_load", ("release", "acq_rel"))
    return src


def atomic_store(dst: Any, src: Any, memory_order: str = "seq_cst") -> None:
    _check_order(memory_order, "atomic_store", ("consume", "acquire", "acq_rel"))
    dst.tile[tuple(Value(i) for i in dst.index)] = src


WORDS = (
    "atomic_add atomic_max atomic_min atomic_or atomic_and atomic_xor atomic_addx2 atomic_addx4 atomic_load "
    "atomic_store"
)
