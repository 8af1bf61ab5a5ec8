"""Decide whether waits for counts may become waits for parities, by running signals and waits alone.

A flag counts up. A phase ends when each unit that signals it has done so once more; a wait for the parity of
a phase sees only whether its number is even or odd. That is the same as a wait for the count if

* every phase has one signal of each unit that signals, whose parts cannot mix with those of the next phase;
* a unit that waits for the end of a phase is at most that one phase behind.

Both are decided by running the signals and waits of all units of a block: once with each waiting unit held
up there, and once with each unit's arrivals held up. That covers every order, since no unit is delayed by
others being faster. What depends on data, or is too long, is not decided.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from megatile.core.expr import Binary, Const, Expr, binary, rebuild, symbols
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Pick, Rank, loads
from megatile.ir.launch import Launch, LaunchScale
from megatile.ir.program import Program

MAX_EVENTS = 20_000
"""Signals and waits of a block that are looked at, of all units together."""
MAX_BLOCKS = 1024
"""Blocks that are looked at, where signals depend on the block."""

Key = tuple[str, int, int]
"""A flag, the unit that has it, and which of its elements."""


@dataclass(frozen=True)
class Event:
    """A unit signals (``value`` is the amount), or waits (for that sum; with ``phase``, for that parity)."""

    signals: bool
    key: Key
    value: int
    phase: int | None = None
    wait: n.Wait | None = None
    uses: int = 0
    """Of a wait for a parity: the number whose parity it is."""


# --- what the units of a block do ----------------------------------------------------------------------


class _Unknown(Exception):
    """What a unit does depends on something that is not known before it runs."""


@dataclass
class _Unit:
    """Yields the signals and waits of a unit."""

    launch: Launch
    path: Mapping[str, int]
    depths: Mapping[str, int]
    """Of each flag, the depth of the units that have one."""
    shapes: Mapping[str, tuple[int, ...]]
    group: tuple[int, int]
    known: dict[int, tuple[Expr, frozenset[str], Any]] = field(default_factory=dict)
    """Of each expression, by its identity: the symbols it depends on, and a function of them."""
    left: int = MAX_EVENTS

    def number(self, expr: Expr, values: Mapping[str, int]) -> int:
        if id(expr) not in self.known:
            resolved = rebuild(expr, self.own)
            self.known[id(expr)] = expr, symbols(resolved), resolved.compile()
        _, needed, function = self.known[id(expr)]
        if not needed <= values.keys():
            raise _Unknown
        return int(function(values))

    def own(self, part: Expr) -> Expr:
        """Return a coordinate of this unit as a number."""
        if isinstance(part, Coord) and part.scale in self.path:
            extents = self.launch.extents(part.scale)
            return Const(self.path[part.scale] // math.prod(extents[: part.axis]) % extents[part.axis])
        if isinstance(part, Rank):
            scales = self.launch.scales[self.launch.depth(part.within) : self.launch.depth(part.scale)]
            if all(s.name in self.path for s in scales):
                return Const(self.flat(scales))
        if isinstance(part, (Coord, Rank, Load, Pick)):
            raise _Unknown
        return part

    def flat(self, scales: tuple[LaunchScale, ...]) -> int:
        result = 0
        for scale in scales:
            result = result * scale.count + self.path[scale.name]
        return result

    def events(self, body: tuple[n.Node, ...], values: dict[str, int]) -> Iterator[Event]:
        for node in body:
            if isinstance(node, n.Let):
                self.let(node, values)
            elif isinstance(node, (n.Signal, n.Wait)):
                if node.flag in self.depths:
                    self.left -= 1
                    if self.left < 0:
                        raise _Unknown
                    yield self.event(node, values)
            elif any(isinstance(one, (n.Signal, n.Wait)) for one in n.walk((node,))):
                yield from self.inside(node, values)

    def let(self, node: n.Let, values: dict[str, int]) -> None:
        try:
            values[node.name] = self.number(node.value, values)
        except (_Unknown, TypeError, ValueError):
            values.pop(node.name, None)

    def inside(self, node: n.Node, values: dict[str, int]) -> Iterator[Event]:
        if isinstance(node, n.If):
            yield from self.events(node.body if self.number(node.condition, values) else node.orelse, values)
        elif isinstance(node, n.Loop) and node.kind == "serial":
            for value in range(*(self.number(e, values) for e in (node.start, node.stop, node.step))):
                values[node.var] = value
                yield from self.events(node.body, values)
        else:
            raise _Unknown

    def event(self, node: n.Signal | n.Wait, values: dict[str, int]) -> Event:
        low, high = self.group
        index = [self.number(e, values) for e in node.index]
        shape = self.shapes[node.flag]
        if any(not 0 <= i < size for i, size in zip(index, shape, strict=True)):
            raise _Unknown
        place = 0
        for i, size in zip(index, shape, strict=True):
            place = place * size + i
        owner = self.flat(self.launch.scales[low:high])
        if isinstance(node, n.Signal) and node.dst is not None:
            if node.axis is not None or node.scale is not None:
                raise _Unknown
            owner = self.number(node.dst, values)
            if not 0 <= owner < math.prod(s.count for s in self.launch.scales[low:high]):
                raise _Unknown
        key = node.flag, owner if self.depths[node.flag] == high else 0, place
        if isinstance(node, n.Signal):
            return Event(True, key, self.number(node.amount, values))
        value = self.number(node.value, values)
        uses = value if node.phase is None else self.number(_counted(node.value), values)
        return Event(False, key, value, node.phase, node, uses)


def _counted(parity: Expr) -> Expr:
    """Return ``x`` of ``x % 2``; another expression as it is."""
    even = isinstance(parity, Binary) and parity.operator == "%" and parity.right == Const(2)
    return parity.left if isinstance(parity, Binary) and even else parity


# --- whether parities are as good as counts -----------------------------------------------------------


@dataclass
class Protocol:
    """The signals and waits of all units, each of a phase: ``(signals, key, phase)``, phases from 1 on."""

    units: list[list[tuple[bool, Key, int]]]
    signallers: dict[Key, set[int]]

    def is_safe(self) -> bool:
        """Return whether phases never mix and no wait is more than a phase behind, in any order."""
        for unit, events in enumerate(self.units):
            waited: dict[Key, int] = {}
            for signals, key, phase in events:
                if not signals:
                    if not waited.get(key, 0) <= phase <= waited.get(key, 0) + 1:
                        return False
                    waited[key] = phase
            if not self._held_up(unit) or not all(
                self._withheld(unit, key) for key in {key for signals, key, _ in events if signals}
            ):
                return False
        return True

    def _held_up(self, unit: int) -> bool:
        """A warp of the unit stops at each of its waits in turn."""
        run, mine = _Run(self), dict.fromkeys({k for s, k, _ in self.units[unit] if s}, 0)
        run.limits = mine
        for signals, key, phase in self.units[unit]:
            if signals:
                mine[key] += 1
            elif not run.on() or run.ended(key) > phase:
                return False
            elif run.ended(key) < phase:
                return False  # nobody will ever end it: the checks report a deadlock
        return run.on()

    def _withheld(self, unit: int, key: Key) -> bool:
        """The arrivals of a warp of the unit at one mbarrier come as late as may be."""
        run = _Run(self)
        for done in range(sum(event[:2] == (True, key) for event in self.units[unit]) + 1):
            run.limits = {key: done}
            if not run.on():
                return False
        return run.is_over()


class _Run:
    """Run units as far as they can; ``limits``: phases that a missing arrival holds open."""

    def __init__(self, protocol: Protocol):
        self.protocol = protocol
        self.at = [0] * len(protocol.units)
        self.arrived: dict[tuple[int, Key], int] = {}
        self.limits: dict[Key, int] = {}

    def ended(self, key: Key) -> int:
        counts = [self.arrived.get((unit, key), 0) for unit in self.protocol.signallers.get(key, ())]
        return min([*counts, self.limits.get(key, counts[0])]) if counts else 0

    def is_over(self) -> bool:
        return all(at == len(events) for at, events in zip(self.at, self.protocol.units, strict=True))

    def on(self) -> bool:
        """Go on; return whether no arrival is for a phase that has not begun."""
        moved = True
        while moved:
            moved = False
            for unit, events in enumerate(self.protocol.units):
                while self.at[unit] < len(events):
                    signals, key, phase = events[self.at[unit]]
                    if not signals and self.ended(key) < phase:
                        break
                    if signals:
                        if self.ended(key) != self.arrived.get((unit, key), 0):
                            return False
                        self.arrived[unit, key] = phase
                    self.at[unit] += 1
                    moved = True
        return True


# --- the flags of a region -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rounds:
    """Flags of the units of a region whose phases cannot mix."""

    inner: n.ScaleRegion
    totals: dict[str, tuple[int, int]]
    """Of each flag, how many units signal each of its elements, and what the signals of a phase add up to."""
    blocks: list[list[list[Event]]]
    """The events of the units of a block, for every block with others."""


def rounds(
    program: Program, region: n.ScaleRegion, depths: Mapping[str, int], instance: int
) -> Rounds | None:
    """Return the flags of a dispatched region for whose waits parities are as good as counts; None if that is
    unknown. ``depths``: of flags that no view looks at, the depth of the units that have one; ``instance`` is
    that of a block."""
    launch = program.launch
    inner = _units(launch, region, instance)
    if inner is None or any(isinstance(x, (n.Break, n.Continue, n.Return)) for x in n.walk(region.body)):
        return None
    depth = launch.depth(inner.scale)
    shapes = _flags(region, inner, {f for f, at in depths.items() if at in (instance, depth)})
    found = _traces(launch, inner, {f: depths[f] for f in shapes}, shapes, instance) if shapes else []
    flags = set(shapes)
    for events in found:
        flags &= set(_totals(events, shapes))
    totals = [{f: _totals(events, shapes)[f] for f in flags} for events in found]
    if not found or not flags or any(one != totals[0] for one in totals[1:]):
        return None
    blocks = [[[e for e in unit if e.key[0] in flags] for unit in events] for events in found]
    for events in blocks:
        protocol = _protocol(events, totals[0])
        if protocol is None or not protocol.is_safe():
            return None
    return Rounds(inner, totals[0], blocks)


def counted_waits(program: Program) -> dict[n.Wait, Expr]:
    """Return, for waits for parities, the counts that they wait for, where that is known and the same."""
    launch = program.launch
    depths = {a.name: launch.depth(a.scale) for a in n.each(n.Alloc, program.body) if a.flag}
    found: dict[n.Wait, Expr] = {}
    for region in dispatched(program.body, launch):
        if not any(one.phase is not None for one in n.each(n.Wait, region.body)):
            continue
        instance = min(launch.depth(region.scale), launch.depth(launch.dispatch))
        known = rounds(program, region, depths, instance)
        for wait, ahead in _ahead(known).items() if known is not None else ():
            if wait.phase is not None and len(ahead) == 1:
                found[wait] = binary("*", _counted(wait.value) + min(ahead), wait.phase)
    return found


def _ahead(known: Rounds) -> dict[n.Wait, set[int]]:
    """Return of each wait by how much its phases are more than the number whose parity it waits for."""
    found: dict[n.Wait, set[int]] = {}
    for units in known.blocks:
        protocol = _protocol(units, known.totals)
        assert protocol is not None
        for events, phases in zip(units, protocol.units, strict=True):
            for event, (_, _, phase) in zip(events, phases, strict=True):
                if event.wait is not None:
                    found.setdefault(event.wait, set()).add(phase - event.uses)
    return found


def dispatched(body: tuple[n.Node, ...], launch: Launch, depth: int = 0) -> Iterator[n.ScaleRegion]:
    """Yield the regions that start instances."""
    for node in body:
        high = launch.depth(node.scale) if isinstance(node, n.ScaleRegion) else depth
        if isinstance(node, n.ScaleRegion) and launch.is_dispatched(depth, high):
            yield node
            continue
        for _, inside in n.bodies(node):
            yield from dispatched(inside, launch, high)


def _units(launch: Launch, region: n.ScaleRegion, instance: int) -> n.ScaleRegion | None:
    """Return the one region inside a block whose units signal and wait."""
    if launch.depth(region.scale) > instance:
        return region
    found = [
        node
        for node in region.body
        if isinstance(node, n.ScaleRegion)
        and any(isinstance(x, (n.Signal, n.Wait)) for x in n.walk(node.body))
    ]
    return found[0] if len(found) == 1 else None


def _flags(region: n.ScaleRegion, inner: n.ScaleRegion, flags: set[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of flags that nothing but signals and waits of the units uses."""
    inside = {id(x) for x in n.walk(inner.body) if isinstance(x, (n.Signal, n.Wait))}
    found = {a.name: a.shape for a in n.each(n.Alloc, region.body) if a.flag and a.name in flags}
    for node in n.walk(region.body):
        used = {load.source for e in n.expressions(node) for load in loads(e)}
        if id(node) not in inside and not isinstance(node, n.Alloc):
            used |= {r.source for _, r in n.regions(node)} | {getattr(node, "flag", "")}
        for name in used & set(found):
            del found[name]
    return found


def _traces(
    launch: Launch,
    inner: n.ScaleRegion,
    depths: dict[str, int],
    shapes: dict[str, tuple[int, ...]],
    instance: int,
) -> list[list[list[Event]]]:
    """Return the events of the units of a block, for every block with others; nothing if they are unknown."""
    outer, units = launch.scales[:instance], launch.scales[instance : launch.depth(inner.scale)]

    def of_block(path: dict[str, int]) -> list[list[Event]]:
        paths = itertools.product(*(range(s.count) for s in units))
        all_ = [path | dict(zip((s.name for s in units), one, strict=True)) for one in paths]
        group = instance, launch.depth(inner.scale)
        return [list(_Unit(launch, one, depths, shapes, group).events(inner.body, {})) for one in all_]

    with suppress(_Unknown):
        return [of_block({s.name: 0 for s in outer if s.count == 1})]
    found: list[list[list[Event]]] = []
    if math.prod(s.count for s in outer) > MAX_BLOCKS:
        return []
    for one in itertools.product(*(range(s.count) for s in outer)):
        try:
            events = of_block(dict(zip((s.name for s in outer), one, strict=True)))
        except _Unknown:
            return []
        if events not in found:
            found.append(events)
        if sum(len(unit) for block in found for unit in block) > MAX_EVENTS:
            return []
    return found


def _totals(units: list[list[Event]], flags: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return of each flag how many units signal each of its elements, and what their signals add up to, where
    all are alike."""
    found = {}
    for flag in flags:
        signallers: dict[Key, set[int]] = {}
        amounts = set()
        for number, events in enumerate(units):
            for event in events:
                if event.signals and event.key[0] == flag:
                    signallers.setdefault(event.key, set()).add(number)
                    amounts.add(event.value)
        counts = {len(one) for one in signallers.values()}
        if len(counts) == len(amounts) == 1 and min(amounts) > 0:
            found[flag] = min(counts), min(counts) * min(amounts)
    return found


def _protocol(units: list[list[Event]], totals: dict[str, tuple[int, int]]) -> Protocol | None:
    """Return the events with the phases that they end or wait for; None if waits are for parts of phases."""
    signallers: dict[Key, set[int]] = {}
    made = []
    for number, events in enumerate(units):
        given: Counter[Key] = Counter()
        waited: dict[Key, int] = {}
        mine: list[tuple[bool, Key, int]] = []
        for event in events:
            total = totals[event.key[0]][1]
            if event.signals:
                signallers.setdefault(event.key, set()).add(number)
                given[event.key] += 1
                mine.append((True, event.key, given[event.key]))
                continue
            if event.phase is None:
                phase, rest = divmod(event.value, total)
            else:
                last = waited.get(event.key, 0)
                phase, rest = last + (last + event.value + 1) % 2, event.phase - total
            if rest:
                return None
            waited[event.key] = phase = max(phase, 0)
            mine.append((False, event.key, phase))
        made.append(mine)
    return Protocol(made, signallers)
