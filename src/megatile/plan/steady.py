"""Loops that repeat themselves: which of them a counting walk may skip through.

A ring of 100 000 units has 99 999 equal rounds. If nothing in a loop's body that decides the path (peers,
members, sizes, conditions, inner bounds) depends on the loop, and two rounds left all queues in the same
state, then so will all.
"""

from __future__ import annotations

from dataclasses import replace
from math import lcm
from typing import Any, NamedTuple

import numpy as np

from megatile.core.expr import Expr, Symbol, known, symbols
from megatile.plan.cohort import Cohort, TileHandle
from megatile.plan.model import (
    CarryInt,
    Collective,
    Compute,
    Free,
    If,
    Loop,
    Receive,
    Send,
    Start,
    Statement,
    Work,
    statements,
)
from megatile.plan.spec import parts


def deciding(statement: Statement) -> list[Expr]:
    """Return the expressions of a statement that decide where control and messages go, not which elements
    they touch.
    """
    found: list[Expr] = []
    for p in parts(type(statement)):
        value = getattr(statement, p.name) if p.decides else ()
        found += [value.bytes] if isinstance(value, Work) else value if isinstance(value, tuple) else [value]
    return found


def stride(carry: CarryInt) -> int | None:
    """By how much a carried integer grows per iteration, if always by the same constant."""
    return known(carry.next - Symbol(carry.name))


def repeats(loop: Loop) -> bool:
    """Return whether control and messages go the same path in every iteration of the loop."""
    carried = [c for c in loop.carries if isinstance(c, CarryInt)]
    if any(stride(c) is None for c in carried):
        return False
    changing = {loop.index} | {c.name for c in carried}
    for statement in statements(loop.body):
        if not isinstance(statement, (Compute, Send, Receive, Collective, Start, Free, Loop, If)):
            return False
        if any(changing & symbols(e) for e in deciding(statement)):
            return False
    return True


def works_only(loop: Loop) -> bool:
    """Return whether units only work in a loop: nothing in it has to do with other units, or holds up
    issue."""
    return all(isinstance(s, (Compute, Free, If, Loop)) for s in statements(loop.body))


class Snapshot(NamedTuple):
    """The state of all queues (sent, received, held) and of one cohort's names at the end of an iteration."""

    queues: dict[str, tuple[Any, Any, Any]]
    handles: dict[str, Any]


def snapshot(queues: dict[str, Any], cohort: Cohort) -> Snapshot:
    counts = {n: (q.sent.copy(), q.received.copy(), q.holds.copy()) for n, q in queues.items()}
    return Snapshot(counts, dict(cohort.handles))


def same_state(before: Snapshot, queues: dict[str, Any], cohort: Cohort) -> bool:
    """Return whether the queues hold as much, and the names mean the same kinds of things, as in the
    snapshot."""
    for name, queue in queues.items():
        sent, received, holds = before.queues[name]
        if not np.array_equal(queue.sent - queue.received, sent - received):
            return False
        # Which slots are held, counted from the next one to be received.
        order, slots = np.arange(queue.channel.slots), queue.channel.slots
        now = np.take_along_axis(queue.holds, (queue.received[..., None] + order) % slots, axis=-1)
        then = np.take_along_axis(holds, (received[..., None] + order) % slots, axis=-1)
        if not np.array_equal(now, then):
            return False
    if set(before.handles) != set(cohort.handles):
        return False
    return all(h.kind() == before.handles[n].kind() for n, h in cohort.handles.items())


def skip(loop: Loop, before: Snapshot, queues: dict[str, Any], cohort: Cohort, remaining: int) -> int:
    """Go through as many iterations at once as leave the slots where they are; how many that was.

    ``before`` is the state one iteration ago.
    """
    period = lcm(*(q.channel.slots for q in queues.values())) if queues else 1
    rounds = max(0, (remaining - 1) // period * period)
    for name, queue in queues.items():
        sent, received, _ = before.queues[name]
        queue.sent += rounds * (queue.sent - sent)
        queue.received += rounds * (queue.received - received)
    for name, handle in cohort.handles.items():
        earlier = before.handles[name]
        if isinstance(handle, TileHandle):
            version = handle.version + rounds * (handle.version - earlier.version)
            cohort.handles[name] = replace(handle, version=version)
        else:
            sequence = handle.sequence + rounds * (handle.sequence - earlier.sequence)
            cohort.handles[name] = replace(handle, sequence=sequence)
    for carry in loop.carries:
        if isinstance(carry, CarryInt):
            cohort.ints[carry.name] = cohort.ints[carry.name] + rounds * (stride(carry) or 0)
    return rounds
