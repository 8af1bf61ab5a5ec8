"""Which flags of a block are mbarriers: copies in the background announce themselves on those.

An mbarrier knows only whether its present phase has an even or an odd number: flags become mbarriers if
``ir/signals.py`` finds that their waits need no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from megatile.ir import nodes as n
from megatile.ir.program import Program
from megatile.ir.signals import rounds


@dataclass(frozen=True)
class Mbarrier:
    """How a flag is an mbarrier: ``total`` is what the signals of one phase add up to."""

    signallers: int
    total: int
    depth: int
    """That of the units which signal."""
    by_threads: bool
    """Whether every thread of a unit arrives, and not one of each warp: for copies in the background."""


@dataclass(frozen=True)
class Handover:
    """A part of a step that fills tiles for others."""

    waits: tuple[n.Node, ...]
    copies: tuple[n.Copy, ...]
    signals: tuple[n.Signal, ...]


def handovers(node: n.Loop) -> tuple[Handover, ...]:
    """Return the parts of a loop of nothing but waits, copies and signals, in this order; else nothing."""
    body, found = list(node.body), []
    kinds: tuple[Callable[[n.Node], bool], ...]
    kinds = _waits, lambda x: isinstance(x, n.Copy), lambda x: isinstance(x, n.Signal)
    while body:
        parts: list[list[n.Node]] = []
        for accepts in kinds:
            parts.append([])
            while body and accepts(body[0]):
                parts[-1].append(body.pop(0))
        if not parts[1] or not parts[2]:
            return ()
        found.append(Handover(*map(tuple, parts)))  # type: ignore[arg-type]
    return tuple(found)


def _waits(node: n.Node) -> bool:
    if isinstance(node, n.If):
        return not node.orelse and all(map(_waits, node.body))
    return isinstance(node, n.Wait)


def mbarriers(
    program: Program, region: n.ScaleRegion, depths: Mapping[str, int], instance: int
) -> dict[str, Mbarrier]:
    """Return the flags of a dispatched region that can be mbarriers, of those with known ``depths``."""
    known = rounds(program, region, depths, instance)
    if known is None:
        return {}
    loops = n.each(n.Loop, known.inner.body)
    behind = {s.flag for loop in loops for h in handovers(loop) for s in h.signals}
    depth = program.launch.depth(known.inner.scale)
    return {flag: Mbarrier(*total, depth, flag in behind) for flag, total in known.totals.items()}
