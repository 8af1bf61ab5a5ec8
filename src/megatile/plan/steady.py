"""Loops that repeat themselves: which of them a counting walk may skip through.

A ring of 100 000 units has 99 999 equal rounds. If nothing in a loop's body that decides the path (peers,
members, sizes, conditions, inner bounds) depends on the loop, and two rounds left all queues in the same
state, then so will all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy as np

from megatile.core.expr import Binary, Expr, Symbol, constant, symbols
from megatile.plan.cohort import Cohort, SlotHandle, TileHandle
from megatile.plan.model import (
    CarryInt,
    Collective,
    Compute,
    Free,
    If,
    Loop,
    Receive,
    Send,
    Statement,
    Work,
    statements,
)
from megatile.plan.spec import parts


def deciding(statement: Statement) -> list[Expr]:
    """The expressions of a statement that decide where control and messages go, not which elements they
    touch.
    """
    found: list[Expr] = []
    for p in parts(type(statement)):
        value = getattr(statement, p.name) if p.decides else ()
        found += [value.bytes] if isinstance(value, Work) else value if isinstance(value, tuple) else [value]
    return found


def stride(carry: CarryInt) -> int | None:
    """By how much a carried integer grows per iteration, if always by the same constant."""
    grown = constant(carry.next - Symbol(carry.name))
    if grown is None and isinstance(carry.next, Binary) and carry.next.left == Symbol(carry.name):
        amount = constant(carry.next.right)
        grown = {"+": amount, "-": None if amount is None else -amount}.get(carry.next.operator)
    return grown


def repeats(loop: Loop) -> bool:
    """Whether control and messages go the same path in every iteration of the loop."""
    carried = [c for c in loop.carries if isinstance(c, CarryInt)]
    if any(stride(c) is None for c in carried):
        return False
    changing = {loop.index} | {c.name for c in carried}
    for statement in statements(loop.body):
        if not isinstance(statement, (Compute, Send, Receive, Collective, Free, Loop, If)):
            return False
        if any(changing & symbols(e) for e in deciding(statement)):
            return False
    return True


def works_only(loop: Loop) -> bool:
    """Whether units only work in a loop: nothing in it has to do with other units, or holds up issue."""
    return all(isinstance(s, (Compute, Free, If, Loop)) for s in statements(loop.body))


@dataclass
class Snapshot:
    """The state of all queues and of one cohort's names at the end of an iteration."""

    sent: dict[str, Any]
    received: dict[str, Any]
    holds: dict[str, Any]
    handles: dict[str, Any]


def snapshot(queues: dict[str, Any], cohort: Cohort) -> Snapshot:
    return Snapshot(
        {n: q.sent.copy() for n, q in queues.items()},
        {n: q.received.copy() for n, q in queues.items()},
        {n: q.holds.copy() for n, q in queues.items()},
        dict(cohort.handles),
    )


def same_state(before: Snapshot, queues: dict[str, Any], cohort: Cohort) -> bool:
    """Whether the queues hold as much, and the names mean the same kinds of things, as in the snapshot."""
    for name, queue in queues.items():
        waiting = queue.sent - queue.received
        if not np.array_equal(waiting, before.sent[name] - before.received[name]):
            return False
        held, slots = queue.holds.sum(axis=-1), queue.channel.slots
        if not np.array_equal(held, before.holds[name].sum(axis=-1)):
            return False
        # Which slots are held, counted from the next one to be received.
        order = np.arange(slots)
        now = np.take_along_axis(queue.holds, (queue.received[..., None] + order) % slots, axis=-1)
        then = np.take_along_axis(
            before.holds[name], (before.received[name][..., None] + order) % slots, axis=-1
        )
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
    if rounds:
        advance(loop, before, queues, cohort, rounds, rounds)
    return rounds


def advance(
    loop: Loop, before: Snapshot, queues: dict[str, Any], cohort: Cohort, times: int, iterations: int
) -> None:
    """Repeat ``times`` times what happened since ``before``; that makes ``iterations`` iterations."""
    for name, queue in queues.items():
        queue.sent += times * (queue.sent - before.sent[name])
        queue.received += times * (queue.received - before.received[name])
    for name, handle in list(cohort.handles.items()):
        earlier = before.handles[name]
        if isinstance(handle, TileHandle):
            version = handle.version + times * (handle.version - earlier.version)
            cohort.handles[name] = TileHandle(handle.tile, version)
        else:
            sequence = handle.sequence + times * (handle.sequence - earlier.sequence)
            slot = (handle.channel, handle.member, sequence, handle.shape, handle.dtype)
            cohort.handles[name] = SlotHandle(*slot)
    for carry in loop.carries:
        if isinstance(carry, CarryInt):
            cohort.ints[carry.name] = cohort.ints[carry.name] + iterations * (stride(carry) or 0)
