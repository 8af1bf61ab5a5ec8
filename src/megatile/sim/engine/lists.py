"""Rows of tables that are used again, and lists of those who wait."""

from __future__ import annotations

from typing import Any

from megatile.sim.engine.marks import jit
from megatile.sim.state import NONE, State


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
    s.live_nodes += 1
    s.nodes[node_id].next = after
    s.nodes[node_id].item = item
    return node_id


@jit
def free_node(s: State, node_id: int) -> int:
    """Drop the first node of a list; the rest of it."""
    after = s.nodes[node_id].next
    s.nodes[node_id].next = s.free_node
    s.free_node = node_id
    s.live_nodes -= 1
    return after
