"""Commands are issued: one function each; GO_ON where the instance goes on, else why it cannot."""

from __future__ import annotations

from megatile.records.marks import inlined, jit
from megatile.sim.engine.accesses import (
    conflicts,
    log_accesses,
    resolve_access,
    resolve_accesses,
)
from megatile.sim.engine.caches import touch_caches
from megatile.sim.engine.commands import enqueue, join_engine_queue, new_command, wait_for_visible
from megatile.sim.engine.completion import complete_later, complete_now
from megatile.sim.engine.instances import begin_kernel, block, end_kernel, seen_from
from megatile.sim.engine.messages import do_receive, do_receive_any, do_send
from megatile.sim.engine.recording import record, record_accesses, record_words
from megatile.sim.engine.transfers import (
    cached_figure,
    copy_path,
    delay_of,
    new_transfer,
    number_copy,
    transfer,
)
from megatile.sim.engine.values import evaluate, figure, misuse
from megatile.sim.instructions import (
    COPY,
    READ_SCALAR,
    RECEIVE,
    RECEIVE_ANY,
    RENDEZVOUS,
    SEND,
    SIGNAL,
    START,
    WAIT,
    WORK,
    CollectiveRow,
    CopyRow,
    ReadScalarRow,
    SignalRow,
    StartRow,
    WaitRow,
    WorkRow,
)
from megatile.sim.state import (
    ASK_BUSY,
    ASK_KEEPS,
    ASK_KERNEL,
    ASK_MEMORY,
    ASK_MESSAGE,
    ASK_RENDEZVOUS,
    ASK_VALUE,
    AT_RENDEZVOUS,
    BLOCKED,
    FLAG,
    GO_ON,
    HAZARD,
    NO_FLAG,
    NO_FUNCTION,
    NO_PART,
    NONE,
    PIECES,
    STOPPED,
    UNKNOWN,
    State,
)


@jit
def do_work(s: State, unit_id: int, pc: int) -> int:
    """Start what an engine computes, or let it wait for its turn."""
    op = WorkRow.of(s.code[pc])
    frame = s.units[unit_id].frame
    busy = op.busy
    flops = evaluate(s, op.flops, frame)
    if busy == NONE:
        nbytes = evaluate(s, op.nbytes, frame)
        who = s.units[unit_id].actor if op.straggles == 1 else NONE
        busy = figure(s, ASK_BUSY, pc, flops, nbytes, who, unit_id)
    keeps = op.keeps
    if keeps == NONE:
        keeps = figure(s, ASK_KEEPS, pc, flops, 0, 0, unit_id)
    memory = NONE
    if keeps > 0:
        memory = figure(s, ASK_MEMORY, pc, s.units[unit_id].place, flops, 0, unit_id)
    if s.stopped != 0:
        return STOPPED
    command_id = new_command(s, WORK, unit_id, pc)
    command = s.commands[command_id]
    command.update(busy=busy, delay=keeps, first_server=memory)
    count = resolve_accesses(s, unit_id, op)
    for k in range(count):
        conflicts(s, unit_id, command_id, k)
    join_engine_queue(s, unit_id, command_id, op.engine)
    server_id = s.engine_queues[command.engine_queue].server
    if server_id != NONE or keeps > 0:
        command.update(
            server=server_id, flow=s.units[unit_id].flow + op.flow, order=s.units[unit_id].copies * PIECES
        )
        s.units[unit_id].copies += 1
    command.record = record(
        s,
        unit_id,
        pc,
        WORK,
        op.engine,
        UNKNOWN,
        UNKNOWN,
        NONE,
        evaluate(s, op.nbytes, frame),
        NONE,
        NONE,
        NONE,
    )
    record_accesses(s, command.record, count)
    if command.dependencies == 0 and server_id == NONE and keeps == 0:
        end = command.ready_at + busy
        complete_now(s, unit_id, command_id, count, end, end)
    else:
        complete_later(s, unit_id, command_id, count)
    return GO_ON


@jit
def do_copy(s: State, unit_id: int, pc: int) -> int:
    """Start a copy, or let it wait for its turn."""
    op = CopyRow.of(s.code[pc])
    frame = s.units[unit_id].frame
    count = resolve_accesses(s, unit_id, op)
    path_id = copy_path(s, unit_id, 0, count - 1, op.mover)
    nbytes = evaluate(s, op.nbytes, frame)
    delay = delay_of(s, s.units[unit_id].flow, s.units[unit_id].copies, path_id, nbytes)
    if delay == NONE:
        return STOPPED
    command_id = new_transfer(s, COPY, unit_id, path_id, nbytes, delay)
    command = s.commands[command_id]
    for k in range(count):
        conflicts(s, unit_id, command_id, k)
    number_copy(s, unit_id, command_id)
    touch_caches(s, unit_id, command_id, 0, count - 1)
    join_engine_queue(s, unit_id, command_id, op.engine)
    command.record = record(
        s, unit_id, pc, COPY, op.engine, UNKNOWN, UNKNOWN, NONE, nbytes, NONE, NONE, path_id
    )
    transfer(s, unit_id, command_id, count)
    return GO_ON


@jit
def do_read(s: State, unit_id: int, pc: int) -> int:
    """Hold the instance until an integer of its data is there."""
    op = ReadScalarRow.of(s.code[pc])
    unit = s.units[unit_id]
    frame = unit.frame
    count = s.frames[frame + op.times]
    value = figure(s, ASK_VALUE, pc, unit.actor, count, 0, unit_id)
    if s.stopped != 0:
        return STOPPED
    s.frames[frame + op.times] = count + 1
    s.frames[frame + op.cell] = value
    command_id = new_command(s, READ_SCALAR, unit_id, pc)
    resolve_access(s, unit_id, op.region, 0, 0)
    conflicts(s, unit_id, command_id, 0)
    block(s, unit_id, HAZARD, pc)
    unit.pc = pc + 1
    if s.commands[command_id].dependencies == 0:
        enqueue(s, command_id)
    return BLOCKED


@jit
def do_signal(s: State, unit_id: int, pc: int) -> int:
    """Send a signal once the accesses that others see have ended."""
    op = SignalRow.of(s.code[pc])
    unit = s.units[unit_id]
    frame = unit.frame
    to = evaluate(s, op.to, frame)
    member = evaluate(s, op.member, frame)
    flag = s.flags[s.launches[unit.launch].flags + op.flag]
    if to < 0 or to >= flag.units or member < 0 or member >= flag.members:
        return misuse(s, pc, unit_id, NO_FLAG, to, member)
    delay = cached_figure(s, unit_id, 0)
    if delay == NONE:
        peer = seen_from(s, unit_id, flag.level, to)
        delay = figure(s, ASK_MESSAGE, unit.level, unit.place, peer, 0, unit_id)
        if delay == NONE:
            return STOPPED
    command_id = new_command(s, SIGNAL, unit_id, pc)
    command = s.commands[command_id]
    counter_id = flag.first_counter + to * flag.members + member
    amount = evaluate(s, op.amount, frame)
    command.update(delay=delay, amount=amount, target=counter_id, flow=counter_id)
    wait_for_visible(s, unit_id, command_id)
    command.record = record(s, unit_id, pc, SIGNAL, NONE, unit.now, UNKNOWN, NONE, 0, NONE, NONE, NONE)
    if command.dependencies == 0:
        enqueue(s, command_id)
    return GO_ON


@jit
def do_wait(s: State, unit_id: int, pc: int) -> int:
    """Hold the instance until a flag has come so far."""
    op = WaitRow.of(s.code[pc])
    unit = s.units[unit_id]
    frame = unit.frame
    member = evaluate(s, op.member, frame)
    value = evaluate(s, op.value, frame)
    flag = s.flags[s.launches[unit.launch].flags + op.flag]
    if member < 0 or member >= flag.members:
        return misuse(s, pc, unit_id, NO_FLAG, unit.number, member)
    counter_id = flag.first_counter + unit.number // op.per * flag.members + member
    if s.counters[counter_id].count < value:
        unit.next_waiter = s.counters[counter_id].waiter
        s.counters[counter_id].waiter = unit_id
        unit.awaited_count = value
        block(s, unit_id, FLAG, counter_id)
        return BLOCKED
    begin = unit.blocked_since if unit.blocked_since != NONE else unit.now
    unit.blocked_since = NONE
    unit.cause = record(s, unit_id, pc, WAIT, NONE, begin, unit.now, unit.cause, 0, NONE, NONE, NONE)
    return GO_ON


@jit
def do_start(s: State, unit_id: int, pc: int) -> int:
    """Hold the instance while the kernel of a transport starts, or end that kernel."""
    op = StartRow.of(s.code[pc])
    unit = s.units[unit_id]
    if op.ends != 0:
        end_kernel(s, unit_id)
        return GO_ON
    kernel = figure(s, ASK_KERNEL, pc, unit.number, 0, 0, unit_id)
    nbytes = evaluate(s, op.nbytes, unit.frame)
    begin = unit.now
    busy = figure(s, ASK_BUSY, pc, 0, nbytes, NONE, unit_id)
    if s.stopped != 0:
        return STOPPED
    begin_kernel(s, unit_id, kernel)
    unit.now = begin + busy
    unit.cause = record(s, unit_id, pc, START, NONE, begin, unit.now, unit.cause, nbytes, NONE, NONE, NONE)
    return GO_ON


@jit
def do_rendezvous(s: State, unit_id: int, pc: int) -> int:
    """Hold the instance until all of its group have come."""
    op = CollectiveRow.of(s.code[pc])
    unit = s.units[unit_id]
    frame = unit.frame
    rendezvous_id = s.lists[op.rendezvous + unit.number]
    if rendezvous_id == NONE:
        return misuse(s, pc, unit_id, NO_PART, 0, 0)
    rendezvous_id += s.launches[unit.launch].rendezvous
    nbytes = evaluate(s, op.nbytes, frame)
    here = 0 if s.levels[unit.level].fixed == 1 else unit.place
    delay = figure(s, ASK_RENDEZVOUS, pc, rendezvous_id, nbytes, here, unit_id)
    if delay == NONE:
        return STOPPED
    command_id = new_command(s, RENDEZVOUS, unit_id, pc)
    command = s.commands[command_id]
    command.update(delay=delay, target=rendezvous_id, nbytes=nbytes)
    at = op.regions
    reads = s.lists[at]
    writes = s.lists[at + 1]
    for k in range(reads + writes):
        resolve_access(s, unit_id, s.lists[at + 2 + k], 1 if k >= reads else 0, k)
    for k in range(reads + writes):
        conflicts(s, unit_id, command_id, k)
    command.rest = NONE
    if s.recording == 2 and reads + writes > 0:
        command.rest = record_words(s, reads + writes)
    wait_for_visible(s, unit_id, command_id)
    log_accesses(s, unit_id, command_id, reads + writes, UNKNOWN)
    block(s, unit_id, AT_RENDEZVOUS, rendezvous_id)
    unit.pc = pc + 1
    if command.dependencies == 0:
        enqueue(s, command_id)
    return BLOCKED


@inlined
def issue_command(s: State, unit_id: int, pc: int) -> int:
    """Issue one command by the function of its kind, frequent kinds first."""
    kind = s.code[pc].kind
    if kind == WORK:
        return do_work(s, unit_id, pc)
    if kind == SEND:
        return do_send(s, unit_id, pc)
    if kind == RECEIVE:
        return do_receive(s, unit_id, pc)
    if kind == COPY:
        return do_copy(s, unit_id, pc)
    if kind == SIGNAL:
        return do_signal(s, unit_id, pc)
    if kind == WAIT:
        return do_wait(s, unit_id, pc)
    if kind == START:
        return do_start(s, unit_id, pc)
    if kind == RENDEZVOUS:
        return do_rendezvous(s, unit_id, pc)
    if kind == READ_SCALAR:
        return do_read(s, unit_id, pc)
    if kind == RECEIVE_ANY:
        return do_receive_any(s, unit_id, pc)
    return misuse(s, pc, unit_id, NO_FUNCTION, kind, 0)
