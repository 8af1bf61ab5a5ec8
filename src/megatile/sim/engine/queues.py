"""Queues of messages: arrivals, credits, and the choice among several."""

from __future__ import annotations

from megatile.records.marks import jit
from megatile.sim.engine.events import push
from megatile.sim.engine.instances import wake, wake_all
from megatile.sim.engine.recording import record, recorded
from megatile.sim.instructions import ChannelledRow, ReceiveAnyRow
from megatile.sim.state import ANYDATA, DECISIONS, NONE, RELEASE, UNKNOWN, State


@jit
def channel_of(s: State, unit_id: int) -> int:
    """Return the channel that the instance's instruction names."""
    return (
        s.launches[s.units[unit_id].launch].channels + ChannelledRow.of(s.code[s.units[unit_id].pc]).channel
    )


@jit
def receiver_of(s: State, unit_id: int) -> int:
    """Return the instance of the channel's level that the instance's instruction receives as."""
    unit = s.units[unit_id]
    return unit.number // ChannelledRow.of(s.code[unit.pc]).per


@jit
def launch_queue_of(s: State, channel_id: int, receiver: int, member: int) -> int:
    """Return the row of a launch's queue in `launch_queues`; NONE where there is none."""
    channel = s.channels[channel_id]
    if receiver < 0 or receiver >= channel.units or member < 0 or member >= channel.members:
        return NONE
    return channel.first_queue + receiver * channel.members + member


@jit
def queue_of(s: State, channel_id: int, receiver: int, member: int) -> int:
    """Return the row of a queue in `queues`; NONE where it has not been used, or there is none."""
    launch_queue_id = launch_queue_of(s, channel_id, receiver, member)
    if launch_queue_id == NONE:
        return NONE
    return s.launch_queues[launch_queue_id].number


@jit
def arrive(s: State, queue_id: int, message: int, time: int, why: int) -> None:
    """Let a message be in its slot from ``time`` on, and wake who waits for it."""
    queue = s.queues[queue_id]
    slot_id = queue.ring + message % queue.slots
    s.slots[slot_id].arrived = time
    s.slots[slot_id].arrived_by = why
    unit_id = queue.data_waiter
    if unit_id == NONE:
        return
    if s.units[unit_id].state == ANYDATA:
        offer(s, unit_id)
    elif queue.taken == message:
        queue.data_waiter = NONE
        wake_all(s, unit_id, time, why)


@jit
def give_back(s: State, queue_id: int, message: int, time: int, why: int, credit_ps: int) -> None:
    """Free a slot at ``time``: its credit goes to the sender, and wakes it if it waits for this one."""
    queue = s.queues[queue_id]
    record_id = record(s, NONE, NONE, RELEASE, NONE, time, time, why, 0, queue_id, message, NONE)
    if record_id != NONE:
        recorded(s, record_id).actor = queue.receiver
    slot_id = queue.ring + message % queue.slots
    s.slots[slot_id].returned = time + credit_ps
    s.slots[slot_id].returned_by = why
    unit_id = queue.credit_waiter
    if unit_id != NONE and queue.sent == message + queue.slots:
        queue.credit_waiter = NONE
        wake_all(s, unit_id, time + credit_ps, why)


@jit
def first_arrival(s: State, unit_id: int) -> int:
    """Return the queue of a receive-from-any whose next message arrives first (the lowest member on ties);
    NONE where no arrival is known."""
    best = NONE
    when = 0
    at = s.units[unit_id].blocked_on
    for i in range(s.lists[at]):
        member = s.lists[at + 1 + i]
        queue_id = queue_of(s, channel_of(s, unit_id), receiver_of(s, unit_id), member)
        if queue_id != NONE:
            queue = s.queues[queue_id]
            time = s.slots[queue.ring + queue.taken % queue.slots].arrived
            known = queue.sent > queue.taken and time != UNKNOWN
            if known and (best == NONE or time < when or (time == when and member < s.queues[best].member)):
                best = queue_id
                when = time
    return best


@jit
def offer(s: State, unit_id: int) -> None:
    """Let a receive-from-any be decided at the earliest arrival that is known; another may come before."""
    best = first_arrival(s, unit_id)
    if best != NONE:
        queue = s.queues[best]
        time = s.slots[queue.ring + queue.taken % queue.slots].arrived
        s.sequence += 1
        push(s, time, DECISIONS, unit_id, s.sequence, unit_id)


@jit
def decide(s: State, unit_id: int, now: int) -> None:
    """Choose, of the queues of a receive-from-any, the one whose message has arrived first; wake it."""
    unit = s.units[unit_id]
    if unit.state != ANYDATA:
        return
    best = first_arrival(s, unit_id)
    if best == NONE:
        return
    queue = s.queues[best]
    if s.slots[queue.ring + queue.taken % queue.slots].arrived > now:
        return  # this was offered for a message that is taken already
    at = unit.blocked_on
    for i in range(s.lists[at]):
        queue_id = queue_of(s, channel_of(s, unit_id), receiver_of(s, unit_id), s.lists[at + 1 + i])
        s.queues[queue_id].data_waiter = NONE
    unit.chosen_queue = best
    s.frames[unit.frame + ReceiveAnyRow.of(s.code[unit.pc]).chosen] = queue.member
    wake(s, unit_id, 0, NONE)
