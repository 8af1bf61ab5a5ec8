"""Commands end: their source is free, their data is there; an instance has finished all."""

from __future__ import annotations

from megatile.sim.engine.accesses import forget, settle
from megatile.sim.engine.commands import free_command, notify
from megatile.sim.engine.instances import ended, one_less, part_over, wake
from megatile.sim.engine.marks import jit
from megatile.sim.engine.queues import arrive, give_back
from megatile.sim.instructions import SEND
from megatile.sim.state import AHEAD, DONE, INTO, NONE, OVER, UNKNOWN, State


@jit
def end_known(s: State, unit_id: int, time: int, record_id: int) -> None:
    """The latest end of what an instance has issued, and the record of it."""
    unit = s.units[unit_id]
    if time > unit.latest:
        unit.latest = time
        unit.latest_by = record_id


@jit
def let_go(s: State, unit_id: int) -> None:
    """An instance may have finished all that it has issued."""
    unit = s.units[unit_id]
    if unit.state != DONE or unit.unfinished > 0:
        return
    unit.state = OVER
    for head in range(unit.access_lists, unit.access_lists + s.launches[unit.launch].storages):
        pending_id = s.access_lists[head]
        while pending_id != NONE:
            after = s.pending[pending_id].next
            forget(s, pending_id)
            pending_id = after
        s.access_lists[head] = NONE
    if unit.latest >= unit.now:
        part_over(s, unit_id, unit.latest, unit.latest_by)
    else:
        part_over(s, unit_id, unit.now, unit.cause)
    one_less(s, unit.launch)


@jit
def closed(s: State, unit_id: int) -> None:
    """The end of a command of an instance is known."""
    s.units[unit_id].unfinished -= 1
    let_go(s, unit_id)


@jit
def has_left(s: State, command_id: int, time: int) -> None:
    """The source of a command's engine is free from ``time`` on."""
    command = s.commands[command_id]
    parent_id = command.parent
    if parent_id != NONE:
        whole = s.commands[parent_id]
        whole.source_free_at = max(whole.source_free_at, time)
        command.source_free_at = time
        whole.pieces_left -= 1
        if whole.pieces_left == 0:
            source_free(s, parent_id, whole.source_free_at)
        return
    source_free(s, command_id, time)


@jit
def source_free(s: State, command_id: int, time: int) -> None:
    command = s.commands[command_id]
    command.source_free_at = time
    engine_queue_id = command.engine_queue
    if engine_queue_id != NONE and s.engine_queues[engine_queue_id].last == command_id:
        s.engine_queues[engine_queue_id].free_at = time
        s.engine_queues[engine_queue_id].last = NONE
        s.engine_queues[engine_queue_id].cause = command.record
        if s.units[command.unit].state == AHEAD:
            wake(s, command.unit, 0, NONE)
    first = command.source_waiters
    command.source_waiters = NONE
    notify(s, first, time, command.record)
    if command.kind == SEND:
        settle(s, command_id, time)
        end_known(s, command.unit, time, command.record)
        if command.record != NONE:
            s.records[command.record - s.record_base].end = time
        first = command.waiters
        command.waiters = NONE
        notify(s, first, time, command.record)
        closed(s, command.unit)
    ended(s, command.unit, time)
    if command.end != UNKNOWN:
        free_command(s, command_id)


@jit
def finished(s: State, command_id: int, time: int) -> None:
    """A command has done what it had to do: its data is there."""
    command = s.commands[command_id]
    if command.parent != NONE:
        free_command(s, command_id)
        command_id = command.parent
        command = s.commands[command_id]
        command.tail = max(command.tail, time)
        command.tails_left -= 1
        if command.tails_left > 0:
            return
        time = command.tail
    command.end = time
    ended(s, command.unit, time)
    what = command.kind
    record_id = command.record
    if what == SEND:
        queue_id = command.target
        arrive(s, queue_id, command.message, time, record_id)
        if record_id != NONE:
            s.records[record_id - s.record_base].arrived = time
    else:
        if record_id != NONE:
            s.records[record_id - s.record_base].end = time
        settle(s, command_id, time)
        end_known(s, command.unit, time, command.record)
        if what == INTO:
            give_back(s, command.target, command.message, time, record_id, command.amount)
        first = command.waiters
        command.waiters = NONE
        notify(s, first, time, record_id)
        closed(s, command.unit)
    if command.source_free_at != UNKNOWN and command.pieces_left == 0:
        free_command(s, command_id)
