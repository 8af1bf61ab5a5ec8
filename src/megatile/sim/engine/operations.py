"""Commands are issued: one function each; GO_ON where the instance goes on, else why it cannot."""

from __future__ import annotations

from megatile.sim.engine.accesses import conflicts, holder, log_accesses, look, look_all, spot, storage_row
from megatile.sim.engine.caches import touch_caches
from megatile.sim.engine.commands import after_visible, behind_tail, free_command, new_command, soon
from megatile.sim.engine.endings import end_known
from megatile.sim.engine.instances import block, ended, seen_from
from megatile.sim.engine.notes import keep_accesses, note, note_accesses
from megatile.sim.engine.rows import (
    access_row,
    code_row,
    command_row,
    counter_row,
    flag_row,
    inlined,
    jit,
    launch_row,
    level_row,
    memo_row,
    record_row,
    tail_row,
    unit_row,
)
from megatile.sim.engine.transfers import delay_of, transfer
from megatile.sim.engine.values import ask, evaluate, find
from megatile.sim.state import *


@jit
def site(s, g, own):
    """The figure that an instance always needs at its instruction; those of instances that take turns in a
    row need the same one if it depends on where they are alone (``own``). NONE where it is not known."""
    u = unit_row(s, g)
    at = s[code_row(s, s[u + PC]) + SITE]
    level = level_row(s, s[u + LEVEL])
    if at == NONE or (s[level + FIXED] == 0 and not own):
        return NONE
    return s[s[T_SITE] + at + g - s[level + FIRST_ROW]]


@inlined
def copy_path(s, g, source, target, by):
    """1 + the path between two accesses by a DMA engine, or 0 where the machine has to be asked."""
    x = storage_row(s, g, s[access_row(s, source) + A_STORAGE])
    y = storage_row(s, g, s[access_row(s, target) + A_STORAGE])
    one = holder(s, g, source)
    other = holder(s, g, target)
    if one == -2 or other == -2:
        k = source if one == -2 else target
        a = access_row(s, k)
        ask(s, MISUSE, s[unit_row(s, g) + PC], g, 5, s[a + A_OWNER], s[a + A_STORAGE])
        return 0
    p = site(s, g, one == NONE and other == NONE)
    if p != NONE:
        return p + 1
    here = NONE
    there = NONE
    if one != NONE or other != NONE or s[x + PRIVATE] == 0 or s[y + PRIVATE] == 0:
        here = spot(s, g, one)
        there = spot(s, g, other)
    mover = 2 * (by * MOVERS + s[unit_row(s, g) + LEVEL]) + (1 if one == other else 0)
    memories = s[x + MEMORY] * (1 << 24) + s[y + MEMORY]
    h = find(s, ASK_PATH, mover, memories, here, there)
    if h == NONE:
        ask(s, ASK_PATH, mover, memories, here, there, g)
        return 0
    return s[memo_row(s, h) + 5] + 1


@jit
def do_work(s, g, pc):
    code = code_row(s, pc)
    frame = s[unit_row(s, g) + FRAME]
    busy = s[code + F]
    if busy == NONE:
        flops = evaluate(s, s[code + D], frame)
        nbytes = evaluate(s, s[code + E], frame)
        who = s[unit_row(s, g) + ACTOR] if s[code + G] == 1 else NONE
        m = find(s, ASK_BUSY, pc, flops, nbytes, who)
        if m == NONE:
            return ask(s, ASK_BUSY, pc, flops, nbytes, who, g)
        busy = s[memo_row(s, m) + 5]
    c = new_command(s, WORK, g, pc)
    m = command_row(s, c)
    s[m + BUSY] = busy
    n = look_all(s, g, code)
    for k in range(n):
        conflicts(s, g, c, k)
    behind_tail(s, g, c, s[code + A])
    server = s[tail_row(s, s[m + TAIL_OF]) + 3]
    if server != NONE:
        s[m + SERVER_OF] = server
        s[m + FLOW_OF] = s[unit_row(s, g) + FLOW] + s[code + H]
        s[m + ORDER] = s[unit_row(s, g) + COPIES] * PIECES
        s[unit_row(s, g) + COPIES] += 1
    s[m + RECORD] = note(
        s, g, pc, WORK, s[code + A], UNKNOWN, UNKNOWN, NONE, evaluate(s, s[code + E], frame), NONE, NONE, NONE
    )
    note_accesses(s, s[m + RECORD], n)
    if s[m + NEED] == 0 and server == NONE:
        # The usual case: all its times are known at once.
        time = s[m + READY_AT]
        end = time + busy
        if s[m + RECORD] != NONE:
            s[record_row(s, s[m + RECORD]) + R_START] = time
            s[record_row(s, s[m + RECORD]) + R_END] = end
            s[record_row(s, s[m + RECORD]) + R_CAUSE] = s[m + WHY]
        t = s[m + TAIL_OF]
        s[tail_row(s, t)] = end
        s[tail_row(s, t) + 1] = NONE
        s[tail_row(s, t) + 2] = s[m + RECORD]
        log_accesses(s, g, c, n, end)
        end_known(s, g, end, s[m + RECORD])
        ended(s, g, end)
        free_command(s, c)
        return GO_ON
    s[unit_row(s, g) + OPEN] += 1
    s[tail_row(s, s[m + TAIL_OF]) + 1] = c
    log_accesses(s, g, c, n, UNKNOWN)
    if s[m + NEED] == 0:
        soon(s, c)
    return GO_ON


@jit
def do_copy(s, g, pc):
    code = code_row(s, pc)
    frame = s[unit_row(s, g) + FRAME]
    n = look_all(s, g, code)
    p = copy_path(s, g, 0, n - 1, s[code + G]) - 1
    nbytes = evaluate(s, s[code + E], frame)
    number = s[unit_row(s, g) + COPIES]
    flow = s[unit_row(s, g) + FLOW]
    delay = 0
    if p != NONE:
        delay = delay_of(s, flow, number, p, nbytes)
    if p == NONE or delay == UNKNOWN:
        # The machine has to be asked first: nothing has happened yet.
        if s[code + C] != NONE:
            s[s[T_FRAME] + frame + s[code + C]] -= 1
        return s[s[T_ASK]]
    c = new_command(s, COPY, g, pc)
    m = command_row(s, c)
    for k in range(n):
        conflicts(s, g, c, k)
    s[m + PATH] = p & CLASS
    s[m + BASE] = p >> CLASSES
    s[m + BYTES] = nbytes
    s[m + DELAY] = delay
    s[m + FLOW_OF] = flow
    s[m + ORDER] = number * PIECES
    s[unit_row(s, g) + COPIES] += 1
    touch_caches(s, g, c, 0, n - 1)
    behind_tail(s, g, c, s[code + A])
    s[m + RECORD] = note(s, g, pc, COPY, s[code + A], UNKNOWN, UNKNOWN, NONE, nbytes, NONE, NONE, p)
    transfer(s, g, c, n, False)
    return GO_ON


@jit
def do_read(s, g, pc):
    code = code_row(s, pc)
    u = unit_row(s, g)
    frame = s[u + FRAME]
    count = s[s[T_FRAME] + frame + s[code + C]]
    h = find(s, ASK_VALUE, pc, s[u + ACTOR], count, 0)
    if h == NONE:
        return ask(s, ASK_VALUE, pc, s[u + ACTOR], count, 0, g)
    s[s[T_FRAME] + frame + s[code + C]] = count + 1
    s[s[T_FRAME] + frame + s[code + B]] = s[memo_row(s, h) + 5]
    c = new_command(s, READ, g, pc)
    look(s, g, s[code + A], 0, 0)
    conflicts(s, g, c, 0)
    block(s, g, HAZARD, pc)
    s[u + PC] = pc + 1
    if s[command_row(s, c) + NEED] == 0:
        soon(s, c)
    return HELD_UP


@jit
def do_signal(s, g, pc):
    code = code_row(s, pc)
    u = unit_row(s, g)
    frame = s[u + FRAME]
    to = evaluate(s, s[code + B], frame)
    member = evaluate(s, s[code + C], frame)
    f = flag_row(s, s[launch_row(s, s[u + LAUNCH]) + FLAGS] + s[code + A])
    if to < 0 or to >= s[f + FLAG_UNITS] or member < 0 or member >= s[f + FLAG_MEMBERS]:
        return ask(s, MISUSE, pc, g, 3, to, member)
    delay = site(s, g, 0)
    if delay == NONE:
        peer = seen_from(s, g, s[f + FLAG_LEVEL], to)
        h = find(s, ASK_MESSAGE, s[u + LEVEL], s[u + PLACE], peer, 0)
        if h == NONE:
            return ask(s, ASK_MESSAGE, s[u + LEVEL], s[u + PLACE], peer, 0, g)
        delay = s[memo_row(s, h) + 5]
    c = new_command(s, SIGNAL, g, pc)
    m = command_row(s, c)
    s[m + DELAY] = delay
    s[m + AMOUNT] = evaluate(s, s[code + D], frame)
    s[m + MESSAGE_QUEUE] = s[f + FIRST_COUNTER] + to * s[f + FLAG_MEMBERS] + member
    s[m + FLOW_OF] = s[m + MESSAGE_QUEUE]
    after_visible(s, g, c)
    s[m + RECORD] = note(s, g, pc, SIGNAL, NONE, s[u + NOW], UNKNOWN, NONE, 0, NONE, NONE, NONE)
    if s[m + NEED] == 0:
        soon(s, c)
    return GO_ON


@jit
def do_wait(s, g, pc):
    code = code_row(s, pc)
    u = unit_row(s, g)
    frame = s[u + FRAME]
    member = evaluate(s, s[code + C], frame)
    value = evaluate(s, s[code + B], frame)
    f = flag_row(s, s[launch_row(s, s[u + LAUNCH]) + FLAGS] + s[code + A])
    if member < 0 or member >= s[f + FLAG_MEMBERS]:
        return ask(s, MISUSE, pc, g, 3, s[u + NUMBER], member)
    x = s[f + FIRST_COUNTER] + s[u + NUMBER] // s[code + D] * s[f + FLAG_MEMBERS] + member
    if s[counter_row(s, x) + COUNT] < value:
        s[u + CHAIN] = s[counter_row(s, x) + FLAG_WAITER]
        s[counter_row(s, x) + FLAG_WAITER] = g
        s[u + NEEDS] = value
        block(s, g, FLAG, x)
        return HELD_UP
    begin = s[u + SINCE] if s[u + SINCE] != NONE else s[u + NOW]
    s[u + SINCE] = NONE
    s[u + CAUSE] = note(s, g, pc, WAIT, NONE, begin, s[u + NOW], s[u + CAUSE], 0, NONE, NONE, NONE)
    return GO_ON


@jit
def do_meet(s, g, pc):
    code = code_row(s, pc)
    u = unit_row(s, g)
    frame = s[u + FRAME]
    x = s[s[T_LISTS] + s[code + A] + s[u + NUMBER]]
    if x == NONE:
        return ask(s, MISUSE, pc, g, 4, 0, 0)
    x += s[launch_row(s, s[u + LAUNCH]) + MEETINGS]
    nbytes = evaluate(s, s[code + C], frame)
    here = 0 if s[level_row(s, s[u + LEVEL]) + FIXED] == 1 else s[u + PLACE]
    h = find(s, ASK_MEETING, pc, x, nbytes, here)
    if h == NONE:
        return ask(s, ASK_MEETING, pc, x, nbytes, here, g)
    c = new_command(s, MEET, g, pc)
    m = command_row(s, c)
    s[m + DELAY] = s[memo_row(s, h) + 5]
    s[m + MESSAGE_QUEUE] = x
    s[m + BYTES] = nbytes
    at = s[code + B]
    reads = s[s[T_LISTS] + at]
    writes = s[s[T_LISTS] + at + 1]
    for k in range(reads + writes):
        look(s, g, s[s[T_LISTS] + at + 2 + k], 1 if k >= reads else 0, k)
    for k in range(reads + writes):
        conflicts(s, g, c, k)
    s[m + REST] = NONE
    if s[RECORDING] == 2 and reads + writes > 0:
        s[m + REST] = keep_accesses(s, reads + writes)
    after_visible(s, g, c)
    log_accesses(s, g, c, reads + writes, UNKNOWN)
    block(s, g, MEETING, x)
    s[u + PC] = pc + 1
    if s[m + NEED] == 0:
        soon(s, c)
    return HELD_UP
