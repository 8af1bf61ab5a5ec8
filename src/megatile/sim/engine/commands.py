"""Commands in flight: what they wait for, and who waits for them."""

from __future__ import annotations

from megatile.sim.engine.instances import one_less
from megatile.sim.engine.rows import (
    command_row,
    inlined,
    jit,
    launch_row,
    node_row,
    tail_row,
    unit_row,
)
from megatile.sim.state import *


@inlined
def new_command(s, what, g, at):
    c = s[FREE_COMMAND]
    if c == NONE:
        c = s[TOP_COMMAND]
        s[TOP_COMMAND] = c + 1
    else:
        s[FREE_COMMAND] = s[command_row(s, c) + WAITERS]
    m = command_row(s, c)
    s[LIVE_COMMANDS] += 1
    s[launch_row(s, s[unit_row(s, g) + LAUNCH]) + UNFINISHED] += 1
    s[m + WHAT] = what
    s[m + WHO] = g
    s[m + AT] = at
    s[m + RECORD] = NONE
    s[m + READY_AT] = s[unit_row(s, g) + NOW]
    s[m + WHY] = s[unit_row(s, g) + CAUSE]
    s[m + NEED] = 0
    s[m + WAITERS] = NONE
    s[m + LEFT_WAITERS] = NONE
    s[m + START] = UNKNOWN
    s[m + LEFT] = UNKNOWN
    s[m + FINISH] = UNKNOWN
    s[m + TAIL_OF] = NONE
    s[m + DELAY] = 0
    s[m + PARENT_OF] = NONE
    s[m + ENTRIES] = NONE
    s[m + SHARED_LAST] = c
    s[m + SERVER_OF] = NONE
    s[m + SPAN_READ] = NONE
    s[m + SPAN_WRITTEN] = NONE
    s[m + PIECES_LEFT] = 0
    s[m + MESSAGE_QUEUE] = NONE
    return c


@inlined
def free_command(s, c):
    g = s[command_row(s, c) + WHO]
    s[command_row(s, c) + WAITERS] = s[FREE_COMMAND]
    s[FREE_COMMAND] = c
    s[LIVE_COMMANDS] -= 1
    one_less(s, s[unit_row(s, g) + LAUNCH])


@jit
def soon(s, c):
    """A command that waits for nothing; `drain` starts it."""
    s[s[T_TODO] + s[TODO]] = c
    s[TODO] += 1


@jit
def depend(s, c, time, on, why, left):
    """Command ``c`` waits for a time, or for a command in flight (until its source has left, or its end)."""
    m = command_row(s, c)
    if on == NONE:
        if time > s[m + READY_AT]:
            s[m + READY_AT] = time
            s[m + WHY] = why
        return
    column = LEFT_WAITERS if left else WAITERS
    last = s[command_row(s, on) + column]
    if last != NONE and s[node_row(s, last) + 1] == c:
        return  # it waits for that already
    n = s[FREE_NODE]
    if n == NONE:
        n = s[TOP_NODE]
        s[TOP_NODE] = n + 1
    else:
        s[FREE_NODE] = s[node_row(s, n)]
    s[LIVE_NODES] += 1
    s[node_row(s, n)] = last
    s[node_row(s, n) + 1] = c
    s[command_row(s, on) + column] = n
    s[m + NEED] += 1


@jit
def notify(s, first, time, why):
    """Those who wait on a list know the time now."""
    n = first
    while n != NONE:
        after = s[node_row(s, n)]
        m = command_row(s, s[node_row(s, n) + 1])
        if time > s[m + READY_AT] or (time == s[m + READY_AT] and s[m + WHY] == NONE):
            s[m + READY_AT] = time
            s[m + WHY] = why
        s[m + NEED] -= 1
        if s[m + NEED] == 0:
            s[s[T_TODO] + s[TODO]] = s[node_row(s, n) + 1]
            s[TODO] += 1
        s[node_row(s, n)] = s[FREE_NODE]
        s[FREE_NODE] = n
        s[LIVE_NODES] -= 1
        n = after


@jit
def behind_tail(s, g, c, engine):
    """Command ``c`` joins the queue of an engine."""
    t = s[unit_row(s, g) + ENGINES] + engine
    depend(s, c, s[tail_row(s, t)], s[tail_row(s, t) + 1], s[tail_row(s, t) + 2], 1)
    s[command_row(s, c) + TAIL_OF] = t


@inlined
def after_visible(s, g, c):
    """Command ``c`` waits for the accesses of its instance that others see."""
    t = s[unit_row(s, g) + ENGINES]
    depend(s, c, s[tail_row(s, t)], NONE, s[tail_row(s, t) + 2], 0)
    k = s[unit_row(s, g) + SHARED]
    while k != NONE:
        depend(s, c, 0, k, NONE, 0)
        k = s[command_row(s, k) + SHARED_NEXT]
