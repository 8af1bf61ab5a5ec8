"""Loops of warps that only fill tiles for others: nobody waits for copies but those whom they are for.

A step waits until its slot is free, copies, and signals. Signals follow the copies they announce, so a step
would wait for its own copies. On mbarriers, copies arrive themselves when they are done. Where flags cannot
be mbarriers, the signals of a step are given when the copies of the next one are under way; before the team
waits for a flag that is not there yet, it gives the signals that it still owes, so that nobody waits for one
that is never given.
"""

from __future__ import annotations

from dataclasses import dataclass

from megatile.core.expr import constant, from_linear, linear
from megatile.ir import nodes as n
from megatile.targets.common.elements import Value
from megatile.targets.common.peers import peer
from megatile.targets.common.scalars import Scalars
from megatile.targets.cuda.collectives import between_blocks
from megatile.targets.cuda.layouts import WARP
from megatile.targets.cuda.mbarriers import Handover, handovers
from megatile.targets.cuda.rows import copies_behind, copy_rows
from megatile.targets.cuda.scope import DeviceScope

_NAMED = "named_sync("


@dataclass(frozen=True)
class Producer:
    """A loop whose steps wait, copy and signal."""

    loop: n.Loop
    step: Handover


def producer(scope: DeviceScope, node: n.Loop) -> Producer | None:
    """Return the parts of a loop of a warp group that only fills tiles for others, otherwise None."""
    named = scope.team is not None and scope.team.sync.startswith(_NAMED)
    steps = handovers(node) if named and _counts(node) else ()
    if len(steps) != 1 or not all(_counts_up(scope, one) for one in steps[0].signals):
        return None
    return Producer(node, steps[0]) if _all_behind(scope, node, steps) else None


def _counts(node: n.Loop) -> bool:
    return node.kind == "serial" and (constant(node.step) or 0) >= 1


def _all_behind(scope: DeviceScope, node: n.Loop, steps: tuple[Handover, ...]) -> bool:
    """Return whether the copies of a loop can be done by ``cp.async``."""
    with scope.known(node.var, Value(scope.gen.name(node.var), "int"), scope.loop_limits(node)):
        return all(copies_behind(scope, one) for step in steps for one in step.copies)


# --- on mbarriers ---------------------------------------------------------------------------------


def produced_behind(scope: DeviceScope, node: n.Loop) -> bool:
    """Write a loop whose copies arrive at mbarriers when they are done, unless it is none."""
    steps = handovers(node) if scope.team is not None and _counts(node) else ()
    known = scope.gen.storages.mbarriers
    flags = [
        x for one in steps for x in n.walk((*one.waits, *one.signals)) if isinstance(x, (n.Wait, n.Signal))
    ]
    if not steps or not all(x.flag in known for x in flags) or not _all_behind(scope, node, steps):
        return False
    gen, text = scope.gen, scope.text
    scope.sync()
    name = gen.name(node.var)
    start, stop, step = (scope.whole(e) for e in (node.start, node.stop, node.step))
    head = f"for (long {name} = {start}, {name}_stop = {stop}; {name} < {name}_stop; {name} += {step})"
    with text.block(head), scope.known(node.var, Value(name, "int"), scope.loop_limits(node)):
        for one in steps:
            for wait in one.waits:
                _wait_inside(scope, wait)
            for copy in one.copies:
                with gen.at(copy, text):
                    copy_rows(scope, copy, background=True)
            for signal in one.signals:
                with gen.at(signal, text):
                    text.add(f"mbarrier_arrive_behind({_mbarrier(scope, signal)});")
    scope.hazards.add(gen.touched(n.walk(node.body)))  # the copies are waited for where the team meets
    return True


def _wait_inside(scope: DeviceScope, node: n.Node) -> None:
    with scope.gen.at(node, scope.text):
        if isinstance(node, n.If):
            with scope.text.block(f"if ({Scalars(scope).truth(node.condition).text})"):
                for one in node.body:
                    _wait_inside(scope, one)
            return
        assert isinstance(node, n.Wait)
        wait_for_phase(scope, node)


def _mbarrier(scope: DeviceScope, node: n.Signal | n.Wait) -> str:
    """Return the pointer to the mbarrier that a statement means."""
    to = peer(scope, node.dst, node) if isinstance(node, n.Signal) else None
    return scope.element(node.flag, node.index, to)[1]


def wait_for_phase(scope: DeviceScope, node: n.Wait) -> None:
    """Every thread waits for itself: the team need not meet."""
    phase = node.value
    if node.phase is None:
        (terms, rest), total = linear(node.value), scope.gen.storages.mbarriers[node.flag].total
        exact = all(factor % total == 0 for factor in (*terms.values(), rest))
        ended = {term: factor // total for term, factor in terms.items()}
        phase = from_linear(ended, rest // total - 1) if exact else node.value // total - 1
    scope.text.add(f"mbarrier_wait({_mbarrier(scope, node)}, {scope.whole(phase)});")


def arrive(scope: DeviceScope, node: n.Signal) -> None:
    """Every thread, or one of each warp, arrives when what it did before is done."""
    scope.finish_copies()
    pointer, size = _mbarrier(scope, node), scope.crew.size
    if scope.gen.storages.mbarriers[node.flag].by_threads or size == 1:
        scope.text.add(f"mbarrier_arrive({pointer});")
        return
    scope.text.add("__syncwarp();" if size >= WARP else f"__syncwarp(lanes({size}));")
    scope.text.add(f"if ({scope.crew.index} % {min(size, WARP)} == 0) mbarrier_arrive({pointer});")


# --- on flags -------------------------------------------------------------------------------------


def _counts_up(scope: DeviceScope, node: n.Signal) -> bool:
    """Return whether a signal adds a number to a flag of the block."""
    inside = scope.gen.storages.storage(node.flag).home == "instance"
    return inside and node.scale is None and constant(node.amount) is not None


def produced(scope: DeviceScope, plan: Producer) -> None:
    """Write the loop: each step gives the signals of the one before."""
    node, gen, text = plan.loop, scope.gen, scope.text
    scope.sync()
    name, lead = gen.name(node.var), f"{scope.crew.index} == 0"
    start, stop, step = (scope.whole(e) for e in (node.start, node.stop, node.step))
    owed = [f"owed_{i}" for i in range(len(plan.step.signals))]
    head = f"for (long {name} = {start}, {name}_stop = {stop}; {name} < {name}_stop; {name} += {step})"
    with text.block():
        text.add(f"int {', '.join(f'*{one} = 0' for one in owed)};")
        with text.block("auto give = [&]"):
            text.add("__threadfence();")
            for one, signal in zip(owed, plan.step.signals, strict=True):
                text.add(f"if ({one}) atomicAdd({one}, (int)({scope.whole(signal.amount)})), {one} = 0;")
        text.lines[-1] += ";"
        with text.block(head), scope.known(node.var, Value(name, "int"), scope.loop_limits(node)):
            for wait in plan.step.waits:
                _wait(scope, wait, lead)
            for copy in plan.step.copies:
                with gen.at(copy, text):
                    copy_rows(scope, copy, background=True)
            text.add("cp_async_commit();", "cp_async_wait<1>();", scope.crew.sync)
            with text.block(f"if ({lead})"):
                text.add("give();")
                for place, signal in zip(owed, plan.step.signals, strict=True):
                    with gen.at(signal, text):
                        between_blocks(scope, "this signal")
                        _, pointer, _ = scope.element(
                            signal.flag, signal.index, peer(scope, signal.dst, signal)
                        )
                        text.add(f"{place} = {pointer};")
        text.add("cp_async_wait<0>();", scope.crew.sync, f"if ({lead}) give();")
    scope.hazards.copying = False


def _wait(scope: DeviceScope, node: n.Node, lead: str) -> None:
    """Wait; a team that would have to gives the signals that it owes first."""
    text = scope.text
    with scope.gen.at(node, text):
        if isinstance(node, n.If):
            with text.block(f"if ({Scalars(scope).truth(node.condition).text})"):
                for one in node.body:
                    _wait(scope, one, lead)
            return
        assert isinstance(node, n.Wait)
        between_blocks(scope, "this wait")
        _, pointer, _ = scope.element(node.flag, node.index)
        value = scope.whole(node.value)
        given = f"{pointer}, {value}" if node.phase is None else f"{pointer}, {node.phase}, {value}"
        word = "until" if node.phase is None else "phase"
        sync = scope.crew.sync
        asked = f"{lead} && !has_{word}({given})"
        with text.block(f"if ({sync.replace(_NAMED, 'named_any(').removesuffix(');')}, {asked}))"):
            text.add("cp_async_wait_all();", sync, f"if ({lead}) give(), wait_{word}({given});", sync)
