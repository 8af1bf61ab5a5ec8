"""What each statement becomes: one function per kind, in one table."""

from __future__ import annotations

from contextlib import ExitStack

from megatile.core.expr import constant, simplify
from megatile.ir import nodes as n
from megatile.targets.common import statements as common
from megatile.targets.common.combining import atomic
from megatile.targets.common.elements import Value, converted
from megatile.targets.common.expressions import whole, write
from megatile.targets.common.peers import peer
from megatile.targets.common.scalars import Scalars, meets_itself, range_of, simplify_whole
from megatile.targets.common.scope import Scope
from megatile.targets.common.statements import registrar
from megatile.targets.cpu.atomics import atomic_region
from megatile.targets.cpu.gemm import gemm, prepare
from megatile.targets.cpu.lanes import Lanes, lane_of
from megatile.targets.cpu.moving import copy_statement, fill_statement, rows
from megatile.targets.cpu.reducing import cumsum, reduce
from megatile.targets.cpu.steps import in_step
from megatile.targets.cpu.waiting import barrier, collective, copy_to_peer, signal, wait

STATEMENTS = dict(common.STATEMENTS)
rule = registrar(STATEMENTS)

rule(n.Fill)(fill_statement)
rule(n.Gemm)(gemm)
rule(n.Reduce)(reduce)
rule(n.Cumsum)(cumsum)
rule(n.AtomicRegion)(atomic_region)


@rule(n.Parallel)
def parallel(scope: Scope, node: n.Parallel) -> None:
    """Loops over all iterations, the innermost a vector of them at a time where it can be."""
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


@rule(n.Copy)
def _copy(scope: Scope, node: n.Copy) -> None:
    if node.dst is not None or node.src is not None:
        copy_to_peer(scope, node)
    else:
        copy_statement(scope, node)


@rule(n.Store)
def _store(scope: Scope, node: n.Store) -> None:
    parallel(scope, n.Parallel((), (), (node,), span=node.span))


@rule(n.Atomic)
def _atomic(scope: Scope, node: n.Atomic) -> None:
    with scope.text.block():
        at = peer(scope, node.dst, node.axis, node.scale) if node.dst is not None else None
        atomic(scope, node, lambda expr: write(simplify_whole(scope.own(expr)), scope), at)


@rule(n.Check)
def _check(scope: Scope, node: n.Check) -> None:
    parallel(scope, n.Parallel((), (), (node,), span=node.span))


@rule(n.If)
def _if(scope: Scope, node: n.If) -> None:
    condition = converted(write(simplify_whole(scope.own(node.condition)), scope), "bool").text
    with scope.text.block(f"if ({condition})"):
        scope.gen.statements(scope, node.body)
    if node.orelse:
        with scope.text.block("else"):
            scope.gen.statements(scope, node.orelse)


@rule(n.Loop)
def _loop(scope: Scope, node: n.Loop) -> None:
    if scope.instance and scope.frame is None:
        prepare(scope, node)
    common.STATEMENTS[n.Loop](scope, node)


@rule(n.Fence)
def _fence(scope: Scope, node: n.Fence) -> None:
    scope.text.add("__atomic_thread_fence(__ATOMIC_SEQ_CST);")


rule(n.Barrier)(barrier)
rule(n.Signal)(signal)
rule(n.Wait)(wait)
rule(n.Collective)(collective)
