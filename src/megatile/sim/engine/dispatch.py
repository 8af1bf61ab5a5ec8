"""Commands whose turn has come: nothing is in their way, or a server takes their request."""

from __future__ import annotations

from megatile.records.marks import inlined, jit, prefetch
from megatile.sim.engine.accesses import settle
from megatile.sim.engine.caches import load, store
from megatile.sim.engine.commands import free_command
from megatile.sim.engine.completion import end_command, extend_instance, has_left
from megatile.sim.engine.events import push, serve
from megatile.sim.engine.instances import extend_launch, wake
from megatile.sim.engine.queues import give_back
from megatile.sim.engine.recording import record, record_start, recorded
from megatile.sim.engine.transfers import move, next_piece, occupied, stage_busy, start_transfer, turn
from megatile.sim.instructions import READ_SCALAR, RENDEZVOUS, SIGNAL, WORK
from megatile.sim.state import (
    HOPS,
    MAX_TAKEN,
    NONE,
    RELEASE,
    REQUESTS,
    SIGNALS,
    CommandRow,
    PendingAccess,
    State,
)


@inlined
def fetch_waiter(s: State, node_id: int) -> None:
    """The first who waits on a list will be needed soon."""
    if node_id != NONE:
        prefetch(s, s.commands[s.nodes[node_id].item], CommandRow.kind)


@jit
def granted(s: State, command_id: int, time: int) -> None:
    """Grant a request whose turn has come in the time queue."""
    command = s.commands[command_id]
    if command.server != NONE:
        # An engine that several units share.
        server_id = command.server
        command.server = NONE
        now = serve(s, server_id, time, command.busy)
        if command.kind == WORK and command.delay > 0:
            push(s, now, REQUESTS, command.flow, command.order * HOPS + 2, command_id)
        elif command.kind == WORK:
            work(s, command_id, now)
        else:
            start_transfer(s, command_id, now)
        return
    if command.kind == WORK:
        work(s, command_id, time)
        return
    fetch_waiter(s, command.waiters)
    fetch_waiter(s, command.source_waiters)
    if command.accesses != NONE:
        prefetch(s, s.pending[s.pending[command.accesses].next_of_command], PendingAccess.next)
    index = command.stage
    path = s.paths[command.path]
    stage_id = path.first_stage + index
    parent_id = command.parent
    if (
        command.served == 0
        and parent_id != NONE
        and command.rest + 1 < -(-s.commands[parent_id].nbytes // s.commands[parent_id].piece_bytes)
    ):
        # The head of the next piece starts when the tail of this one does.
        lead = time
        for i in range(index):
            lead -= s.stages[path.first_stage + i].latency
        next_piece(s, parent_id, command.rest + 1, lead + occupied(s, command.path, command.nbytes))
        command = s.commands[command_id]
    if command.span_read != NONE and load(s, command_id, time):
        return
    behind = 0
    if command.span_written != NONE and index + 1 == path.stages:
        behind = store(s, command_id, time)
    server_id = command.first_server + s.stages[stage_id].server
    now = serve(s, server_id, time, stage_busy(s, stage_id, command.nbytes))
    command.served = 1
    command.stage = index + 1
    turn(s, command_id, index, now)
    command.tail = max(command.tail, behind)
    move(s, command_id)


@jit
def work(s: State, command_id: int, time: int) -> None:
    """Let an engine compute from ``time`` on; its operands take turns in a memory that others use too."""
    command = s.commands[command_id]
    end = time + command.busy
    if command.delay > 0:
        end = max(end, serve(s, command.first_server, time, command.delay) + command.delay)
    record_start(s, command_id, end - command.busy)
    has_left(s, command_id, end)
    end_command(s, command_id, end)


@jit
def after_others(s: State, first_id: int, time: int, delay: int) -> int:
    """Return when a switch may reduce for kernels of a library: their devices' links carry one reduction
    after the other."""
    command_id = first_id
    while command_id != NONE:
        kernel = s.units[s.commands[command_id].unit].kernel
        if kernel > 0:
            time = max(time, s.devices[kernel // MAX_TAKEN].reduces_until)
        command_id = s.commands[command_id].next_visible
    command_id = first_id
    while command_id != NONE:
        kernel = s.units[s.commands[command_id].unit].kernel
        if kernel > 0:
            s.devices[kernel // MAX_TAKEN].reduces_until = time + delay
        command_id = s.commands[command_id].next_visible
    return time


@jit
def reach_rendezvous(s: State, command_id: int, time: int) -> None:
    """Let an instance reach its rendezvous; the last one completes it for all."""
    command = s.commands[command_id]
    settle(s, command_id, time)
    rendezvous = s.rendezvous[command.target]
    if rendezvous.came == 0 or time > rendezvous.last:
        rendezvous.last = time
        rendezvous.cause = command.cause
    rendezvous.came += 1
    command.next_visible = rendezvous.commands
    rendezvous.commands = command_id
    if rendezvous.came < rendezvous.members:
        return
    end = rendezvous.last + command.delay
    if command.nbytes > 0:
        end = after_others(s, rendezvous.commands, rendezvous.last, command.delay) + command.delay
    rendezvous.came = 0
    command_id = rendezvous.commands
    rendezvous.commands = NONE
    while command_id != NONE:
        command = s.commands[command_id]
        after = command.next_visible
        command.next_visible = NONE
        unit_id = command.unit
        record_id = record(
            s,
            unit_id,
            command.pc,
            RENDEZVOUS,
            NONE,
            s.units[unit_id].blocked_since,
            end,
            rendezvous.cause,
            command.nbytes,
            NONE,
            NONE,
            NONE,
        )
        if record_id != NONE:
            recorded(s, record_id).accesses = command.rest
        s.units[unit_id].blocked_since = NONE
        extend_instance(s, unit_id, end, record_id)
        extend_launch(s, unit_id, end)
        free_command(s, command_id)
        wake(s, unit_id, end, record_id)
        s.units[unit_id].cause = record_id
        command_id = after


@jit
def raise_flag(s: State, command_id: int, time: int) -> None:
    """Let a signal arrive: add to its counter, and wake those whose count is reached."""
    command = s.commands[command_id]
    counter = s.counters[command.target]
    counter.count += command.amount
    counter.raised_by = command.record
    unit_id = counter.waiter
    counter.waiter = NONE
    free_command(s, command_id)
    while unit_id != NONE:
        after = s.units[unit_id].next_waiter
        if counter.count >= s.units[unit_id].awaited_count:
            wake(s, unit_id, time, counter.raised_by)
        else:
            s.units[unit_id].next_waiter = counter.waiter
            counter.waiter = unit_id
        unit_id = after


@jit
def ready(s: State, command_id: int) -> None:
    """Start a command that waits for nothing any more."""
    command = s.commands[command_id]
    what = command.kind
    time = command.ready_at
    if what == RELEASE:
        give_back(s, command.target, command.message, time, command.cause, command.amount)
        extend_instance(s, command.unit, time, command.cause)
        free_command(s, command_id)
    elif what == SIGNAL:
        if command.record != NONE:
            recorded(s, command.record).end = time
            recorded(s, command.record).cause = command.cause
        extend_launch(s, command.unit, time + command.delay)
        s.sequence += 1
        push(s, time + command.delay, SIGNALS, command.flow, s.sequence, command_id)
    elif what == READ_SCALAR:
        unit_id = command.unit
        record_id = record(
            s, unit_id, command.pc, READ_SCALAR, NONE, time, time, command.cause, 0, NONE, NONE, NONE
        )
        s.units[unit_id].blocked_since = NONE
        free_command(s, command_id)
        wake(s, unit_id, time, record_id)
        s.units[unit_id].cause = record_id
    elif what == RENDEZVOUS:
        reach_rendezvous(s, command_id, time)
    elif command.server != NONE or (what == WORK and command.delay > 0):
        push(s, time, REQUESTS, command.flow, command.order * HOPS + (1 if what == WORK else 0), command_id)
    elif what == WORK:
        work(s, command_id, time)
    else:
        start_transfer(s, command_id, time)
