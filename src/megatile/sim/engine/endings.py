"""Commands end: their source is free, their data is there; an instance has finished all."""

from __future__ import annotations

from megatile.sim.engine.accesses import forget, settle
from megatile.sim.engine.commands import free_command, notify
from megatile.sim.engine.instances import ended, one_less, part_over, wake
from megatile.sim.engine.queues import arrive, give_back
from megatile.sim.engine.rows import command_row, jit, launch_row, log_row, record_row, tail_row, unit_row
from megatile.sim.state import *


@jit
def end_known(s, g, time, record):
    """The latest end of what an instance has issued, and the record of it."""
    u = unit_row(s, g)
    if time > s[u + LATEST]:
        s[u + LATEST] = time
        s[u + LATEST_BY] = record


@jit
def let_go(s, g):
    """An instance may have finished all that it has issued."""
    u = unit_row(s, g)
    if s[u + STATE] != DONE or s[u + OPEN] > 0:
        return
    s[u + STATE] = OVER
    for head in range(s[u + STORE], s[u + STORE] + s[launch_row(s, s[u + LAUNCH]) + STORAGES]):
        e = s[s[T_HEADS] + head]
        while e != NONE:
            after = s[log_row(s, e) + LOG_NEXT]
            forget(s, e)
            e = after
        s[s[T_HEADS] + head] = NONE
    if s[u + LATEST] >= s[u + NOW]:
        part_over(s, g, s[u + LATEST], s[u + LATEST_BY])
    else:
        part_over(s, g, s[u + NOW], s[u + CAUSE])
    one_less(s, s[u + LAUNCH])


@jit
def closed(s, g):
    """The end of a command of an instance is known."""
    s[unit_row(s, g) + OPEN] -= 1
    let_go(s, g)


@jit
def has_left(s, c, time):
    """The source of a command's engine is free from ``time`` on."""
    m = command_row(s, c)
    parent = s[m + PARENT_OF]
    if parent != NONE:
        p = command_row(s, parent)
        s[p + LEFT] = max(s[p + LEFT], time)
        s[m + LEFT] = time
        s[p + PIECES_LEFT] -= 1
        if s[p + PIECES_LEFT] == 0:
            source_free(s, parent, s[p + LEFT])
        return
    source_free(s, c, time)


@jit
def source_free(s, c, time):
    m = command_row(s, c)
    s[m + LEFT] = time
    t = s[m + TAIL_OF]
    if t != NONE and s[tail_row(s, t) + 1] == c:
        s[tail_row(s, t)] = time
        s[tail_row(s, t) + 1] = NONE
        s[tail_row(s, t) + 2] = s[m + RECORD]
        if s[unit_row(s, s[m + WHO]) + STATE] == AHEAD:
            wake(s, s[m + WHO], 0, NONE)
    first = s[m + LEFT_WAITERS]
    s[m + LEFT_WAITERS] = NONE
    notify(s, first, time, s[m + RECORD])
    if s[m + WHAT] == SEND:
        settle(s, c, time)
        end_known(s, s[m + WHO], time, s[m + RECORD])
        if s[m + RECORD] != NONE:
            s[record_row(s, s[m + RECORD]) + R_END] = time
        first = s[m + WAITERS]
        s[m + WAITERS] = NONE
        notify(s, first, time, s[m + RECORD])
        closed(s, s[m + WHO])
    ended(s, s[m + WHO], time)
    if s[m + FINISH] != UNKNOWN:
        free_command(s, c)


@jit
def finished(s, c, time):
    """A command has done what it had to do: its data is there."""
    m = command_row(s, c)
    if s[m + PARENT_OF] != NONE:
        free_command(s, c)
        c = s[m + PARENT_OF]
        m = command_row(s, c)
        s[m + TAIL] = max(s[m + TAIL], time)
        s[m + TAILS_LEFT] -= 1
        if s[m + TAILS_LEFT] > 0:
            return
        time = s[m + TAIL]
    s[m + FINISH] = time
    ended(s, s[m + WHO], time)
    what = s[m + WHAT]
    record = s[m + RECORD]
    if what == SEND:
        q = s[m + MESSAGE_QUEUE]
        arrive(s, q, s[m + MESSAGE], time, record)
        if record != NONE:
            s[record_row(s, record) + R_ARRIVED] = time
    else:
        if record != NONE:
            s[record_row(s, record) + R_END] = time
        settle(s, c, time)
        end_known(s, s[m + WHO], time, s[m + RECORD])
        if what == INTO:
            give_back(s, s[m + MESSAGE_QUEUE], s[m + MESSAGE], time, record, s[m + AMOUNT])
        first = s[m + WAITERS]
        s[m + WAITERS] = NONE
        notify(s, first, time, record)
        closed(s, s[m + WHO])
    if s[m + LEFT] != UNKNOWN and s[m + PIECES_LEFT] == 0:
        free_command(s, c)
