"""Commands are issued: one function each; GO_ON where the instance goes on, else why it cannot."""

from __future__ import annotations

from megatile.sim.engine.accesses import conflicts, holder, log_accesses, look, look_all, spot, storage_row
from megatile.sim.engine.caches import touch_caches
from megatile.sim.engine.commands import after_visible, behind_tail, free_command, new_command, soon
from megatile.sim.engine.completion import end_known
from megatile.sim.engine.instances import block, ended, seen_from
from megatile.sim.engine.marks import inlined, jit
from megatile.sim.engine.recording import keep_accesses, note, note_accesses
from megatile.sim.engine.transfers import delay_of, transfer
from megatile.sim.engine.values import ask, evaluate, find
from megatile.sim.instructions import (
    COPY,
    MEET,
    READ,
    SIGNAL,
    WAIT,
    WORK,
    Copy,
    Meet,
    ReadScalar,
    Signal,
    Wait,
    Work,
)
from megatile.sim.state import (
    ASK_BUSY,
    ASK_MEETING,
    ASK_MESSAGE,
    ASK_PATH,
    ASK_VALUE,
    CLASS,
    CLASSES,
    FLAG,
    GO_ON,
    HAZARD,
    HELD_UP,
    MEETING,
    MISUSE,
    MOVERS,
    NONE,
    PIECES,
    UNKNOWN,
    State,
)


@jit
def site(s: State, unit_id: int, own: int) -> int:
    """The figure that an instance always needs at its instruction; those of instances that take turns in a
    row need the same one if it depends on where they are alone (``own``). NONE where it is not known."""
    unit = s.units[unit_id]
    first = s.code[unit.pc].figures
    level = s.levels[unit.level]
    if first == NONE or (level.fixed == 0 and not own):
        return NONE
    return s.figures[first + unit_id - level.first_unit]


@inlined
def copy_path(s: State, unit_id: int, source: int, target: int, mover: int) -> int:
    """1 + the path between two accesses by a DMA engine, or 0 where the machine has to be asked."""
    read = storage_row(s, unit_id, s.accesses[source].storage)
    written = storage_row(s, unit_id, s.accesses[target].storage)
    source_owner = holder(s, unit_id, source)
    target_owner = holder(s, unit_id, target)
    if source_owner == -2 or target_owner == -2:
        wrong = source if source_owner == -2 else target
        access = s.accesses[wrong]
        ask(s, MISUSE, s.units[unit_id].pc, unit_id, 5, access.owner, access.storage)
        return 0
    path_id = site(s, unit_id, source_owner == NONE and target_owner == NONE)
    if path_id != NONE:
        return path_id + 1
    here = NONE
    there = NONE
    if source_owner != NONE or target_owner != NONE or read.private == 0 or written.private == 0:
        here = spot(s, unit_id, source_owner)
        there = spot(s, unit_id, target_owner)
    asked_by = 2 * (mover * MOVERS + s.units[unit_id].level) + (1 if source_owner == target_owner else 0)
    memories = read.memory * (1 << 24) + written.memory
    answer_id = find(s, ASK_PATH, asked_by, memories, here, there)
    if answer_id == NONE:
        ask(s, ASK_PATH, asked_by, memories, here, there, unit_id)
        return 0
    return s.memo[answer_id].value + 1


@jit
def do_work(s: State, unit_id: int, pc: int) -> int:
    op = Work.of(s.code[pc])
    frame = s.units[unit_id].frame
    busy = op.busy
    if busy == NONE:
        flops = evaluate(s, op.flops, frame)
        nbytes = evaluate(s, op.nbytes, frame)
        who = s.units[unit_id].actor if op.straggles == 1 else NONE
        answer_id = find(s, ASK_BUSY, pc, flops, nbytes, who)
        if answer_id == NONE:
            return ask(s, ASK_BUSY, pc, flops, nbytes, who, unit_id)
        busy = s.memo[answer_id].value
    command_id = new_command(s, WORK, unit_id, pc)
    command = s.commands[command_id]
    command.busy = busy
    count = look_all(s, unit_id, op)
    for k in range(count):
        conflicts(s, unit_id, command_id, k)
    behind_tail(s, unit_id, command_id, op.engine)
    server_id = s.engine_queues[command.engine_queue].server
    if server_id != NONE:
        command.server = server_id
        command.flow = s.units[unit_id].flow + op.flow
        command.order = s.units[unit_id].copies * PIECES
        s.units[unit_id].copies += 1
    command.record = note(
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
    note_accesses(s, command.record, count)
    if command.dependencies == 0 and server_id == NONE:
        # The usual case: all its times are known at once.
        time = command.ready_at
        end = time + busy
        if command.record != NONE:
            s.records[command.record - s.record_base].start = time
            s.records[command.record - s.record_base].end = end
            s.records[command.record - s.record_base].cause = command.cause
        engine_queue_id = command.engine_queue
        s.engine_queues[engine_queue_id].free_at = end
        s.engine_queues[engine_queue_id].last = NONE
        s.engine_queues[engine_queue_id].cause = command.record
        log_accesses(s, unit_id, command_id, count, end)
        end_known(s, unit_id, end, command.record)
        ended(s, unit_id, end)
        free_command(s, command_id)
        return GO_ON
    s.units[unit_id].unfinished += 1
    s.engine_queues[command.engine_queue].last = command_id
    log_accesses(s, unit_id, command_id, count, UNKNOWN)
    if command.dependencies == 0:
        soon(s, command_id)
    return GO_ON


@jit
def do_copy(s: State, unit_id: int, pc: int) -> int:
    op = Copy.of(s.code[pc])
    frame = s.units[unit_id].frame
    count = look_all(s, unit_id, op)
    path_id = copy_path(s, unit_id, 0, count - 1, op.mover) - 1
    nbytes = evaluate(s, op.nbytes, frame)
    number = s.units[unit_id].copies
    flow = s.units[unit_id].flow
    delay = 0
    if path_id != NONE:
        delay = delay_of(s, flow, number, path_id, nbytes)
    if path_id == NONE or delay == UNKNOWN:
        # The machine has to be asked first: nothing has happened yet.
        if op.version != NONE:
            s.frames[frame + op.version] -= 1
        return s.asked[0].reason
    command_id = new_command(s, COPY, unit_id, pc)
    command = s.commands[command_id]
    for k in range(count):
        conflicts(s, unit_id, command_id, k)
    command.path = path_id & CLASS
    command.first_server = path_id >> CLASSES
    command.nbytes = nbytes
    command.delay = delay
    command.flow = flow
    command.order = number * PIECES
    s.units[unit_id].copies += 1
    touch_caches(s, unit_id, command_id, 0, count - 1)
    behind_tail(s, unit_id, command_id, op.engine)
    command.record = note(
        s, unit_id, pc, COPY, op.engine, UNKNOWN, UNKNOWN, NONE, nbytes, NONE, NONE, path_id
    )
    transfer(s, unit_id, command_id, count, False)
    return GO_ON


@jit
def do_read(s: State, unit_id: int, pc: int) -> int:
    op = ReadScalar.of(s.code[pc])
    unit = s.units[unit_id]
    frame = unit.frame
    count = s.frames[frame + op.times]
    answer_id = find(s, ASK_VALUE, pc, unit.actor, count, 0)
    if answer_id == NONE:
        return ask(s, ASK_VALUE, pc, unit.actor, count, 0, unit_id)
    s.frames[frame + op.times] = count + 1
    s.frames[frame + op.place] = s.memo[answer_id].value
    command_id = new_command(s, READ, unit_id, pc)
    look(s, unit_id, op.region, 0, 0)
    conflicts(s, unit_id, command_id, 0)
    block(s, unit_id, HAZARD, pc)
    unit.pc = pc + 1
    if s.commands[command_id].dependencies == 0:
        soon(s, command_id)
    return HELD_UP


@jit
def do_signal(s: State, unit_id: int, pc: int) -> int:
    op = Signal.of(s.code[pc])
    unit = s.units[unit_id]
    frame = unit.frame
    to = evaluate(s, op.to, frame)
    member = evaluate(s, op.member, frame)
    flag = s.flags[s.launches[unit.launch].flags + op.flag]
    if to < 0 or to >= flag.units or member < 0 or member >= flag.members:
        return ask(s, MISUSE, pc, unit_id, 3, to, member)
    delay = site(s, unit_id, 0)
    if delay == NONE:
        peer = seen_from(s, unit_id, flag.level, to)
        answer_id = find(s, ASK_MESSAGE, unit.level, unit.place, peer, 0)
        if answer_id == NONE:
            return ask(s, ASK_MESSAGE, unit.level, unit.place, peer, 0, unit_id)
        delay = s.memo[answer_id].value
    command_id = new_command(s, SIGNAL, unit_id, pc)
    command = s.commands[command_id]
    command.delay = delay
    command.amount = evaluate(s, op.amount, frame)
    command.target = flag.first_counter + to * flag.members + member
    command.flow = command.target
    after_visible(s, unit_id, command_id)
    command.record = note(s, unit_id, pc, SIGNAL, NONE, unit.now, UNKNOWN, NONE, 0, NONE, NONE, NONE)
    if command.dependencies == 0:
        soon(s, command_id)
    return GO_ON


@jit
def do_wait(s: State, unit_id: int, pc: int) -> int:
    op = Wait.of(s.code[pc])
    unit = s.units[unit_id]
    frame = unit.frame
    member = evaluate(s, op.member, frame)
    value = evaluate(s, op.value, frame)
    flag = s.flags[s.launches[unit.launch].flags + op.flag]
    if member < 0 or member >= flag.members:
        return ask(s, MISUSE, pc, unit_id, 3, unit.number, member)
    counter_id = flag.first_counter + unit.number // op.per * flag.members + member
    if s.counters[counter_id].count < value:
        unit.next_waiter = s.counters[counter_id].waiter
        s.counters[counter_id].waiter = unit_id
        unit.awaited_count = value
        block(s, unit_id, FLAG, counter_id)
        return HELD_UP
    begin = unit.blocked_since if unit.blocked_since != NONE else unit.now
    unit.blocked_since = NONE
    unit.cause = note(s, unit_id, pc, WAIT, NONE, begin, unit.now, unit.cause, 0, NONE, NONE, NONE)
    return GO_ON


@jit
def do_meet(s: State, unit_id: int, pc: int) -> int:
    op = Meet.of(s.code[pc])
    unit = s.units[unit_id]
    frame = unit.frame
    meeting_id = s.lists[op.rendezvous + unit.number]
    if meeting_id == NONE:
        return ask(s, MISUSE, pc, unit_id, 4, 0, 0)
    meeting_id += s.launches[unit.launch].rendezvous
    nbytes = evaluate(s, op.nbytes, frame)
    here = 0 if s.levels[unit.level].fixed == 1 else unit.place
    answer_id = find(s, ASK_MEETING, pc, meeting_id, nbytes, here)
    if answer_id == NONE:
        return ask(s, ASK_MEETING, pc, meeting_id, nbytes, here, unit_id)
    command_id = new_command(s, MEET, unit_id, pc)
    command = s.commands[command_id]
    command.delay = s.memo[answer_id].value
    command.target = meeting_id
    command.nbytes = nbytes
    at = op.regions
    reads = s.lists[at]
    writes = s.lists[at + 1]
    for k in range(reads + writes):
        look(s, unit_id, s.lists[at + 2 + k], 1 if k >= reads else 0, k)
    for k in range(reads + writes):
        conflicts(s, unit_id, command_id, k)
    command.rest = NONE
    if s.recording == 2 and reads + writes > 0:
        command.rest = keep_accesses(s, reads + writes)
    after_visible(s, unit_id, command_id)
    log_accesses(s, unit_id, command_id, reads + writes, UNKNOWN)
    block(s, unit_id, MEETING, meeting_id)
    unit.pc = pc + 1
    if command.dependencies == 0:
        soon(s, command_id)
    return HELD_UP
