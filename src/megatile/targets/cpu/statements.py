"""What each statement becomes: one function per kind, in one table."""

from __future__ import annotations

from megatile.ir import nodes as n
from megatile.targets.common import statements as common
from megatile.targets.common.combining import atomic
from megatile.targets.common.elements import converted
from megatile.targets.common.expressions import write
from megatile.targets.common.peers import peer
from megatile.targets.common.scalars import simplify_whole
from megatile.targets.common.scope import Scope
from megatile.targets.common.statements import registrar
from megatile.targets.cpu.atomics import atomic_region
from megatile.targets.cpu.elementwise import parallel
from megatile.targets.cpu.gemm import gemm, prepare
from megatile.targets.cpu.moving import copy_statement, fill_statement
from megatile.targets.cpu.reducing import cumsum, reduce
from megatile.targets.cpu.waiting import barrier, collective, copy_to_peer, signal, wait

STATEMENTS = dict(common.STATEMENTS)
rule = registrar(STATEMENTS)

rule(n.Fill)(fill_statement)
rule(n.Gemm)(gemm)
rule(n.Reduce)(reduce)
rule(n.Cumsum)(cumsum)
rule(n.Parallel)(parallel)
rule(n.AtomicRegion)(atomic_region)


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
