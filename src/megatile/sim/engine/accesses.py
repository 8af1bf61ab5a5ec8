"""What commands touch: the blocks of storages, and which unfinished accesses they conflict with."""

from __future__ import annotations

from megatile.records.marks import inlined, jit
from megatile.sim.engine.commands import depend
from megatile.sim.engine.events import claim
from megatile.sim.engine.instances import as_seen, seen_from
from megatile.sim.engine.values import evaluate
from megatile.sim.instructions import ComputeRow
from megatile.sim.state import HANDLE, NONE, UNKNOWN, Access, PendingAccess, State, Storage


@inlined
def storage_meant(s: State, unit_id: int, mode: int, number: int) -> int:
    """Return the storage that a declared tile or a handle means now."""
    frame = s.units[unit_id].frame
    if mode == HANDLE:
        return s.frames[frame + number]
    tile = s.tiles[number]
    if tile.version == NONE:
        return tile.base
    return tile.base + s.frames[frame + tile.version] % tile.versions


@jit
def storage_of(s: State, unit_id: int, storage_id: int) -> Storage:
    """Return a storage as the level of an instance sees it."""
    return s.storages[s.levels[s.units[unit_id].level].storages + storage_id]


@inlined
def owner_of(s: State, unit_id: int, access_id: int) -> int:
    """Return who has what an access touches: NONE for the instance itself, else level and number in one; -2
    where there is no such owner."""
    owner = s.accesses[access_id].owner
    if owner == NONE:
        return NONE
    storage = storage_of(s, unit_id, s.accesses[access_id].storage)
    number = s.units[unit_id].number
    per = storage.per
    level_id = s.launches[s.units[unit_id].launch].levels + storage.level
    if storage.owners == NONE:
        if owner < 0 or owner >= s.levels[level_id].count:
            return -2
        if per > 0 and number // per == owner:
            return NONE
        return level_id * (1 << 40) + owner
    if per > 0 and s.lists[storage.owners + number // per] == owner:
        return NONE
    if owner < 0 or owner >= storage.owner_count or s.lists[storage.first_of_owner + owner] == NONE:
        return NONE
    return level_id * (1 << 40) + s.lists[storage.first_of_owner + owner]


@jit
def location(s: State, unit_id: int, access_id: int, owner: int) -> int:
    """Return where what an access touches is, in units of the scale of the instance."""
    if s.accesses[access_id].piece != NONE:
        return piece_place(s, unit_id, access_id)
    if owner == NONE:
        return s.units[unit_id].place
    return seen_from(s, unit_id, owner >> 40, owner & ((1 << 40) - 1))


@jit
def piece_place(s: State, unit_id: int, access_id: int) -> int:
    """Return where the block of a spread tile is that an access touches first."""
    storage = storage_of(s, unit_id, s.accesses[access_id].storage)
    level = s.levels[s.launches[s.units[unit_id].launch].levels + storage.over]
    count = level.per_parent
    if level.places == NONE:
        count = min(count, level.hardware_per_parent)
    piece = min(max(s.accesses[access_id].piece, 0), storage.pieces - 1)
    place = piece * count // storage.pieces
    if level.places != NONE:
        place = s.lists[level.places + place]
    own = s.units[unit_id].place
    mine = s.levels[s.units[unit_id].level].hardware
    above = own * (level.hardware // level.hardware_per_parent) // mine
    return as_seen(above * level.hardware_per_parent + place, level.hardware, own, mine)


@inlined
def resolve_access(s: State, unit_id: int, region_id: int, write: int, access_id: int) -> None:
    """Fill a row of `accesses`: storage, owner, whether it writes, start and extent of each dimension,
    whether others may see the access, and whether it can conflict at all."""
    region = s.regions[region_id]
    access = s.accesses[access_id]
    frame = s.units[unit_id].frame
    access.storage = storage_meant(s, unit_id, region.mode, region.tile)
    owner = NONE if region.owner == NONE else evaluate(s, region.owner, frame)
    if region.own == 0:
        storage = storage_of(s, unit_id, access.storage)
        per = storage.per
        if owner == NONE and storage.owners != NONE:
            owner = s.lists[storage.owners + s.units[unit_id].number // per]
        elif owner == NONE and per > 1:
            owner = s.units[unit_id].number // per
        elif per == 1 and storage.owners == NONE and owner == s.units[unit_id].number:
            owner = NONE
    elif owner == s.units[unit_id].number:
        owner = NONE
    access.owner = owner
    access.write = write
    access.update(dimensions=region.dimensions, visible=region.visible, tracked=region.tracked, piece=NONE)
    for i in range(region.dimensions):
        extent = evaluate(s, s.lists[region.bounds + 2 * i + 1], frame)
        access.bounds[2 * i] = evaluate(s, s.lists[region.bounds + 2 * i], frame)
        access.bounds[2 * i + 1] = extent
        if extent == 0:
            access.tracked = 0
    if region.piece != NONE:
        access.piece = evaluate(s, region.piece, frame)


@inlined
def resolve_accesses(s: State, unit_id: int, op: ComputeRow) -> int:
    """Look up what a compute or copy touches, what it writes last; how many accesses there are."""
    at = op.regions
    count = s.lists[at]
    for i in range(count - 1):
        resolve_access(s, unit_id, s.lists[at + 1 + i], 0, i)
    if op.version != NONE:
        s.frames[s.units[unit_id].frame + op.version] += 1
    resolve_access(s, unit_id, s.lists[at + count], 1, count - 1)
    return count


@jit
def overlap(s: State, access: Access, pending: PendingAccess) -> bool:
    """Return whether a looked-up block and a logged one meet; no dimensions: all of it."""
    for i in range(min(access.dimensions, pending.dimensions)):
        mine = access.bounds[2 * i]
        low = pending.bounds[2 * i]
        if mine >= low + pending.bounds[2 * i + 1] or low >= mine + access.bounds[2 * i + 1]:
            return False
    return True


@jit
def covers(s: State, access: Access, pending: PendingAccess) -> bool:
    """Return whether a looked-up block contains a logged one."""
    if access.dimensions == 0:
        return True
    if pending.dimensions == 0:
        return False
    for i in range(access.dimensions):
        mine = access.bounds[2 * i]
        low = pending.bounds[2 * i]
        if mine > low or low + pending.bounds[2 * i + 1] > mine + access.bounds[2 * i + 1]:
            return False
    return True


@inlined
def conflicts(s: State, unit_id: int, command_id: int, access_id: int) -> None:
    """Let a command wait for the unfinished accesses that one of its own conflicts with."""
    access = s.accesses[access_id]
    if access.tracked == 0:
        return
    head = s.units[unit_id].access_lists + access.storage
    now = s.units[unit_id].now
    floor = s.units[unit_id].floor
    last = NONE
    pending_id = s.access_lists[head]
    if access.write == 0 and s.pending_writes[head] == 0 and floor <= now:
        pending_id = NONE  # reads do not conflict with reads, and none of these is dropped
    while pending_id != NONE:
        pending = s.pending[pending_id]
        after_id = pending.next
        gone = pending.command == NONE and (pending.until <= now or pending.until < floor)
        if (
            not gone
            and pending.owner == access.owner
            and (access.write == 1 or pending.write == 1)
            and overlap(s, access, pending)
        ):
            depend(s, command_id, pending.until, pending.command, pending.cause, 0)
            # Whoever conflicts with what is covered here will conflict with this command, which ends later.
            gone = access.write == 1 and covers(s, access, pending)
        if gone:
            if last == NONE:
                s.access_lists[head] = after_id
            else:
                s.pending[last].next = after_id
            s.pending_writes[head] -= pending.write
            drop_access(s, pending_id)
        else:
            last = pending_id
        pending_id = after_id
    first = s.launches[s.units[unit_id].launch].aliases
    if first == NONE:
        return
    others = s.aliases[first + access.storage]
    if others == NONE:
        return
    for i in range(s.lists[others]):
        pending_id = s.access_lists[s.units[unit_id].access_lists + s.lists[others + 1 + i]]
        while pending_id != NONE:
            pending = s.pending[pending_id]
            if pending.owner == access.owner and (access.write == 1 or pending.write == 1):
                depend(s, command_id, pending.until, pending.command, pending.cause, 0)
            pending_id = pending.next


@inlined
def log_accesses(s: State, unit_id: int, command_id: int, count: int, time: int) -> None:
    """Note the accesses of a command as unfinished until ``time``, or until it says so itself."""
    visible = False
    for access_id in range(count):
        access = s.accesses[access_id]
        if access.visible == 1:
            visible = True
        if access.tracked == 0 or (time != UNKNOWN and time <= s.units[unit_id].now):
            continue
        pending_id = s.free_pending
        if pending_id == NONE:
            pending_id = s.top_pending
            s.top_pending = claim(s, pending_id, s.pending.size, State.pending)
        else:
            s.free_pending = s.pending[pending_id].next
        pending = s.pending[pending_id]
        head = s.units[unit_id].access_lists + access.storage
        pending.next = s.access_lists[head]
        s.access_lists[head] = pending_id
        s.pending_writes[head] += access.write
        pending.update(
            owner=access.owner,
            write=access.write,
            until=time,
            cause=s.commands[command_id].record,
            dropped=0,
            command=NONE,
        )
        if time == UNKNOWN:
            pending.command = command_id
            pending.next_of_command = s.commands[command_id].accesses
            s.commands[command_id].accesses = pending_id
        pending.dimensions = access.dimensions
        for i in range(2 * access.dimensions):
            pending.bounds[i] = access.bounds[i]
    if visible:
        if time == UNKNOWN:
            after_id = s.units[unit_id].visible
            s.commands[command_id].next_visible = after_id
            s.commands[command_id].previous_visible = NONE
            if after_id != NONE:
                s.commands[after_id].previous_visible = command_id
            s.units[unit_id].visible = command_id
        else:
            seen_until(s, unit_id, time, s.commands[command_id].record)


@jit
def drop_access(s: State, pending_id: int) -> None:
    """Drop an access that matters no longer; one of a command in flight is freed when that ends."""
    if s.pending[pending_id].command != NONE:
        s.pending[pending_id].dropped = 1
    else:
        s.pending[pending_id].next = s.free_pending
        s.free_pending = pending_id


@jit
def seen_until(s: State, unit_id: int, time: int, why: int) -> None:
    """Note that an access of an instance that others see ends at ``time``."""
    unit = s.units[unit_id]
    if time > unit.visible_until:
        unit.visible_until = time
        unit.visible_by = why


@jit
def settle(s: State, command_id: int, time: int) -> None:
    """End the accesses of a command at ``time``."""
    command = s.commands[command_id]
    pending_id = command.accesses
    while pending_id != NONE:
        after_id = s.pending[pending_id].next_of_command
        s.pending[pending_id].command = NONE
        s.pending[pending_id].until = time
        if s.pending[pending_id].dropped == 1:
            drop_access(s, pending_id)
        pending_id = after_id
    command.accesses = NONE
    # Out of the list of accesses that others see; from now on its time stands for it.
    unit = s.units[command.unit]
    last_id = command.previous_visible
    if last_id == command_id:
        return
    after_id = command.next_visible
    if last_id == NONE:
        unit.visible = after_id
    else:
        s.commands[last_id].next_visible = after_id
    if after_id != NONE:
        s.commands[after_id].previous_visible = last_id
    command.previous_visible = command_id
    seen_until(s, command.unit, time, command.record)
