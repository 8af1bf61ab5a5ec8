"""The time queue, and servers that take one request after another."""

from __future__ import annotations

from megatile.sim.engine.rows import jit, server_row
from megatile.sim.state import *


@jit
def before(s, a, b):
    """Whether the event at ``a`` comes before that at ``b``."""
    if s[a] != s[b]:
        return s[a] < s[b]
    if s[a + 1] != s[b + 1]:
        return s[a + 1] < s[b + 1]
    return s[a + 2] < s[b + 2]


@jit
def put(s, at, time, key, order, what):
    s[at] = time
    s[at + 1] = key
    s[at + 2] = order
    s[at + 3] = what


@jit
def push(s, time, phase, flow, order, what):
    """Put an event into the time queue; ties go by phase, flow, order."""
    heap = s[T_HEAP]
    i = s[EVENTS]
    s[EVENTS] = i + 1
    new = heap + 4 * i + 4
    put(s, new, time, phase * PHASE + flow, order, what)
    while i > 0:
        up = (i - 1) >> 1
        a = heap + 4 * up
        if before(s, a, new):
            break
        put(s, heap + 4 * i, s[a], s[a + 1], s[a + 2], s[a + 3])
        i = up
    put(s, heap + 4 * i, time, phase * PHASE + flow, order, what)


@jit
def pop(s):
    """Drop the earliest event."""
    heap = s[T_HEAP]
    n = s[EVENTS] - 1
    s[EVENTS] = n
    last = heap + 4 * n
    i = 0
    while True:
        down = 2 * i + 1
        if down >= n:
            break
        a = heap + 4 * down
        if down + 1 < n and before(s, a + 4, a):
            down += 1
            a += 4
        if not before(s, a, last):
            break
        put(s, heap + 4 * i, s[a], s[a + 1], s[a + 2], s[a + 3])
        i = down
    put(s, heap + 4 * i, s[last], s[last + 1], s[last + 2], s[last + 3])


@jit
def serve(s, server, time, busy):
    """When a server takes a request: first come, first served; a wide one serves several at a time."""
    at = s[server_row(s, server) + LANES]
    for lane in range(at + 1, s[server_row(s, server) + LANES] + s[server_row(s, server) + WIDTH]):
        if s[s[T_LANE] + lane] < s[s[T_LANE] + at]:
            at = lane
    turn = max(time, s[s[T_LANE] + at])
    s[s[T_LANE] + at] = turn + busy
    return turn
