"""Instances begin, wait, take slots, end, and are found.

One without a parent begins when its launch has come and the instances before it on its unit of the hardware
are over. Those below begin with it, or wait for a slot. It is over when it has issued everything, that has
finished, and all below it are over."""

from __future__ import annotations

from megatile.records.marks import jit
from megatile.sim.engine.events import free_node, push
from megatile.sim.engine.recording import record
from megatile.sim.state import (
    BEGIN,
    DISPATCH,
    DONE,
    HOSTS,
    KERNELS,
    MAX_TAKEN,
    NONE,
    OVERS,
    PENDING,
    READY,
    State,
)


@jit
def wake(s: State, unit_id: int, time: int, why: int) -> None:
    """Let an instance go on that waited until ``time``."""
    unit = s.units[unit_id]
    if time > unit.now:
        unit.now = time
        unit.cause = why
    unit.state = READY
    s.ready[s.ready_count] = unit_id
    s.ready_count += 1


@jit
def wake_all(s: State, unit_id: int, time: int, why: int) -> None:
    """Let a list of instances go on."""
    while unit_id != NONE:
        after = s.units[unit_id].next_waiter
        wake(s, unit_id, time, why)
        unit_id = after


@jit
def block(s: State, unit_id: int, state: int, on: int) -> None:
    unit = s.units[unit_id]
    if unit.blocked_since == NONE:
        unit.blocked_since = unit.now
    unit.state = state
    unit.blocked_on = on


@jit
def extend_launch(s: State, unit_id: int, time: int) -> None:
    """Let the launch of an instance last until a time at least."""
    if time > s.last:
        s.last = time
    launch = s.launches[s.units[unit_id].launch]
    if time > launch.last:
        launch.last = time


@jit
def one_finished(s: State, launch_id: int) -> None:
    """One instance or command less of a launch; after the last all its times are known."""
    launch = s.launches[launch_id]
    launch.unfinished -= 1
    if launch.unfinished == 0:
        push(s, launch.last, HOSTS, launch_id, 0, launch_id)


@jit
def part_over(s: State, unit_id: int, time: int, why: int) -> None:
    """The stream of an instance, or an instance below it, is over at ``time``, because of a record."""
    while unit_id != NONE:
        unit = s.units[unit_id]
        if time >= unit.over_at:
            unit.over_at = time
            unit.over_by = why
        unit.parts -= 1
        if unit.parts > 0:
            return
        time = unit.over_at
        why = unit.over_by
        if unit.pool != NONE or unit.parent == NONE:
            s.sequence += 1
            push(s, time, OVERS, unit.flow, s.sequence, unit_id)
        unit_id = unit.parent


@jit
def begin_launch(s: State, launch_id: int, time: int) -> None:
    """Let the instances of a launch begin, and those of levels with slots wait for these."""
    launch = s.launches[launch_id]
    launch.began = time
    last = launch.first_unit + launch.units - 1
    for i in range(launch.units):  # what is ready last is issued first
        if s.units[last - i].state == PENDING:
            allow(s, last - i, time, NONE)
    for children_id in range(launch.first_root, launch.first_root + launch.roots):
        enter(s, children_id, 0, time)


@jit
def allow(s: State, unit_id: int, time: int, why: int) -> None:
    """One thing less in the way of an instance's begin."""
    unit = s.units[unit_id]
    unit.predecessors -= 1
    if unit.predecessors > 0:
        return
    if unit.pool != NONE:
        free_unit(s, unit_id, time)
        return
    since = s.launches[unit.launch].began
    if time > since:
        why = record(s, unit_id, unit.pc, BEGIN, NONE, since, time, why, 0, NONE, NONE, NONE)
    if s.levels[unit.level].hardware == 0:
        wake(s, unit_id, time, why)
    else:
        start(s, unit_id, unit.number, time, why)


@jit
def instance_over(s: State, unit_id: int, time: int) -> None:
    """An instance and all below it are over: its slot is free, and those behind it go on, unless another of
    its launch takes its place."""
    pool_id = s.units[unit_id].pool
    if pool_id != NONE:
        free_unit(s, unit_id, time)
        if s.pools[pool_id].first_waiting != NONE:
            return
    let_follow(s, unit_id, time)


@jit
def let_follow(s: State, unit_id: int, time: int) -> None:
    """What waits for an instance or slot of an earlier launch has that less in its way."""
    unit = s.units[unit_id]
    node_id = unit.followers
    unit.followers = NONE
    while node_id != NONE:
        allow(s, s.nodes[node_id].item, time, unit.over_by)
        node_id = free_node(s, node_id)


@jit
def start(s: State, unit_id: int, number: int, time: int, why: int) -> None:
    """Begin an instance in a row of `units` because of a record, and those below it."""
    unit = s.units[unit_id]
    level = s.levels[unit.level]
    unit.update(
        number=number,
        actor=level.first_actor + number,
        flow=level.first_flow + number,
        now=max(time, level.start_at),
        cause=why,
        visible=NONE,
        visible_until=0,
        visible_by=NONE,
        blocked_since=NONE,
        chosen_queue=NONE,
        copies=0,
        latest=0,
        unfinished=0,
        floor=0,
        latest_by=NONE,
        over_at=time,
        over_by=why,
    )
    s.places[unit.actor] = unit.place
    parts = 0
    stream_id = level.stream
    if level.stream_list != NONE:
        stream_id = s.lists[level.stream_list + number]
    if stream_id == NONE:
        unit.state = DONE
    else:
        parts = 1
        stream = s.streams[stream_id]
        for i in range(stream.frame_size):
            s.frames[unit.frame + i] = s.lists[stream.template + i]
        s.frames[unit.frame] = number
        unit.pc = stream.first_pc
        for i in range(level.engine_queues):
            engine_queue = s.engine_queues[unit.engine_queues + i]
            engine_queue.update(free_at=0, last=NONE, cause=NONE)
        wake(s, unit_id, 0, NONE)
    for k in range(unit.child_levels):
        parts += s.children[unit.children + k].count
    unit.parts = parts
    for k in range(unit.child_levels):
        children = s.children[unit.children + k]
        count = children.count
        if children.pool != NONE:
            enter(s, unit.children + k, number * count, time)
        else:
            for i in range(count):
                start(s, children.first_unit + i, number * count + i, time, why)
    if parts == 0:
        unit.parts = 1
        part_over(s, unit_id, unit.now, why)


@jit
def enter(s: State, children_id: int, number: int, time: int) -> None:
    """Instances from ``number`` on wait for slots of their pool."""
    children = s.children[children_id]
    children.update(next_number=number, waiting=children.count, next_waiting=NONE)
    pool = s.pools[children.pool]
    if pool.first_waiting == NONE:
        pool.first_waiting = children_id
    else:
        s.children[pool.last_waiting].next_waiting = children_id
    pool.last_waiting = children_id
    dispatch_at(s, children.pool, time)


@jit
def dispatch_at(s: State, pool_id: int, time: int) -> None:
    pool = s.pools[pool_id]
    if pool.due != time:
        pool.due = time
        push(s, time, DISPATCH, pool_id, 0, pool_id)


@jit
def dispatch(s: State, pool_id: int, time: int) -> None:
    """Those who wait take the free slots, lowest first."""
    pool = s.pools[pool_id]
    pool.due = NONE
    while pool.free > 0 and pool.first_waiting != NONE:
        unit_id = take_unit(s, pool_id)
        if unit_id == NONE:
            break
        children = s.children[pool.first_waiting]
        number = children.next_number
        children.next_number = number + 1
        children.waiting -= 1
        if children.waiting == 0:
            pool.first_waiting = children.next_waiting
        unit = s.units[unit_id]
        unit.parent = children.parent
        why = unit.over_by  # the one before in this slot, if it has been waited for
        if unit.over_at < time:
            why = s.units[children.parent].cause if children.parent != NONE else NONE
        start(s, unit_id, number, time + s.levels[unit.level].begin_ps, why)
    if pool.first_waiting == NONE:
        for unit_id in range(pool.first_unit, pool.first_unit + pool.units):
            unit = s.units[unit_id]
            if unit.followers != NONE and unit.parts == 0 and unit.over_at <= time:
                let_follow(s, unit_id, time)


@jit
def take_unit(s: State, pool_id: int) -> int:
    """Take the lowest free row of a pool on a hardware unit that no kernel of a library has; NONE: there is
    none."""
    pool = s.pools[pool_id]
    free = s.free_units.at(pool.flags)
    left = units_left(s, pool_id)
    for i in range(pool.lowest, pool.units):
        if free[i] == 1 and s.units[pool.first_unit + i].place % pool.below < left:
            free[i] = 0
            pool.free -= 1
            return pool.first_unit + i
        if free[i] == 0 and i == pool.lowest:
            pool.lowest = i + 1
    return NONE


@jit
def units_left(s: State, pool_id: int) -> int:
    """Return how many hardware units of each device kernels of libraries leave to a pool: the first, one at
    least."""
    pool = s.pools[pool_id]
    if pool.device == NONE:
        return pool.below
    device = s.devices[pool.device]
    return max(1, pool.below + -device.taken * pool.below // device.compute_units)


@jit
def free_unit(s: State, unit_id: int, time: int) -> None:
    """Free a slot; a waiting instance gets it later in this picosecond."""
    pool_id = s.units[unit_id].pool
    pool = s.pools[pool_id]
    i = unit_id - pool.first_unit
    s.free_units[pool.flags + i] = 1
    if pool.free == 0 or i < pool.lowest:
        pool.lowest = i
    pool.free += 1
    if pool.first_waiting != NONE:
        dispatch_at(s, pool_id, time)


@jit
def begin_kernel(s: State, unit_id: int, kernel: int) -> None:
    """Take the compute units of a library's kernel that an instance starts now; see ``UnitRow.kernel``."""
    end_kernel(s, unit_id)
    if kernel % MAX_TAKEN > 0:
        unit = s.units[unit_id]
        unit.kernel = kernel
        s.sequence += 1
        push(s, unit.now, KERNELS, unit.flow, s.sequence, 2 * kernel)


@jit
def end_kernel(s: State, unit_id: int) -> None:
    """Leave the compute units of the kernel that an instance has started, if it has."""
    unit = s.units[unit_id]
    if unit.kernel > 0:
        s.sequence += 1
        push(s, unit.now, KERNELS, unit.flow, s.sequence, 2 * unit.kernel + 1)
        unit.kernel = 0


@jit
def change_kernels(s: State, what: int, time: int) -> None:
    """Let a kernel take compute units of its device, or release them to waiting kernels."""
    count = what // 2 % MAX_TAKEN
    device = s.devices[what // 2 // MAX_TAKEN]
    if what % 2 == 0:
        device.taken += count
        return
    device.taken -= count
    pool_id = device.pools
    while pool_id != NONE:
        if s.pools[pool_id].first_waiting != NONE:
            dispatch_at(s, pool_id, time)
        pool_id = s.pools[pool_id].next_of_device


@jit
def where(s: State, unit_id: int, level_id: int, number: int) -> int:
    """Return the hardware unit at which an instance reaches one of a level: its place if it belongs to it or
    no slots are between; an instance of a level with slots is reached at the first unit it may get."""
    level = s.levels[level_id]
    if level.hardware == 0:
        return number
    around_id = unit_id
    while around_id != NONE and s.units[around_id].level != level_id:
        around_id = s.units[around_id].parent
    if around_id != NONE and s.units[around_id].number == number:
        return s.units[around_id].place
    place = 0
    if level.places != NONE:
        place = s.lists[level.places + number % level.per_parent]
    if level.parent != NONE:
        place += where(s, unit_id, level.parent, number // level.per_parent) * level.hardware_per_parent
    return place


@jit
def as_seen(place: int, count: int, own: int, mine: int) -> int:
    """Return one of ``count`` hardware units as the unit at ``own`` of ``mine`` sees it."""
    if mine == count:
        return place
    if count > mine:
        return place * mine // count
    if own * count // mine == place:
        return own
    return place * (mine // count)


@jit
def seen_from(s: State, unit_id: int, level_id: int, number: int) -> int:
    """Return where an instance is (`where`), as a hardware unit of the scale of ``unit_id`` (`as_seen`): the
    one that contains it; where it contains several, ``unit_id``'s own if among them, else the first."""
    place = where(s, unit_id, level_id, number)
    mine = s.levels[s.units[unit_id].level].hardware
    return as_seen(place, s.levels[level_id].hardware, s.units[unit_id].place, mine)
