"""Collectives over the units of the current scale, or with ``scale=`` over those of a region around."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from megatile.core import placement as lay
from megatile.core.arguments import no_none
from megatile.core.dtypes import is_float
from megatile.core.expr import Symbol, known
from megatile.ir import nodes as n
from megatile.ir.expr import Rank as RankExpr
from megatile.language.tile import functions as m
from megatile.language.tile.builder import current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.memory import add_view
from megatile.language.tile.operations import checked_axis, group_of, peers
from megatile.language.tile.regions import Operand, fixed, same_extents
from megatile.language.tile.scalars import Value, as_expr
from megatile.language.tile.tiles import Tile

_REDUCTIONS = ("sum", "max", "min")


@no_none
def lse_merge(left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, Any]:
    """Merge two attention results ``(output, lse)`` with lse = log2(sum) + max * scale, both in base 2."""
    (output_a, lse_a), (output_b, lse_b) = left, right
    top = m.max(lse_a, lse_b)
    base = m.if_then_else(top == -m.infinity("f32"), 0.0, top)
    weight_a, weight_b = m.exp2(lse_a - base), m.exp2(lse_b - base)
    total = weight_a + weight_b
    safe = m.if_then_else(total == 0.0, 1.0, total)
    return (output_a * weight_a + output_b * weight_b) / safe, base + m.log2(total)


def _units(axis: int | None = None, scale: str | None = None) -> int:
    among, plan = group_of(peers(scale, "a collective", True)), current().plan
    return plan.count(*among) if axis is None else plan.grid(*among)[axis]


def _own(value: Any, what: str) -> Operand:
    """Return an operand that every unit of this scale has for itself."""
    builder = current()
    side = fixed(value, what)
    builder.open_implied()
    tile = side.tile
    if tile.scale != builder.scale:
        raise ProgramError(
            f"{what}: '{tile.name}' is one {'tensor' if tile.is_tensor else 'tile'} of scale '{tile.scale}', "
            f"not one per '{builder.scale}'",
            advice=f'view it inside with T.Scale("{builder.scale}"), '
            f"e.g. T.view({tile.name}, layout=T.Replica)",
        )
    return side


def _emit(
    kind: str,
    to: list[Operand],
    source: list[Operand],
    axis: int | None,
    scale: str | None = None,
    **rest: Any,
) -> None:
    among = peers(scale, f"T.{kind}", True)
    current().emit(
        n.Collective, kind=kind, scale=group_of(among)[0], to=tuple(o.region() for o in to),
        source=tuple(o.region() for o in source), axis=checked_axis(axis, among), **rest,
    )  # fmt: skip


def _no_scale(scale: str | None, word: str) -> None:
    if scale is not None:
        raise ProgramError(
            f"T.{word} of a view with scale='{scale}'", advice=f"give both sides: T.{word}(out, x, scale=…)"
        )


def _check_op(op: str, word: str, side: Operand) -> None:
    if op not in _REDUCTIONS:
        raise ProgramError(
            f"T.{word} with op={op!r}", advice=f"one of {', '.join(_REDUCTIONS)}, or fn= a function"
        )
    layout = side.tile.layout
    if isinstance(layout, lay.Partial) and layout.op != op:
        raise ProgramError(
            f"T.{word} with op={op!r} of '{side.tile.name}', whose terms are T.Partial({layout.op!r})",
            advice=f"op={layout.op!r}",
        )


def allreduce(
    *operands: Any, op: str = "sum", fn: Callable[..., Any] | None = None, axis: int | None = None,
    algorithm: str | None = None, impl: str | None = None, scale: str | None = None,
) -> None:  # fmt: skip
    """Combine the units' tiles; every unit gets the result, in place.

    ``scale="node"`` in a device's region: devices of the same number in all nodes combine theirs. So in every
    collective.

    Several operands (or a tuple) are combined together by ``fn``, an associative function of two tuples of
    elements; smaller operands are repeated over the last dimensions of larger ones.
    """
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    sides = [_own(x, "T.allreduce") for x in operands]
    if not sides:
        raise ProgramError("T.allreduce has no operand", advice="name the tile: T.allreduce(x)")
    if fn is None:
        if len(sides) > 1:
            raise ProgramError(
                "T.allreduce of several tiles without fn=",
                advice="fn=T.lse_merge for attention outputs and their lse, or your own function",
            )
        _check_op(op, "allreduce", sides[0])
    how = {"op": op} if fn is None else {"op": "fn", "fn": _merge(fn, sides)}
    _emit("allreduce", sides, sides, axis, scale, algorithm=algorithm, impl=impl, **how)


def _merge(fn: Any, sides: list[Operand]) -> n.Merge:
    """Return the user's function as expressions of the elements ``a0, a1, ..`` and ``b0, b1, ..``."""
    if fn is Ellipsis or not callable(fn):
        raise ProgramError(
            f"T.allreduce with fn={fn!r}",
            advice="attention results merge with fn=T.lse_merge, which needs lse = log2(sum) + max * scale",
        )
    left, right = (
        tuple(Value(Symbol(f"{side}{k}", "f32")) for k in range(len(sides))) for side in ("a", "b")
    )
    try:
        inspect.signature(fn).bind(None, None)
    except (TypeError, ValueError):
        raise ProgramError(
            "the function of T.allreduce takes two arguments, the left and the right part",
            advice="def merge(left, right): ..., each a tuple if there are several tiles",
        ) from None
    arguments = (left, right) if len(sides) > 1 else (left[0], right[0])
    results = current().reader.call(current().place, fn, *arguments)
    results = results if isinstance(results, tuple) else (results,)
    if len(results) != len(sides):
        raise ProgramError(
            f"the function of T.allreduce returns {len(results)} values for {len(sides)} tiles",
            advice="return one value for each tile, in their order",
        )
    return n.Merge(getattr(fn, "__name__", "fn"), tuple(as_expr(r) for r in results))


def _divided(large: Operand, small: Operand, units: int, word: str) -> int:
    """Return the dimension in which ``large`` has ``units`` times the extent of ``small``."""
    if len(large.extents) != len(small.extents):
        raise ProgramError(
            f"T.{word}: {large.text()} and {small.text()} have different numbers of dimensions",
            advice="both sides have the same dimensions; one of them is longer on the larger side",
        )
    pairs = [(known(a), known(b)) for a, b in zip(large.extents, small.extents, strict=True)]
    differing = [d for d, (a, b) in enumerate(pairs) if a != b]
    if not differing and units == 1:
        return 0
    if len(differing) == 1 and pairs[differing[0]][1] is None:  # uneven parts: counted when it runs
        return differing[0]
    if len(differing) != 1 or pairs[differing[0]][0] != (pairs[differing[0]][1] or 0) * units:
        raise ProgramError(
            f"T.{word}: {large.text()} is not {units} times {small.text()} in one dimension",
            advice=f"there are {units} units: one extent of the larger side must be {units} times the "
            f"smaller's",
        )
    return differing[0]


def allgather(
    out: Any, x: Any = None, *, axis: int | None = None, algorithm: str | None = None,
    impl: str | None = None, scale: str | None = None,
) -> Tile | None:  # fmt: skip
    """Give every unit all units' tiles, one after the other along the dimension in which ``out`` is larger.

    ``T.allgather(v)`` on a view with a Shard layout returns the whole, visible to every unit.
    """
    if x is None:
        _no_scale(scale, "allgather")
        side = _own(out, "T.allgather")
        if not isinstance(side.tile.layout, (lay.Shard, lay.Mesh, lay.Owner)) or side.tile.base is None:
            raise ProgramError(
                f"T.allgather({side.tile.name}) needs a view whose layout shares elements out",
                advice="or give both: T.allgather(out, x)",
            )
        _emit("gather_view", [side], [side], axis, algorithm=algorithm, impl=impl)
        return side.tile.base
    large, small = _own(out, "the result of T.allgather"), _own(x, "the source of T.allgather")
    dim = _divided(large, small, _units(axis, scale), "allgather")
    _emit("allgather", [large], [small], axis, scale, dim=dim, algorithm=algorithm, impl=impl)
    return None


def reduce_scatter(
    out: Any, x: Any = None, *, op: str = "sum", dim: int = 0, axis: int | None = None,
    algorithm: str | None = None, impl: str | None = None, scale: str | None = None,
) -> Tile | None:  # fmt: skip
    """Combine the units' tiles and give each unit its part, along the dimension in which ``x`` is
    larger.

    ``T.reduce_scatter(v, dim=d)`` on a view with a Partial layout turns it into Shard(d), and returns that
    view.
    """
    if x is None:
        _no_scale(scale, "reduce_scatter")
        side = _own(out, "T.reduce_scatter")
        if not isinstance(side.tile.layout, lay.Partial) or side.tile.base is None:
            raise ProgramError(
                f"T.reduce_scatter({side.tile.name}) needs a view with layout=T.Partial(op)",
                advice="or give both: T.reduce_scatter(out, x)",
            )
        _emit(
            "scatter_view",
            [side],
            [side],
            axis,
            op=side.tile.layout.op,
            dim=dim,
            algorithm=algorithm,
            impl=impl,
        )
        return add_view(current(), side.tile, lay.Shard(dim)) if _units() == 1 else _part_of(side.tile, dim)
    small, large = _own(out, "the result of T.reduce_scatter"), _own(x, "the source of T.reduce_scatter")
    _check_op(op, "reduce_scatter", large)
    dim = _divided(large, small, _units(axis, scale), "reduce_scatter")
    _emit("reduce_scatter", [small], [large], axis, scale, op=op, dim=dim, algorithm=algorithm, impl=impl)
    return None


def _part_of(tile: Tile, dim: int) -> Any:
    """Return this unit's part of its own copy."""
    builder = current()
    units = _units()
    size, rest = divmod(tile.bound[dim], units)
    if rest:
        raise ProgramError(
            f"T.reduce_scatter: {tile.bound[dim]} elements do not divide over {units} units",
            advice="choose another dim=, or pad the tile",
        )
    rank = Value(RankExpr(builder.scale, builder.enclosing))
    index: list[Any] = [slice(None)] * tile.ndim
    index[dim] = slice(rank * size, rank * size + size)
    return tile[tuple(index)]


def all_to_all(
    out: Any, x: Any, counts: Any = None, received: Any = None, *, dim: int = 0, axis: int | None = None,
    algorithm: str | None = None, impl: str | None = None, scale: str | None = None,
) -> None:  # fmt: skip
    """Part ``j`` of ``x`` (along ``dim``) goes to unit ``j``, and becomes part ``rank`` of its ``out``.

    Parts are equal, or ``counts[j]`` long, one after the other from the start of ``x``; those received lie
    one after the other from the start of ``out``, and ``received`` gets how long each is.
    """
    to, source = _own(out, "the result of T.all_to_all"), _own(x, "the source of T.all_to_all")
    if counts is not None:
        lengths = [_counts(c, _units(axis, scale)) for c in (counts, received) if c is not None]
        ends = [to, *lengths[1:]], [source, lengths[0]]
        _emit("all_to_all", *ends, axis, scale, dim=dim, algorithm=algorithm, impl=impl)
        return
    if not same_extents(to.extents, source.extents):
        raise ProgramError(
            f"T.all_to_all: {to.text()} and {source.text()} have different shapes",
            advice="every unit sends and receives as much: both sides have one shape",
        )
    length, units = known(source.extents[dim]), _units(axis, scale)
    if length is not None and length % units:
        raise ProgramError(
            f"T.all_to_all: {length} elements of dimension {dim} do not divide over {units} units",
            advice="pad the tile, or choose another dim=",
        )
    _emit("all_to_all", [to], [source], axis, scale, dim=dim, algorithm=algorithm, impl=impl)


def _counts(value: Any, units: int) -> Operand:
    side = _own(value, "the counts of T.all_to_all")
    if is_float(side.tile.dtype) or len(side.extents) != 1 or known(side.extents[0]) != units:
        raise ProgramError(
            f"T.all_to_all: {side.text()} of {side.tile.dtype} are not counts for {units} units",
            advice=f'T.alloc(({units},), "i32", ...), one number for each unit',
        )
    return side


def broadcast(
    x: Any, root: Any = 0, *, axis: int | None = None, algorithm: str | None = None,
    impl: str | None = None, scale: str | None = None,
) -> None:  # fmt: skip
    """Give every unit the tile of unit ``root``."""
    side = _own(x, "T.broadcast")
    _emit("broadcast", [side], [side], axis, scale, root=as_expr(root), algorithm=algorithm, impl=impl)
