"""The levels of a Plan: which regions start instances, how many, and of what scale."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from megatile.core.expr import trips
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.program import Binding, Program, bindings
from megatile.lowering.errors import cannot
from megatile.lowering.storage import device_depth


@dataclass(eq=False)
class LoweredLevel:
    """A level of the Plan while it grows: its streams, and how many instances each unit of the parent has."""

    name: str | None
    scale: str
    depth: int
    parent: LoweredLevel | None = None
    total: int = 1
    communicates: bool = False
    """Whether instances wait for each other, and so must all be there."""
    streams: list[Any] = field(default_factory=list)
    regions: list[int] = field(default_factory=list)
    """The identities of the regions that its instances run."""

    @property
    def parents(self) -> int:
        return 1 if self.parent is None else self.parent.instances

    @property
    def instances(self) -> int:
        return self.parents * self.total


class Part(NamedTuple):
    """The instances of a region: the first, how many run it at a time, how often it runs, and how far the
    instances of one turn are from those of the next."""

    first: int
    each: int
    times: int
    stride: int

    @property
    def last(self) -> int:
        return self.first + (self.times - 1) * self.stride + self.each - 1


class Levels:
    """The devices of a launch (``first``) and the ``further`` levels of instances that its regions start."""

    def __init__(self, program: Program, hda: HDA):
        self.hda, self.launch, self.table = hda, program.launch, bindings(program)
        depth = device_depth(self.launch, hda)
        scale = self.launch.scales[depth - 1].name
        self.first = LoweredLevel(None, scale, depth, total=self.launch.count(scale))
        self.further: dict[str, LoweredLevel] = {}
        self.parts: dict[int, Part] = {}
        """Regions of further levels, and which instances are theirs."""
        self._count_regions(program.body, depth, 1)

    def walk(self, body: tuple[n.Node, ...]) -> Iterator[tuple[LoweredLevel, n.Node]]:
        """Return every statement, with the level whose instances run it."""
        return self._walk(body, self.first, self.first.depth)

    def _walk(
        self, body: tuple[n.Node, ...], level: LoweredLevel, depth: int
    ) -> Iterator[tuple[LoweredLevel, n.Node]]:
        for node in body:
            yield level, node
            inner, below = level, depth
            if isinstance(node, n.ScaleRegion):
                scale = self.child_scale(node, depth)
                inner = level if scale is None else self.further[scale]
                below = max(depth, self.launch.depth(node.scale))
            for _, part in n.bodies(node):
                yield from self._walk(part, inner, below)

    def child_scale(self, node: n.ScaleRegion, depth: int) -> str | None:
        """Return the scale of the level that a region below a unit at ``depth`` makes; None: it makes
        none."""
        target = self.launch.depth(node.scale)
        dispatch = self.launch.depth(self.launch.dispatch)
        if depth <= self.first.depth < target and not self.launch.resident:
            return self.launch.scales[min(target, dispatch) - 1].name
        if depth >= self.first.depth and target > depth and self.waits(node):
            return node.scale
        return None

    def waits(self, node: n.ScaleRegion) -> bool:
        """Return whether units of a region inside an instance wait for each other's signals."""
        return self.launch.count(node.scale) > 1 and any(
            isinstance(m, (n.Signal, n.Wait)) for m in n.walk(node.body)
        )

    def _count_regions(self, body: tuple[n.Node, ...], depth: int, times: int) -> None:
        for node in body:
            if isinstance(node, n.ScaleRegion):
                scale = self.child_scale(node, depth)
                inner = max(depth, self.launch.depth(node.scale))
                if scale is None:
                    self._count_regions(node.body, inner, times)
                    continue
                level = self._level(scale, depth)
                level.communicates = level.communicates or communicates(node, self.table)
                each = self.launch.count(scale, self.launch.scales[depth - 1].name)
                self.parts[id(node)] = Part(level.total, each, times, each)
                level.regions.append(id(node))
                level.total += each * times
                self._count_regions(node.body, inner, 1)
            elif isinstance(node, n.Loop):
                rounds = trips(node)
                if rounds is None and any(
                    isinstance(m, n.ScaleRegion) and self.child_scale(m, depth) for m in n.walk(node.body)
                ):
                    raise cannot("a region inside a loop whose trip count is not a number", node)
                turns, before = times * (len(rounds) if rounds else 1), len(self.parts)
                self._count_regions(node.body, depth, turns)
                self._take_turns(list(self.parts)[before:], turns)
            else:
                for _, inner_body in n.bodies(node):
                    self._count_regions(inner_body, depth, times)

    def _take_turns(self, regions: list[int], times: int) -> None:
        """Number the instances of a loop's regions turn by turn, where not all of them can be there at once:
        those of later turns would wait in the places of those before."""
        for level in self.further.values():
            mine = [one for one in level.regions if one in regions]
            stride = sum(self.parts[one].each for one in mine)
            places = self.hda.count(level.scale) // self.hda.count(self.first.scale)
            if any(self.parts[one].times != times for one in mine) or times * stride <= places:
                continue
            at = min(self.parts[one].first for one in mine)
            for one in mine if len(mine) > 1 else ():
                self.parts[one] = self.parts[one]._replace(first=at, stride=stride)
                at += self.parts[one].each

    def _level(self, scale: str, depth: int) -> LoweredLevel:
        if scale not in self.further:
            above = [lv for lv in (self.first, *self.further.values()) if lv.depth <= depth]
            parent = max(above, key=lambda lv: lv.depth)
            self.further[scale] = LoweredLevel(
                scale, self.hardware(scale), self.launch.depth(scale), parent, total=0
            )
        return self.further[scale]

    def hardware(self, scale: str) -> str:
        """Return the smallest scale, up to this one, whose units have a place for each block of an instance:
        the pair of SMs for a cluster of two."""
        hda, dispatch = self.hda, self.launch.dispatch
        if self.launch.depth(scale) >= self.launch.depth(dispatch):
            return scale
        blocks, top = self.launch.count(dispatch, scale), hda.scale(scale).position
        between = [s for s in hda.scales if hda.scale(dispatch).position < s.position <= top]
        return next((s.name for s in between if hda.count(dispatch, within=s.name) >= blocks), scale)


def communicates(node: n.ScaleRegion, table: dict[str, Binding]) -> bool:
    """Return whether the units of a region meet, put, get or signal among each other, or units in them do
    so."""

    reached = {m.flag for m in n.each(n.Signal, node.body) if m.dst is not None}
    """Flags of other units than one's own."""

    def among(body: tuple[n.Node, ...], own: bool) -> bool:
        for m in body:
            scale = getattr(m, "scale", None)
            if isinstance(m, (n.Signal, n.Wait)):
                if table[m.flag].scale == node.scale and m.flag in reached:
                    return True
            elif isinstance(m, n.ScaleRegion):
                if among(m.body, False):
                    return True
            elif (
                (isinstance(m, (n.Barrier, n.Collective)) and (own or scale == node.scale))
                or (n.remote(m) is not None and (scale == node.scale or (own and scale is None)))
                or any(among(inner, own) for _, inner in n.bodies(m))
            ):
                return True
        return False

    return among(node.body, True)
