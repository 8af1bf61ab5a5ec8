"""Rows of tables that are used again, the time queue, and servers that take one request after another."""

from __future__ import annotations

from typing import Any

from megatile.records.marks import jit
from megatile.sim.state import NONE, PHASE, Event, State


@jit
def claim(s: State, top: int, size: int, table: Any) -> int:
    """Take the row ``top`` of a table; the next that is free. The last one is never taken for good: when it
    is reached the run stops."""
    if top + 2 < size:
        return top + 1
    s.full = table
    s.stopped = 1
    s.steps = 0
    return top


@jit
def new_node(s: State, after: int, item: int) -> int:
    """Put an item before a list; the list that this gives."""
    node_id = s.free_node
    if node_id == NONE:
        node_id = s.top_node
        s.top_node = claim(s, node_id, s.nodes.size, State.nodes)
    else:
        s.free_node = s.nodes[node_id].next
    s.nodes[node_id].next = after
    s.nodes[node_id].item = item
    return node_id


@jit
def free_node(s: State, node_id: int) -> int:
    """Drop the first node of a list; the rest of it."""
    after = s.nodes[node_id].next
    s.nodes[node_id].next = s.free_node
    s.free_node = node_id
    return after


@jit
def before(s: State, one: Event, other: Event) -> int:
    """Return whether one event comes before the other."""
    if one.time != other.time:
        return one.time < other.time
    if one.key != other.key:
        return one.key < other.key
    return one.order < other.order


@jit
def push(s: State, time: int, phase: int, flow: int, order: int, subject: int) -> None:
    """Put an event into the time queue; ties go by phase, flow, order."""
    events = s.events
    i = s.event_count
    s.event_count = claim(s, i, s.events.size, State.events)
    new = events[i].at(1)
    new.update(time=time, key=phase * PHASE + flow, order=order, subject=subject)
    while i > 0:
        up = (i - 1) >> 1
        above = events[up]
        if before(s, above, new):
            break
        events[i].update(time=above.time, key=above.key, order=above.order, subject=above.subject)
        i = up
    events[i].update(time=time, key=phase * PHASE + flow, order=order, subject=subject)


@jit
def pop(s: State) -> None:
    """Drop the earliest event."""
    events = s.events
    n = s.event_count - 1
    s.event_count = n
    last = events[n]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= n:
            break
        below = events[down]
        if down + 1 < n and before(s, below.at(1), below):
            down += 1
            below = below.at(1)
        if not before(s, below, last):
            break
        events[i].update(time=below.time, key=below.key, order=below.order, subject=below.subject)
        i = down
    events[i].update(time=last.time, key=last.key, order=last.order, subject=last.subject)


@jit
def serve(s: State, server_id: int, time: int, busy: int) -> int:
    """Return when a server takes a request: first come, first served; a wide one serves several at a time."""
    earliest = s.servers[server_id].lanes
    for lane in range(earliest + 1, s.servers[server_id].lanes + s.servers[server_id].lane_count):
        if s.lanes[lane] < s.lanes[earliest]:
            earliest = lane
    turn = max(time, s.lanes[earliest])
    s.lanes[earliest] = turn + busy
    return turn
