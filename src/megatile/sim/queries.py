"""What the engine asks about the machine: figures of queues, paths, work, messages and rendezvous.

The engine calls `MachineQueries.answer` when an instance needs a figure that is not in the tables. The
instances of its stream will need theirs at the same instruction, so all of them are answered at once: what
they would ask is evaluated for all of them with the integers of the one that asks. Where these differ, a
figure was found that nobody needs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.core.expr import constant, symbols
from megatile.sim import plain, state as st
from megatile.sim.data import Assumed
from megatile.sim.instructions import START, WORK, InstructionRow, SignalRow, WorkRow
from megatile.sim.level_rows import describe_devices
from megatile.sim.path_queries import MAX_GUESSED
from megatile.sim.queue_queries import QueueMisuse, QueueQueries
from megatile.sim.state import NONE, FlagRow, LevelRow, RegionRow, UnitRow
from megatile.sim.stream_peers import StreamPeers
from megatile.timing.machine_timing import TimingError
from megatile.timing.resources import Resources

ASKED_AT_ONCE = 1 << 12
"""So many instances are answered at once what value is assumed for each."""


class MachineQueries(QueueQueries):
    """The answers of one simulation, by the engine's reasons to ask."""

    def answer(self, question: int, asked: list[int]) -> int:
        """Return what was asked for, and keep it and what others will ask at the same instruction."""
        found: int = getattr(self, _NAMES[question])(*asked)
        return found

    def busy(self, pc: int, flops: int, nbytes: int, who: int, g: int) -> int:
        view, tables = self.simulation.view(g)[2], self.simulation.code_tables
        asked, code = tables.statements[pc], self.arena.rows("code")
        if tables.code[pc][InstructionRow.kind] == START:
            head = view.head_ps(asked, nbytes)
            return self.cache_answer(st.ASK_BUSY, pc, flops, nbytes, who, head)
        extents = self._extents(pc, g) if view.reads_extents(asked) else ()
        unit = NONE if who == NONE else self._first(g)
        busy = view.compute_ps(asked, flops, unit, nbytes, extents)
        work = asked.work
        if who != NONE or extents or constant(work.flops) is None or constant(work.bytes) is None:
            return self.cache_answer(st.ASK_BUSY, pc, flops, nbytes, who, busy)
        # What else the stream does on this engine will be asked next.
        for i in tables.rest(pc):
            other = tables.statements[i]
            like = tables.code[i][InstructionRow.kind] == WORK and other.engine == asked.engine
            if like and other.work.dtype == work.dtype and not view.reads_extents(other):
                each = constant(other.work.flops)
                if each is not None and constant(other.work.bytes) is not None:
                    code[i, WorkRow.busy] = view.compute_ps(other, each, unit)
                    code[i, WorkRow.keeps] = self._keeps(view, other, each)
        return busy

    def keeps(self, pc: int, flops: int, _: int, __: int, g: int) -> int:
        """Return how long the operands of a command keep a memory for which its instances contend."""
        view, statement = self.simulation.view(g)[2], self.simulation.code_tables.statements[pc]
        found = self._keeps(view, statement, flops)
        if constant(statement.work.flops) is not None or not view.keeps_memory(statement, 1 << 40)[1]:
            self.arena.rows("code")[pc, WorkRow.keeps] = found
            return found
        return self.cache_answer(st.ASK_KEEPS, pc, flops, 0, 0, found)

    def _keeps(self, view: Resources, statement: Any, flops: int) -> int:
        return view.keeps_memory(statement, flops)[1] if self.simulation.paths.contended else 0

    def memory(self, pc: int, place: int, flops: int, _: int, g: int) -> int:
        """Return the server of that memory."""
        view = self.simulation.view(g)[2]
        name, _ = view.keeps_memory(self.simulation.code_tables.statements[pc], flops)
        key = view.memory_key(name, place)
        server = self.simulation.paths.server(key, view.fabric.widths[key])
        return self.cache_answer(st.ASK_MEMORY, pc, place, flops, 0, server)

    def kernel(self, pc: int, number: int, _: int, __: int, g: int) -> int:
        """Return which device the kernel of a library is on, and how many compute units it takes there: all
        units of the stream are told."""
        launched, level, view = self.simulation.view(g)
        plan, devices = launched.plan, view.hda.level("device").total
        taken = view.kernel_units(self.simulation.code_tables.statements[pc])
        if not taken or not (plan.levels or launched.beside):  # nobody is there from whom it takes any
            return self.cache_answer(st.ASK_KERNEL, pc, number, 0, 0, 0)
        describe_devices(self.arena, view.hda)
        places = launched.levels[level].places if plan.levels else view.spots
        found = places * devices // view.level.total * st.MAX_TAKEN + taken
        self.cache_answers(st.ASK_KERNEL, pc, np.arange(len(places)), 0, 0, found)
        return int(found[number])

    def _extents(self, pc: int, g: int) -> tuple[tuple[int, ...], ...]:
        """Return the extents of what a command of an instance reads, then of what it writes."""
        lists, regions = self.arena.rows("lists"), self.arena.rows("regions")
        frame, at = self.arena.rows("units")[g, UnitRow.frame], self.arena.rows("code")[pc, WorkRow.regions]
        found = []
        for region in lists[at + 1 : at + 1 + lists[at]].tolist():
            dimensions, bounds = regions[region, [RegionRow.dimensions, RegionRow.bounds]].tolist()
            values = lists[bounds + 1 : bounds + 2 * dimensions : 2].tolist()
            found.append(tuple(int(plain.engine().evaluate(self.arena.memory, x, frame)) for x in values))
        return tuple(found)

    def _first(self, g: int) -> int:
        """Return the unit of the first level that an instance is or belongs to."""
        launched, units = self.simulation.launch_of(g), self.arena.rows("units")
        while g != NONE and units[g, UnitRow.level] != launched.first_level:
            g = int(units[g, UnitRow.parent])
        return int(units[g, UnitRow.number]) if g != NONE else NONE

    def rendezvous(self, pc: int, rendezvous: int, nbytes: int, here: int, g: int) -> int:
        launched, level, view = self.simulation.view(g)
        members = launched.table.members[rendezvous - launched.rendezvous]
        statement = self.simulation.code_tables.statements[pc]
        if statement.kind == "broadcast" and symbols(statement.root) <= {"unit"}:
            number = int(self.arena.rows("units")[g, UnitRow.number])
            root = int(statement.root.evaluate({"unit": number}))
            if not 0 <= root < len(members):
                raise QueueMisuse(f"broadcast takes root {root} of a group of {len(members)}")
        if launched.plan.levels:
            row = launched.first_level + level
            if self.arena.rows("levels")[row, LevelRow.fixed]:
                places = launched.places[launched.offsets[level] :]
                members = tuple(places[list(members)].tolist())
            else:
                members = tuple(int(plain.engine().where(self.arena.memory, g, row, m)) for m in members)
        delay = view.collective_ps(statement, members, nbytes)
        return self.cache_answer(st.ASK_RENDEZVOUS, pc, rendezvous, nbytes, here, delay)

    def message(self, level: int, source: int, target: int, _: int, g: int) -> int:
        peers, code = StreamPeers.to(self.simulation, g), self.arena.rows("code")
        row, view = code[peers.pc].tolist(), peers.view
        if row[InstructionRow.figures] == NONE and peers.fixed:
            flag = self.arena.rows("flags")[peers.launched.flags + row[SignalRow.flag]].tolist()
            numbers, always = peers.value(row[SignalRow.to])
            seen = peers.seen(flag[FlagRow.level] - peers.launched.first_level, numbers)
            chosen = np.flatnonzero(seen[1]) if seen is not None else np.zeros(0, dtype=np.int64)
            if seen is not None and (always or len(chosen) <= MAX_GUESSED):
                here, there = peers.places[chosen], seen[0][chosen]
                delays = view.messages_ps(here, there)
                if always:
                    self.cache_figures(peers.pc, len(peers.level_rows), peers.units[chosen], delays)
                else:
                    self.cache_answers(st.ASK_MESSAGE, level, here, there, 0, delays)
                return view.signal_ps(source, target)
        return self.cache_answer(st.ASK_MESSAGE, level, source, target, 0, view.signal_ps(source, target))

    def value(self, pc: int, actor: int, count: int, _: int, g: int) -> int:
        launched = self.simulation.launch_of(g)
        statement, scalars = self.simulation.code_tables.statements[pc], launched.scalars
        level, number = launched.which(actor)
        total = launched.offsets[level + 1] - launched.offsets[level]
        if not (isinstance(scalars, Assumed) and scalars.has(statement.name, total)):
            value = scalars(statement, launched.chooser(actor), count)
            return self.cache_answer(st.ASK_VALUE, pc, actor, count, 0, int(value))
        first = number // ASKED_AT_ONCE * ASKED_AT_ONCE
        numbers = np.arange(first, min(first + ASKED_AT_ONCE, total))
        values = np.broadcast_to(scalars(statement, numbers, count), numbers.shape)
        self.cache_answers(st.ASK_VALUE, pc, actor - number + numbers, count, 0, values)
        return int(values[number - first])

    def delay(self, flow: int, number: int, path: int, nbytes: int, duration: int) -> int:
        launched = next(x for x in self.simulation.launches if flow in x.flows)
        faults = launched.resources.faults
        delay = faults.delay_ps(flow - launched.flows.start, number, duration)
        return self.cache_answer(st.ASK_DELAY, flow, number, path, nbytes, delay)

    def misuse(self, pc: int, g: int, what: int, a: int, b: int) -> int:
        statement = self.simulation.code_tables.statements[pc]
        channel = f"channel '{getattr(statement, 'channel', '')}'"
        texts = {
            st.WRONG_SENDER: f"a queue of {channel} is fed by the wrong unit",
            st.TOO_LARGE: f"a message of {a} bytes does not fit a slot of {channel}",
            st.WRONG_SIZE: f"{channel} has messages of other sizes than those that are received",
            st.NO_FLAG: f"there is no flag {b} at unit {a}",
            st.NO_PART: "a unit meets at a collective in which it has no part",
        }
        if what == st.NO_FUNCTION:
            raise TimingError(
                f"the engine has no function for instructions of kind {a}, as at {statement}",
                advice="issue them in sim/engine/operations.py (control flow: in sim/engine/loop.py)",
            )
        if what == st.TOO_FAR_AHEAD:
            name = self.simulation.name(int(self.arena.rows("units")[g, UnitRow.actor]))
            raise TimingError(
                f"an engine of {name} falls behind a loop by {a:,} commands: too many to be simulated",
                place=statement.source,
                advice="let a round use what the engine did some rounds before, or take fewer rounds",
            )
        if what == st.NO_OWNER:
            name = self.simulation.launch_of(g).table.storage_name(b)[1]
            raise QueueMisuse(f"tile '{name}' has no owner {a}")
        raise QueueMisuse(texts[what])


_NAMES = {
    st.ASK_QUEUE: "queue", st.ASK_QUEUE_PATH: "queue_path", st.ASK_PATH: "path", st.ASK_BUSY: "busy",
    st.ASK_RENDEZVOUS: "rendezvous", st.ASK_MESSAGE: "message", st.ASK_VALUE: "value",
    st.ASK_DELAY: "delay", st.ASK_ROUTE: "route", st.ASK_ENGINE_QUEUE: "engine_queue",
    st.ASK_CREDIT: "credit", st.ASK_KERNEL: "kernel", st.ASK_KEEPS: "keeps", st.ASK_MEMORY: "memory",
    st.MISUSE: "misuse",
}  # fmt: skip
