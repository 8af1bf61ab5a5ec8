"""``T.Parallel``: loops over all iterations, the innermost a vector of them at a time where it can be."""

from __future__ import annotations

from contextlib import ExitStack

from megatile.core.expr import constant, simplify
from megatile.ir import nodes as n
from megatile.targets.common.elements import Value
from megatile.targets.common.expressions import whole
from megatile.targets.common.scalars import Scalars, meets_itself, range_of
from megatile.targets.common.scope import Scope
from megatile.targets.cpu.lanes import Lanes, lane_of
from megatile.targets.cpu.moving import rows
from megatile.targets.cpu.steps import in_step


def parallel(scope: Scope, node: n.Parallel) -> None:
    if node.in_step and meets_itself(node):
        in_step(scope, node)
        return
    extents = [simplify(scope.own(e)) for e in node.extents]
    lane = lane_of(scope, node)
    order = [v for v in node.vars if v != lane]
    with scope.text.block(), ExitStack() as stack:
        for name in order:
            extent = extents[node.vars.index(name)]
            c_name = scope.gen.name(name)
            stack.enter_context(scope.loop(c_name, "0", whole(extent, scope)))
            stack.enter_context(scope.known(name, Value(c_name, "int"), range_of(scope, extent)))
        if lane is None:
            Scalars(scope).body(node.body)
            return
        extent = extents[node.vars.index(lane)]
        limits = range_of(scope, extent)
        length = constant(extent)

        def body(index: str, count: str | None) -> None:
            with scope.text.block(), scope.known(lane, Value(index, "int"), limits):
                Lanes(scope, lane, index, count).body(node.body)

        rows(scope, "0", whole(extent, scope), length, body)
