"""Commands whose turn has come: nothing is in their way, or a server takes their request."""

from __future__ import annotations

from megatile.sim.engine.accesses import settle
from megatile.sim.engine.caches import load, store
from megatile.sim.engine.commands import free_command
from megatile.sim.engine.endings import end_known, finished, has_left
from megatile.sim.engine.events import push, serve
from megatile.sim.engine.instances import ended, wake
from megatile.sim.engine.notes import note
from megatile.sim.engine.queues import give_back
from megatile.sim.engine.rows import (
    command_row,
    counter_row,
    inlined,
    jit,
    log_row,
    meeting_row,
    node_row,
    path_row,
    prefetch,
    record_row,
    stage_row,
    unit_row,
)
from megatile.sim.engine.transfers import move, next_piece, occupied, stage_busy, start_transfer, turn
from megatile.sim.state import *


@inlined
def fetch_waiter(s, n):
    """The first who waits on a list will be needed soon."""
    if n != NONE:
        prefetch(s, command_row(s, s[node_row(s, n) + 1]))


@jit
def granted(s, c, time):
    """A request in the time queue has come to its turn."""
    m = command_row(s, c)
    if s[m + SERVER_OF] != NONE:
        # An engine that several units share.
        server = s[m + SERVER_OF]
        s[m + SERVER_OF] = NONE
        now = serve(s, server, time, s[m + BUSY])
        if s[m + WHAT] == WORK:
            work(s, c, now)
        else:
            start_transfer(s, c, now)
        return
    fetch_waiter(s, s[m + WAITERS])
    fetch_waiter(s, s[m + LEFT_WAITERS])
    if s[m + ENTRIES] != NONE:
        prefetch(s, log_row(s, s[log_row(s, s[m + ENTRIES]) + LOG_OF_COMMAND]))
    index = s[m + STAGE]
    p = path_row(s, s[m + PATH])
    k = s[p + FIRST_STAGE] + index
    parent = s[m + PARENT_OF]
    if (
        s[m + WAITED] == 0
        and parent != NONE
        and s[m + REST] + 1 < -(-s[command_row(s, parent) + BYTES] // s[command_row(s, parent) + PIECE_BYTES])
    ):
        # The head of the next piece starts when the tail of this one does.
        lead = time
        for i in range(index):
            lead -= s[stage_row(s, s[p + FIRST_STAGE] + i) + STAGE_LATENCY]
        next_piece(s, parent, s[m + REST] + 1, lead + occupied(s, s[m + PATH], s[m + BYTES]))
        m = command_row(s, c)
    if s[m + SPAN_READ] != NONE and load(s, c, time):
        return
    behind = 0
    if s[m + SPAN_WRITTEN] != NONE and index + 1 == s[p + STAGES]:
        behind = store(s, c, time)
    server = s[m + BASE] + s[stage_row(s, k) + STAGE_SERVER]
    now = serve(s, server, time, stage_busy(s, k, s[m + BYTES]))
    s[m + WAITED] = 1
    s[m + STAGE] = index + 1
    turn(s, c, index, now)
    s[m + TAIL] = max(s[m + TAIL], behind)
    move(s, c)


@jit
def work(s, c, time):
    m = command_row(s, c)
    s[m + START] = time
    if s[m + RECORD] != NONE:
        s[record_row(s, s[m + RECORD]) + R_START] = time
        s[record_row(s, s[m + RECORD]) + R_CAUSE] = s[m + WHY]
    has_left(s, c, time + s[m + BUSY])
    finished(s, c, time + s[m + BUSY])


@jit
def come(s, c, time):
    """An instance is at its meeting; the last one completes it."""
    m = command_row(s, c)
    settle(s, c, time)
    b = meeting_row(s, s[m + MESSAGE_QUEUE])
    if s[b + CAME] == 0 or time > s[b + MEET_AT]:
        s[b + MEET_AT] = time
        s[b + MEET_WHY] = s[m + WHY]
    s[b + CAME] += 1
    s[m + SHARED_NEXT] = s[b + MEET_CHAIN]
    s[b + MEET_CHAIN] = c
    if s[b + CAME] < s[b + MEMBERS_OF]:
        return
    end = s[b + MEET_AT] + s[m + DELAY]
    s[b + CAME] = 0
    c = s[b + MEET_CHAIN]
    s[b + MEET_CHAIN] = NONE
    while c != NONE:
        m = command_row(s, c)
        after = s[m + SHARED_NEXT]
        s[m + SHARED_NEXT] = NONE
        g = s[m + WHO]
        n = note(
            s,
            g,
            s[m + AT],
            MEET,
            NONE,
            s[unit_row(s, g) + SINCE],
            end,
            s[b + MEET_WHY],
            s[m + BYTES],
            NONE,
            NONE,
            NONE,
        )
        if n != NONE:
            s[record_row(s, n) + R_AUX] = s[m + REST]
        s[unit_row(s, g) + SINCE] = NONE
        end_known(s, g, end, n)
        ended(s, g, end)
        free_command(s, c)
        wake(s, g, end, n)
        s[unit_row(s, g) + CAUSE] = n
        c = after


@jit
def raise_flag(s, c, time):
    """A signal arrives."""
    m = command_row(s, c)
    f = counter_row(s, s[m + MESSAGE_QUEUE])
    s[f + COUNT] += s[m + AMOUNT]
    s[f + FLAG_BY] = s[m + RECORD]
    g = s[f + FLAG_WAITER]
    s[f + FLAG_WAITER] = NONE
    free_command(s, c)
    while g != NONE:
        after = s[unit_row(s, g) + CHAIN]
        if s[f + COUNT] >= s[unit_row(s, g) + NEEDS]:
            wake(s, g, time, s[f + FLAG_BY])
        else:
            s[unit_row(s, g) + CHAIN] = s[f + FLAG_WAITER]
            s[f + FLAG_WAITER] = g
        g = after


@jit
def ready(s, c):
    """Nothing is in the way of a command any more."""
    m = command_row(s, c)
    what = s[m + WHAT]
    time = s[m + READY_AT]
    if what == RELEASE:
        give_back(s, s[m + MESSAGE_QUEUE], s[m + MESSAGE], time, s[m + WHY], s[m + AMOUNT])
        end_known(s, s[m + WHO], time, s[m + WHY])
        free_command(s, c)
    elif what == SIGNAL:
        if s[m + RECORD] != NONE:
            s[record_row(s, s[m + RECORD]) + R_END] = time
            s[record_row(s, s[m + RECORD]) + R_CAUSE] = s[m + WHY]
        ended(s, s[m + WHO], time + s[m + DELAY])
        s[SEQUENCE] += 1
        push(s, time + s[m + DELAY], SIGNALS, s[m + FLOW_OF], s[SEQUENCE], c)
    elif what == READ:
        g = s[m + WHO]
        n = note(s, g, s[m + AT], READ, NONE, time, time, s[m + WHY], 0, NONE, NONE, NONE)
        s[unit_row(s, g) + SINCE] = NONE
        free_command(s, c)
        wake(s, g, time, n)
        s[unit_row(s, g) + CAUSE] = n
    elif what == MEET:
        come(s, c, time)
    elif s[m + SERVER_OF] != NONE:
        push(s, time, REQUESTS, s[m + FLOW_OF], s[m + ORDER] * HOPS + (1 if what == WORK else 0), c)
    elif what == WORK:
        work(s, c, time)
    else:
        start_transfer(s, c, time)
