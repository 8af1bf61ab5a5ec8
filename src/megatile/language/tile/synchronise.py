"""How units of a scale act together: atomics, barriers, fences, signals and waits."""

from __future__ import annotations

from typing import Any

from megatile.core.dtypes import is_float
from megatile.core.expr import Expr, Symbol
from megatile.ir import nodes as n
from megatile.language.tile.builder import current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.operations import checked_axis, peer
from megatile.language.tile.regions import matched, operand
from megatile.language.tile.scalars import Value, as_expr
from megatile.language.tile.tiles import Ref, Tile


def _atomic(op: str, target: Any, value: Any, fetch: bool, expected: Any = None) -> Any:
    builder = current()
    if isinstance(value, Tile) or (isinstance(value, Ref) and not value.is_element):
        if fetch:
            raise ProgramError(
                f"T.atomic_{op} of a region has no single old value", advice="fetch element by element"
            )
        to, source = matched(operand(target, f"the target of T.atomic_{op}"), operand(value, "its source"))
        builder.emit(n.AtomicRegion, op=op, to=to, source=source)
        return None
    if not isinstance(target, Ref) or not target.is_element:
        raise ProgramError(
            f"T.atomic_{op} needs one element, or a region and a tile",
            advice=f"write T.atomic_{op}(x[i, j], value), or T.atomic_{op}(C[i, j], tile)",
        )
    name = builder.variable("old") if fetch else None
    builder.store(
        n.Atomic, op=op, target=target.tile.name, index=target.index, value=as_expr(value),
        expected=peer(expected), result=name,
    )  # fmt: skip
    return Value(Symbol(name, target.tile.dtype)) if name is not None else None


def atomic_add(target: Any, value: Any, return_prev: bool = False) -> Any:
    """Add to one element, indivisibly; the order among units does not matter. Given a region (or an anchor)
    and a tile, every element of the one is added to the other.

    With ``return_prev`` the value before is returned, and units are ordered as they come:
    ``ticket = T.atomic_add(next[0], 1, return_prev=True)``.
    """
    return _atomic("add", target, value, return_prev)


def atomic_max(target: Any, value: Any, return_prev: bool = False) -> Any:
    """As ``atomic_add``, with the larger of the two."""
    return _atomic("max", target, value, return_prev)


def atomic_min(target: Any, value: Any, return_prev: bool = False) -> Any:
    """As ``atomic_add``, with the smaller of the two."""
    return _atomic("min", target, value, return_prev)


def atomic_cas(target: Any, expected: Any, value: Any) -> Any:
    """Store ``value`` in one element if it holds ``expected``, indivisibly; returns what it held."""
    return _atomic("cas", target, value, True, expected)


def atomic_exchange(target: Any, value: Any) -> Any:
    """Store ``value`` in one element, indivisibly; returns what it held."""
    return _atomic("exchange", target, value, True)


def barrier(axis: int | None = None, *, name: str = "", group: Any = None, units: Any = None) -> None:
    """All units of this scale under the enclosing unit meet here, and see each other's earlier writes and
    puts.

    ``units=(0, 1)`` lets only those ranks meet, ``units=4`` any four that come; ``name="full"`` and
    ``group=rank // 4`` keep barriers apart: units meet at the one with their name and group.
    """
    builder = current()
    if isinstance(units, range):
        units = tuple(units)
    ranks = tuple(units) if isinstance(units, (tuple, list)) else (units,)
    size = builder.plan.count(builder.scale, builder.enclosing)
    if units is not None and not all(type(u) is int and 0 <= u <= size for u in ranks):
        raise ProgramError(
            f"T.barrier with units={units!r}: there are {size} units of scale '{builder.scale}'",
            advice="give ranks, units=(0, 1), or how many meet, units=4",
        )
    if group is not None and units is None:
        raise ProgramError("T.barrier with group= and no units=", advice="say how many of a group meet")
    builder.emit(
        n.Barrier, scale=builder.scale, axis=checked_axis(axis), name=name, group=peer(group),
        units=ranks if isinstance(units, (tuple, list)) else units,
    )  # fmt: skip


def fence() -> None:
    """This unit's earlier puts, to whomever, are done before what it does next: a signal to one unit then
    tells of data put into another."""
    current().emit(n.Fence)


def _flag(flag: Any, word: str) -> tuple[Tile, tuple[Expr, ...]]:
    if isinstance(flag, Tile) and all(k == 1 for k in flag.bound):
        flag = flag[(0,) * flag.ndim]
    if not isinstance(flag, Ref) or not flag.is_element:
        raise ProgramError(f"T.{word} needs one flag", advice=f"write T.{word}(flag[i], ...)")
    if is_float(flag.tile.dtype):
        raise ProgramError(
            f"a flag of dtype {flag.tile.dtype}", advice='allocate it as T.alloc((1,), "i32", ...)'
        )
    return flag.tile, flag.index


def signal(flag: Any, dst: Any = None, amount: Any = 1, axis: int | None = None) -> None:
    """Count up the flag of unit ``dst`` (this unit's own without it), after this unit's earlier puts to
    it."""
    tile, index = _flag(flag, "signal")
    builder = current()
    if dst is not None and tile.scale != builder.scale:
        raise ProgramError(
            f"T.signal with dst= reaches '{tile.name}', which is not one tile per '{builder.scale}'",
            advice=f'allocate the flag inside with T.Scale("{builder.scale}")',
        )
    tile.storage.flag = True
    builder.emit(
        n.Signal, flag=tile.name, index=index, dst=peer(dst), amount=as_expr(amount), axis=checked_axis(axis)
    )


def wait(flag: Any, value: Any = 1) -> None:
    """Until this unit's flag has counted up to ``value``; flags are never reset implicitly."""
    tile, index = _flag(flag, "wait")
    tile.storage.flag = True
    current().emit(n.Wait, flag=tile.name, index=index, value=as_expr(value))
