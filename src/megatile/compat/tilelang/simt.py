"""Words of single threads: pointers, asynchronous copies, reductions over threads, the whole grid."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from megatile.compat.tilelang import buffers as b
from megatile.compat.tilelang.operations import moved
from megatile.compat.tilelang.reader import Macro
from megatile.compat.tilelang.threads import get_thread_binding
from megatile.core.expr import Symbol as Var, expr as integer
from megatile.ir import nodes as n
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
def attr(*_: Any, **__: Any) -> Iterator[None]:
    """How a reduction over threads combines; sums are the only ones."""
    yield


def comm_reducer(combine: Any, identity: Any) -> str:
    """Only sums: ``lambda x, y: x + y``."""
    if combine(2, 3) != 5:
        raise ProgramError(
            "a reduction over threads that is not a sum", advice="reduce in a tile: T.reduce_max"
        )
    return "sum"


def tvm_thread_allreduce(size: Any, source: Any, condition: Any, out: Any, *threads: Any, **_: Any) -> None:
    """The sum of an element over the threads of some axes, for each of them."""
    state = b.state()
    axes = {repr(t) for t in threads if isinstance(t, Value)}
    kept = [d for d in range(len(state.threads)) if repr(get_thread_binding(d)) not in axes]
    shape = tuple(state.threads[d] for d in kept) or (1,)
    index = tuple(as_expr(get_thread_binding(d)) for d in kept) or (integer(0),)
    total = b.allocate(shape, source.tile.dtype, "l1")
    builder = current()
    ops.clear(total)
    builder.store(n.Atomic, op="add", target=total.name, index=index, value=as_expr(source))
    value = Ref(total, tuple(n.Dim(i) for i in index))
    builder.store(n.Store, target=out.tile.name, index=out.index, value=as_expr(value))
