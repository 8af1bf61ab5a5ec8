"""Regions whose units only touch elements one by one: all units at once, as iterations of a loop.

``with T.Scale("thread") as (t, _): C[t] = A[t] + B[t]`` needs no unit of its own for every thread. The order
between units is free, so what two of them may not do is what two iterations may not do.
"""

from __future__ import annotations

from megatile.core.expr import Expr, walk
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Rank
from megatile.ir.launch import Launch
from megatile.targets.interpret.dependence import Wording
from megatile.targets.interpret.errors import DataRaceError
from megatile.targets.interpret.places import Name

_ELEMENTWISE = (n.Store, n.Atomic, n.Let, n.If, n.Loop, n.Check)


def can_batch(node: n.Scale, depth: int, names: dict[str, Name], launch: Launch) -> bool:
    """Whether the units of a region below a unit at ``depth`` can run together."""
    inside = list(n.walk(node.body))
    if not all(isinstance(inner, _ELEMENTWISE) and n.remote(inner) is None for inner in inside):
        return False
    touched = {name for inner in inside for _, name, _ in n.element_accesses(inner)}
    if any(names[t].depth > depth or names[t].copy_depth > depth for t in touched):
        return False  # every unit has its own: a tile, a share, or a copy
    own = {inner.name for inner in inside if isinstance(inner, n.Let)}
    bounds = [
        e for inner in inside if isinstance(inner, n.Loop) for e in (inner.start, inner.stop, inner.step)
    ]
    return all(_is_shared(e, depth, own, launch) for e in bounds)


def _is_shared(expr: Expr, depth: int, own: set[str], launch: Launch) -> bool:
    """Whether all units see the same value."""
    for part in walk(expr):
        if isinstance(part, Load) or getattr(part, "name", None) in own:
            return False
        if isinstance(part, (Rank, Coord)) and launch.depth(part.scale) > depth:
            return False
    return True


def wording(scale: str) -> Wording:
    """How a conflict between units is reported."""
    return Wording(
        DataRaceError,
        several=f"data race: several units of scale '{scale}' write",
        one=f"data race: {scale} {{}}",
        advice=f"let every {scale} write its own element, use T.atomic_add, or put a T.barrier() between",
    )
