"""Lists of those who wait: nodes that are used again."""

from __future__ import annotations

from megatile.sim.engine.marks import jit
from megatile.sim.state import NONE, State


@jit
def new_node(s: State, after: int, item: int) -> int:
    """Put an item before a list; the list that this gives."""
    node_id = s.free_node
    if node_id == NONE:
        node_id = s.top_node
        s.top_node = node_id + 1
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
