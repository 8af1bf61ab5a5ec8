"""What the engine recorded of a launch: a row for every command, its messages, and what it touched."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.errors import Place
from megatile.core.expr import constant
from megatile.core.quantities import format_bytes, format_time
from megatile.sim import state as st
from megatile.sim.instructions import RECEIVE, RECEIVE_ANY, SEND, WORK
from megatile.sim.launch_rows import LaunchRows
from megatile.sim.simulation import Simulation
from megatile.sim.state import NONE, Answer, Recorded
from megatile.sim.table import ENGINES
from megatile.timing.fabric import Path

_BOUNDS = (1 << st.ACCESS_BITS) - 2
"""Of what an access is, how many bounds it has."""


def source_of(place: Place | None) -> str:
    """``file:line`` of a statement, or nothing."""
    if place is None or place.file is None:
        return ""
    return f"{place.file}:{place.line}" if place.line is not None else place.file


class Touched(NamedTuple):
    """An access of a command: its storage, dimensions and whether it writes in one number (`ACCESS_BITS`),
    its owner, and start and extent of each dimension."""

    what: int
    owner: int
    bounds: Any


class RecordedRows:
    """The records of one launch, its first instance counted as unit 0.

    With ``origin_ps`` (when the launch was submitted) times count from there, and nothing of the engine's
    memory is used later.
    """

    def __init__(self, simulation: Simulation, launched: LaunchRows, origin_ps: int | None = None) -> None:
        self.launched = launched
        self.statements = simulation.code_tables.statements
        self._paths = simulation.paths
        self.queue_ends = launched.queue_ends
        answers = simulation.arena.rows("answers")
        self.answers = answers[answers[:, Answer.question] == st.ASK_BUSY]
        """How long commands take whose work is not the same every time."""
        self.operands = simulation.operands
        """Whether it is known what commands touch."""
        self.aux = simulation.arena.rows("recorded_accesses")
        self.first_aux = simulation.arena.words_base
        base = simulation.arena.record_base
        rows = simulation.records[max(0, launched.first_record - base) :]
        who = rows[:, Recorded.actor]
        self.units = launched.offsets[-1]
        """How many instances there are, of all levels."""
        self.places = launched.places.copy()
        self.names = launched.names(self.places)
        mine = (who >= launched.first) & (who < launched.first + self.units)
        chosen = np.flatnonzero(mine & (rows[:, Recorded.kind] != st.RELEASE))
        self.numbers = chosen + max(base, launched.first_record)
        """Of every record, its number among those of all launches."""
        # Where that is all and times stay as they are, a look at them is enough.
        self.rows = rows if len(chosen) == len(rows) and origin_ps is None else rows[chosen]
        self.caches = [
            (name, *ends) for (name, _), ends in zip(self._paths.caches, self._paths.behind, strict=True)
        ]
        """Of every cache: its name, and the name and key of what is behind it."""
        self.cached = simulation.arena.rows("caches").copy()
        self.cached[: len(launched.caches)] -= launched.caches
        self.releases = rows[mine & (rows[:, Recorded.kind] == st.RELEASE)]
        self.present = np.arange(self.units)
        if not launched.plan.levels:
            self.present = np.flatnonzero(launched.present)
        self.start_ps = simulation.arena.launches[launched.number].began - (origin_ps or 0)
        """When its units begin, if nothing is before them."""
        self.lasting_queues = {q: key for key, q in simulation.lasting_queues.items() if q in self.queue_ends}
        self.events: Any = None
        """Of every record, its event in the trace, once there is one."""
        if origin_ps is not None:
            for part in (self.rows, self.releases):
                for column in (Recorded.start, Recorded.end, Recorded.arrived):
                    part[:, column] = np.where(part[:, column] >= 0, part[:, column] - origin_ps, NONE)
            used = self.rows[self.rows[:, Recorded.accesses] >= 0, Recorded.accesses]
            first = max(self.first_aux, int(used.min()) if len(used) else launched.first_aux)
            last = simulation.arena.recorded_words
            self.aux, self.first_aux = self.aux[first - self.first_aux : last].copy(), first

    @cached_in_owner
    def path(self, number: int) -> Path:
        """Return a path by its number."""
        return self._paths.described(number, self.launched.resources.fabric)

    def _engine_names(self) -> list[str]:
        """Name the used queues of the DMA engine for messages: ``dma.1``, …"""
        channels = max(view.message_queues for view in self.launched.views)
        own = self.launched.table.engine_names
        names, used = (
            [*own, *[""] * (channels - 1)],
            np.flatnonzero(np.bincount(self.rows[:, Recorded.engine] + 1)) - 1,
        )
        for i, engine in enumerate(used[used >= len(own)].tolist(), 1):
            names[engine] = f"dma.{i}"
        return names

    def engines(self) -> list[str]:
        """Names of the engines that did something."""
        names = self._engine_names()
        return [
            names[engine] for engine in np.unique(self.rows[:, Recorded.engine]).tolist() if engine != NONE
        ]

    def _touched(self, rows: Any) -> tuple[Any, list[list[Touched]]]:
        """Of every row the number of what it touches, and what that is."""
        aux, numbers = self.aux, np.zeros(len(rows), dtype=np.int64)
        known: dict[bytes, int] = {}
        found: list[list[Touched]] = [[]]
        for i, at in enumerate(rows[:, Recorded.accesses].tolist()):
            if at == NONE:
                continue
            at -= self.first_aux
            end = at + 1
            for _ in range(int(aux[at])):
                end += 2 + (int(aux[end]) & _BOUNDS)
            key = aux[at + 1 : end].tobytes()
            if key not in known:
                known[key] = len(found)
                found.append(_accesses(aux[at + 1 : end]))
            numbers[i] = known[key]
        return numbers, found

    def memory_bytes(self) -> dict[str, int]:
        """Bytes that commands read from and wrote to each memory, most first: those of a command count for
        each of its operands."""
        numbers, touched = self._touched(self.rows)
        moved = np.bincount(numbers, self.rows[:, Recorded.nbytes], len(touched)).astype(np.int64).tolist()
        found: dict[str, int] = {}
        for each, nbytes in zip(touched, moved, strict=True):
            for access in each if nbytes else ():
                memory, _ = self.launched.table.storage_name(access.what >> st.ACCESS_BITS)
                found[memory] = found.get(memory, 0) + nbytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def messages(self, rows: Any = None) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
        """By queue and number, the rows that sent and that received a message."""
        rows = self.rows if rows is None else rows
        sent: dict[tuple[int, int], int] = {}
        received: dict[tuple[int, int], int] = {}
        kinds = rows[:, Recorded.kind]
        for kind, found in ((SEND, sent), (RECEIVE, received), (RECEIVE_ANY, received), (st.INTO, received)):
            chosen = np.flatnonzero(kinds == kind)
            pairs = rows[chosen][:, [Recorded.queue, Recorded.message]].tolist()
            for row, (queue, message) in zip(chosen.tolist(), pairs, strict=True):
                found.setdefault((queue, message), row)
        return sent, received

    def message_lines(self, begin_ps: int = 0) -> list[str]:
        """Every message as a line, in order of time: who to whom, bytes, when it is there, its queue (the
        direction as the receiver calls it) and number, and the line that sends it."""
        found = []
        for row in self.rows[self.rows[:, Recorded.kind] == SEND].tolist():
            sent = Recorded(row)
            channel, receiver, member = self.queue_ends[sent.queue]
            source = self.statements[sent.pc].source
            plan, described = self.launched.plan, self.launched.plan.channels[channel]
            first = self.launched.offsets[self.launched.table.levels[plan.level(described.level).name]]
            ends = f"{self.names[sent.actor - self.launched.first]} -> {self.names[first + receiver]}"
            size, there = format_bytes(sent.nbytes), format_time(begin_ps + sent.arrived)
            text = f"{ends} {size}, there at {there}, {described.label(member)} #{sent.message}"
            found.append((sent.start, text + (f"  {source}" if source else "")))
        return [f"[comm] {format_time(begin_ps + start)} {text}" for start, text in sorted(found)]

    def flops(self) -> dict[tuple[str, str], int]:
        """Operations done, by engine and dtype."""
        found: dict[tuple[str, str], int] = {}
        rows = self.rows[self.rows[:, Recorded.kind] == WORK]
        for at in np.unique(rows[:, Recorded.pc]).tolist():
            statement, mine = self.statements[at], rows[rows[:, Recorded.pc] == at]
            flops = constant(statement.work.flops)
            if flops is not None:
                total = int(flops) * len(mine)
            else:
                # Commands of one statement that take equally long do equally much.
                lengths, counts = np.unique(
                    mine[:, Recorded.end] - mine[:, Recorded.start], return_counts=True
                )
                asked = self.answers[self.answers[:, Answer.a] == at]
                by_length = dict(asked[:, [Answer.value, Answer.b]].tolist())
                total = sum(
                    by_length.get(t, 0) * c for t, c in zip(lengths.tolist(), counts.tolist(), strict=True)
                )
            key = (statement.engine, statement.work.dtype)
            found[key] = found.get(key, 0) + total
        return found

    def work_ps(self, engine: str) -> list[int]:
        """Per unit, how long an engine works."""
        rows = self.rows[
            (self.rows[:, Recorded.kind] == WORK) & (self.rows[:, Recorded.engine] == ENGINES.index(engine))
        ]
        busy = np.zeros(self.units, dtype=np.int64)
        np.add.at(
            busy,
            rows[:, Recorded.actor] - self.launched.first,
            rows[:, Recorded.end] - rows[:, Recorded.start],
        )
        return list(map(int, busy))


def _accesses(words: Any) -> list[Touched]:
    """Return what a command touches, as it was recorded."""
    found, at = list[Touched](), 0
    while at < len(words):
        what, owner = words[at : at + 2].tolist()
        found.append(Touched(what, owner, words[at + 2 : at + 2 + (what & _BOUNDS)]))
        at += 2 + (what & _BOUNDS)
    return found


def choices(simulation: Simulation, launched: LaunchRows) -> dict[Any, list[int]]:
    """Per unit, the members its receive-from-any took."""
    if not simulation.complete_record:
        raise simulation.arena.no_room("records")
    found: dict[Any, list[int]] = {}
    rows = simulation.records
    rows = rows[rows[:, Recorded.kind] == RECEIVE_ANY]
    for who, queue in rows[:, [Recorded.actor, Recorded.queue]].tolist():
        if 0 <= who - launched.first < launched.offsets[-1]:
            found.setdefault(launched.chooser(who), []).append(launched.queue_ends[queue][2])
    return found
