"""Other units of a group: find them, and refuse what is not supported on them."""

from __future__ import annotations

import math
from typing import Any

from megatile.core.expr import Const, Expr, Symbol, binary, constant, simplify
from megatile.ir import nodes as n
from megatile.targets.common.elements import Value
from megatile.targets.common.errors import CompileError
from megatile.targets.common.expressions import whole
from megatile.targets.common.scope import Peer, Scope

KINDS = {
    "allreduce": "ALLREDUCE", "allgather": "ALLGATHER", "reduce_scatter": "REDUCE_SCATTER",
    "scatter_view": "ALLREDUCE", "all_to_all": "ALL_TO_ALL", "broadcast": "BROADCAST",
}  # fmt: skip
"""A reduction that is scattered over a view leaves the whole result with every unit: each reads its part."""


def line(scope: Scope, axis: int | None, scale: str | None = None) -> tuple[str, int, int]:
    """Return the units that act together with this one, or with the one of a scale that it is in: the first
    of them, from one to the next, how many."""
    low, high = group(scope, scale)
    launch, rank = scope.gen.launch, scope.rank
    grid = launch.grid(launch.at(high), launch.at(low))
    if axis is None:
        return "0", 1, math.prod(grid)
    if scale is not None:
        above = tuple(s.name for s in launch.scales[low:high])
        rank = f"({whole(simplify(scope.gen.storages.flat(above, scope.path)), scope)})"
    stride = math.prod(grid[:axis])
    return f"({rank} - {rank} / {stride} % {grid[axis]} * {stride})", stride, grid[axis]


def check_innermost(scope: Scope, node: n.Barrier | n.Collective) -> None:
    """Refuse a meeting of units in different units of a region around theirs."""
    if scope.gen.launch.depth(node.scale) < scope.group[1]:
        word = f"T.{node.kind}" if isinstance(node, n.Collective) else "T.barrier"
        raise CompileError(
            f"{word} with scale='{node.scale}' cannot be compiled yet",
            place=node.place,
            advice="mt.run interprets it, mt.execute runs its Plan; puts and signals with scale= compile",
        )


def group(scope: Scope, scale: str | None) -> tuple[int, int]:
    """Return the depths between which the units of this region are, or of the one of a scale around it."""
    depth = None if scale is None else scope.gen.launch.depth(scale)
    return next((one for one in scope.gen.around if one[1] == depth), scope.group)


def peer(scope: Scope, number: Expr | None, node: Any) -> Peer | None:
    """Return the unit that a statement means by a number in its group, or in that of a region around it;
    None: this one."""
    if number is None:
        return None
    scale = getattr(node, "scale", None)
    first, stride, count = line(scope, node.axis, scale)
    gen, (low, high) = scope.gen, group(scope, scale)
    scales = gen.launch.scales[low:high]
    below = math.prod(s.count for s in scales)
    name, fixed = gen.fresh("peer"), constant(simplify(scope.own(number)))
    if fixed is not None and first == "0" and 0 <= fixed < count:
        unit: Expr = Const(fixed * stride)
        name = str(fixed * stride)
    else:
        site = scope.gen.failure_site(
            "peer", f"there is no {gen.launch.scales[high - 1].name} {{}}: ranks go from 0 to {count - 1}"
        )
        text = f"inside(failure, {site}, {scope.whole(number)}, {count})"
        scope.text.add(f"const long {name} = {first} + {text} * {stride};")
        scope.vars[f"@{name}"] = Value(name, "int")
        scope.ranges[f"@{name}"] = (0, below - 1)
        unit = Symbol(f"@{name}")
    path = dict(scope.path)
    for one in scales:
        below //= one.count
        index = simplify(binary("%", binary("//", unit, below), one.count))
        path[one.name] = Const(0) if one.count == 1 else index
    depth, instance = scope.spread
    return Peer(path, high, instance.format(name) if depth == high else "")


def met(scope: Scope, node: n.Barrier) -> tuple[str, int]:
    """Return which of the meetings of a group's units a barrier is, and how many units come to it."""
    check_innermost(scope, node)
    first, stride, count = line(scope, node.axis)
    needed = count
    if isinstance(node.units, int):
        needed = node.units
    elif node.units is not None:
        ranks = [r for r in node.units if r < count]
        needed = len(ranks)
        mine = " || ".join(f"{scope.rank} == {first} + {r * stride}" for r in ranks) or "0"
        site = scope.gen.failure_site("barrier", "a unit reaches a barrier that it does not take part in")
        scope.text.add(f"if (!({mine})) fail(failure, {site}, {scope.rank});")
    if node.group is not None:
        if node.axis is not None:
            raise CompileError(
                "a barrier with both axis= and group= cannot be compiled yet", advice="give one"
            )
        site = scope.gen.failure_site("barrier", "group={} of a barrier is not a rank")
        first = f"inside(failure, {site}, {scope.whole(node.group)}, {count})"
    return first, needed
