"""Commands in flight: what they wait for, and who waits for them."""

from __future__ import annotations

from megatile.records.marks import inlined, jit
from megatile.sim.engine.events import claim, free_node, new_node
from megatile.sim.engine.instances import one_finished
from megatile.sim.state import NONE, UNKNOWN, State


@inlined
def new_command(s: State, kind: int, unit_id: int, pc: int) -> int:
    command_id = s.free_command
    if command_id == NONE:
        command_id = s.top_command
        s.top_command = claim(s, command_id, s.commands.size, State.commands)
    else:
        s.free_command = s.commands[command_id].waiters
    command = s.commands[command_id]
    s.launches[s.units[unit_id].launch].unfinished += 1
    command.update(
        kind=kind,
        unit=unit_id,
        pc=pc,
        record=NONE,
        ready_at=s.units[unit_id].now,
        cause=s.units[unit_id].cause,
        dependencies=0,
        waiters=NONE,
        source_waiters=NONE,
        source_free_at=UNKNOWN,
        end=UNKNOWN,
        engine_queue=NONE,
        delay=0,
        parent=NONE,
        accesses=NONE,
        previous_visible=command_id,
        server=NONE,
        span_read=NONE,
        span_written=NONE,
        pieces_left=0,
        target=NONE,
    )
    return command_id


@inlined
def free_command(s: State, command_id: int) -> None:
    unit_id = s.commands[command_id].unit
    s.commands[command_id].waiters = s.free_command
    s.free_command = command_id
    one_finished(s, s.units[unit_id].launch)


@jit
def enqueue(s: State, command_id: int) -> None:
    """Line up a command that waits for nothing; `drain` starts it."""
    s.todo[s.todo_count] = command_id
    s.todo_count = claim(s, s.todo_count, s.todo.size, State.todo)


@jit
def depend(s: State, command_id: int, time: int, other_id: int, why: int, left: int) -> None:
    """Let a command wait for a time, or for one in flight (until its source has left, or its end)."""
    command = s.commands[command_id]
    if other_id == NONE:
        if time > command.ready_at:
            command.ready_at = time
            command.cause = why
        return
    other = s.commands[other_id]
    last = other.source_waiters if left else other.waiters
    if last != NONE and s.nodes[last].item == command_id:
        return  # it waits for that already
    node_id = new_node(s, last, command_id)
    if left:
        other.source_waiters = node_id
    else:
        other.waiters = node_id
    command.dependencies += 1


@jit
def notify(s: State, first: int, time: int, why: int) -> None:
    """Tell those who wait on a list the time that they wait for; start those that wait for nothing else."""
    node_id = first
    while node_id != NONE:
        command_id = s.nodes[node_id].item
        command = s.commands[command_id]
        if time > command.ready_at or (time == command.ready_at and command.cause == NONE):
            command.ready_at = time
            command.cause = why
        command.dependencies -= 1
        if command.dependencies == 0:
            enqueue(s, command_id)
        node_id = free_node(s, node_id)


@jit
def join_engine_queue(s: State, unit_id: int, command_id: int, engine: int) -> None:
    """Let a command join the queue of an engine."""
    engine_queue_id = s.units[unit_id].engine_queues + engine
    depend(
        s,
        command_id,
        s.engine_queues[engine_queue_id].free_at,
        s.engine_queues[engine_queue_id].last,
        s.engine_queues[engine_queue_id].cause,
        1,
    )
    s.commands[command_id].engine_queue = engine_queue_id


@inlined
def wait_for_visible(s: State, unit_id: int, command_id: int) -> None:
    """Let a command wait for the accesses of its instance that others see."""
    unit = s.units[unit_id]
    depend(s, command_id, unit.visible_until, NONE, unit.visible_by, 0)
    other_id = unit.visible
    while other_id != NONE:
        depend(s, command_id, 0, other_id, NONE, 0)
        other_id = s.commands[other_id].next_visible
