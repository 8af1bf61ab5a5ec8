"""Stages of pipelined loops: copies from outside run ahead, the rest follows; and loops where that is
impossible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from megatile.ir import nodes as n
from megatile.ir.launch import ROOT
from megatile.ir.program import Binding, Program, bindings


def pipelined(program: Program) -> Iterator[n.Loop]:
    """Return the loops whose copies run ahead."""
    return (one for one in n.each(n.Loop, program.body) if one.kind == "pipelined" and one.stages > 1)


def touched(node: n.Node, access: str, table: Mapping[str, Binding]) -> set[str]:
    """Return storages that a statement itself reads or writes; an update is both."""
    return {table[r.source].base for kind, r in n.regions(node) if kind in (access, "update")}


Finding = tuple[str, "n.Span | None", str]


@dataclass(frozen=True)
class Stages:
    """The statements of a pipelined loop by position: ``ahead`` run up to ``depth - 1`` iterations early.

    ``versions`` are the tiles that need one version for each iteration under way.
    """

    ahead: tuple[int, ...]
    rest: tuple[int, ...]
    depth: int
    versions: tuple[str, ...]


def stages(loop: n.Loop, program: Program) -> Stages:
    """Return how a pipelined loop is cut."""
    table = bindings(program)
    ahead = tuple(at for at, node in enumerate(loop.body) if _runs_ahead(node, table))
    rest = tuple(at for at in range(len(loop.body)) if at not in ahead)
    versions = sorted(
        {table[node.to.source].base for node in (loop.body[a] for a in ahead) if isinstance(node, n.Copy)}
    )
    return Stages(ahead, rest, loop.stages, tuple(versions))


def _runs_ahead(node: n.Node, table: Mapping[str, Binding]) -> bool:
    """Return whether a statement is a copy from a storage of a larger scale into one of this scale's
    tiles."""
    if not isinstance(node, n.Copy) or node.dst is not None or node.src is not None:
        return False
    source, to = table[node.source.source], table[node.to.source]
    home, there = table[source.base].scale, table[to.base].scale
    return home != there and there != ROOT


def pipeline_conflicts(program: Program) -> Iterator[Finding]:
    """Pipelined loops in which a copy that runs ahead would see or spoil something."""
    table = bindings(program)
    for loop in pipelined(program):
        flat = list(n.walk(loop.body))
        for node in n.each(n.Copy, loop.body):
            if _runs_ahead(node, table):
                yield from _overtakes(node, flat, table, loop)
                yield from _carried(node, flat, table, loop)


def _overtakes(
    copy: n.Copy, flat: list[n.Node], table: Mapping[str, Binding], loop: n.Loop
) -> Iterator[Finding]:
    source = table[copy.source.source].base
    for other in flat:
        if other is not copy and source in touched(other, "write", table):
            line = f" (line {other.span.line})" if other.span else ""
            yield (
                f"the stages of pipelined loop '{loop.var}' conflict: this copy reads '{source}' ahead of "
                f"time, and a "
                f"later statement{line} writes it",
                copy.span,
                "num_stages=1 or T.serial, or read from another tensor than the one written",
            )
            return


def _carried(
    copy: n.Copy, flat: list[n.Node], table: Mapping[str, Binding], loop: n.Loop
) -> Iterator[Finding]:
    """The tile is read before this iteration's copy: the value of the iteration before is lost."""
    tile = table[copy.to.source].base
    for other in flat:
        if other is copy:
            return
        if any(tile in touched(one, "write", table) for one in n.walk((other,))):
            return
        if any(tile in touched(one, "read", table) for one in n.walk((other,))):
            line = f" (line {other.span.line})" if other.span else ""
            yield (
                f"the stages of pipelined loop '{loop.var}' conflict: '{tile}' is read{line} before it is "
                f"copied, and "
                "its versions do not carry over",
                copy.span,
                "copy first, or keep the old value in a tile of its own, or T.serial",
            )
            return
