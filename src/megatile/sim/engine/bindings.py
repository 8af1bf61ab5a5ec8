"""Names of messages: which slot each refers to, and when its credit goes back.

A slot is released in three steps: its last name ends, the commands that use it complete, and the credit
travels back to the sender.
"""

from __future__ import annotations

from megatile.records.marks import jit
from megatile.sim.engine.accesses import drop_access, storage_meant
from megatile.sim.engine.commands import depend, enqueue, new_command
from megatile.sim.engine.values import evaluate
from megatile.sim.state import BINDINGS, NONE, RELEASE, State


@jit
def add_name(s: State, unit_id: int, storage_id: int) -> None:
    """Count one more name of a slot."""
    first = s.launches[s.units[unit_id].launch].first_slot
    if storage_id >= first:
        s.named_slots[s.units[unit_id].named_slots + storage_id - first].handles += 1


@jit
def drop_name(s: State, unit_id: int, storage_id: int) -> None:
    """Count one name less of a slot; after the last, return its credit when all that uses it completes."""
    first = s.launches[s.units[unit_id].launch].first_slot
    if storage_id < first:
        return
    named_id = s.units[unit_id].named_slots + storage_id - first
    s.named_slots[named_id].handles -= 1
    if s.named_slots[named_id].handles > 0:
        return
    command_id = new_command(s, RELEASE, unit_id, s.units[unit_id].pc)
    command = s.commands[command_id]
    command.update(
        target=s.named_slots[named_id].queue,
        message=s.named_slots[named_id].message,
        amount=s.named_slots[named_id].credit_ps,
    )
    head = s.units[unit_id].access_lists + storage_id
    pending_id = s.access_lists[head]
    while pending_id != NONE:
        after_id = s.pending[pending_id].next
        depend(
            s,
            command_id,
            s.pending[pending_id].until,
            s.pending[pending_id].command,
            s.pending[pending_id].cause,
            0,
        )
        drop_access(s, pending_id)
        pending_id = after_id
    s.access_lists[head] = NONE
    s.pending_writes[head] = 0
    if command.dependencies == 0:
        enqueue(s, command_id)


@jit
def bind(s: State, unit_id: int, handle: int, storage_id: int) -> None:
    """Let a name refer to a storage from here on; the storage counts the name already (`add_name`)."""
    cell = s.units[unit_id].frame + handle
    old = s.frames[cell]
    s.frames[cell] = storage_id
    if old != NONE:
        drop_name(s, unit_id, old)


@jit
def bind_all(s: State, unit_id: int, moves: int, integers: int) -> None:
    """Bind the carried or merged names of a loop or branch; find all their storages before binding any."""
    frame = s.units[unit_id].frame
    count = s.lists[moves]
    for i in range(count):
        at = moves + 1 + 3 * i
        storage_id = storage_meant(s, unit_id, s.lists[at + 1], s.lists[at + 2])
        s.scratch[BINDINGS + i] = storage_id
    numbers = s.lists[integers]
    for i in range(numbers):
        s.scratch[BINDINGS + count + i] = evaluate(s, s.lists[integers + 2 + 2 * i], frame)
    for i in range(count):
        add_name(s, unit_id, s.scratch[BINDINGS + i])
    for i in range(numbers):
        s.frames[frame + s.lists[integers + 1 + 2 * i]] = s.scratch[BINDINGS + count + i]
    for i in range(count):
        bind(s, unit_id, s.lists[moves + 1 + 3 * i], s.scratch[BINDINGS + i])


@jit
def end_handles(s: State, unit_id: int, handles: int) -> None:
    for i in range(s.lists[handles]):
        bind(s, unit_id, s.lists[handles + 1 + i], NONE)
