"""Queues of messages: arrivals, credits, and the choice among several."""

from __future__ import annotations

from megatile.sim.engine.events import push
from megatile.sim.engine.instances import wake_all
from megatile.sim.engine.notes import note
from megatile.sim.engine.rows import (
    channel_row,
    code_row,
    jit,
    launch_row,
    queue_of_row,
    queue_row,
    record_row,
    ring_row,
    unit_row,
)
from megatile.sim.state import *


@jit
def channel_of(s, g):
    """The channel that the instance's instruction names."""
    return (
        s[launch_row(s, s[unit_row(s, g) + LAUNCH]) + CHANNELS] + s[code_row(s, s[unit_row(s, g) + PC]) + A]
    )


@jit
def receiver_of(s, g):
    """The instance of the channel's level that the instance's instruction receives as."""
    u = unit_row(s, g)
    return s[u + NUMBER] // s[code_row(s, s[u + PC]) + H]


@jit
def queue_place(s, channel, receiver, member):
    """Where a queue of a launch stands in `queue_of`; NONE where there is none."""
    k = channel_row(s, channel)
    if receiver < 0 or receiver >= s[k + CHANNEL_UNITS] or member < 0 or member >= s[k + MEMBERS]:
        return NONE
    return s[k + FIRST_QUEUE] + receiver * s[k + MEMBERS] + member


@jit
def queue_number(s, channel, receiver, member):
    """1 + the number of a queue among those in use; 0 where it has not been used, -1 where there is none."""
    place = queue_place(s, channel, receiver, member)
    if place == NONE:
        return -1
    return s[queue_of_row(s, place)]


@jit
def arrive(s, q, message, time, why):
    """A message is in its slot from ``time`` on."""
    k = queue_row(s, q)
    row = s[k + RING] + message % s[k + SLOTS]
    s[ring_row(s, row) + ARRIVED] = time
    s[ring_row(s, row) + ARRIVED_BY] = why
    g = s[k + DATA_WAITER]
    if g == NONE:
        return
    if s[unit_row(s, g) + STATE] == ANYDATA:
        offer(s, g)
    elif s[k + TAKEN] == message:
        s[k + DATA_WAITER] = NONE
        wake_all(s, g, time, why)


@jit
def give_back(s, q, message, time, why, credit):
    """A slot is free at ``time``: its credit goes to the sender."""
    k = queue_row(s, q)
    n = note(s, NONE, NONE, RELEASE, NONE, time, time, why, 0, q, message, NONE)
    if n != NONE:
        s[record_row(s, n) + R_WHO] = s[k + RECEIVER]
    row = s[k + RING] + message % s[k + SLOTS]
    s[ring_row(s, row) + RETURNED] = time + credit
    s[ring_row(s, row) + RETURNED_BY] = why
    g = s[k + CREDIT_WAITER]
    if g != NONE and s[k + SENT] == message + s[k + SLOTS]:
        s[k + CREDIT_WAITER] = NONE
        wake_all(s, g, time + credit, why)


@jit
def offer(s, g):
    """A receive-from-any is decided at the earliest arrival that is known; another may come before that."""
    best = NONE
    at = s[unit_row(s, g) + WAITS]
    for i in range(s[s[T_LISTS] + at]):
        q = queue_number(s, channel_of(s, g), receiver_of(s, g), s[s[T_LISTS] + at + 1 + i]) - 1
        if q >= 0:
            k = queue_row(s, q)
            if s[k + SENT] > s[k + TAKEN]:
                time = s[ring_row(s, s[k + RING] + s[k + TAKEN] % s[k + SLOTS]) + ARRIVED]
                if time != UNKNOWN and (best == NONE or time < best):
                    best = time
    if best != NONE:
        s[SEQUENCE] += 1
        push(s, best, DECISIONS, g, s[SEQUENCE], g)


@jit
def decide(s, g, now):
    """A receive-from-any takes the earliest arrival (the lowest member on ties)."""
    u = unit_row(s, g)
    if s[u + STATE] != ANYDATA:
        return
    at = s[u + WAITS]
    pc = s[u + PC]
    best = NONE
    when = 0
    for i in range(s[s[T_LISTS] + at]):
        member = s[s[T_LISTS] + at + 1 + i]
        q = queue_number(s, channel_of(s, g), receiver_of(s, g), member) - 1
        k = queue_row(s, q)
        if s[k + SENT] > s[k + TAKEN]:
            time = s[ring_row(s, s[k + RING] + s[k + TAKEN] % s[k + SLOTS]) + ARRIVED]
            if time != UNKNOWN and (
                best == NONE or time < when or (time == when and member < s[queue_row(s, best) + QMEMBER])
            ):
                best = q
                when = time
    if best == NONE or when > now:
        return  # decided already: this was offered for an earlier one
    for i in range(s[s[T_LISTS] + at]):
        q = queue_number(s, channel_of(s, g), receiver_of(s, g), s[s[T_LISTS] + at + 1 + i]) - 1
        s[queue_row(s, q) + DATA_WAITER] = NONE
    s[u + NEXT] = best
    s[s[T_FRAME] + s[u + FRAME] + s[code_row(s, pc) + G]] = s[queue_row(s, best) + QMEMBER]
    s[u + STATE] = READY
    s[s[T_READY] + s[READIES]] = g
    s[READIES] += 1
