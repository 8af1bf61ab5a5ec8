"""Streams of a Plan as they are written, and the scope in which statements are.

The devices of a launch are the Plan's first level. A region at a smaller scale is a part of a further level:
its instances are numbered region after region (and iteration after iteration of the loops around it), so that
an earlier phase is dispatched before a later one. The stream of the larger unit signals ``go`` when it comes
to a region and waits for ``done`` before what touches the same (``waits.py``). Scales inside an instance are
not levels: their units' code is written one after the other into the instance's stream, statement by
statement (engines work on them at the same time all the same), unless they wait for each other's signals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from megatile.core.expr import ZERO, Const, Expr, Symbol, simplify, unit
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.program import Program
from megatile.ir.signals import counted_waits
from megatile.lowering.declarations import Declarations, Facts, Notes
from megatile.lowering.errors import LoweringError, cannot
from megatile.lowering.levels import Levels, LoweredLevel, Part
from megatile.lowering.regions import Regions
from megatile.lowering.storage import Home, Homes
from megatile.lowering.units import WHOLE, NotStatic, Place, Ranges, split_number, tidy
from megatile.plan import model as pm

RULES: dict[type[n.Node], Callable[[StreamScope, Any], None]] = {}
"""What each kind of statement becomes in a stream."""
rule = n.registrar(RULES)
AROUND: dict[str, Callable[[StreamScope, n.Node], AbstractContextManager[n.Node]]] = {}
"""What is done before and after a ``statement``, and what is lowered in its place."""
NUMBERS: dict[str, Callable[[StreamScope, Expr, int, str], Expr]] = {}
"""How a whole number comes from an expression on ``data``."""


@dataclass(eq=False)
class Stream:
    """The commands of one region's instances (those of ``part`` of each parent) as they are written.

    ``above``: the stream whose instances have them, where its level has other streams too.
    """

    level: LoweredLevel
    part: Part
    above: Stream | None = None
    out: list[Any] = field(default_factory=list)
    depth: int = 0
    """Loops and branches around what is being written."""
    meets: Callable[[Expr], Expr] | None = None
    """The key of a group among all instances of the level, from that among those of this region."""

    @property
    def units(self) -> Any:
        """The numbers of its instances."""
        return np.concatenate([np.arange(*run) for run in self.runs])

    @property
    def first(self) -> int:
        return self.part.first

    @property
    def count(self) -> int:
        """How many instances of each parent there are."""
        return self.part.each * self.part.times

    @property
    def runs(self) -> tuple[tuple[int, int, int], ...]:
        """The numbers of its instances as ranges, none of which begins where another ends."""
        part, level = self.part, self.level
        whole = part.stride == part.each
        size, turns = (self.count, 1) if whole else (part.each, part.times)
        found: list[tuple[int, int, int]] = []
        for p in range(level.parents) if self.above is None else self.above.units.tolist():
            for turn in range(turns):
                first = p * level.total + part.first + turn * part.stride
                before = found.pop() if found and found[-1][1] == first else (first, first, 1)
                found.append((before[0], first + size, 1))
        return tuple(found)

    @cached_property
    def everyone(self) -> bool:
        """Whether all instances of the level run it."""
        return self.runs == ((0, self.level.instances, 1),)

    def runs_it(self, number: Expr) -> Expr:
        """Return whether an instance of the level is one of its own; 1 where all are."""
        part, level = self.part, self.level
        index = number % level.total if level.parents > 1 else number
        mine: Expr = Const(1)
        if level.total > part.each:
            mine = (index >= part.first) & (index <= part.last)
        if part.stride > part.each:
            mine = mine & ((index - part.first) % part.stride < part.each)
        return mine if self.above is None else mine & self.above.runs_it(number // level.total)

    @contextmanager
    def inner(self) -> Iterator[list[Any]]:
        """Statements of a loop's or branch's body."""
        outer, self.out = self.out, []
        self.depth += 1
        try:
            yield self.out
        finally:
            self.out = outer
            self.depth -= 1


@dataclass(frozen=True)
class Turn:
    """A loop of a stream that a region inside it must count: its variable, first value, step and trips."""

    name: str
    start: Expr
    step: int
    trips: int


@dataclass
class StreamScope:
    """Where statements are lowered: the stream, the unit's place, and the values of variables.

    ``names`` are whole numbers; ``values`` other variables, as typed expressions; ``group`` the depths
    between which the units of the innermost region are counted.
    """

    state: LoweringState
    stream: Stream
    place: Place
    names: dict[str, Expr] = field(default_factory=dict)
    values: dict[str, Expr] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()
    looped: bool = False
    """Whether a loop of the stream is around it."""
    conditions: tuple[Expr, ...] = ()
    group: tuple[int, int] = (0, 0)
    around: tuple[tuple[int, int], ...] = ()
    """The groups of the regions around the innermost one, outermost first."""
    node: n.Node | None = None
    fresh: set[str] = field(default_factory=set)
    """Tiles whose next copy begins a new version."""

    @property
    def regions(self) -> Regions:
        return Regions(self)

    @property
    def level(self) -> LoweredLevel:
        return self.stream.level

    def whole(self, expr: Expr) -> Expr:
        """Return a whole number that is known to the stream, as an expression of the Plan."""
        found = self.static(expr)
        if found is not None:
            return found
        if expr.dtype not in WHOLE:
            raise cannot(f"'{expr}', which is not a whole number known to the unit,", self.node)
        return NUMBERS["data"](self, expr, 2**31 - 1, "number")

    def static(self, expr: Expr, place: Place | None = None) -> Expr | None:
        """Return the same (of the unit at another place), if neither data nor elementwise code decide it."""
        try:
            return (place or self.place).whole(expr, self.names)
        except NotStatic:
            return None

    def emit(self, statement: Any) -> None:
        place = self.node.place if self.node is not None else None
        self.stream.out.append(replace(statement, source=place))

    def read(self, name: str, region: pm.Region, bound: int, **change: Any) -> Expr:
        """Return a number of the stream that is read from a tile, and perhaps changed there."""
        self.emit(pm.ReadScalar(name, region, bound, **change))
        self.ranges[name] = (0, bound)
        self.names[name] = Symbol(name)
        return self.names[name]

    def owner(self, home: Home, peer: Place) -> Expr | None:
        """Return the number of a home's owner, seen from a peer of this unit; None: it is this unit's own."""
        if home.shared or peer.path[: home.depth] == self.place.path[: home.depth]:
            return None
        level = self.level
        while level.parent is not None and level.depth > home.depth:
            level = level.parent
        return self.number(peer, level)

    def number(self, peer: Place, level: LoweredLevel | None = None) -> Expr:
        """Return the number of the instance of a level (this one's) that a peer is, or is in."""
        level = level or self.level
        if level.parent is None:
            return peer.rank(0, level.depth)
        above = level.parent.depth
        found = peer.rank(0, above) * level.total + peer.rank(above, level.depth)
        own, stream = unit, self.stream
        while stream.level is not level and stream.above is not None:
            own, stream = own // stream.level.total, stream.above
        if stream.level is level and not stream.everyone:  # as far from it as from this one
            mine = self.place.rank(0, above) * level.total + self.place.rank(above, level.depth)
            found = own + found - mine
        return found

    def peer(self, number: Expr, axis: int | None, scale: str | None = None) -> Place:
        """Return the place of another unit of the innermost region (or that of a scale), by its rank (along
        ``axis``)."""
        launch = self.place.launch
        low, high = self.among(scale)
        if axis is not None:
            mine, _, stride = self.line(axis, scale)
            number = simplify(self.place.rank(low, high) + (number - mine) * stride)
        counts = [s.count for s in launch.scales[low:high]]
        indices = (tidy(e, self.ranges) for e in split_number(number, counts))
        return Place(launch, (*self.place.path[:low], *indices, *self.place.path[high:]))

    def peer_of(self, node: Any, number: Expr | None) -> Place | None:
        """Return the peer that a statement names by a number; None: it names none."""
        return None if number is None else self.peer(self.whole(number), node.axis, node.scale)

    def among(self, scale: str | None) -> tuple[int, int]:
        """Return the depths between which the units of the innermost region, or of that of a scale, are
        counted."""
        depth = None if scale is None else self.place.launch.depth(scale)
        return next(
            (g for g in reversed(self.around) if g[1] == depth and depth != self.group[1]), self.group
        )

    def meets(self, scale: str | None) -> bool:
        """Return whether those that meet at a scale are instances of this level, or stand in different
        ones."""
        return self.level.depth == self.group[1] or self.among(scale)[1] <= self.level.depth

    def line(self, axis: int | None, scale: str | None = None) -> tuple[Expr, int, int]:
        """Of the units of a region (that of a scale) that act together (along ``axis``): this one's number,
        how many there are, and the step from one to the next."""
        low, high = self.among(scale)
        launch, rank = self.place.launch, self.place.rank(low, high)
        grid = launch.grid(launch.at(high), launch.at(low))
        if axis is None:
            return rank, math.prod(grid), 1
        stride = math.prod(grid[:axis])
        return rank // stride % grid[axis], grid[axis], stride

    def lower(self, body: tuple[n.Node, ...]) -> None:
        for node in body:
            self.node = node
            rule = RULES.get(type(node))
            if rule is None:
                raise cannot(f"'{type(node).__name__}'", node)
            try:
                with AROUND["statement"](self, node) as shown:
                    rule(self, shown)
            except LoweringError as error:
                error.place = error.place or node.place
                raise

    def inside(self, place: Place, group: tuple[int, int]) -> StreamScope:
        """Return the same stream for a unit further in."""
        around = self.around if group == self.group else (*self.around, self.group)
        return replace(
            self, place=place, group=group, around=around, names=dict(self.names), values=dict(self.values)
        )


class LoweringState:
    """A Plan in the making: one Program on one machine, and what of it has been written so far."""

    def __init__(self, program: Program, hda: HDA):
        self.program, self.hda, self.launch = program, hda, program.launch
        self.homes = Homes(program, hda)
        self.structure = Levels(program, hda)
        self.facts = Facts(program, hda, self.homes)
        every = self.facts.statements
        self.declared = Declarations(
            {v for m in every for v in _loop_names(m)} | set(self.homes.table),
            {a.name: a.versions for a in every if isinstance(a, n.Alloc) and a.versions > 1},
        )
        self.notes = Notes({i: m.choice for i, m in enumerate(every) if m.choice})
        self.scattered: dict[str, int] = {}
        """Tensors whose parts were reduced along a dimension, one part per unit."""
        self.variables: dict[str, Home] = {}
        """Tiles of variables."""
        self.filled: dict[str, tuple[tuple[Turn, ...], tuple[tuple[Expr, Expr], ...]]] = {}
        """By tile that a copy of a tensor has filled: in which loops, and for each axis the elements that
        were inside the tensor, and all."""

    @cached_property
    def counted_waits(self) -> dict[n.Wait, Expr]:
        """Of waits for the parity of a phase, the counts that they wait for."""
        return counted_waits(self.program)

    @property
    def first(self) -> LoweredLevel:
        return self.structure.first

    @property
    def levels(self) -> dict[str, LoweredLevel]:
        return self.structure.further

    @property
    def streams(self) -> int:
        """How many streams there are."""
        return sum(len(level.streams) for level in self.levels.values())

    def scratch(
        self, scope: StreamScope, shape: tuple[int, ...], dtype: str, word: str = "part", level: str = "l0"
    ) -> Home:
        """Return a tile of the stream's own."""
        memory = self.hda.memory(level if scope.level is not self.first else "l2").name
        name = self.declared.name(f"{word}_{self.declared.fresh()}")
        home = Home(name, shape, dtype, memory, scope.level.depth)
        self.homes.found[home.name] = home
        self.declared.home(home, scope.level)
        return home

    def run(self) -> None:
        for param in self.program.params:
            home = self.homes.found[param.name]
            level = self.levels[self.launch.at(home.depth)] if home.depth > self.first.depth else self.first
            tile = pm.Tile(home.name, home.extents, home.dtype, home.memory, role="inout", level=level.name)
            if home.shared:
                tile = replace(tile, owner=ZERO, owners=1)
            self.declared.tiles[home.name] = tile
        stream = Stream(self.first, Part(0, self.first.total, 1, self.first.total))
        self.first.streams.append(stream)
        scope = StreamScope(
            self, stream, Place(self.launch, ()), ranges={"unit": (0, self.first.instances - 1)}
        )
        scope.lower(self.program.body)


def _loop_names(node: n.Node) -> tuple[str, ...]:
    return (node.var,) if isinstance(node, n.Loop) else node.vars if isinstance(node, n.Parallel) else ()
