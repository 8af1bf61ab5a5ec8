"""Send and receive: what `loop.issue` calls for these instructions (see `engine/__init__` for the whole).

A channel has a *queue* for each of its members at each receiver (`state.Queue`). A queue has ``slots``
buffers there; message k, counted from 0, lies in slot ``k % slots``. A slot is used in this order:

1. Send k blocks its instance (BLOCKED: nothing after it is issued) until the slot is free: at once for the
   first ``slots`` messages, else when the *credit* of message ``k - slots`` has come back.
2. It then starts a transfer into the slot (GO_ON) and the instance goes on. The transfer itself waits for
   unfinished writes of what it reads, for earlier accesses that others may see (what a message says must be
   true when it comes), for its turn in its engine queue and on links.
3. The message arrives at the end of the transfer (`queues.arrive`), which wakes a receiver that waits.
4. A receive blocks until the message at the head of its queue has arrived. A plain one copies nothing: its
   name refers to the slot itself. One ``into`` a tile starts a copy on the DMA engine, and goes on.
5. The slot is free when nothing needs it any more: the last of its names has ended and all commands that use
   it have completed (`bindings.drop_name`), or the copy has (`completion.end_command`). `queues.give_back`
   then sends the credit, which is at the sender ``credit_ps`` later.

The times of 3 and 5 are known before they are reached, so neither is an event in the time queue: whoever
waits is woken at once and sets its own clock forward to them.
"""

from __future__ import annotations

from megatile.records.marks import inlined, jit
from megatile.sim.engine.accesses import conflicts, resolve_access, storage_of
from megatile.sim.engine.bindings import bind
from megatile.sim.engine.caches import touch_caches
from megatile.sim.engine.commands import join_engine_queue, wait_for_visible
from megatile.sim.engine.instances import block, seen_from
from megatile.sim.engine.queues import channel_of, launch_queue_of, offer, queue_of, receiver_of
from megatile.sim.engine.recording import record, recorded
from megatile.sim.engine.transfers import copy_path, delay_of, new_transfer, number_copy, transfer
from megatile.sim.engine.values import ask, evaluate, figure, misuse
from megatile.sim.instructions import (
    RECEIVE,
    RECEIVE_ANY,
    SEND,
    ChannelledRow,
    ReceiveAnyRow,
    ReceiveRow,
    SendRow,
    TakeRow,
)
from megatile.sim.state import (
    ANYDATA,
    ASK_CREDIT,
    ASK_ENGINE_QUEUE,
    ASK_QUEUE,
    ASK_QUEUE_PATH,
    ASK_ROUTE,
    BLOCKED,
    CREDIT,
    DATA,
    DMA,
    GO_ON,
    INTO,
    NONE,
    PIECES,
    STOPPED,
    TOO_LARGE,
    UNKNOWN,
    WRONG_SENDER,
    WRONG_SIZE,
    State,
)


@jit
def credit_ps_of(s: State, unit_id: int, queue_id: int) -> int:
    """Return how long the credit of a message travels from the receiver (the instance at hand) to the sender;
    NONE where that cannot be said. Where both ends stay where they are, the queue knows it."""
    queue = s.queues[queue_id]
    unit = s.units[unit_id]
    channel_id = channel_of(s, unit_id)
    level_id = s.channels[channel_id].level
    if level_id == unit.level and s.levels[level_id].fixed == 1:
        return queue.credit_ps
    peer = seen_from(s, unit_id, level_id, queue.sender - s.levels[level_id].first_actor)
    return figure(s, ASK_CREDIT, channel_id, unit.level, unit.place, peer, unit_id)


@inlined
def queue_in_use(s: State, unit_id: int, receiver: int, member: int) -> int:
    """Return a queue of the channel that the instruction names; NONE where there is none. When it is first
    used Python sets it up (`QueueQueries.queue`), with those of all who will come to this instruction."""
    queue_id = queue_of(s, channel_of(s, unit_id), receiver, member)
    if queue_id == NONE:
        pc = s.units[unit_id].pc
        return ask(s, ASK_QUEUE, ChannelledRow.of(s.code[pc]).channel, receiver, member, unit_id, pc)
    return queue_id


@jit
def do_send(s: State, unit_id: int, pc: int) -> int:
    """Block until the credit of the last message in the same slot is back, then start a transfer into it.

    Senders other than the one that the channel declares are refused, and messages larger than a slot."""
    op = SendRow.of(s.code[pc])
    unit = s.units[unit_id]
    frame = unit.frame
    to = evaluate(s, op.to, frame)
    member = evaluate(s, op.member, frame)
    channel_id = channel_of(s, unit_id)
    channel = s.channels[channel_id]
    queue_id = queue_in_use(s, unit_id, to, member)
    if queue_id == NONE:
        return STOPPED
    launch_queue_id = launch_queue_of(s, channel_id, to, member)
    queue = s.queues[queue_id]
    level_id = channel.level
    if s.launch_queues[launch_queue_id].fed_by != s.levels[level_id].first_actor + unit.number // op.per:
        return misuse(s, pc, unit_id, WRONG_SENDER, to, member)
    nbytes = evaluate(s, op.nbytes, frame)
    if nbytes > channel.slot_bytes:
        return misuse(s, pc, unit_id, TOO_LARGE, nbytes, member)
    number = queue.sent
    slot_id = queue.ring + number % queue.slots
    if number >= queue.slots:  # message ``number - slots`` was in this slot: has its credit come back?
        returned = s.slots[slot_id].returned
        if returned == UNKNOWN:  # wait in the list of those who wait for credits; `give_back` wakes them
            unit.next_waiter = queue.credit_waiter
            queue.credit_waiter = unit_id
            block(s, unit_id, CREDIT, queue_id)
            return BLOCKED
        if returned > unit.now:
            unit.now = returned
            unit.cause = s.slots[slot_id].returned_by
    # Where does it read, and which path and engine queue does it take from there?
    resolve_access(s, unit_id, op.region, 0, 0)
    memory = storage_of(s, unit_id, s.accesses[0].storage).memory
    engine = queue.engine_queue
    path_id = queue.path
    if level_id != unit.level or s.levels[level_id].fixed == 0:
        memory = memory * (1 << 24) + unit.level
        peer = seen_from(s, unit_id, level_id, to)
        path_id = figure(s, ASK_ROUTE, channel_id, memory, unit.place, peer, unit_id)
        engine = figure(s, ASK_ENGINE_QUEUE, channel_id, unit.level, unit.place, peer, unit_id)
    elif queue.path_memory != memory:
        path_id = figure(s, ASK_QUEUE_PATH, launch_queue_id, memory, 0, 0, unit_id)
    flow = channel.first_flow + to * channel.members + member
    delay = delay_of(s, flow, number, path_id, nbytes)
    if engine == NONE or delay == NONE:
        return STOPPED
    # From here on it is sent.
    unit.blocked_since = NONE
    queue.sent = number + 1
    s.launch_queues[launch_queue_id].sent += 1
    s.slots[slot_id].update(arrived=UNKNOWN, returned=UNKNOWN, nbytes=nbytes)
    command_id = new_transfer(s, SEND, unit_id, path_id, nbytes, delay)
    command = s.commands[command_id]
    conflicts(s, unit_id, command_id, 0)
    if op.by_kernel == 0:  # a message orders what others see: earlier accesses to that must have ended
        wait_for_visible(s, unit_id, command_id)
    command.update(flow=flow, order=number * PIECES, target=queue_id, message=number)
    join_engine_queue(s, unit_id, command_id, engine)
    command.record = record(
        s, unit_id, pc, SEND, engine, UNKNOWN, UNKNOWN, NONE, nbytes, queue_id, number, path_id
    )
    transfer(s, unit_id, command_id, 1)
    return GO_ON


@jit
def take(s: State, unit_id: int, pc: int, queue_id: int, kind: int) -> int:
    """Take the message at the head of a queue, which has arrived: bind its slot to a name, or start the copy
    of it into a tile. The instance goes on at once in both cases; its clock is then not before the arrival.

    A message of another size than the instruction says is refused. What is recorded is the time that the
    instance was blocked; of a receive into a tile that was not, only the copy (from-any: always both)."""
    op = TakeRow.of(s.code[pc])
    unit = s.units[unit_id]
    frame = unit.frame
    queue = s.queues[queue_id]
    number = queue.taken
    slot_id = queue.ring + number % queue.slots
    arrival = s.slots[slot_id].arrived
    nbytes = s.slots[slot_id].nbytes
    if evaluate(s, op.nbytes, frame) != nbytes:
        return misuse(s, pc, unit_id, WRONG_SIZE, nbytes, queue.member)
    storage_id = (
        s.channels[channel_of(s, unit_id)].slot_storage + queue.member * queue.slots + number % queue.slots
    )
    into = op.into
    credit_ps = credit_ps_of(s, unit_id, queue_id)
    path_id = NONE
    delay = 0
    if into != NONE:
        source = s.accesses[1]
        source.update(storage=storage_id, owner=NONE, piece=NONE)
        if op.version != NONE:
            s.frames[frame + op.version] += 1
        resolve_access(s, unit_id, into, 1, 0)
        path_id = copy_path(s, unit_id, 1, 0, 0)
        delay = delay_of(s, unit.flow, unit.copies, path_id, nbytes)
    if s.stopped != 0:
        return STOPPED
    # From here on it is taken.
    begin = unit.blocked_since if unit.blocked_since != NONE else unit.now
    unit.blocked_since = NONE
    queue.taken = number + 1
    by = s.slots[slot_id].arrived_by
    why = by if arrival >= begin else unit.cause
    if arrival > unit.now:
        unit.now = arrival
    if into == NONE or unit.now > begin or kind == RECEIVE_ANY:
        record_id = record(s, unit_id, pc, kind, NONE, begin, unit.now, why, nbytes, queue_id, number, NONE)
        if record_id != NONE:
            recorded(s, record_id).arrived = arrival
            unit.cause = record_id
    if into == NONE:  # nothing is copied: the name means the slot from now on
        named_id = unit.named_slots + storage_id - s.launches[unit.launch].first_slot
        s.named_slots[named_id].update(handles=1, queue=queue_id, message=number, credit_ps=credit_ps)
        bind(s, unit_id, op.handle, storage_id)
        return GO_ON
    command_id = new_transfer(s, INTO, unit_id, path_id, nbytes, delay)
    command = s.commands[command_id]
    conflicts(s, unit_id, command_id, 0)
    command.update(target=queue_id, message=number, amount=credit_ps)
    number_copy(s, unit_id, command_id)
    touch_caches(s, unit_id, command_id, NONE, 0)
    join_engine_queue(s, unit_id, command_id, DMA)
    command.record = record(
        s, unit_id, pc, INTO, DMA, UNKNOWN, UNKNOWN, NONE, nbytes, queue_id, number, path_id
    )
    transfer(s, unit_id, command_id, 1)
    return GO_ON


@jit
def do_receive(s: State, unit_id: int, pc: int) -> int:
    """Block until the next message of a queue has arrived, then take it. The arrival may be known while it is
    still to come: `take` sets the clock forward."""
    op = ReceiveRow.of(s.code[pc])
    member = evaluate(s, op.member, s.units[unit_id].frame)
    queue_id = queue_in_use(s, unit_id, receiver_of(s, unit_id), member)
    if queue_id == NONE:
        return STOPPED
    queue = s.queues[queue_id]
    if queue.sent <= queue.taken or s.slots[queue.ring + queue.taken % queue.slots].arrived == UNKNOWN:
        s.units[unit_id].next_waiter = queue.data_waiter
        queue.data_waiter = unit_id
        block(s, unit_id, DATA, queue_id)
        return BLOCKED
    return take(s, unit_id, pc, queue_id, RECEIVE)


@jit
def do_receive_any(s: State, unit_id: int, pc: int) -> int:
    """Block until a message of any of several queues has arrived, then take the earliest (ties: the lowest
    member).

    It is called twice. First it blocks, and offers the first arrival that is known as an event; later
    arrivals do so too (`queues.arrive`). The choice is made when simulated time reaches such an event
    (`queues.decide`), because a message of another queue may still become known to arrive before. That
    sets ``chosen_queue`` and wakes the instance; then the message is taken."""
    op = ReceiveAnyRow.of(s.code[pc])
    unit = s.units[unit_id]
    at = op.members
    chosen_id = unit.chosen_queue
    if chosen_id != NONE:
        unit.chosen_queue = NONE
        return take(s, unit_id, pc, chosen_id, RECEIVE_ANY)
    for i in range(s.lists[at]):
        queue_id = queue_in_use(s, unit_id, receiver_of(s, unit_id), s.lists[at + 1 + i])
        if queue_id == NONE:
            return STOPPED
        s.queues[queue_id].data_waiter = unit_id
    block(s, unit_id, ANYDATA, at)
    offer(s, unit_id)
    return BLOCKED
