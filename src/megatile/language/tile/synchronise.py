"""How units of a scale act together: atomics, barriers, fences, signals and waits."""

from __future__ import annotations

from typing import Any

from megatile.core.dtypes import is_float
from megatile.core.expr import Expr, Symbol
from megatile.ir import nodes as n
from megatile.language.tile.builder import current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.launch import find_scale
from megatile.language.tile.operations import check_remote, checked_axis, group_of, peer, peers, reaches
from megatile.language.tile.regions import matched, operand
from megatile.language.tile.scalars import Value, as_expr
from megatile.language.tile.tiles import Ref, Tile

Peer = tuple[Any, int | None, str | None]
"""Whose element: rank, axis and scale as the user gave them."""
_HERE: Peer = (None, None, None)


def _atomic(op: str, target: Any, value: Any, fetch: bool, peer_of: Peer, expected: Any = None) -> Any:
    builder = current()
    dst, axis, word = peer_of
    scale = peers(word, f"T.atomic_{op}", dst is not None)
    to_peer = {"dst": peer(dst), "axis": checked_axis(axis, scale), "scale": scale}
    if isinstance(value, Tile) or (isinstance(value, Ref) and not value.is_element):
        if fetch:
            raise ProgramError(
                f"T.atomic_{op} of a region has no single old value", advice="fetch element by element"
            )
        left = operand(target, f"the target of T.atomic_{op}")
        to, source = matched(left, operand(value, "its source"))
        if dst is not None:
            check_remote(left, "dst", f"T.atomic_{op}", scale)
        builder.emit(n.AtomicRegion, op=op, to=to, source=source, **to_peer)
        return None
    if not isinstance(target, Ref) or not target.is_element:
        raise ProgramError(
            f"T.atomic_{op} needs one element, or a region and a tile",
            advice=f"write T.atomic_{op}(x[i, j], value), or T.atomic_{op}(C[i, j], tile)",
        )
    if dst is not None:
        check_remote(target, "dst", f"T.atomic_{op}", scale)
        if builder.parallel:
            raise ProgramError(
                f"T.atomic_{op} with dst= inside T.Parallel", advice=f"T.atomic_{op}(C[i, j], tile, dst=rank)"
            )
    name = builder.variable("old") if fetch else None
    builder.store(
        n.Atomic, op=op, target=target.tile.name, index=target.index, value=as_expr(value),
        expected=peer(expected), result=name, **to_peer,
    )  # fmt: skip
    return Value(Symbol(name, target.tile.dtype)) if name is not None else None


def atomic(op: str, target: Any, value: Any, return_prev: bool = False) -> Any:
    """As ``atomic_add``, with any operation of ``n.Atomic``."""
    return _atomic(op, target, value, return_prev, _HERE)


def atomic_add(
    target: Any, value: Any, return_prev: bool = False, *, dst: Any = None, axis: int | None = None,
    scale: str | None = None,
) -> Any:  # fmt: skip
    """Add to one element, indivisibly; the order among units does not matter. Given a region (or an anchor)
    and a tile, every element of the one is added to the other. ``dst=rank`` adds to that unit's tile
    (``scale=`` as in ``T.copy``), visible there as a put is.

    With ``return_prev`` the value before is returned, and units are ordered as they come:
    ``ticket = T.atomic_add(next[0], 1, return_prev=True)``.
    """
    return _atomic("add", target, value, return_prev, (dst, axis, scale))


def atomic_max(
    target: Any, value: Any, return_prev: bool = False, *, dst: Any = None, axis: int | None = None,
    scale: str | None = None,
) -> Any:  # fmt: skip
    """As ``atomic_add``, with the larger of the two."""
    return _atomic("max", target, value, return_prev, (dst, axis, scale))


def atomic_min(
    target: Any, value: Any, return_prev: bool = False, *, dst: Any = None, axis: int | None = None,
    scale: str | None = None,
) -> Any:  # fmt: skip
    """As ``atomic_add``, with the smaller of the two."""
    return _atomic("min", target, value, return_prev, (dst, axis, scale))


def atomic_cas(target: Any, expected: Any, value: Any) -> Any:
    """Store ``value`` in one element if it holds ``expected``, indivisibly; returns what it held."""
    return _atomic("cas", target, value, True, _HERE, expected)


def atomic_exchange(target: Any, value: Any) -> Any:
    """Store ``value`` in one element, indivisibly; returns what it held."""
    return _atomic("exchange", target, value, True, _HERE)


def barrier(
    axis: int | None = None, *, name: str = "", group: Any = None, units: Any = None, scale: str | None = None
) -> None:
    """Let all units of this scale under the enclosing unit meet here, and see each other's earlier writes and
    puts. ``scale="node"``: those at the same place in every node meet.

    ``units=(0, 1)`` lets only those ranks meet, ``units=4`` any four that come; ``name="full"`` and
    ``group=rank // 4`` keep barriers apart: units meet at the one with their name and group.
    """
    builder = current()
    builder.open_implied()
    if isinstance(units, range):
        units = tuple(units)
    ranks = tuple(units) if isinstance(units, (tuple, list)) else (units,)
    among = peers(scale, "T.barrier", True)
    met, within = group_of(among)
    size = builder.plan.count(met, within)
    if units is not None and not all(type(u) is int and 0 <= u <= size for u in ranks):
        raise ProgramError(
            f"T.barrier with units={units!r}: there are {size} units of scale '{met}'",
            advice="give ranks, units=(0, 1), or how many meet, units=4",
        )
    if group is not None and units is None:
        raise ProgramError("T.barrier with group= and no units=", advice="say how many of a group meet")
    builder.emit(
        n.Barrier, scale=met, axis=checked_axis(axis, among), name=name, group=peer(group),
        units=ranks if isinstance(units, (tuple, list)) else units,
    )  # fmt: skip


def fence(scale: str | None = None) -> None:
    """This unit's earlier puts, to whomever, are done before what it does next: a signal to one unit then
    tells of data put into another. With ``scale``, only puts to units of that scale and of smaller ones."""
    found = None if scale is None else find_scale(current().machine, scale, "T.fence").name
    current().emit(n.Fence, scale=found)


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


def signal(
    flag: Any, dst: Any = None, amount: Any = 1, axis: int | None = None, scale: str | None = None
) -> None:
    """Count up the flag of unit ``dst`` (this unit's own without it), after this unit's earlier puts to
    it. ``scale=`` as in ``T.copy``: a block signals another device."""
    tile, index = _flag(flag, "signal")
    among = peers(scale, "T.signal", dst is not None)
    if dst is not None and not reaches(tile, among):
        raise ProgramError(
            f"T.signal with dst= reaches '{tile.name}', which is not one tile per "
            f"'{among or current().scale}'",
            advice=f'allocate the flag inside with T.Scale("{among or current().scale}")',
        )
    tile.storage.flag = True
    current().emit(
        n.Signal, flag=tile.name, index=index, dst=peer(dst), amount=as_expr(amount),
        axis=checked_axis(axis, among), scale=among,
    )  # fmt: skip


def wait(flag: Any, value: Any = 1, scale: str | None = None) -> None:
    """Until this unit's flag (or that of the larger unit it is in, which ``scale`` may name) has counted up
    to ``value``; flags are never reset implicitly."""
    tile, index = _flag(flag, "wait")
    if scale is not None and find_scale(current().machine, scale, "T.wait").name != tile.scale:
        raise ProgramError(
            f"T.wait with scale='{scale}' on '{tile.name}', which is one tile per '{tile.scale}'",
            advice=f'scale="{tile.scale}", or allocate the flag inside with T.Scale("{scale}")',
        )
    tile.storage.flag = True
    current().emit(n.Wait, flag=tile.name, index=index, value=as_expr(value))
