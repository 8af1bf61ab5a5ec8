"""Tile operations: data movement, matrix products, reductions, synchronisation. Destination first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from megatile.core.dtypes import is_float
from megatile.core.expr import Expr, Symbol, known, simplify
from megatile.cost.implementations import Request
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.ir.launch import ROOT
from megatile.language.tile.builder import current
from megatile.language.tile.errors import ProgramError, names_in_kernel
from megatile.language.tile.inference import matrix_product, same_shape
from megatile.language.tile.launch import find_scale
from megatile.language.tile.regions import Operand, extents_text, fixed, matched, operand, same_extents
from megatile.language.tile.scalars import Value, as_expr
from megatile.language.tile.tiles import Ref, StridedRef, Tile


class GemmWarpPolicy(str, Enum):
    """How a target may divide a gemm over warps; the meaning is the same for all."""

    Square = "Square"
    FullRow = "FullRow"
    FullCol = "FullCol"


def request(primitive: str, to: Operand, source: Operand, **work: Any) -> Request:
    """Return what a statement asks of the machine, for implementations written in ``T``."""
    builder = current()
    memories = tuple("l2" if side.tile.is_tensor else side.tile.level for side in (source, to))
    elements = math.prod(known(e) or 1 for e in (to if to.extents else source).extents)
    scale = builder.scale if builder.scales else builder.plan.dispatch
    return Request(primitive, builder.machine, scale, source.tile.dtype, elements, memories=memories, **work)


def peer(value: Any) -> Expr | None:
    return None if value is None else as_expr(value)


def copy(
    to: Any,
    source: Any,
    *,
    dst: Any = None,
    src: Any = None,
    axis: int | None = None,
    impl: str | None = None,
    scale: str | None = None,
) -> None:
    """Copy ``source`` to ``to`` (destination first), converting dtype.

    ``dst=rank`` puts into that unit's tile, ``src=rank`` gets from it. A put is visible there after a barrier
    of this scale, or after a later ``T.signal`` to that unit and its ``T.wait``. ``scale="device"``: the rank
    is that of a unit of a region around this one, so a block puts a tile into another device's memory.
    """
    builder = current()
    if isinstance(to, StridedRef) or isinstance(source, StridedRef):
        _copy_strided(to, source, dst is None and src is None and scale is None)
        return
    left, right = operand(to, "the destination of T.copy"), operand(source, "the source of T.copy")
    if dst is not None and src is not None:
        raise ProgramError("T.copy with both dst= and src=", advice="give dst= to put or src= to get")
    if right.tile.storage.flag or left.tile.storage.flag:
        raise ProgramError("T.copy of a flag", advice="use T.signal and T.wait on flags")
    same_shape(builder, left, right)
    to_region, source_region = matched(left, right)
    among = peers(scale, "T.copy", dst is not None or src is not None)
    if dst is not None or src is not None:
        check_remote(left if dst is not None else right, "dst" if dst is not None else "src", "T.copy", among)
    here = among is None and dst is None and src is None
    if here and builder.expand(request("Copy", left, right), impl, to, source):
        return
    builder.emit(
        n.Copy,
        to=to_region,
        source=source_region,
        dst=peer(dst),
        src=peer(src),
        axis=checked_axis(axis, among),
        impl=impl,
        scale=among,
    )


def _copy_strided(to: Any, source: Any, here: bool) -> None:
    """Copy element by element where a side has a step."""
    if not here:
        raise ProgramError(
            "T.copy of a slice with a step to or from another unit", advice="copy it into a tile first"
        )
    sides = [side if isinstance(side, StridedRef) else operand(side, "T.copy") for side in (to, source)]
    extents = [tuple(d.extent for d in side.dims if d.extent is not None) for side in sides]
    if not same_extents(*extents):
        raise ProgramError(
            f"T.copy: '{sides[0].tile.name}' {extents_text(extents[0])} and '{sides[1].tile.name}' "
            f"{extents_text(extents[1])} have different shapes",
            advice="give both sides the same extents",
        )
    names = tuple(current().fresh("i") for _ in extents[0])
    with elementwise_nest(names, extents[0]):
        target, value = (element_of(side, [Symbol(name) for name in names]) for side in sides)
        current().store(n.Store, target=target.tile.name, index=target.index, value=as_expr(value))


def element_of(side: Any, indices: list[Any]) -> Ref:
    """Return the element of a region at indices inside it."""
    left, steps = iter(indices), getattr(side, "steps", (1,) * len(side.dims))
    places = (
        d.start if d.extent is None else simplify(d.start + next(left) * step)
        for d, step in zip(side.dims, steps, strict=True)
    )
    return Ref(side.tile, tuple(map(n.Dim, places)))


@contextmanager
def elementwise_nest(names: tuple[str, ...], extents: tuple[Expr, ...]) -> Iterator[None]:
    """A ``T.Parallel`` whose statements are made inside."""
    builder = current()
    builder.open_implied()
    with builder.inside(n.Parallel, *names, vars=names, extents=extents):
        outer, builder.parallel = builder.parallel, [*builder.parallel, *names]
        yield
        builder.parallel = outer


def peers(scale: str | None, what: str, has_rank: bool) -> str | None:
    """Return the scale of a region around this one whose units ``dst=`` counts; None: the innermost one's."""
    builder = current()
    if scale is None:
        return None
    found = find_scale(builder.machine, scale, what).name
    if not has_rank:
        raise ProgramError(f"{what} with scale= and no rank", advice="give dst=rank, or leave out scale=")
    if all(one.scale != found for one in builder.scales):
        raise ProgramError(
            f"{what} with scale='{scale}' is not inside a region of '{found}'",
            advice=f'put it inside with T.Scale("{found}") as (rank, size)',
        )
    return None if found == builder.scale else found


def group_of(scale: str | None) -> tuple[str, str]:
    """Return the scale whose units act together (None: the innermost region's), and that of the region around
    it."""
    builder = current()
    names = [ROOT, *(one.scale for one in builder.scales)]
    scale = scale or builder.scale
    return scale, names[names.index(scale) - 1]


def reaches(tile: Tile, scale: str | None) -> bool:
    """Return whether every unit of a scale, or one that stays inside each of them, has a tile for itself."""
    builder = current()
    scale = scale or builder.scale
    names = [one.scale for one in builder.scales]
    inside = names[names.index(scale) + 1 :] if scale in names else []
    return tile.scale == scale or (tile.scale in inside and not builder.plan.is_private(tile.scale))


def check_remote(side: Operand | Ref, word: str, what: str, scale: str | None) -> None:
    """Check that a peer's tile is one that every unit of the scale has for itself."""
    tile = side.tile
    if not reaches(tile, scale):
        scale = scale or current().scale
        own = f' (scale="{tile.scale}" reaches those of that scale)' if tile.scale != ROOT else ""
        raise ProgramError(
            f"{what} with {word}= reaches into '{tile.name}', which is not one tile per '{scale}'",
            advice=f'allocate it, or view it, inside with T.Scale("{scale}"){own}',
        )


def checked_axis(axis: int | None, scale: str | None = None) -> int | None:
    if axis is None:
        return None
    scale, within = group_of(scale)
    grid = current().plan.grid(scale, within)
    if not 0 <= axis < len(grid):
        raise ProgramError(
            f"axis={axis}: scale '{scale}' has {len(grid)} dimensions",
            advice=f"launch it with a tuple, e.g. {scale}=(2, 4)",
        )
    return axis


def _transposed(a: tuple[Any, ...], b: tuple[Any, ...], c: tuple[Any, ...], given: tuple[bool, bool]) -> str:
    """Return which other transposes would make the extents of a product fit."""
    for turn in ((False, True), (True, False), (True, True)):
        (m, k), (k2, columns) = (x[::-1] if t else x for x, t in zip((a, b), turn, strict=True))
        if same_extents((k, m, columns), (k2, *c)):
            named = zip(("transpose_A", "transpose_B"), given, turn, strict=True)
            words = (f"{name}={not was}" for name, was, turned in named if turned)
            return f"did you mean {', '.join(words)}?"
    return "they must be equal, and no transpose makes them so: give A or B another shape"


def gemm(
    A: Any, B: Any, C: Any, transpose_A: bool = False, transpose_B: bool = False,
    policy: GemmWarpPolicy | str = GemmWarpPolicy.Square, clear_accum: bool = False, impl: str | None = None,
) -> None:  # fmt: skip
    """``C += A @ B``; products are accumulated in f32 unless C is wider or whole numbers."""
    a, b, c = fixed(A, "A of T.gemm"), fixed(B, "B of T.gemm"), fixed(C, "C of T.gemm")
    for side, name in ((a, "A"), (b, "B"), (c, "C")):
        if len(_matrix(side)) != 2:
            raise ProgramError(f"T.gemm: {name} is {side.text()}, not a matrix", advice="give two extents")
    how = GemmWarpPolicy(policy).value
    matrix_product(current(), (a, b, c), (bool(transpose_A), bool(transpose_B)), how)
    (m, k), (k2, columns) = _matrix(a), _matrix(b)
    if transpose_A:
        m, k = k, m
    if transpose_B:
        k2, columns = columns, k2
    if not same_extents((k,), (k2,)):
        sides = (f"{extents_text((k,))} of {a.text()}", f"{extents_text((k2,))} of {b.text()}")
        raise ProgramError(
            f"T.gemm: inner extents differ: {' and '.join(sides)}",
            advice=_transposed((m, k), (k2, columns), _matrix(c), (transpose_A, transpose_B)),
        )
    if not same_extents((m, columns), _matrix(c)):
        raise ProgramError(
            f"T.gemm gives {extents_text((m, columns))}, but C is {c.text()}",
            advice="C has the rows of A and the columns of B",
        )
    if is_float(a.tile.dtype) != is_float(b.tile.dtype) or (
        is_float(a.tile.dtype) and not is_float(c.tile.dtype)
    ):
        raise ProgramError(
            f"T.gemm of {a.tile.dtype} and {b.tile.dtype} into {c.tile.dtype}",
            advice="floats accumulate in floats; copy into a tile of another dtype first",
        )
    sizes = tuple(known(e) or 1 for e in (m, columns, k))
    asked = request("Gemm", c, a, operations=2 * math.prod(sizes), extents=sizes)
    if current().expand(asked, impl, A, B, C, transpose_A=bool(transpose_A), transpose_B=bool(transpose_B)):
        return
    current().emit(
        n.Gemm, a=a.region(), b=b.region(), c=c.region(), transpose_a=bool(transpose_A),
        transpose_b=bool(transpose_B), clear=bool(clear_accum), policy=how, impl=impl,
    )  # fmt: skip


def _matrix(side: Operand) -> tuple[Expr, ...]:
    extents = side.extents
    while len(extents) > 2 and known(extents[0]) == 1:
        extents = extents[1:]
    return extents


def fill(to: Any, value: Any, impl: str | None = None) -> None:
    """Set every element to ``value``."""
    _fill(to, value, impl, "the destination of T.fill")


def clear(to: Any, impl: str | None = None) -> None:
    """Set every element to zero."""
    _fill(to, 0, impl, "the destination of T.clear")


def _fill(to: Any, value: Any, impl: str | None, what: str) -> None:
    target = operand(to, what)
    if current().expand(request("Fill", target, target), impl, to, value):
        return
    current().emit(n.Fill, to=target.region(), value=as_expr(value), impl=impl)


def reduce(
    op: str, source: Any, out: Any, dim: int = -1, clear: bool = True, impl: str | None = None
) -> None:
    """Reduction ``op`` of ``source`` over ``dim`` into ``out``."""
    left, right = fixed(source, f"the source of T.reduce_{op}"), fixed(out, f"the result of T.reduce_{op}")
    dim = _dimension(dim, left, f"reduce_{op}")
    same_shape(current(), left, right, dim)
    rest = left.extents[:dim] + left.extents[dim + 1 :]
    if not same_extents(rest, right.extents):
        raise ProgramError(
            f"T.reduce_{op} of {left.text()} over dim {dim} gives {extents_text(rest)}, but the result is "
            f"{right.text()}",
            advice="dim= is the dimension that disappears",
        )
    asked = request("Reduce", right, left, operations=math.prod(known(e) or 1 for e in left.extents))
    if current().expand(asked, impl, source, out, op=op, dim=dim, clear=bool(clear)):
        return
    current().emit(
        n.Reduce, op=op, source=left.region(), to=right.region(), dim=dim, clear=bool(clear), impl=impl
    )


def _dimension(dim: int, side: Operand, word: str) -> int:
    rank = len(side.extents)
    if not -rank <= dim < rank:
        raise ProgramError(
            f"T.{word}: dim={dim}, but {side.text()} has {rank} dimensions", advice="dimensions count from 0"
        )
    return dim % rank


def _reduction(op: str) -> Callable[..., None]:
    def reduction(source: Any, out: Any, dim: int = -1, clear: bool = True, impl: str | None = None) -> None:
        """Reduce over ``dim`` into ``out``; with ``clear=False`` combine with the values in ``out``."""
        reduce(op, source, out, dim, clear, impl)

    reduction.__name__ = reduction.__qualname__ = f"reduce_{op}"
    return reduction


reduce_sum, reduce_max, reduce_min, reduce_absmax, reduce_abssum, reduce_prod = map(
    _reduction, ("sum", "max", "min", "absmax", "abssum", "prod")
)


def cumsum(
    source: Any, out: Any = None, dim: int = 0, reverse: bool = False, impl: str | None = None
) -> None:
    """Running sum over ``dim``, in place without ``out``."""
    left = fixed(source, "the source of T.cumsum")
    right = left if out is None else fixed(out, "the result of T.cumsum")
    if not same_extents(left.extents, right.extents):
        raise ProgramError(
            f"T.cumsum: {left.text()} and {right.text()} have different shapes",
            advice="the running sum has the shape of its source",
        )
    dim = _dimension(dim, left, "cumsum")
    current().emit(
        n.Cumsum, source=left.region(), to=right.region(), dim=dim, reverse=bool(reverse), impl=impl
    )


def read_scalar(element: Any, bound: int | None = None) -> Any:
    """Return a whole number from a tile, usable in extents, trip counts, peers and indices; at most
    ``bound``."""
    builder = current()
    if not isinstance(element, Ref) or not element.is_element:
        raise ProgramError(
            "T.read_scalar needs one element", advice="write T.read_scalar(counts[e], bound=64)"
        )
    if is_float(element.tile.dtype):
        raise ProgramError(
            f"T.read_scalar of {element.tile.dtype}", advice="counts and indices are whole numbers"
        )
    name = builder.variable("scalar")
    builder.emit(
        n.ReadScalar, name=name, value=Load(element.tile.name, element.index, element.tile.dtype), bound=bound
    )
    return Value(Symbol(name))


def print_(*values: Any, unit: Any = None) -> None:
    """Show text and values (numbers, elements, regions, tiles), for every unit or for one."""
    shown: list[Any] = []
    for value in values:
        if isinstance(value, Tile) or (isinstance(value, Ref) and not value.is_element):
            shown.append(operand(value, "T.print").region())
        elif not isinstance(value, str):
            shown.append(as_expr(value))
    text = " ".join(value if isinstance(value, str) else "{}" for value in values)
    current().emit(n.Print, text=text, values=tuple(shown), unit=peer(unit))


def use_swizzle(panel_size: int, order: str = "row", enable: bool = True) -> None:
    """Begin the blocks of a grid in panels of ``panel_size`` rows, column by column and back, so that blocks
    that run at one time share rows and columns in the cache; ``order="column"`` makes panels of columns."""
    if not isinstance(panel_size, int) or isinstance(panel_size, bool) or panel_size < 1:
        raise ProgramError(f"panel_size must be at least 1, got {panel_size!r}", advice="T.use_swizzle(8)")
    if order not in ("row", "column"):
        raise ProgramError(f"unknown order {order!r}", advice='order="row" or order="column"')
    if enable:
        current().emit(n.Hint, word="use_swizzle", text=f'panel_size={panel_size}, order="{order}"')


def device_assert(condition: Any, text: str = "") -> None:
    """Stop the run, naming the unit, if the condition is false."""
    current().emit(n.Check, condition=as_expr(condition), text=text)


def breakpoint_(unit: Any = None) -> None:
    """Call the ``on_breakpoint`` function given to ``mt.run`` when the unit of this rank comes here.

    Without one, the scalars in sight are printed.
    """
    scalars = dict(_scalars())
    current().emit(n.Breakpoint, unit=peer(unit), names=tuple(scalars), values=tuple(scalars.values()))


def _scalars() -> Iterator[tuple[str, Expr]]:
    """Yield the numbers that the kernel has names for here: ranks, indices, values; those of smaller scales
    are not known."""
    for name, value in names_in_kernel().items():
        if isinstance(value, (int, float)) or (isinstance(value, Value) and not isinstance(value, Ref)):
            try:
                current().check_expr(as_expr(value))
            except ProgramError:
                continue
            yield name, as_expr(value)
