"""What each statement becomes on the device: one function per kind, in one table."""

from __future__ import annotations

import math

from megatile.core.expr import constant, simplify
from megatile.ir import nodes as n
from megatile.targets.common import statements as common
from megatile.targets.common.expressions import whole
from megatile.targets.common.peers import check_innermost, met, peer
from megatile.targets.common.scalars import Scalars
from megatile.targets.cuda.collectives import between_blocks, collective, rendezvous
from megatile.targets.cuda.conditions import assumed
from megatile.targets.cuda.elements import atomic_region, copy, fill, parallel
from megatile.targets.cuda.pipeline import pipelined
from megatile.targets.cuda.producers import arrive, produced, produced_behind, producer, wait_for_phase
from megatile.targets.cuda.products import gemm
from megatile.targets.cuda.reducing import cumsum, reduce
from megatile.targets.cuda.rows import copy_rows, move_rows
from megatile.targets.cuda.scope import DeviceScope, Hazards

STATEMENTS = dict(common.STATEMENTS)
STATEMENTS |= {
    n.Fill: fill, n.Gemm: gemm, n.Reduce: reduce, n.Cumsum: cumsum,
    n.AtomicRegion: atomic_region, n.Collective: collective,
}  # fmt: skip
rule = n.registrar(STATEMENTS)


@rule(n.Copy)
def _copy(scope: DeviceScope, node: n.Copy) -> None:
    if n.remote(node) is not None:
        between_blocks(scope, "a copy to another unit")
    if not copy_rows(scope, node, background=not scope.gen.pipelines):
        copy(scope, node)


@rule(n.Parallel)
def _parallel(scope: DeviceScope, node: n.Parallel) -> None:
    if not move_rows(scope, node, background=not scope.gen.pipelines):
        parallel(scope, node)


@rule(n.Atomic)
def _atomic(scope: DeviceScope, node: n.Atomic) -> None:
    """One thread does it, and tells the others what it found."""
    if node.result is None or scope.crew.size == 1:
        with scope.text.block(f"if ({scope.crew.index} == 0)" if scope.crew.size > 1 else ""):
            Scalars(scope).atomic(node)
        return
    result = scope.vars[node.result]
    c_type = {"f": "float", "d": "double"}.get(result.kind, "long")
    units = scope.gen.kernel.threads // scope.crew.size
    slot = f"(({c_type} *){scope.gen.reserve(8 * units)})[{f'tid / {scope.crew.size}' if units > 1 else 0}]"
    with scope.text.block(f"if ({scope.crew.index} == 0)"):
        Scalars(scope).atomic(node)
        scope.text.add(f"{slot} = {result.text};")
    scope.sync()
    scope.text.add(f"{result.text} = {slot};")
    scope.sync()


@rule(n.If)
def _if(scope: DeviceScope, node: n.If) -> None:
    before = scope.hazards.copy()
    head = f"if ({Scalars(scope).truth(node.condition).text})"
    with scope.text.block(head), assumed(scope, node.condition):
        scope.gen.statements(scope, node.body)
    after, scope.hazards = scope.hazards, before
    if node.orelse:
        with scope.text.block("else"), assumed(scope, node.condition, holds=False):
            scope.gen.statements(scope, node.orelse)
    scope.hazards.join(after)


@rule(n.Loop)
def _loop(scope: DeviceScope, node: n.Loop) -> None:
    plan = scope.gen.staged(scope, node)
    if plan is None:
        if produced_behind(scope, node):
            return
        ahead = producer(scope, node)
        if ahead is not None:
            produced(scope, ahead)
            return
    if scope.team is None:
        common.STATEMENTS[n.Loop](scope, node)
        return
    touched, own = list(scope.gen.touched(n.walk(node.body))), Hazards()
    own.add(touched)
    if plan is None and scope.hazards.meets(touched) and not own.meets(touched):
        scope.sync()  # once, and not in every step
    before = scope.hazards.copy()
    if plan is None:
        scope.hazards.add(touched)
        common.STATEMENTS[n.Loop](scope, node)
    else:
        pipelined(scope, plan)
        before.copying = False  # it has waited for all copies, also without a turn
    scope.hazards.add(touched)
    if not _runs_through(node):
        scope.hazards.join(before)  # nothing may have been waited for


def _runs_through(node: n.Loop) -> bool:
    """Whether the loop makes at least one turn, and ends each: what its body waits for is waited for then."""
    turns = constant(simplify((node.stop - node.start) * node.step))
    jumps = (n.Break, n.Continue, n.Return)
    return turns is not None and turns > 0 and not any(isinstance(x, jumps) for x in n.walk(node.body))


@rule(n.Fence)
def _fence(scope: DeviceScope, node: n.Fence) -> None:
    if scope.team is not None:
        scope.text.add("__threadfence();")
        scope.sync()


# --- units that meet ------------------------------------------------------------------------------


@rule(n.Barrier)
def _barrier(scope: DeviceScope, node: n.Barrier) -> None:
    check_innermost(scope, node)
    blocks = between_blocks(scope, "this barrier")
    if node.group is None and node.units is None and (node.axis is None or blocks):
        rendezvous(scope, node.axis)
        return
    first, needed = met(scope, node)  # one thread of each unit waits for the others, in global memory
    gen, (low, high) = scope.gen, scope.group
    above = gen.storages.flat(tuple(s.name for s in gen.launch.scales[:low]), scope.path)
    inside = math.prod(s.count for s in gen.launch.scales[low:high])
    place = f"{whole(simplify(above), scope)} * {inside} + {first}"
    meeting = gen.meeting(high, node.name, node.axis, node.units)
    scope.sync()
    scope.text.add(f"if ({scope.crew.index} == 0) meet_at({meeting} + {place}, {needed});")
    scope.sync()


@rule(n.Signal)
def _signal(scope: DeviceScope, node: n.Signal) -> None:
    between_blocks(scope, "this signal")
    if node.flag in scope.gen.storages.mbarriers:
        arrive(scope, node)
        return
    scope.sync()
    with scope.text.block(f"if ({scope.crew.index} == 0)" if scope.crew.size > 1 else ""):
        _, pointer, _ = scope.element(node.flag, node.index, peer(scope, node.dst, node))
        scope.text.add("__threadfence();", f"atomicAdd({pointer}, (int)({scope.whole(node.amount)}));")


@rule(n.Wait)
def _wait(scope: DeviceScope, node: n.Wait) -> None:
    between_blocks(scope, "this wait")
    if node.flag in scope.gen.storages.mbarriers:
        wait_for_phase(scope, node)
        return
    _, pointer, _ = scope.element(node.flag, node.index)
    value = scope.whole(node.value)
    call = (
        f"wait_until({pointer}, {value});"
        if node.phase is None
        else f"wait_phase({pointer}, {node.phase}, {value});"
    )
    scope.text.add(f"if ({scope.crew.index} == 0) {call}" if scope.crew.size > 1 else call)
    scope.sync()
