"""Commands end: their source is free, their data is there; an instance has finished all."""

from __future__ import annotations

from megatile.records.marks import inlined, jit
from megatile.sim.engine.accesses import drop_access, log_accesses, settle
from megatile.sim.engine.commands import enqueue, free_command, notify
from megatile.sim.engine.instances import extend_launch, one_finished, part_over, wake
from megatile.sim.engine.queues import arrive, give_back
from megatile.sim.engine.recording import recorded
from megatile.sim.instructions import SEND
from megatile.sim.state import AHEAD, DONE, INTO, NONE, OVER, UNKNOWN, State


@jit
def extend_instance(s: State, unit_id: int, time: int, record_id: int) -> None:
    """Let what an instance has issued last until a time at least; the record of what ends last is kept."""
    unit = s.units[unit_id]
    if time > unit.latest:
        unit.latest = time
        unit.latest_by = record_id


@jit
def retire(s: State, unit_id: int) -> None:
    """End an instance if it has issued everything and all that has finished."""
    unit = s.units[unit_id]
    if unit.state != DONE or unit.unfinished > 0:
        return
    unit.state = OVER
    for head in range(unit.access_lists, unit.access_lists + s.launches[unit.launch].storages):
        pending_id = s.access_lists[head]
        while pending_id != NONE:
            after = s.pending[pending_id].next
            drop_access(s, pending_id)
            pending_id = after
        s.access_lists[head] = NONE
        s.pending_writes[head] = 0
    if unit.latest >= unit.now:
        part_over(s, unit_id, unit.latest, unit.latest_by)
    else:
        part_over(s, unit_id, unit.now, unit.cause)
    one_finished(s, unit.launch)


@jit
def count_ended(s: State, unit_id: int) -> None:
    """Count a command of an instance that has ended."""
    s.units[unit_id].unfinished -= 1
    retire(s, unit_id)


@jit
def has_left(s: State, command_id: int, time: int) -> None:
    """Free the source of a command, and its engine, from ``time`` on (of the whole, after all pieces)."""
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
    """Note that a command has read its source and left its engine queue: who waits for either may go on."""
    command = s.commands[command_id]
    command.source_free_at = time
    engine_queue_id = command.engine_queue
    if engine_queue_id != NONE:
        engine_queue = s.engine_queues[engine_queue_id]
        engine_queue.free_at = time
        engine_queue.cause = command.record
        if engine_queue.last == command_id:
            engine_queue.last = NONE
            if s.units[command.unit].state == AHEAD:
                wake(s, command.unit, 0, NONE)
    first = command.source_waiters
    command.source_waiters = NONE
    notify(s, first, time, command.record)
    if command.kind == SEND:
        settle(s, command_id, time)
        extend_instance(s, command.unit, time, command.record)
        if command.record != NONE:
            recorded(s, command.record).end = time
        first = command.waiters
        command.waiters = NONE
        notify(s, first, time, command.record)
        count_ended(s, command.unit)
    extend_launch(s, command.unit, time)
    if command.end != UNKNOWN:
        free_command(s, command_id)


@jit
def end_command(s: State, command_id: int, time: int) -> None:
    """End a command at ``time``: its data is there (that of the whole, after all pieces)."""
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
    extend_launch(s, command.unit, time)
    what = command.kind
    record_id = command.record
    if what == SEND:
        deliver(s, command_id, time)
    else:
        if record_id != NONE:
            recorded(s, record_id).end = time
        settle(s, command_id, time)
        extend_instance(s, command.unit, time, command.record)
        if what == INTO:
            give_back(s, command.target, command.message, time, record_id, command.amount)
        first = command.waiters
        command.waiters = NONE
        notify(s, first, time, record_id)
        count_ended(s, command.unit)
    if command.source_free_at != UNKNOWN and command.pieces_left == 0:
        free_command(s, command_id)


@inlined
def complete_now(s: State, unit_id: int, command_id: int, count: int, source_free_at: int, end: int) -> None:
    """Complete a command as it is issued: nothing is in its way, so that all its times are known.

    What it sends is read until its source is free; other accesses last until its end."""
    command = s.commands[command_id]
    until = source_free_at if command.kind == SEND else end
    engine_queue = s.engine_queues[command.engine_queue]
    engine_queue.update(free_at=source_free_at, last=NONE, cause=command.record)
    log_accesses(s, unit_id, command_id, count, until)
    if command.record != NONE:
        entry = recorded(s, command.record)
        entry.update(start=command.ready_at, end=until, cause=command.cause)
    extend_instance(s, unit_id, until, command.record)
    extend_launch(s, unit_id, end)
    if command.kind == SEND:
        deliver(s, command_id, end)
    elif command.kind == INTO:
        give_back(s, command.target, command.message, end, command.record, command.amount)
    free_command(s, command_id)


@inlined
def complete_later(s: State, unit_id: int, command_id: int, count: int) -> None:
    """Leave a command in flight: it waits for others, or for a server."""
    command = s.commands[command_id]
    s.units[unit_id].unfinished += 1
    s.engine_queues[command.engine_queue].last = command_id
    log_accesses(s, unit_id, command_id, count, UNKNOWN)
    if command.dependencies == 0:
        enqueue(s, command_id)


@jit
def deliver(s: State, command_id: int, time: int) -> None:
    """Let the message of a send arrive."""
    command = s.commands[command_id]
    arrive(s, command.target, command.message, time, command.record)
    if command.record != NONE:
        recorded(s, command.record).arrived = time
