"""Words of single threads: pointers, asynchronous copies, reductions over threads, the whole grid."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from megatile.compat.tilelang import buffers as b
from megatile.compat.tilelang.atomics import moved
from megatile.compat.tilelang.reader import Macro
from megatile.compat.tilelang.reducers import ATOMICS, identity
from megatile.compat.tilelang.threads import WARP, get_thread_binding
from megatile.core.expr import Symbol as Var, expr as integer
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.language.tile import operations as ops
from megatile.language.tile.builder import current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.scalars import Value, as_expr
from megatile.language.tile.synchronise import barrier
from megatile.language.tile.tiles import Ref


@dataclass(frozen=True)
class Pointer:
    """Elements from one on: ``T.access_ptr(A[i, j], "r", 8)``."""

    element: Ref
    count: int | None = None

    def __getitem__(self, index: Any) -> Ref:
        return moved(self.element, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        place = self[index]
        current().store(n.Store, target=place.tile.name, index=place.index, value=as_expr(value))


def access_ptr(element: Any, access: str = "rw", *extents: Any, **_: Any) -> Pointer:
    """A pointer to an element; the extent is how many it covers."""
    if isinstance(element, b.Buffer):
        element = element[(0,) * element.ndim]
    count = int(extents[-1]) if extents and isinstance(extents[-1], int) else None
    return Pointer(element, count)


address_of = access_ptr


def ptx_cp_async(dst: Any, src: Any, count: Any = None, *_: Any) -> None:
    """Every thread copies the elements its pointers cover, at once."""
    if not isinstance(dst, Pointer) or not isinstance(src, Pointer):
        raise ProgramError("T.ptx_cp_async needs pointers", advice="T.access_ptr(A[i, j], 'r', 8)")
    builder = current()
    width, k = dst.count or src.count or int(count), builder.fresh("k")
    with builder.inside(n.Loop, k, kind="vectorized", var=k, start=integer(0), stop=integer(width)):
        target, value = moved(dst.element, Value(Var(k))), moved(src.element, Value(Var(k)))
        builder.store(n.Store, target=target.tile.name, index=target.index, value=as_expr(value))


class Dp4aError(ProgramError, ValueError):
    """Operands that ``T.dp4a`` does not take."""


def dp4a(A: Any, B: Any, C: Any) -> None:
    """Add the product of four int8 and four int8 elements, from one on, to an int32 element."""
    sides = [_element_of(side) for side in (A, B, C)]
    for name, side, kind in zip("ABC", sides, ("i8", "i8", "i32"), strict=True):
        if side.tile.dtype != kind:
            what = "an int32 accumulator" if name == "C" else "int8 inputs"
            raise Dp4aError(f"dp4a requires {what}, got {name} of {side.tile.dtype}", advice="T.gemm")
    a, bb, c = sides
    wide = [[b.Dtype("int32")(moved(side, k)) for k in range(4)] for side in (a, bb)]
    total = functools.reduce(lambda x, y: x + y, (x * y for x, y in zip(*wide, strict=True)))
    current().store(n.Store, target=c.tile.name, index=c.index, value=as_expr(c + total))


def _element_of(side: Any) -> Ref:
    """The first element of a tile, the element itself, or that of a pointer."""
    if isinstance(side, Pointer):
        return side.element
    return side if isinstance(side, Ref) else side[(0,) * len(side.shape)]


EXTERN: dict[str, Macro] = {}


def register_extern(name: str, function: Any) -> None:
    """Give ``T.call_extern(dtype, name, ...)`` a meaning: a function of the same arguments, in ``T``."""
    EXTERN[name] = Macro(function)


def call_extern(*arguments: Any, dtype: Any = None) -> Any:
    """Code of another language, by the meaning that was registered for it; the dtype first, or by name."""
    name, *arguments = arguments if dtype is not None else arguments[1:]  # type: ignore[assignment]
    if name not in EXTERN:
        raise ProgramError(
            f"T.call_extern('{name}') has no meaning here",
            advice=f"megatile.tilelang.register_extern('{name}', a Python function of the same arguments)",
        )
    return EXTERN[name](*arguments)


def thread_binding(start: Any, stop: Any = None, thread: str = "threadIdx.x", **_: Any) -> Any:
    """The thread's index along an axis: ``tx = T.thread_binding(0, 128, thread="threadIdx.x")``."""
    return get_thread_binding("xyz".index(thread[-1]))


def sync_grid() -> None:
    """All blocks of the launch meet; they must fit the machine at once."""
    barrier()


@contextmanager
def attr(reducer: Any = None, *_: Any, **__: Any) -> Iterator[None]:
    """How a reduction over threads combines."""
    state = b.state()
    outer, state.reduction = state.reduction, reducer if reducer in _REDUCERS.values() else "sum"
    yield
    state.reduction = outer


def comm_reducer(combine: Any, identity: Any) -> str:
    """Sums, products, greatest and least: ``lambda x, y: x + y``."""
    found = (combine(2, 3), combine(3, 2), combine(-3, 2))
    if found not in _REDUCERS:
        raise ProgramError(
            "a reduction over threads that is not a sum, a product, the greatest or the least",
            advice="reduce in a tile: T.reduce_max",
        )
    return _REDUCERS[found]


_REDUCERS = {(5, 5, -1): "sum", (6, 6, -6): "prod", (3, 3, 2): "max", (2, 2, -3): "min"}
"""By what they make of 2 and 3, of 3 and 2, and of -3 and 2."""


def _product(source: Any) -> Value:
    """Return the product over all threads (there are few)."""
    threads = b.state().threads
    if len(threads) != 1 or threads[0] > WARP or source.tile.name not in b.state().private:
        raise ProgramError(
            "a product over threads needs one dimension of at most 32, and an element of each thread",
            advice="T.alloc_local((1,), dtype), T.Kernel(..., threads=32)",
        )
    lanes = (Load(source.tile.name, (integer(t), *source.index), source.dtype) for t in range(threads[0]))
    return functools.reduce(lambda x, y: x * y, map(Value, lanes))


def tvm_thread_allreduce(size: Any, source: Any, condition: Any, out: Any, *threads: Any, **_: Any) -> None:
    """An element of each thread combined over the threads of some axes, for each of them."""
    state = b.state()
    if state.reduction == "prod":
        value = _product(source)
        current().store(n.Store, target=out.tile.name, index=out.index, value=as_expr(value))
        return
    axes = {repr(t) for t in threads if isinstance(t, Value)}
    kept = [d for d in range(len(state.threads)) if repr(get_thread_binding(d)) not in axes]
    shape = tuple(state.threads[d] for d in kept) or (1,)
    index = tuple(as_expr(get_thread_binding(d)) for d in kept) or (integer(0),)
    total = b.allocate(shape, source.tile.dtype, "l1")
    builder = current()
    ops.fill(total, identity(state.reduction, total.dtype))
    op = ATOMICS[state.reduction]
    builder.store(n.Atomic, op=op, target=total.name, index=index, value=as_expr(source))
    value = Ref(total, tuple(n.Dim(i) for i in index))
    builder.store(n.Store, target=out.tile.name, index=out.index, value=as_expr(value))
