"""A slow, plain reader of any Plan in SimPy: the judge of the simulator.

It is written from the text of ``plan/model.py`` and knows nothing of ``megatile.sim``. Every unit is a SimPy
process that walks its stream statement by statement, every issued command another one, every shared resource
a server; costs come from the machine (``Resources``). With data it also computes, so that plans whose course
depends on values can be read.

    run = read(plan, hda)
    run.time_ps, run.records[unit], run.choices, run.stuck, run.outputs
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import simpy
from tests.sim.simpy_caches import blocks_of
from tests.sim.simpy_machine import DECIDE, DISPATCH, PIECES, Bell, Process, Servers, Transfer

from megatile.core.dtypes import dtype, is_float, itemsize, numpy_dtype
from megatile.core.errors import MegatileError
from megatile.core.expr import Expr
from megatile.core.operations import REDUCTIONS, apply, cast
from megatile.hda import HDA
from megatile.hda.model import Unit as Hardware
from megatile.plan import model as pm
from megatile.plan.statements import regions_of
from megatile.timing.faults import Faults, current_faults
from megatile.timing.resources import Resources


@dataclass
class Record:
    """One issued command: when it began and when it ended."""

    statement: Any
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True)
class Stuck:
    """What a unit waits for that never comes: ``credit``, ``data``, ``signal`` or ``barrier``."""

    unit: int
    lacks: str
    on: str
    peers: tuple[int, ...]


@dataclass
class Run:
    """What was found out."""

    time_ps: int
    records: list[list[Record]]
    choices: dict[int, list[int]]
    stuck: list[Stuck]
    outputs: dict[str, Any] | None = None
    units: Any = ()
    caches: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Blocks hit and missed, by cache."""

    def times(self, unit: int) -> list[tuple[str, int | None, int | None]]:
        return [(type(r.statement).__name__, r.start, r.end) for r in self.records[unit]]


@dataclass(eq=False)
class Version:
    """What a name of a declared tile means: one of its versions."""

    tile: pm.Tile
    number: int


@dataclass(eq=False)
class Message:
    """A message in its slot; names hold it, commands use it."""

    queue: Queue
    number: int
    data: Any
    holds: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = ""


class Line:
    """One bounded queue: messages in order, credits by number. An installed one outlives launches."""

    def __init__(self, env: simpy.Environment) -> None:
        self.bell = Bell(env)
        self.sent = self.taken = 0
        self.arrived: list[tuple[int, Message]] = []
        self.credits: set[int] = set()


class Queue:
    """A queue as one launch sees it: its number among those of the plan, its ends as units of the plan."""

    def __init__(self, line: Line, channel: pm.Channel, number: int, unit: int, member: int):
        self.line, self.channel, self.number, self.receiver, self.member = line, channel, number, unit, member
        self.sender = int(channel.source.evaluate({"unit": unit, "member": member}))

    @property
    def label(self) -> str:
        return self.channel.label(self.member)


@dataclass
class Meeting:
    """A collective of one group: who has come, with what."""

    done: simpy.Event
    came: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Block:
    """A region as it is at issue: which storage, which part of it, who else sees it, where it lies."""

    storage: Any
    bounds: tuple[tuple[int, int], ...] | None
    """(low, high) per dimension, None for all of it."""
    seen: bool
    unit: int
    memory: str
    array: Any = None
    holder: Any = None
    """Whose copy it is; None: the unit's own."""


class Reader:
    """One launch of a plan on a machine, on which others may run too (they share ``servers``).

    A launch is submitted at ``at_ps``. A unit begins when the control message has reached it and the units of
    earlier launches on the same hardware have ended."""

    def __init__(
        self,
        plan: pm.Plan,
        hda: HDA,
        inputs: Mapping[str, Any] | None = None,
        assume: Mapping[str, Any] | None = None,
        faults: Faults | None = None,
        servers: Servers | None = None,
        launch: int = 0,
        at_ps: int = 0,
        installed: bool = False,
    ) -> None:
        self.plan, self.assume, self.launch, self.at_ps, self.hda = plan, assume or {}, launch, at_ps, hda
        self.levels = Levels(self, hda, faults or current_faults(), installed)
        self.fabric = self.levels.views[plan.first.name].fabric
        self.servers = servers or Servers()
        self.env = self.servers.env
        self.last = 0
        self.failed: list[MegatileError] = []
        self.tiles = {t.name: t for t in plan.tiles}
        self.queues: dict[tuple[str, int, int], Queue] = {}
        for channel in plan.channels:
            for to, member in product(range(plan.instances(channel.level)), range(channel.members)):
                number = len(self.queues)
                line = self._line(channel, to, member)
                self.queues[channel.name, to, member] = Queue(line, channel, number, to, member)
        self.flags: dict[Any, tuple[list[int], Bell]] = defaultdict(lambda: ([0], Bell(self.env)))
        self.keys = {
            g.name: [int(g.key.evaluate({"unit": u})) for u in range(plan.instances(g.level))]
            for g in plan.groups
        }
        self.meetings: dict[Any, Meeting] = {}
        self.over = _lying_over(plan)
        self.seen = {t.name for t in plan.tiles if t.shared} | set(_reached(plan, self.tiles))
        self.data = None if inputs is None else _allocate(plan, inputs)
        self.units = [Unit(self, u, s) for s in plan.streams for run in s.units for u in range(*run)]
        self.units.sort(key=lambda u: u.index)
        self.levels.begin()

    def _line(self, channel: pm.Channel, to: int, member: int) -> Line:
        """A queue of this launch, or the one of the machine at the receiver's hardware unit."""
        if not channel.installed:
            return Line(self.env)
        assert channel.level is None, "installed channels are of the first level here"
        here = self.levels.views[self.plan.first.name].hardware(to)
        key = (here, channel.name, channel.names[member] if channel.names else member)
        return self.servers.lines.setdefault(key, Line(self.env))

    def flag(self, name: str, to: int, member: int) -> Any:
        """Where a flag counts: with the launch, or with the machine."""
        if next(f for f in self.plan.flags if f.name == name).installed:
            return self.servers.flags, (self.levels.views[self.plan.first.name].hardware(to), name, member)
        return self.flags, (name, to, member)

    def hold(self, here: Any, over: simpy.Event) -> list[simpy.Event]:
        """Take a hardware unit until an event; what has to end there before."""
        return self.servers.take(here, self.launch, over, self.hda)

    def turn(self, resource: Any, key: tuple[int, ...], busy_ps: int) -> Process:
        yield from self.servers.turn(self.fabric, resource, (self.launch, *key), busy_ps)

    def order(self, key: tuple[int, ...]) -> Process:
        yield from self.servers.order((self.launch, *key))

    def take(self, resource: Any, busy_ps: int) -> Process:
        yield from self.servers.serve(resource, self.fabric.widths[resource], busy_ps)

    def found(self) -> Run:
        if self.failed:
            raise self.failed[0]
        stuck = [s for unit in self.units if not unit.done for s in unit.stuck()]
        choices = {u.index: u.choices for u in self.units if u.choices}
        outputs = None
        if self.data is not None:
            outputs = {t.name: self._output(t) for t in self.plan.tiles if t.role in ("output", "inout")}
        caches = self.servers.caches
        names = {*caches.hits, *caches.misses}
        counts = {name: (caches.hits.get(name, 0), caches.misses.get(name, 0)) for name in names}
        records = [u.records for u in self.units]
        return Run(self.last, records, choices, stuck, outputs, self.units, counts)

    def _output(self, tile: pm.Tile) -> Any:
        assert self.data is not None
        owned, level = self.data[tile.name], self.plan.level(tile.level).name
        own = [u.names[tile.name] for u in self.units if u.level.name == level and not tile.shared]
        versions = [v.number for v in own if isinstance(v, Version)] or [0] * len(owned)
        return np.stack([owned[i, versions[i] % tile.versions] for i in range(len(owned))])

    def note(self, time: int) -> None:
        self.last = max(self.last, time)


class Levels:
    """Which instances of a plan's levels are there, and where: those of a level with slots take turns."""

    def __init__(self, reader: Reader, hda: HDA, faults: Faults, installed: bool) -> None:
        self.reader, self.hda, self.plan = reader, hda, reader.plan
        resources = Resources(hda, self.plan, faults, installed=installed)
        self.views = {level.name: resources.of(level.name) for level in self.plan.all_levels}
        self.first: dict[str, int] = {}
        """The machine as each level sees it, and the number of its first instance among all."""
        self.total = 0
        for level in self.plan.all_levels:
            self.first[level.name] = self.total
            self.total += self.plan.instances(level.name)
        self.place: dict[tuple[str, int], int] = {}
        """Where every instance is that has begun."""
        self.waiting: dict[Any, list[int]] = {}
        self.free: dict[Any, list[tuple[int, int]]] = {}
        self.parts: dict[Any, int] = {}
        self.slot: dict[Any, tuple[Any, tuple[int, int]]] = {}
        self.over: dict[Any, simpy.Event] = {}
        self.seats: dict[Any, dict[tuple[int, int], simpy.Event]] = {}
        """When instances and slots without a parent have ended: their hardware unit is for other launches."""
        self.entered: set[Any] = set()

    def begin(self) -> None:
        """Instances without a parent begin when the launch has come and their hardware unit is free."""
        env = self.reader.env
        self.reader.servers.dispatchers.append(self.dispatch_all)
        begin = self.reader.at_ps + min(view.start_ps(0) for view in self.views.values())

        def later(ends: list[simpy.Event], then: Callable[[], None]) -> Process:
            yield env.timeout(begin)
            yield env.all_of(ends)
            then()

        for level in (level for level in self.plan.all_levels if level.parent is None):
            below = any(child.parent == level.name for child in self.plan.levels)
            if not below and not any(u.level == level for u in self.reader.units):
                continue
            if not self.plan.levels:
                self.enter(level, list(range(level.count)), 0)
            elif level.slots is None:
                for number in range(level.count):
                    place = int(level.place.evaluate({"unit": number}))
                    self.over[level.name, number] = env.event()
                    ends = self.hold(level, place, self.over[level.name, number])
                    env.process(later(ends, lambda x=(level, number, place): self.start(*x)))
            else:
                pool = (level.name, 0)
                self.free[pool], self.waiting[pool], self.seats[pool] = [], [], {}
                for seat in ((k, u) for k in range(level.slots) for u in range(self.below(level))):
                    self.seats[pool][seat] = env.event()
                    ends = self.hold(level, seat[1], self.seats[pool][seat])
                    env.process(later(ends, lambda x=(level, pool, seat): self.has_slot(*x)))
                every = list(range(level.count))
                env.process(later([], lambda x=(level, every, 0): self.enter(*x)))

    def hold(self, level: pm.Level, place: int, over: simpy.Event) -> list[simpy.Event]:
        return self.reader.hold(Hardware(self.views[level.name].level.name, place), over)

    def has_slot(self, level: pm.Level, pool: Any, seat: tuple[int, int]) -> None:
        self.free[pool].append(seat)
        self.reader.servers.later(DISPATCH).callbacks.append(lambda _: self.dispatch(level, pool))

    def leave(self, pool: Any) -> None:
        """Slots without a parent that no instance can take any more are for the next launch."""
        held = {slot for of, slot in self.slot.values() if of == pool}
        for seat, over in self.seats.get(pool, {}).items():
            if not self.waiting[pool] and pool in self.entered and seat not in held and not over.triggered:
                over.succeed()

    def enter(self, level: pm.Level, numbers: list[int], above: int) -> None:
        """These instances may begin below hardware unit ``above``; without a free slot they wait."""
        below = self.below(level)
        if level.slots is None:
            for number in numbers:
                place = int(level.place.evaluate({"unit": number % level.count}))
                self.start(level, number, above * below + place if level.parent else place)
            return
        pool = (level.name, above)
        if pool not in self.free:
            self.free[pool] = [(k, above * below + u) for k in range(level.slots) for u in range(below)]
            self.waiting[pool] = []
        self.waiting[pool] += numbers
        self.entered.add(pool)
        self.reader.servers.later(DISPATCH).callbacks.append(lambda _: self.dispatch(level, pool))

    def below(self, level: pm.Level) -> int:
        """Hardware units of the level's scale in one of the parent's, or in the machine."""
        there = self.hda.count(level.scale)
        return there if level.parent is None else there // self.hda.count(self.plan.level(level.parent).scale)

    def dispatch_all(self) -> None:
        """Look again who may begin, later in this picosecond."""
        for pool in self.waiting:
            again = partial(self.dispatch, self.plan.level(pool[0]), pool)
            self.reader.servers.later(DISPATCH).callbacks.append(lambda _, again=again: again())

    def is_open(self, level: pm.Level, place: int) -> bool:
        """Whether no kernel of a library has a hardware unit: it has the highest of its device, not all."""
        hda = self.hda
        if (
            not hda.transports
            or hda.level(hda.scale(level.scale).level).position >= hda.level("device").position
        ):
            return True
        devices = hda.count("device")
        per, units = hda.count(level.scale) // devices, hda.count("block") // devices
        taken = -(-self.reader.servers.taken[place // per] * per // units)
        return place % per < max(1, per - taken)

    def dispatch(self, level: pm.Level, pool: Any) -> None:
        """By number, to the first free slot on a hardware unit that no kernel of a library has."""
        while self.waiting[pool]:
            free = sorted(seat for seat in self.free[pool] if self.is_open(level, seat[1]))
            if not free:
                break
            number, slot = self.waiting[pool].pop(0), free[0]
            self.free[pool].remove(slot)
            self.slot[level.name, number] = pool, slot
            self.reader.env.process(self.begins(level, number, slot[1]))
        self.leave(pool)

    def begins(self, level: pm.Level, number: int, place: int) -> Process:
        """An instance in its slot."""
        to_begin = self.hda.scale(level.scale).begin_ps
        if to_begin:
            yield self.reader.env.timeout(to_begin)
        self.start(level, number, place)

    def start(self, level: pm.Level, number: int, place: int) -> None:
        self.place[level.name, number] = place
        own = [u for u in self.reader.units if u.level == level and u.number == number]
        below = [child for child in self.plan.all_levels if child.parent == level.name]
        self.parts[level.name, number] = len(own) + sum(child.count for child in below)
        if not self.parts[level.name, number]:
            self.parts[level.name, number] = 1
            self.reader.env.process(self.nothing(level, number))
        for instance in own:
            self.reader.env.process(instance.run())
            instance.over.callbacks.append(lambda _: self.ended(level, number))
        for child in below:
            first = number * child.count
            self.enter(child, list(range(first, first + child.count)), place)

    def nothing(self, level: pm.Level, number: int) -> Process:
        """An instance that has neither a stream nor anything below it is over when it could begin."""
        start = self.reader.at_ps + self.views[level.name].start_ps(0)
        yield self.reader.env.timeout(max(0, start - self.reader.env.now))
        self.ended(level, number)

    def ended(self, level: pm.Level, number: int) -> None:
        """The stream of an instance, or all that is in one below it, has ended."""
        self.parts[level.name, number] -= 1
        if self.parts[level.name, number]:
            return
        if (level.name, number) in self.slot:
            pool, slot = self.slot.pop((level.name, number))
            self.has_slot(level, pool, slot)
            self.leave(pool)
        if (level.name, number) in self.over:
            self.over[level.name, number].succeed()
        if level.parent is not None:
            self.ended(self.plan.level(level.parent), number // level.count)


class Unit:
    """One unit: what its names mean, what its engines do, how far it is."""

    def __init__(self, reader: Reader, number: int, stream: pm.Stream) -> None:
        self.reader, self.env, self.number, self.stream = reader, reader.env, number, stream
        self.plan, self.level = reader.plan, reader.plan.level(stream.level)
        self.machine = reader.levels.views[self.level.name]
        self.index = reader.levels.first[self.level.name] + number
        self.ints: dict[str, int] = {"unit": number}
        self.names: dict[str, Version | Message] = {n: Version(t, 0) for n, t in reader.tiles.items()}
        self.bound: list[str] = []
        self.records: list[Record] = []
        self.choices: list[int] = []
        self.waits: list[Stuck] = []
        self.done = False
        self.engines: dict[str, simpy.Event] = {}
        self.ends: list[simpy.Event] = []
        self.before, self.over = [], reader.env.event()
        if not self.plan.levels:
            self.before = reader.hold(self.machine.hardware(number), self.over)
        self.unfinished: dict[Any, list[tuple[Any, bool, simpy.Event]]] = defaultdict(list)
        self.seen_by_others: list[simpy.Event] = []
        self.copies = 0  # and commands on shared engines, which count with them
        self.meeting: tuple[Meeting, tuple[int, ...]] | None = None
        self.met: dict[str, int] = defaultdict(int)
        self.kernel = (0, 0)
        """Of the kernel of a library that it has started: the device, and the compute units it takes."""

    def run(self) -> Process:
        try:
            start = self.reader.at_ps + self.machine.start_ps(0)
            yield self.env.timeout(max(0, start - self.env.now))
            yield self.env.all_of(self.before)
            yield from self.block(self.stream.body)
            self.set_kernel(0)
        except MegatileError as error:
            self.reader.failed.append(error)
            return
        for name in list(self.names):
            if isinstance(self.names[name], Message):
                self.unbind(name)
        self.done = True
        self.reader.note(self.env.now)
        yield self.env.all_of(self.ends)
        self.over.succeed()

    def block(self, body: tuple[Any, ...]) -> Process:
        last = None
        for at, statement in enumerate(body):
            yield from _RULES[type(statement)](self, statement)
            if isinstance(statement, pm.Start):
                last = at + _lasts(self.plan, statement.transport, body[at + 1 :])
            if at == last:
                self.set_kernel(0)

    def set_kernel(self, units: int) -> None:
        """Leave the compute units of the kernel that it has started, if it has, and take so many."""
        device, had = self.kernel
        self.reader.servers.taken[device] -= had
        if had:
            for dispatch in self.reader.servers.dispatchers:
                dispatch()
        if units:
            device = self.spot * self.reader.hda.count("device") // self.machine.level.total
        self.kernel = device, units
        self.reader.servers.taken[device] += units

    def scoped(self, body: tuple[Any, ...], keep: Callable[[], None]) -> Process:
        """A body whose own names end with it; ``keep`` takes what lives on before they do."""
        outer, self.bound = self.bound, []
        yield from self.block(body)
        own, self.bound = self.bound, outer
        keep()
        for name in dict.fromkeys(own):
            if name not in self.bound:
                self.unbind(name)
                self.ints.pop(name, None)

    # instances

    def above(self, level: str | None) -> int:
        """The number of the instance of a level that this one is, or belongs to."""
        per = self.plan.per(self.level.name, level)
        assert per is not None, f"{level} is not above {self.level.name}"
        return self.number // per

    @property
    def spot(self) -> int:
        """This unit as its machine numbers it: in a plan with several levels, its hardware unit."""
        return self.reader.levels.place[self.level.name, self.number] if self.plan.levels else self.number

    def where(self, name: str | None, instance: int) -> int:
        """The hardware unit at which this unit reaches an instance of a level."""
        level, levels = self.plan.level(name), self.reader.levels
        if not self.plan.levels:
            return instance
        per = self.plan.per(self.level.name, level.name)
        if per and self.number // per == instance:
            return levels.place[level.name, instance]
        index = 0 if level.slots else int(level.place.evaluate({"unit": instance % level.count}))
        if level.parent is None:
            return index
        return self.where(level.parent, instance // level.count) * levels.below(level) + index

    def stand(self, name: str | None, instance: int) -> int:
        """The same in units of this unit's own scale."""
        place, mine = self.where(name, instance), self.machine.level.total
        other = self.reader.levels.views[self.plan.level(name).name].level.total
        if other >= mine:
            return place * mine // other
        return self.spot if self.spot * other // mine == place else place * (mine // other)

    def part_of(self, tile: pm.Tile, low: list[int], extent: list[int]) -> int:
        """Where a copy of a region of a spread tile begins or ends, in units of this unit's own scale."""
        grid = [max(1, -(-whole // size)) for whole, size in zip(tile.shape, tile.block, strict=True)]
        covered = [max(1, n // size) for n, size in zip(extent, tile.block, strict=True)]
        turn = (self.number + int(np.prod(covered)) // 2) % int(np.prod(covered))
        steps = np.unravel_index(turn, covered)
        first = [at // size + int(step) for at, size, step in zip(low, tile.block, steps, strict=True)]
        number, blocks = 0, int(np.prod(grid))
        for at, count in zip(first, grid, strict=True):
            number = number * count + at
        level, levels = self.plan.level(tile.over), self.reader.levels
        below = levels.below(level)
        count = level.count if level.slots is None else min(level.count, below)
        place = min(max(number, 0), blocks - 1) * count // blocks
        if level.slots is None:
            place = int(level.place.evaluate({"unit": place}))
        other, mine = levels.views[level.name].level.total, self.machine.level.total
        place += self.spot * (other // below) // mine * below
        if other >= mine:
            return place * mine // other
        return self.spot if self.spot * other // mine == place else place * (mine // other)

    def nearest(self, tile: pm.Tile, owner: int) -> tuple[int, Any]:
        """Where a copy of a tile is, and whose: one's own, or that of the first who owns it."""
        above = self.plan.per(self.level.name, tile.level)
        if not tile.shared:
            mine, first = above is not None and self.above(tile.level) == owner, owner
        else:
            count = self.plan.instances(tile.level)
            owners = [int(tile.owner.evaluate({"unit": u})) for u in range(count)]
            mine = owner not in owners or (above is not None and owners[self.above(tile.level)] == owner)
            first = owner if mine else owners.index(owner)
        return (self.spot, None) if mine else (self.stand(tile.level, first), (tile.level, first))

    # values and names

    def value(self, expression: Any) -> int:
        return int(expression.evaluate(self.ints))

    def bind(self, name: str, meaning: Version | Message) -> None:
        if isinstance(meaning, Message):
            meaning.holds += 1
        self.unbind(name)
        self.names[name] = meaning
        self.bound.append(name)

    def unbind(self, name: str) -> None:
        meaning = self.names.get(name)
        if name in self.reader.tiles or meaning is None:
            return
        del self.names[name]
        if isinstance(meaning, Message):
            meaning.holds -= 1
            if not meaning.holds:
                users = [end for _, _, end in self.unfinished[meaning] if not end.processed]
                self.give_back(meaning, users)

    def give_back(self, message: Message, users: list[simpy.Event]) -> None:
        """The slot is free when everybody who uses it has finished; then the credit travels back."""
        queue = message.queue
        channel = queue.channel
        there = 0 <= queue.sender < self.plan.instances(channel.level)
        sender = self.stand(channel.level, queue.sender) if there else self.spot
        travel = self.machine.credit_ps(self.spot, sender, channel)

        def process() -> Process:
            yield self.env.all_of(users)
            self.reader.note(self.env.now)
            yield self.env.timeout(travel)
            queue.line.credits.add(message.number)
            queue.line.bell.ring()

        self.env.process(process())

    # storage

    def region(self, region: pm.Region) -> Block:
        meaning = self.names[region.tile]
        low, extent = [self.value(e) for e in region.start], [self.value(e) for e in region.shape]
        spans = [(a, a + n) for a, n in zip(low, extent, strict=True)]
        bounds = tuple(spans) if region.start else None
        cut = (*(slice(a, b) for a, b in spans), ...)
        data = self.reader.data
        if isinstance(meaning, Message):
            array = None if data is None else meaning.data[cut]
            return Block(meaning, bounds, False, self.spot, meaning.queue.channel.memory, array)
        tile, buffer = meaning.tile, meaning.number % meaning.tile.versions
        if region.at is not None:
            owner = self.value(region.at)
        else:
            owner = int(tile.owner.evaluate({"unit": self.above(tile.level)}))
        array = None if data is None else data[tile.name][owner, buffer][cut]
        seen = tile.name in self.reader.seen
        stands, whose = self.nearest(tile, owner)
        if tile.over is not None and region.at is None:
            stands = self.part_of(tile, low or [0] * len(tile.shape), extent or list(tile.shape))
            whose = None if stands == self.spot else ("spread", stands)
        return Block((tile.name, buffer, owner), bounds, seen, stands, tile.memory, array, whose)

    def conflicts(self, block: Block, write: bool) -> list[simpy.Event]:
        """The ends of this unit's unfinished commands that an access must wait for."""
        places = [(block.storage, block.bounds)]
        if isinstance(block.storage, tuple):
            name, _, owner = block.storage
            for other in self.reader.over.get(name, ()):
                versions = range(self.reader.tiles[other].versions)
                places += [((other, version, owner), None) for version in versions]
        return [
            end
            for place, part in places
            for others, wrote, end in self.unfinished[place]
            if (write or wrote) and _overlap(part, others) and not end.processed
        ]

    def hazards(self, reads: list[Block], writes: list[Block]) -> list[simpy.Event]:
        found = [end for block in reads for end in self.conflicts(block, False)]
        return found + [end for block in writes for end in self.conflicts(block, True)]

    def mark(self, reads: list[Block], writes: list[Block], end: simpy.Event) -> None:
        for block in (*reads, *writes):
            self.unfinished[block.storage].append((block.bounds, block in writes, end))
            if block.seen:
                self.seen_by_others.append(end)

    def renew(self, statement: Any, region: pm.Region) -> Block:
        """What a command writes: of a new version if it is ``fresh``."""
        if statement.fresh:
            current = self.names[region.tile]
            assert isinstance(current, Version)
            self.names[region.tile] = Version(current.tile, current.number + 1)
        return self.region(region)

    # commands on engines

    def record(self, statement: Any) -> Record:
        self.records.append(Record(statement))
        return self.records[-1]

    def issue(
        self,
        engine: str,
        reads: list[Block],
        writes: list[Block],
        work: Callable[[simpy.Event], Process],
        *more: simpy.Event,
    ) -> None:
        """Queue a command on an engine. ``work`` begins when the command may start; it triggers the event it
        is given when the command ends, and is over when the engine is free again."""
        end = self.env.event()
        self.ends.append(end)
        waits = [*self.hazards(reads, writes), *more]
        self.mark(reads, writes, end)
        if engine in self.engines:
            waits.append(self.engines[engine])

        def process() -> Process:
            yield self.env.all_of(waits)
            yield from work(end)

        self.engines[engine] = self.env.process(process())

    def finish(self, record: Record) -> None:
        record.end = self.env.now
        self.reader.note(self.env.now)

    def shared_engine(self, kind: str, channel: int = 0) -> Any:
        return self.machine.engine_resource(kind, self.spot, channel)

    def blocks(self, caches: Any, block: Block) -> Any:
        """The blocks of a region that caches hold, and the bytes of each."""
        if not caches or not isinstance(block.storage, tuple):
            return None
        tile = self.reader.tiles[block.storage[0]]
        brick = self.machine.bricks(tile.memory)[tile.name]
        size = int(np.prod(brick)) * itemsize(tile.dtype)
        whose: Any = self.reader.launch
        if tile.role != "local":
            same = dataclasses.replace(tile, name=tile.name if tile.offset is None else "", role="")
            where = [int(self.plan.place.evaluate({"unit": u})) for u in range(self.plan.units)]
            whose = (same, self.plan.scale, tuple(where), brick)
            storage = block.storage[1:]
        else:
            storage = block.storage
        return list(blocks_of((whose, *storage), block.bounds, tile.shape, brick)), size

    def transfer(
        self,
        record: Record,
        path: Any,
        nbytes: int,
        flow: int,
        number: int,
        read: Any = None,
        written: Any = None,
        by: str = "",
        channel: int = 0,
    ) -> Process:
        """Start a transfer, after a turn on a channel of the DMA engine where several units share it; gives
        it back."""
        jitter = self.machine.faults.delay_ps(flow, number, path.occupied_ps(nbytes) + path.latency_ps)
        shared = self.shared_engine(f"dma.{by}" if by else "dma", channel)
        if shared is not None:
            busy = path.startup_ps + jitter + path.held_ps(nbytes)
            yield from self.reader.turn(shared, (flow, number * PIECES, -1), busy)
        record.start = self.env.now
        if not nbytes:
            read = written = None
        return Transfer(self.reader, path, nbytes, flow, number, jitter, read, written)

    def copy(
        self,
        record: Record,
        source: Block,
        reads: list[Block],
        write: Block,
        nbytes: int,
        arrived: Any,
        by: str = "",
    ) -> None:
        """A copy by a DMA engine: the engine is free when the source is, the copy ends on arrival."""
        same = source.holder == write.holder
        ends = (source.unit, source.memory, write.unit, write.memory)
        path = self.machine.path(*ends, same=same, caches=True, by=by)
        read, written = self.blocks(path.reads, source), self.blocks(path.writes, write)
        flow, number = len(self.reader.queues) + self.index, self.copies
        self.copies += 1

        def work(end: simpy.Event) -> Process:
            moving = yield from self.transfer(record, path, nbytes, flow, number, read, written, by)
            self.env.process(arrive(moving.landed, end))
            yield moving.left
            self.reader.note(self.env.now)

        def arrive(landed: simpy.Event, end: simpy.Event) -> Process:
            yield landed
            self.finish(record)
            arrived()
            end.succeed()

        self.issue(f"dma.{by or 0}", reads, [write], work)

    def stuck(self) -> list[Stuck]:
        """What a unit waits for that did not come."""
        if self.plan.levels and (self.level.name, self.number) not in self.reader.levels.place:
            return [Stuck(self.index, "slot", "", ())] if self.level.slots is not None else []
        if self.meeting is None:
            return self.waits
        meeting, members = self.meeting
        absent = tuple(m for m in members if m not in meeting.came)
        return [Stuck(self.index, "barrier", self.waits[0].on, absent)]

    def hold_up(self, lacks: str, on: str, *peers: int) -> None:
        """What issue waits for from here on."""
        self.waits = [Stuck(self.index, lacks, on, peers)]


# --- what the statements mean ---------------------------------------------------------------------------


def _compute(u: Unit, s: pm.Compute) -> Process:
    yield from ()
    record, reads = u.record(s), [u.region(r) for r in s.reads]
    attributes = {k: u.value(v) if isinstance(v, Expr) else v for k, v in s.attributes}
    write = u.renew(s, s.write)

    def put() -> None:
        if write.array is not None and write.array.size:
            result = apply(s.operation, [r.array for r in reads], dtype(write.array.dtype), **attributes)
            write.array[...] = result

    if s.engine == "dma":
        u.copy(record, reads[0] if reads else write, reads, write, u.value(s.work.bytes), put, s.by)
        return
    slow = u.number if u.plan.per(u.level.name, None) is None else u.above(None)
    busy = u.machine.compute_ps(s, u.value(s.work.flops), slow, u.value(s.work.bytes))
    shared = u.shared_engine(s.engine)
    key = (len(u.reader.queues) + u.reader.levels.total + u.index, u.copies * PIECES, 0)
    memory, keeps = u.machine.keeps_memory(s, u.value(s.work.flops))
    u.copies += shared is not None or keeps > 0

    def work(end: simpy.Event) -> Process:
        if shared is not None:
            yield from u.reader.turn(shared, key, busy)
        begin = u.env.now
        if keeps:
            yield from u.reader.turn(u.machine.memory_key(memory, u.spot), (*key[:2], 1), keeps)
            yield u.env.timeout(keeps)
        yield u.env.timeout(max(0, begin + busy - u.env.now))
        record.start = u.env.now - busy
        put()
        u.finish(record)
        end.succeed()

    u.issue(s.engine, reads, [write], work)


def _start(u: Unit, s: pm.Start) -> Process:
    record = u.record(s)
    record.start = u.env.now
    u.set_kernel(u.machine.kernel_units(s) if u.plan.levels else 0)
    yield u.env.timeout(u.machine.head_ps(s, u.value(s.work.bytes)))
    u.finish(record)


def _lasts(plan: pm.Plan, transport: str, rest: tuple[Any, ...]) -> int:
    """Return how many of the statements after its start the kernel of a transport lasts: up to the last that
    names it, or the next start."""
    named = {thing.name for thing in (*plan.channels, *plan.groups) if thing.transport == transport}
    last = 0
    for number, statement in enumerate(rest, 1):
        inside = list(pm.statements((statement,)))
        if any(isinstance(x, pm.Start) for x in inside):
            break
        by = [x.by for x in inside if isinstance(x, pm.Compute) and x.engine != "dma"]
        if transport in by or any(getattr(x, a, None) in named for x in inside for a in ("channel", "group")):
            last = number
    return last


def _send(u: Unit, s: pm.Send) -> Process:
    record, to, member = u.record(s), u.value(s.to), u.value(s.member)
    queue = u.reader.queues[s.channel, to, member]
    number, channel = queue.line.sent, queue.channel
    assert queue.sender == u.above(channel.level), f"{u.number} does not feed {queue.label} of unit {to}"
    queue.line.sent += 1
    while number >= channel.slots and number - channel.slots not in queue.line.credits:
        u.hold_up("credit", queue.label, to)
        yield queue.line.bell.event
    read, nbytes = u.region(s.read), u.value(s.work.bytes)
    peer = u.stand(channel.level, to)
    view = u.machine.on_channel(channel)
    path = view.path(u.spot, read.memory, peer, channel.memory, channel.chunk_bytes)
    kernels = [t.name for t in u.plan.transports if t.kind == "kernel"]
    before = [] if channel.transport in kernels else u.seen_by_others

    def work(end: simpy.Event) -> Process:
        moving = yield from u.transfer(record, path, nbytes, queue.number, number, channel=channel)
        data = None if read.array is None else read.array.copy()
        u.env.process(arrive(moving.landed, Message(queue, number, data)))
        yield moving.left
        u.finish(record)
        end.succeed()

    def arrive(landed: simpy.Event, message: Message) -> Process:
        yield landed
        u.reader.note(u.env.now)
        queue.line.arrived.append((u.env.now, message))
        queue.line.bell.ring()

    channel = view.virtual_channel(s.channel, u.spot, peer)
    u.issue(f"dma.{channel}", [read], [], work, *before)


def _receive(u: Unit, s: pm.Receive) -> Process:
    record = u.record(s)
    here = u.above(u.plan.channel(s.channel).level)
    queue = u.reader.queues[s.channel, here, u.value(s.member)]
    if s.into is None:
        record.start = u.env.now
    while len(queue.line.arrived) <= queue.line.taken:
        u.hold_up("data", queue.label, queue.sender)
        yield queue.line.bell.event
    _take(u, s, record, queue)


def _take(u: Unit, s: Any, record: Record, queue: Queue) -> None:
    """The message at the head of a queue is there: bind it, or copy it out."""
    message = queue.line.arrived[queue.line.taken][1]
    message.queue = queue  # as the launch of the receiver sees it
    queue.line.taken += 1
    if message.data is not None:
        flat = np.ascontiguousarray(message.data).reshape(-1).view(np.uint8)
        message.data = flat.view(numpy_dtype(s.dtype)).reshape([u.value(e) for e in s.shape])
    if s.into is None:
        u.finish(record)
        u.bind(s.name, message)
        return
    back = u.stand(queue.channel.level, queue.sender)
    u.machine.credit_ps(u.spot, back, queue.channel)  # a way back that is cut is an error now
    write = u.renew(s, s.into)
    source = Block(message, None, False, u.spot, queue.channel.memory)

    def arrived() -> None:
        if write.array is not None:
            write.array[...] = cast(message.data, dtype(write.array.dtype))
        u.give_back(message, [])

    u.copy(record, source, [], write, u.value(s.work.bytes), arrived)


def _receive_any(u: Unit, s: pm.ReceiveAny) -> Process:
    record = u.record(s)
    record.start = u.env.now
    here = u.above(u.plan.channel(s.channel).level)
    queues = [u.reader.queues[s.channel, here, m] for m in s.members]
    while True:
        yield u.reader.servers.later(DECIDE)  # everything that arrives in this picosecond has arrived
        heads = [
            (q.line.arrived[q.line.taken][0], q.member) for q in queues if len(q.line.arrived) > q.line.taken
        ]
        if heads:
            break
        u.waits = [Stuck(u.index, "data", q.label, (q.sender,)) for q in queues]
        yield u.env.any_of([q.line.bell.event for q in queues])
    chosen = min(heads)[1]
    u.choices.append(chosen)
    u.ints[s.chosen] = chosen
    u.bound.append(s.chosen)
    u.finish(record)
    _take(u, s, record if s.into is None else u.record(s), u.reader.queues[s.channel, here, chosen])


def _read_scalar(u: Unit, s: pm.ReadScalar) -> Process:
    record, read = u.record(s), u.region(s.read)
    record.start = u.env.now
    u.hold_up("value", s.name)
    yield u.env.all_of(u.conflicts(read, False))
    u.finish(record)
    if read.array is not None:
        value = int(read.array.reshape(-1)[0])
    else:
        given = np.asarray(u.reader.assume[s.name])
        value = int(given[u.number] if given.ndim else given)
    assert 0 <= value <= s.bound
    u.ints[s.name] = value
    u.bound.append(s.name)


def _signal(u: Unit, s: pm.Signal) -> Process:
    yield from ()
    record, to, amount = u.record(s), u.value(s.to), u.value(s.amount)
    flags, key = u.reader.flag(s.flag, to, u.value(s.member))
    before = list(u.seen_by_others)
    level = next(f.level for f in u.plan.flags if f.name == s.flag)
    travel = u.machine.signal_ps(u.spot, u.stand(level, to))
    record.start = u.env.now

    def process() -> Process:
        yield u.env.all_of(before)
        u.finish(record)
        yield u.env.timeout(travel)
        u.reader.note(u.env.now)
        flags[key][0][0] += amount
        flags[key][1].ring()

    u.env.process(process())


def _wait(u: Unit, s: pm.Wait) -> Process:
    record = u.record(s)
    record.start = u.env.now
    level = next(f.level for f in u.plan.flags if f.name == s.flag)
    flags, key = u.reader.flag(s.flag, u.above(level), u.value(s.member))
    value = u.value(s.value)
    while flags[key][0][0] < value:
        u.hold_up("signal", s.flag)
        yield flags[key][1].event
    u.finish(record)


def _collective(u: Unit, s: pm.Collective) -> Process:
    record = u.record(s)
    record.start = u.env.now
    reads = [u.region(s.read)] if s.read is not None else []
    writes = [u.region(s.write)] if s.write is not None else []
    keys = u.reader.keys[s.group]
    members = tuple(m for m, key in enumerate(keys) if key == keys[u.number])
    key = (s.group, keys[u.number], u.met[s.group])
    u.met[s.group] += 1
    meeting = u.reader.meetings.setdefault(key, Meeting(u.env.event()))
    u.meeting = meeting, members
    u.hold_up("barrier", s.group)
    yield u.env.all_of([*u.hazards(reads, writes), *u.seen_by_others])
    meeting.came[u.number] = (reads[0].array, writes[0].array) if reads else (None, None)
    absent = [m for m in members if m not in meeting.came]
    if not absent:
        nbytes = u.value(s.work.bytes) if reads else 0
        places = tuple(u.where(u.level.name, member) for member in members)
        yield u.env.timeout(u.machine.collective_ps(s, places, nbytes))
        if writes and u.reader.data is not None:
            _combine(u, s, members, meeting)
        meeting.done.succeed()
    yield meeting.done
    u.meeting = None
    u.finish(record)


def _combine(u: Unit, s: pm.Collective, members: tuple[int, ...], meeting: Meeting) -> None:
    values = [meeting.came[m][0].copy() for m in members]
    if s.kind == "broadcast":
        result = values[u.value(s.root)]
    else:
        result = values[0]
        for value in values[1:]:
            result = apply(REDUCTIONS[s.reduction], [result, value], dtype(result.dtype))
    for member in members:
        meeting.came[member][1][...] = result


def _free(u: Unit, s: pm.Free) -> Process:
    yield from ()
    for name in s.names:
        u.unbind(name)


def _loop(u: Unit, s: pm.Loop) -> Process:
    index, stop, step = u.value(s.start), u.value(s.stop), u.value(s.step)
    outer = u.ints.get(s.index)
    _carry(u, [(c, c.init) for c in s.carries])
    for name in s.frees:
        u.unbind(name)
    while (index < stop) if step > 0 else (index > stop):
        u.ints[s.index] = index
        yield from u.scoped(s.body, lambda: _carry(u, [(c, c.next) for c in s.carries]))
        index += step
    u.ints.pop(s.index, None)
    if outer is not None:
        u.ints[s.index] = outer


def _carry(u: Unit, flows: list[tuple[Any, Any]]) -> None:
    """Bind carried or merged names, all at once, in the enclosing body."""
    tiles = [(flow, u.names[source]) for flow, source in flows if isinstance(source, str)]
    ints = [(flow, u.value(source)) for flow, source in flows if not isinstance(source, str)]
    for flow, meaning in tiles:
        u.bind(flow.name, meaning)
    for flow, number in ints:
        u.ints[flow.name] = number
        u.bound.append(flow.name)


def _if(u: Unit, s: pm.If) -> Process:
    taken = bool(u.value(s.condition))
    flows = [(m, m.then if taken else m.orelse) for m in s.merges]
    yield from u.scoped(s.body if taken else s.orelse, lambda: _carry(u, flows))


_RULES: dict[type, Callable[[Unit, Any], Process]] = {
    pm.Compute: _compute,
    pm.Send: _send,
    pm.Receive: _receive,
    pm.ReceiveAny: _receive_any,
    pm.ReadScalar: _read_scalar,
    pm.Signal: _signal,
    pm.Wait: _wait,
    pm.Start: _start,
    pm.Collective: _collective,
    pm.Free: _free,
    pm.Loop: _loop,
    pm.If: _if,
}


Bounds = tuple[tuple[int, int], ...] | None


def _overlap(a: Bounds, b: Bounds) -> bool:
    """Whether two blocks of one storage share an element; None is all of it."""
    if any(low >= high for bounds in (a, b) for low, high in bounds or ()):
        return False
    if a is None or b is None:
        return True
    return all(max(low, bottom) < min(high, top) for (low, high), (bottom, top) in zip(a, b, strict=True))


def _reached(plan: pm.Plan, tiles: Mapping[str, pm.Tile]) -> Iterator[str]:
    """The tiles that some region names with ``at``, or that streams of other levels name."""
    for stream in plan.streams:
        for statement in pm.statements(stream.body):
            for region in regions_of(statement):
                tile = tiles.get(region.tile)
                if tile is not None and (region.at is not None or tile.level != stream.level):
                    yield region.tile


def _lying_over(plan: pm.Plan) -> dict[str, list[str]]:
    """Scratch tiles by what lies over them in their memory, directly or through others."""
    scratch = [t for t in plan.tiles if t.offset is not None and t.role == "local" and not t.shared]
    touching: dict[str, set[str]] = {t.name: {t.name} for t in scratch}
    for a, b in product(scratch, scratch):
        spans = [(t.offset or 0, (t.offset or 0) + t.nbytes * t.versions) for t in (a, b)]
        if a.memory == b.memory and max(s[0] for s in spans) < min(s[1] for s in spans):
            both = touching[a.name] | touching[b.name]
            for name in both:
                touching[name] = both
    return {name: sorted(others - {name}) for name, others in touching.items() if len(others) > 1}


def _allocate(plan: pm.Plan, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """(owners, versions, *shape) per tile; what nobody has written yet is NaN, or 0 for integers."""
    data = {}
    for tile in plan.tiles:
        shape = (plan.owners(tile), tile.versions, *tile.shape)
        fill: Any = np.nan if is_float(tile.dtype) else 0
        data[tile.name] = np.full(shape, fill, dtype=numpy_dtype(tile.dtype))
        if tile.name in inputs:
            data[tile.name][:, 0] = cast(np.asarray(inputs[tile.name]), tile.dtype)
    return data


def read(
    plan: pm.Plan,
    hda: HDA,
    inputs: Mapping[str, Any] | None = None,
    *,
    assume: Mapping[str, Any] | None = None,
    faults: Faults | None = None,
) -> Run:
    """Read a plan on a machine; see the module's text."""
    (run,) = read_all([(plan, 0)], hda, inputs, assume=assume, faults=faults)
    return run


def read_all(
    launches: list[tuple[pm.Plan, int]],
    hda: HDA,
    inputs: Mapping[str, Any] | None = None,
    *,
    installed: bool = False,
    **options: Any,
) -> list[Run]:
    """Read plans that are submitted to one machine at these times, in that order."""
    servers = Servers()
    readers = [
        Reader(plan, hda, inputs, servers=servers, launch=n, at_ps=at, installed=installed, **options)
        for n, (plan, at) in enumerate(launches)
    ]
    servers.env.run()
    return [reader.found() for reader in readers]
