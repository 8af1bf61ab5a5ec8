"""The data of concurrent launches: each is executed up to where the timed run is.

A launch begins on a unit when the timed run has begun it there and those before it are over; it reads and
writes the tensors in memory. Messages of installed queues go through a mailbox that outlives launches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.errors import MegatileError
from megatile.plan.cohort import Cohort, highest, spread
from megatile.plan.commands import chooser
from megatile.plan.execute import Executor, Results
from megatile.plan.model import PlanError, ReadScalar
from megatile.plan.residency import copies
from megatile.plan.storage import alike
from megatile.sim import state as st
from megatile.sim.contents import Contents, is_raw
from megatile.sim.install import place_numbers
from megatile.sim.recorded_rows import choices
from megatile.sim.state import LaunchRow, UnitRow

if TYPE_CHECKING:
    from megatile.sim.launches import Launch
    from megatile.sim.machine_run import MachineRun

Array = Any
Mail = dict[tuple[Any, ...], "deque[tuple[Array, Any]]"]


class LaunchData(Executor):
    """The execution of one launch: a unit begins when the timed run has begun it, and takes what the timed
    run took. ``seen`` is what every unit has read."""

    def __init__(self, launch: Launch, given: Mapping[str, Any], contents: Contents, runs: DataRuns) -> None:
        plan, hda = launch.resources.plan, launch.hda
        super().__init__(plan, contents.inputs(plan, given))
        self.launch, self.contents, self.runs, self.mail = launch, contents, runs, runs.mail
        self.seen: dict[tuple[str, Any], list[int]] = {}
        self.level = hda.scale(plan.scale).level, hda.count(plan.scale)
        self.places = place_numbers(plan)
        self.stands: dict[str | None, tuple[str, Sequence[int]]] = {None: (self.level[0], self.places)}
        for level in plan.levels:
            if any(c.level == level.name and c.installed for c in plan.channels):
                self.stands[level.name] = (
                    hda.scale(level.scale).level,
                    copies(plan, hda)[level.name][0].tolist(),
                )
        self.given = {name: self.arrays[name][:, 0] for name in given}
        for tile in plan.tiles:
            if tile.name in contents.tensors and tile.role != "local" and tile.versions == 1:
                self.arrays[tile.name] = contents.tensors[tile.name].data[:, None]
        self.lasting_flags = {flag.name for flag in plan.flags if flag.installed}
        self.elsewhere = [c for c in plan.channels if c.installed]
        present = [u for stream in plan.streams for u in stream.unit_numbers()]
        present = list(range(plan.units)) if plan.levels else present
        self.waits_to_begin = np.array(sorted(present), dtype=np.int64)
        self.unfinished = {self.places[u] for u in present}
        """Places of units that have not ended."""
        self.taken = frozenset(self.unfinished)
        self.handed_over: dict[str, tuple[Array, Array]] = {}
        self.results: Results | None = None
        self._left = {p: sum(self.places[u] == p for u in present) for p in self.unfinished}
        self.present = self.waits_to_begin
        self.under_way: set[int] = set()
        """Units that have begun and not ended: they alone take messages."""
        self._known: tuple[int, dict[Any, list[int]]] = (-1, {})
        for flag in plan.flags:
            if flag.installed:
                key = (self.level[0], flag.name)
                self.flags[flag.name] = runs.flags.setdefault(key, self.flags[flag.name])

    def go_on(self, before: list[LaunchData], early: bool) -> bool:
        """Execute until nothing can go on; return whether anything happened. Units begin when the launches
        before that have to do with them have ended, ``early`` when these have ended there."""
        if self.results is not None:
            return False
        moved = False
        while True:
            moved |= self._begin([b for b in before if b.results is None], early) | self._fetch()
            while self.ready:
                self.advance(self.ready.pop())
                moved = True
            if not self.waiting or not self.resume():
                break
            moved = True
        if not (len(self.waits_to_begin) or self.ready or self.waiting):
            self.forget_values()
            self.results = self._keep()
        return moved

    # units

    def _begin(self, before: list[LaunchData], early: bool) -> bool:
        """Units begin whose turn it is; what the host gave is then in memory."""
        waiting = self.waits_to_begin
        if not len(waiting):
            return False
        free = self._begun()[waiting]
        for other in before:
            held = other.unfinished if early else other.taken
            free = free & np.array([not other.meets(held, self.level, self.places[u]) for u in waiting])
        if not free.any():
            return False
        now, self.waits_to_begin = waiting[free], waiting[~free]
        for other in before:
            if any(other.meets(other.taken, self.level, self.places[u]) for u in now.tolist()):
                other.hand_over()
        for tile in self.plan.tiles:
            if tile.role == "local" or (tile.role == "output" and not is_raw(tile)):
                continue
            rows = np.unique(np.broadcast_to(tile.owner.evaluate({"unit": now}), now.shape))
            if tile.name in self.given:
                self.arrays[tile.name][rows, 0] = self.given[tile.name][rows]
            elif is_raw(tile):
                self.arrays[tile.name][rows, 0] = self.contents.raw(tile, self.plan)[rows]
            elif tile.versions > 1:
                self.arrays[tile.name][rows, 0] = self.contents.tensors[tile.name].data[rows]
        self.under_way.update(now.tolist())
        self.start(self.residency.begin() if self.plan.levels else [(self.plan.first, now)])
        return True

    def meets(self, own: Collection[int], level: tuple[str, int], place: int) -> bool:
        """Return whether some of its places have to do with a unit of the hardware."""
        if level == self.level:
            return place in own
        (_, mine), (_, other) = self.level, level
        least = min(mine, other)
        return any(p * least // mine == place * least // other for p in own)

    def step_end(self, cohort: Cohort, instruction: Any) -> bool:
        ended = cohort.units.tolist() if not self.plan.levels else []
        for unit in ended:
            place = self.places[unit]
            self._left[place] -= 1
            if not self._left[place]:
                self.unfinished.discard(place)
        super().step_end(cohort, instruction)
        self.under_way.difference_update(ended)
        self._put_back(ended)
        return False

    def hand_over(self) -> None:
        """Another launch begins where units have ended: what they leave is noted."""
        ended = np.array(
            [u for u in self.present.tolist() if self.places[u] not in self.unfinished], dtype=np.int64
        )
        for name in self.final:
            owners = self.plan.tile(name).owner.evaluate({"unit": ended})
            rows = np.setdiff1d(np.broadcast_to(owners, ended.shape), self.handed_over.get(name, ([],))[0])
            rows = rows.astype(np.int64)
            known = self.handed_over.get(name, (rows[:0], self.arrays[name][:0, 0]))
            now = self.outputs()[name][rows]
            self.handed_over[name] = (np.append(known[0], rows), np.concatenate([known[1], now]))

    def _keep(self) -> Results:
        """End the data run of a launch; return its outputs, which are in memory from now on."""
        self._put_back(range(self.plan.units))
        found = self.outputs()
        for name, (rows, values) in self.handed_over.items():
            found[name][rows] = values
        self.contents.keep(self.plan, found, self.present)
        return Results(found, self.choices, ())

    # messages between launches

    def key(self, channel: Any, receiver: int, member: int) -> tuple[Any, ...]:
        direction = channel.names[member] if channel.names else member
        name, places = self.stands[channel.level]
        return (name, places[receiver], channel.name, direction)

    def step_send(self, cohort: Cohort, instruction: Any) -> bool:
        channel = self.queues[instruction.statement.channel].channel
        if not channel.installed:
            return super().step_send(cohort, instruction)
        route = self.route(cohort, instruction)
        nbytes = highest(instruction.functions["bytes"](cohort.ints))
        if nbytes > channel.slot_bytes:
            raise PlanError(f"a message of {nbytes} bytes does not fit a slot of channel '{channel.name}'")
        read = self.access(cohort, instruction, instruction.reads[0], False)
        members = spread(route.member, len(cohort))
        for chosen, (shape,) in alike([read.shape], len(cohort)):
            part = read.part(chosen, shape)
            for i, at in enumerate(np.asarray(chosen).tolist()):
                clock = None
                if self.watch is not None:
                    actor = self.watch.actors.number(cohort.level, int(cohort.units[at]))
                    clock = self, self.watch.clocks.release(actor)
                key = self.key(channel, int(route.to[at]), int(members[at]))
                message = np.ascontiguousarray(part.one(i)).ravel().view(np.uint8).copy()
                self.mail.setdefault(key, deque()).append((message, clock))
        return self.issued(cohort)

    def _fetch(self) -> bool:
        """Put messages into the free slots of the launch's queues."""
        moved = False
        for channel in self.elsewhere:
            queues, store = self.queues[channel.name], self.slots[channel.name]
            below = range(self.plan.instances(channel.level) if self.under_way else 0)
            for unit in sorted(self.under_way) if channel.level is None else below:
                for member in range(channel.members):
                    box = self.mail.get(self.key(channel, unit, member))
                    while box:
                        slot = int(queues.sent[unit, member]) % channel.slots
                        if queues.holds[unit, member, slot]:
                            break
                        message, clock = box.popleft()
                        store.typed("u8", message.shape)[unit, member, slot] = message
                        queues.nbytes[unit, member, slot] = message.size
                        queues.holds[unit, member, slot] = 1
                        queues.sent[unit, member] += 1
                        if self.watch is not None:
                            known = clock[1] if clock is not None and clock[0] is self else None
                            self.watch.from_outside(channel.name, unit, member, known)
                        moved = True
        return moved

    def _put_back(self, units: Sequence[int]) -> None:
        """Messages that units of the launch have not taken are there for the next."""
        for channel in self.elsewhere if units else ():
            queues, store = self.queues[channel.name], self.slots[channel.name]
            own = (
                np.asarray(units) if channel.level is None else np.arange(self.plan.instances(channel.level))
            )
            for at, member in np.argwhere(queues.sent[own] > queues.received[own]).tolist():
                unit = own[at]
                taken = int(queues.received[unit, member])
                for number in range(int(queues.sent[unit, member]) - 1, taken - 1, -1):
                    slot = number % channel.slots
                    size = int(queues.nbytes[unit, member, slot])
                    message = store.typed("u8", (size,))[unit, member, slot].copy()
                    self.mail[self.key(channel, unit, member)].appendleft((message, None))
                    queues.holds[unit, member, slot] = 0
                queues.sent[unit, member] = taken

    def on_signal(self, cohort: Cohort, instruction: Any, to: Any, member: Any, amount: Any) -> None:
        if instruction.statement.flag not in self.lasting_flags:
            super().on_signal(cohort, instruction, to, member, amount)

    def on_wait(self, cohort: Cohort, instruction: Any, member: Any, value: Any) -> None:
        if instruction.statement.flag not in self.lasting_flags:  # of others nothing is known here
            super().on_wait(cohort, instruction, member, value)

    # what the timed run asks and decides

    def on_read_scalar(self, cohort: Cohort, instruction: Any) -> Any:
        values = super().on_read_scalar(cohort, instruction)
        each = np.broadcast_to(values, np.shape(cohort.units))
        for unit, value in zip(cohort.units.tolist(), each.tolist(), strict=True):
            key = instruction.statement.name, chooser(cohort, unit)
            self.seen.setdefault(key, []).append(int(value))
        return values

    def tried(self, cohort: Cohort, instruction: Any, at: int) -> list[int]:
        unit = chooser(cohort, int(cohort.units[at]))
        taken = len(self.choices.get(unit, ()))
        return self._chosen().get(unit, [])[taken : taken + 1]

    def _begun(self) -> Array:
        """Return which units the timed run has begun; a launch that the engine need not have has ended."""
        launched = self.launch.engine_rows
        if launched is None:
            return np.ones(self.plan.units, dtype=bool)
        free = launched.units[:, UnitRow.state] != st.PENDING
        return np.full(self.plan.units, bool(free.all())) if self.plan.levels else free

    def _chosen(self) -> dict[Any, list[int]]:
        """Return what the receive-from-any of each unit took so far."""
        launched, simulation = self.launch.engine_rows, self.runs.machine.simulation
        if launched is None:
            return self.launch.choices
        if self._known[0] != simulation.arena.recorded:
            self._known = simulation.arena.recorded, choices(simulation, launched)
        return self._known[1]


class DataRuns:
    """All launches with data that are under way on a machine, in the order in which they were submitted."""

    def __init__(self, machine: MachineRun) -> None:
        self.machine = machine
        self.mail: Mail = {}
        self.flags: dict[tuple[str, str], Array] = {}
        """Counters of installed flags, by level and name."""
        self.active: list[LaunchData] = []

    def advance(self) -> None:
        """Execute what the timed run has reached, or more."""
        early, now, given = False, list[int](), list[int]()
        for i, data in enumerate(self.active):
            (now if data.launch.engine_rows is None else given).append(i)
        if given:
            found = [self.active[i].launch.engine_rows for i in given]
            numbers = [launched.number for launched in found if launched is not None]
            launches, units = (self.machine.simulation.arena.rows(name) for name in ("launches", "units"))
            first, count = launches[numbers][:, [LaunchRow.first_unit, LaunchRow.units]].T
            pending = np.append(0, np.cumsum(units[:, UnitRow.state] == st.PENDING))
            begun = count - pending[first + count] + pending[first] > 0
            now = sorted(now + [i for i, some in zip(given, begun.tolist(), strict=True) if some])
        while True:
            moved = False
            for i in now:
                moved |= self.active[i].go_on(self.active[:i], early)
            if not moved and early:
                return
            early = not moved

    def scalar(self, data: LaunchData, statement: ReadScalar, unit: int, count: int) -> int:
        """Return what a unit reads; all that comes before has happened in the timed run."""
        if count >= len(data.seen.get((statement.name, unit), ())):
            self.advance()
        values = data.seen.get((statement.name, unit), [])
        if count < len(values):
            return values[count]
        raise MegatileError(
            f"'{statement.name}' of plan '{data.plan.name}' cannot be read", place=statement.source
        )

    def finish(self, data: LaunchData) -> Results:
        """Return the outputs of a launch that has ended in the timed run."""
        if data.results is None:
            self.advance()
        self.active.remove(data)
        if data.results is None:
            raise MegatileError(
                f"the data of plan '{data.plan.name}' wait for launches that are not executed"
            )
        return data.results
