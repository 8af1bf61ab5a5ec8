"""Loops of warps that only fill tiles for others: their copies stay in the background for one step more.

A step waits until its slot is free, copies, and signals. Signals follow the copies they announce, so a step
would wait for its own copies. Here the signals of a step are given when the copies of the next one are under
way; before the team waits for a flag that is not there yet, it gives the signals that it still owes, so that
nobody waits for one that is never given.
"""

from __future__ import annotations

from dataclasses import dataclass

from megatile.core.expr import constant
from megatile.ir import nodes as n
from megatile.targets.common.elements import Value
from megatile.targets.common.peers import peer
from megatile.targets.common.scalars import Scalars
from megatile.targets.cuda.collectives import between_blocks
from megatile.targets.cuda.rows import copies_behind, copy_rows
from megatile.targets.cuda.scope import DeviceScope

_NAMED = "named_sync("


@dataclass(frozen=True)
class Producer:
    """A loop whose steps wait, copy and signal."""

    loop: n.Loop
    waits: tuple[n.Node, ...]
    copies: tuple[n.Copy, ...]
    signals: tuple[n.Signal, ...]


def producer(scope: DeviceScope, node: n.Loop) -> Producer | None:
    """Return the parts of a loop of a warp group that only fills tiles for others, otherwise None."""
    named = scope.team is not None and scope.team.sync.startswith(_NAMED)
    if not named or node.kind != "serial" or (constant(node.step) or 0) < 1:
        return None
    body = list(node.body)
    parts: list[list[n.Node]] = []
    for accepts in (_waits, lambda x: isinstance(x, n.Copy), lambda x: isinstance(x, n.Signal)):
        parts.append([])
        while body and accepts(body[0]):
            parts[-1].append(body.pop(0))
    waits, copies, signals = parts
    if body or not copies or not signals:
        return None
    found = Producer(node, tuple(waits), tuple(copies), tuple(signals))  # type: ignore[arg-type]
    if not all(_counts_up(scope, one) for one in found.signals):
        return None
    with scope.known(node.var, Value(scope.gen.name(node.var), "int"), scope.loop_limits(node)):
        return found if all(copies_behind(scope, one) for one in found.copies) else None


def _counts_up(scope: DeviceScope, node: n.Signal) -> bool:
    """Return whether a signal adds a number to a flag of the block."""
    inside = scope.gen.storages.storage(node.flag).home == "instance"
    return inside and node.scale is None and constant(node.amount) is not None


def _waits(node: n.Node) -> bool:
    if isinstance(node, n.If):
        return not node.orelse and all(map(_waits, node.body))
    return isinstance(node, n.Wait)


def produced(scope: DeviceScope, plan: Producer) -> None:
    """Write the loop: each step gives the signals of the one before."""
    node, gen, text = plan.loop, scope.gen, scope.text
    scope.sync()
    name, lead = gen.name(node.var), f"{scope.crew.index} == 0"
    start, stop, step = (scope.whole(e) for e in (node.start, node.stop, node.step))
    owed = [f"owed_{i}" for i in range(len(plan.signals))]
    head = f"for (long {name} = {start}, {name}_stop = {stop}; {name} < {name}_stop; {name} += {step})"
    with text.block():
        text.add(f"int {', '.join(f'*{one} = 0' for one in owed)};")
        with text.block("auto give = [&]"):
            text.add("__threadfence();")
            for one, signal in zip(owed, plan.signals, strict=True):
                text.add(f"if ({one}) atomicAdd({one}, (int)({scope.whole(signal.amount)})), {one} = 0;")
        text.lines[-1] += ";"
        with text.block(head), scope.known(node.var, Value(name, "int"), scope.loop_limits(node)):
            for wait in plan.waits:
                _wait(scope, wait, lead)
            for copy in plan.copies:
                with gen.at(copy, text):
                    copy_rows(scope, copy, background=True)
            text.add("cp_async_commit();", "cp_async_wait<1>();", scope.crew.sync)
            with text.block(f"if ({lead})"):
                text.add("give();")
                for place, signal in zip(owed, plan.signals, strict=True):
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
