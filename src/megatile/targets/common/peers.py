"""Other units of a group: which they are, and what cannot be asked of them."""

from __future__ import annotations

import math
from typing import Any

from megatile.core.expr import Const, Symbol, binary, simplify
from megatile.ir import nodes as n
from megatile.targets.common.elements import Value
from megatile.targets.common.errors import CompileError
from megatile.targets.common.scope import Path, Scope

KINDS = {
    "allreduce": "ALLREDUCE", "allgather": "ALLGATHER", "reduce_scatter": "REDUCE_SCATTER",
    "scatter_view": "ALLREDUCE", "all_to_all": "ALL_TO_ALL", "broadcast": "BROADCAST",
}  # fmt: skip
"""A reduction that is scattered over a view leaves the whole result with every unit: each reads its part."""


def line(scope: Scope, axis: int | None) -> tuple[str, int, int]:
    """The units that act together with this one: the first of them, from one to the next, how many."""
    gen, (low, high) = scope.gen, scope.group
    within = gen.launch.scales[low - 1].name if low else "launch"
    grid = gen.launch.grid(gen.launch.scales[high - 1].name, within)
    if axis is None:
        return "0", 1, math.prod(grid)
    stride = math.prod(grid[:axis])
    return f"({scope.rank} - {scope.rank} / {stride} % {grid[axis]} * {stride})", stride, grid[axis]


def peer(scope: Scope, number: Any, axis: int | None) -> tuple[str, Path]:
    """The C variable with the rank of another unit of the group, and its path."""
    first, stride, count = line(scope, axis)
    gen, (low, high) = scope.gen, scope.group
    name = gen.fresh("peer")
    site = scope.site("peer", f"there is no unit {{}}: ranks go from 0 to {count - 1}")
    text = f"inside(failure, {site}, {scope.whole(number)}, {count})"
    scope.text.add(f"const long {name} = {first} + {text} * {stride};")
    scope.vars[f"@{name}"] = Value(name, "int")
    scales = gen.launch.scales[low:high]
    below = math.prod(s.count for s in scales)
    scope.ranges[f"@{name}"] = (0, below - 1)
    path = dict(scope.path)
    for scale in scales:
        below //= scale.count
        rank = Symbol(f"@{name}")
        path[scale.name] = simplify(binary("%", binary("//", rank, below), scale.count))
        if scale.count == 1:
            path[scale.name] = Const(0)
    return name, path


def check_peer(node: n.Node) -> None:
    """Only units of one region take turns; those of smaller ones run inside a turn."""
    atomic = isinstance(node, (n.Atomic, n.AtomicRegion))
    if (atomic and n.remote(node)) or (
        (atomic or isinstance(node, (n.Copy, n.Signal))) and getattr(node, "scale", None)
    ):
        raise CompileError(
            "one-sided communication from a smaller scale cannot be compiled yet",
            advice="mt.run and mt.execute take it",
        )
