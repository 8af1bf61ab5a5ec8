"""Units that run statements. Their order is kept by the clocks of ``core.forkjoin``."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from megatile.core.forkjoin import Agent, Strand
from megatile.core.placement import coordinates
from megatile.ir.launch import Launch
from megatile.ir.nodes import Node

if TYPE_CHECKING:
    from megatile.targets.interpret.group import Group


class Puts(Agent):
    """Puts of one unit to one other (at ``depth``); ordered among themselves."""

    __slots__ = ("depth", "owner")

    def __init__(self, owner: Unit, depth: int):
        super().__init__(owner.parent)
        self.owner, self.depth = owner, depth


class Unit(Strand):
    """One unit of a scale, running a body."""

    __slots__ = ("depth", "frame", "group", "node", "path", "puts", "task", "vars", "waiting")

    def __init__(
        self, parent: Unit | None, path: tuple[int, ...], group: Group | None, frame: dict[Any, Any]
    ):
        super().__init__(parent)
        self.path = path
        self.depth = len(path)
        self.group: Any = group
        self.frame = frame
        self.vars: dict[str, Any] = dict(parent.vars) if parent else {}
        self.puts: dict[int, Puts] = {}
        self.task: Generator[Any, None, None] | None = None
        self.node: Node | None = None
        self.waiting: tuple[str, Node, str] | None = None

    def puts_to(self, peer: Unit) -> Puts:
        """Return this unit's puts to another."""
        if peer.number not in self.puts:
            self.puts[peer.number] = Puts(self, peer.depth)
        return self.puts[peer.number]

    def around(self, launch: Launch, scale: str | None) -> Unit:
        """Return the unit of a scale that this one is, or is in."""
        return self if scale is None else self.exchange(launch.depth(scale))

    def among(self, launch: Launch, scale: str) -> tuple[Any, tuple[int, ...]]:
        """Return the group of a scale that this unit is in, and its place inside the member of that group."""
        member = self.around(launch, scale)
        return member.group, self.path[member.depth :]

    def counterpart(self, peer: Unit, depth: int) -> Any:
        """Return what has the path of the unit at ``depth`` inside a peer where this one is inside its own
        unit of that scale; the peer itself where it is that deep."""
        return peer if peer.depth >= depth else Counterpart(peer, self.path[peer.depth : depth])

    def exchange(self, depth: int) -> Unit:
        """Return the unit at a depth that this one is, or is in, which then exchanges signals with others."""
        found = self
        while found.depth > depth:
            assert isinstance(found.parent, Unit)
            found = found.parent
            found.exchanges = True
        return found


class Counterpart:
    """Tiles and puts of a unit inside a peer, whether or not it runs now."""

    def __init__(self, peer: Unit, inside: tuple[int, ...]):
        self.path, self.frame = peer.path + inside, peer.frame
        self.number, self.depth = peer.number, peer.depth


def describe(agent: Agent, launch: Launch) -> str:
    """``device 1, block (2, 0)``: the coordinates of a unit, scales with one unit left out."""
    if isinstance(agent, Puts):
        return f"a put of {describe(agent.owner, launch)}"
    assert isinstance(agent, Unit)
    parts = []
    for scale, index in zip(launch.scales, agent.path, strict=False):
        if scale.count > 1:
            coords = coordinates(index, scale.extents)
            parts.append(f"{scale.name} {coords[0] if len(coords) == 1 else coords}")
    if parts:
        return ", ".join(parts)
    return f"{launch.scales[agent.depth - 1].name} 0" if agent.depth else "the launch"
