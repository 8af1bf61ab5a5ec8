"""Messages are sent and received: functions as in `operations`."""

from __future__ import annotations

from megatile.sim.engine.accesses import conflicts, look, storage_row
from megatile.sim.engine.caches import touch_caches
from megatile.sim.engine.commands import after_visible, behind_tail, new_command
from megatile.sim.engine.instances import block, seen_from
from megatile.sim.engine.names import bind
from megatile.sim.engine.notes import note
from megatile.sim.engine.operations import copy_path
from megatile.sim.engine.queues import channel_of, offer, queue_number, queue_place, receiver_of
from megatile.sim.engine.rows import (
    access_row,
    channel_row,
    code_row,
    command_row,
    held_row,
    jit,
    launch_row,
    level_row,
    memo_row,
    queue_of_row,
    queue_row,
    record_row,
    ring_row,
    unit_row,
)
from megatile.sim.engine.transfers import delay_of, transfer
from megatile.sim.engine.values import ask, evaluate, find
from megatile.sim.state import *


@jit
def credit_of(s, g, q):
    """How long the credit of a message travels back: UNKNOWN where the machine has to be asked."""
    k = queue_row(s, q)
    u = unit_row(s, g)
    channel = channel_of(s, g)
    level = s[channel_row(s, channel) + CHANNEL_LEVEL]
    if level == s[u + LEVEL] and s[level_row(s, level) + FIXED] == 1:
        return s[k + CREDITED]
    peer = seen_from(s, g, level, s[k + SENDER] - s[level_row(s, level) + FIRST_ACTOR])
    h = find(s, ASK_CREDIT, channel, s[u + LEVEL], s[u + PLACE], peer)
    if h == NONE:
        ask(s, ASK_CREDIT, channel, s[u + LEVEL], s[u + PLACE], peer, g)
        return UNKNOWN
    return s[memo_row(s, h) + 5]


@jit
def do_send(s, g, pc):
    code = code_row(s, pc)
    u = unit_row(s, g)
    frame = s[u + FRAME]
    to = evaluate(s, s[code + B], frame)
    member = evaluate(s, s[code + C], frame)
    x = channel_row(s, channel_of(s, g))
    place = queue_place(s, channel_of(s, g), to, member)
    q = NONE if place == NONE else s[queue_of_row(s, place)] - 1
    if q < 0:
        return ask(s, ASK_QUEUE, s[code + A], to, member, g, pc)
    k = queue_row(s, q)
    level = s[x + CHANNEL_LEVEL]
    me = s[level_row(s, level) + FIRST_ACTOR] + s[u + NUMBER] // s[code + F]
    if s[queue_of_row(s, place) + FED_BY] != me:
        return ask(s, MISUSE, pc, g, 0, to, member)
    nbytes = evaluate(s, s[code + E], frame)
    if nbytes > s[x + SLOT_BYTES]:
        return ask(s, MISUSE, pc, g, 1, nbytes, member)
    number = s[k + SENT]
    row = s[k + RING] + number % s[k + SLOTS]
    if number >= s[k + SLOTS]:
        credit = s[ring_row(s, row) + RETURNED]
        if credit == UNKNOWN:
            s[u + CHAIN] = s[k + CREDIT_WAITER]
            s[k + CREDIT_WAITER] = g
            block(s, g, CREDIT, q)
            return HELD_UP
        if credit > s[u + NOW]:
            s[u + NOW] = credit
            s[u + CAUSE] = s[ring_row(s, row) + RETURNED_BY]
    look(s, g, s[code + D], 0, 0)
    memory = s[storage_row(s, g, s[access_row(s, 0) + A_STORAGE]) + MEMORY]
    lane = s[k + VC]
    p = NONE
    h = NONE
    if level == s[u + LEVEL] and s[level_row(s, level) + FIXED] == 1:
        if s[k + QFROM] == memory:
            p = s[k + QPATH]
        else:
            h = find(s, ASK_PATH, place, memory, -2, -2)
            if h == NONE:
                return ask(s, ASK_PATH, place, memory, -2, -2, g)
    else:
        memory = memory * (1 << 24) + s[u + LEVEL]
        peer = seen_from(s, g, level, to)
        h = find(s, ASK_ROUTE, channel_of(s, g), memory, s[u + PLACE], peer)
        if h == NONE:
            return ask(s, ASK_ROUTE, channel_of(s, g), memory, s[u + PLACE], peer, g)
        lane = find(s, ASK_LANE, channel_of(s, g), s[u + LEVEL], s[u + PLACE], peer)
        if lane == NONE:
            return ask(s, ASK_LANE, channel_of(s, g), s[u + LEVEL], s[u + PLACE], peer, g)
        lane = s[memo_row(s, lane) + 5]
    if p == NONE:
        p = s[memo_row(s, h) + 5]
    flow = s[x + CHANNEL_FIRST] + to * s[x + MEMBERS] + member
    delay = delay_of(s, flow, number, p, nbytes)
    if delay == UNKNOWN:
        return ASK_DELAY
    s[u + SINCE] = NONE
    s[k + SENT] = number + 1
    s[queue_of_row(s, place) + QUEUE_SENT] += 1
    s[ring_row(s, row) + ARRIVED] = UNKNOWN
    s[ring_row(s, row) + RETURNED] = UNKNOWN
    s[ring_row(s, row) + SIZE] = nbytes
    c = new_command(s, SEND, g, pc)
    m = command_row(s, c)
    conflicts(s, g, c, 0)
    after_visible(s, g, c)
    s[m + PATH] = p & CLASS
    s[m + BASE] = p >> CLASSES
    s[m + BYTES] = nbytes
    s[m + DELAY] = delay
    s[m + FLOW_OF] = flow
    s[m + ORDER] = number * PIECES
    s[m + MESSAGE_QUEUE] = q
    s[m + MESSAGE] = number
    behind_tail(s, g, c, lane)
    s[m + RECORD] = note(s, g, pc, SEND, lane, UNKNOWN, UNKNOWN, NONE, nbytes, q, number, p)
    transfer(s, g, c, 1, True)
    return GO_ON


@jit
def take(s, g, pc, q, kind):
    """Take the message at the head of a queue: bind its slot to a name, or copy it out."""
    code = code_row(s, pc)
    u = unit_row(s, g)
    frame = s[u + FRAME]
    k = queue_row(s, q)
    number = s[k + TAKEN]
    row = s[k + RING] + number % s[k + SLOTS]
    arrival = s[ring_row(s, row) + ARRIVED]
    nbytes = s[ring_row(s, row) + SIZE]
    if evaluate(s, s[code + E], frame) != nbytes:
        return ask(s, MISUSE, pc, g, 2, nbytes, s[k + QMEMBER])
    storage = (
        s[channel_row(s, channel_of(s, g)) + SLOT_STORAGE]
        + s[k + QMEMBER] * s[k + SLOTS]
        + number % s[k + SLOTS]
    )
    into = s[code + D]
    credit = credit_of(s, g, q)
    if credit == UNKNOWN:
        return ASK_CREDIT
    p = NONE
    delay = 0
    if into != NONE:
        a = access_row(s, 1)
        s[a + A_STORAGE] = storage
        s[a + A_OWNER] = NONE
        if s[code + F] != NONE:
            s[s[T_FRAME] + frame + s[code + F]] += 1
        look(s, g, into, 1, 0)
        p = copy_path(s, g, 1, 0, 0) - 1
        if p != NONE:
            delay = delay_of(s, s[u + FLOW], s[u + COPIES], p, nbytes)
        if p == NONE or delay == UNKNOWN:
            if s[code + F] != NONE:
                s[s[T_FRAME] + frame + s[code + F]] -= 1
            return s[s[T_ASK]]
    begin = s[u + SINCE] if s[u + SINCE] != NONE else s[u + NOW]
    s[u + SINCE] = NONE
    s[k + TAKEN] = number + 1
    by = s[ring_row(s, row) + ARRIVED_BY]
    why = by if arrival >= begin else s[u + CAUSE]
    if arrival > s[u + NOW]:
        s[u + NOW] = arrival
    if into == NONE or s[u + NOW] > begin or kind == ANY:
        n = note(s, g, pc, kind, NONE, begin, s[u + NOW], why, nbytes, q, number, NONE)
        if n != NONE:
            s[record_row(s, n) + R_ARRIVED] = arrival
            s[u + CAUSE] = n
    if into == NONE:
        h = s[u + HOLD] + storage - s[launch_row(s, s[u + LAUNCH]) + FIRST_SLOT]
        s[held_row(s, h) + HELD] = 1
        s[held_row(s, h) + HELD_QUEUE] = q
        s[held_row(s, h) + HELD_MESSAGE] = number
        s[held_row(s, h) + HELD_CREDIT] = credit
        bind(s, g, s[code + C], storage)
        return GO_ON
    c = new_command(s, INTO, g, pc)
    m = command_row(s, c)
    conflicts(s, g, c, 0)
    s[m + PATH] = p & CLASS
    s[m + BASE] = p >> CLASSES
    s[m + BYTES] = nbytes
    s[m + DELAY] = delay
    s[m + FLOW_OF] = s[u + FLOW]
    s[m + ORDER] = s[u + COPIES] * PIECES
    s[m + MESSAGE_QUEUE] = q
    s[m + MESSAGE] = number
    s[m + AMOUNT] = credit
    s[u + COPIES] += 1
    touch_caches(s, g, c, NONE, 0)
    behind_tail(s, g, c, DMA)
    s[m + RECORD] = note(s, g, pc, INTO, DMA, UNKNOWN, UNKNOWN, NONE, nbytes, q, number, p)
    transfer(s, g, c, 1, False)
    return GO_ON


@jit
def do_receive(s, g, pc):
    code = code_row(s, pc)
    member = evaluate(s, s[code + B], s[unit_row(s, g) + FRAME])
    q = queue_number(s, channel_of(s, g), receiver_of(s, g), member) - 1
    if q < 0:
        return ask(s, ASK_QUEUE, s[code + A], receiver_of(s, g), member, g, pc)
    k = queue_row(s, q)
    if (
        s[k + SENT] <= s[k + TAKEN]
        or s[ring_row(s, s[k + RING] + s[k + TAKEN] % s[k + SLOTS]) + ARRIVED] == UNKNOWN
    ):
        s[unit_row(s, g) + CHAIN] = s[k + DATA_WAITER]
        s[k + DATA_WAITER] = g
        block(s, g, DATA, q)
        return HELD_UP
    return take(s, g, pc, q, RECEIVE)


@jit
def do_any(s, g, pc):
    code = code_row(s, pc)
    u = unit_row(s, g)
    at = s[code + B]
    if s[u + NEXT] != NONE:
        outcome = take(s, g, pc, s[u + NEXT], ANY)
        if outcome == GO_ON:
            s[u + NEXT] = NONE
        return outcome
    for i in range(s[s[T_LISTS] + at]):
        q = queue_number(s, channel_of(s, g), receiver_of(s, g), s[s[T_LISTS] + at + 1 + i]) - 1
        if q < 0:
            return ask(s, ASK_QUEUE, s[code + A], receiver_of(s, g), s[s[T_LISTS] + at + 1 + i], g, pc)
        s[queue_row(s, q) + DATA_WAITER] = g
    block(s, g, ANYDATA, at)
    offer(s, g)
    return HELD_UP
