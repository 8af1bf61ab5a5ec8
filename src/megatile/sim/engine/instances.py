"""Instances begin, wait, take slots, end, and are found.

One without a parent begins when its launch has come and the instances before it on its unit of the hardware
are over. Those below begin with it, or wait for a slot. It is over when it has issued everything, that has
finished, and all below it are over."""

from __future__ import annotations

from megatile.sim.engine.events import push
from megatile.sim.engine.notes import note
from megatile.sim.engine.rows import (
    below_row,
    jit,
    launch_row,
    level_row,
    node_row,
    pool_row,
    stream_row,
    tail_row,
    unit_row,
)
from megatile.sim.state import *


@jit
def wake(s, g, time, why):
    """Let an instance go on that waited until ``time``."""
    u = unit_row(s, g)
    if time > s[u + NOW]:
        s[u + NOW] = time
        s[u + CAUSE] = why
    s[u + STATE] = READY
    s[s[T_READY] + s[READIES]] = g
    s[READIES] += 1


@jit
def wake_all(s, g, time, why):
    """Let a list of instances go on."""
    while g != NONE:
        after = s[unit_row(s, g) + CHAIN]
        wake(s, g, time, why)
        g = after


@jit
def block(s, g, state, on):
    u = unit_row(s, g)
    if s[u + SINCE] == NONE:
        s[u + SINCE] = s[u + NOW]
    s[u + STATE] = state
    s[u + WAITS] = on


@jit
def ended(s, g, time):
    """Something of an instance's launch ends."""
    if time > s[LAST]:
        s[LAST] = time
    n = launch_row(s, s[unit_row(s, g) + LAUNCH])
    if time > s[n + LAUNCH_LAST]:
        s[n + LAUNCH_LAST] = time


@jit
def one_less(s, launch):
    """One instance or command less of a launch; after the last all its times are known."""
    n = launch_row(s, launch)
    s[n + UNFINISHED] -= 1
    if s[n + UNFINISHED] == 0:
        push(s, s[n + LAUNCH_LAST], HOSTS, launch, 0, launch)


@jit
def part_over(s, g, time, why):
    """The stream of an instance, or an instance below it, is over at ``time``, because of a record."""
    while g != NONE:
        u = unit_row(s, g)
        if time >= s[u + OVER_AT]:
            s[u + OVER_AT] = time
            s[u + OVER_BY] = why
        s[u + PARTS] -= 1
        if s[u + PARTS] > 0:
            return
        time = s[u + OVER_AT]
        why = s[u + OVER_BY]
        if s[u + POOL] != NONE or s[u + PARENT] == NONE:
            s[SEQUENCE] += 1
            push(s, time, OVERS, s[u + FLOW], s[SEQUENCE], g)
        g = s[u + PARENT]


@jit
def begin_launch(s, launch, time):
    n = launch_row(s, launch)
    s[n + BEGAN] = time
    for g in range(s[n + FIRST], s[n + FIRST] + s[n + ROWS]):
        if s[unit_row(s, g) + STATE] == PENDING:
            allow(s, g, time, NONE)
    for below in range(s[n + FIRST_ROOT], s[n + FIRST_ROOT] + s[n + ROOTS]):
        enter(s, below, 0, time)


@jit
def allow(s, g, time, why):
    """One thing less in the way of an instance's begin."""
    u = unit_row(s, g)
    s[u + HOLDERS] -= 1
    if s[u + HOLDERS] > 0:
        return
    if s[u + POOL] != NONE:
        free_seat(s, g, time)
        return
    since = s[launch_row(s, s[u + LAUNCH]) + BEGAN]
    if time > since:
        why = note(s, g, s[u + PC], BEGIN, NONE, since, time, why, 0, NONE, NONE, NONE)
    if s[level_row(s, s[u + LEVEL]) + HARDWARE] == 0:
        wake(s, g, time, why)
    else:
        start(s, g, s[u + NUMBER], time, why)


@jit
def over(s, g, time):
    """An instance and all below it are over: its slot is free, and those behind it go on, unless another of
    its launch takes its place."""
    pool = s[unit_row(s, g) + POOL]
    if pool != NONE:
        free_seat(s, g, time)
        if s[pool_row(s, pool) + FIRST_WAITING] != NONE:
            return
    let_follow(s, g, time)


@jit
def let_follow(s, g, time):
    """What waits for an instance or slot of an earlier launch has that less in its way."""
    u = unit_row(s, g)
    n = s[u + FOLLOWERS]
    s[u + FOLLOWERS] = NONE
    while n != NONE:
        after = s[node_row(s, n)]
        allow(s, s[node_row(s, n) + 1], time, s[u + OVER_BY])
        s[node_row(s, n)] = s[FREE_NODE]
        s[FREE_NODE] = n
        s[LIVE_NODES] -= 1
        n = after


@jit
def start(s, g, number, time, why):
    """Instance ``number`` begins in row ``g`` because of a record, and so do those below it."""
    u = unit_row(s, g)
    level = level_row(s, s[u + LEVEL])
    s[u + NUMBER] = number
    s[u + ACTOR] = s[level + FIRST_ACTOR] + number
    s[u + FLOW] = s[level + FIRST_FLOW] + number
    s[u + NOW] = max(time, s[level + START_AT])
    s[u + CAUSE] = why
    s[u + SHARED] = NONE
    s[u + SINCE] = NONE
    s[u + NEXT] = NONE
    s[u + COPIES] = 0
    s[u + LATEST] = 0
    s[u + OPEN] = 0
    s[u + LATEST_BY] = NONE
    s[u + OVER_AT] = time
    s[u + OVER_BY] = why
    s[s[T_PLACE] + s[u + ACTOR]] = s[u + PLACE]
    parts = 0
    stream = s[level + ONE_STREAM]
    if s[level + STREAM_OF] != NONE:
        stream = s[s[T_LISTS] + s[level + STREAM_OF] + number]
    if stream == NONE:
        s[u + STATE] = DONE
    else:
        parts = 1
        x = stream_row(s, stream)
        for i in range(s[x + FRAME_SIZE]):
            s[s[T_FRAME] + s[u + FRAME] + i] = s[s[T_LISTS] + s[x + TEMPLATE] + i]
        s[s[T_FRAME] + s[u + FRAME]] = number
        s[u + PC] = s[x + FIRST_PC]
        for i in range(s[level + LANES_OF]):
            t = tail_row(s, s[u + ENGINES] + i)
            s[t] = 0
            s[t + 1] = NONE
            s[t + 2] = NONE
        s[u + STATE] = READY
        s[s[T_READY] + s[READIES]] = g
        s[READIES] += 1
    for k in range(s[u + BELOWS]):
        parts += s[below_row(s, s[u + BELOW] + k) + COUNT_BELOW]
    s[u + PARTS] = parts
    for k in range(s[u + BELOWS]):
        b = below_row(s, s[u + BELOW] + k)
        count = s[b + COUNT_BELOW]
        if s[b + POOL_BELOW] != NONE:
            enter(s, s[u + BELOW] + k, number * count, time)
        else:
            for i in range(count):
                start(s, s[b + FIRST_BELOW] + i, number * count + i, time, why)
    if parts == 0:
        s[u + PARTS] = 1
        part_over(s, g, s[u + NOW], why)


@jit
def enter(s, below, number, time):
    """Instances from ``number`` on wait for slots of their pool."""
    b = below_row(s, below)
    s[b + NEXT_NUMBER] = number
    s[b + LEFT_OVER] = s[b + COUNT_BELOW]
    s[b + NEXT_WAITING] = NONE
    p = pool_row(s, s[b + POOL_BELOW])
    if s[p + FIRST_WAITING] == NONE:
        s[p + FIRST_WAITING] = below
    else:
        s[below_row(s, s[p + LAST_WAITING]) + NEXT_WAITING] = below
    s[p + LAST_WAITING] = below
    dispatch_at(s, s[b + POOL_BELOW], time)


@jit
def dispatch_at(s, pool, time):
    p = pool_row(s, pool)
    if s[p + DUE] != time:
        s[p + DUE] = time
        push(s, time, DISPATCH, pool, 0, pool)


@jit
def dispatch(s, pool, time):
    """Those who wait take the free slots, lowest first."""
    p = pool_row(s, pool)
    s[p + DUE] = NONE
    while s[p + FREE_SEATS] > 0 and s[p + FIRST_WAITING] != NONE:
        b = below_row(s, s[p + FIRST_WAITING])
        number = s[b + NEXT_NUMBER]
        s[b + NEXT_NUMBER] = number + 1
        s[b + LEFT_OVER] -= 1
        if s[b + LEFT_OVER] == 0:
            s[p + FIRST_WAITING] = s[b + NEXT_WAITING]
        g = take_seat(s, pool)
        u = unit_row(s, g)
        s[u + PARENT] = s[b + PARENT_ROW]
        why = s[u + OVER_BY]  # the one before in this slot, if it has been waited for
        if s[u + OVER_AT] < time:
            why = s[unit_row(s, s[b + PARENT_ROW]) + CAUSE] if s[b + PARENT_ROW] != NONE else NONE
        start(s, g, number, time + s[level_row(s, s[u + LEVEL]) + TO_BEGIN], why)
    if s[p + FIRST_WAITING] == NONE:
        for g in range(s[p + FIRST_SEAT], s[p + FIRST_SEAT] + s[p + ALL_SEATS]):
            u = unit_row(s, g)
            if s[u + FOLLOWERS] != NONE and s[u + PARTS] == 0 and s[u + OVER_AT] <= time:
                let_follow(s, g, time)


@jit
def take_seat(s, pool):
    """The lowest free row of a pool, out of its heap."""
    p = pool_row(s, pool)
    heap = s[T_SEATS] + s[p + SEATS_AT]
    lowest = s[heap]
    n = s[p + FREE_SEATS] - 1
    s[p + FREE_SEATS] = n
    last = s[heap + n]
    i = 0
    while 2 * i + 1 < n:
        down = 2 * i + 1
        if down + 1 < n and s[heap + down + 1] < s[heap + down]:
            down += 1
        if s[heap + down] >= last:
            break
        s[heap + i] = s[heap + down]
        i = down
    s[heap + i] = last
    return lowest


@jit
def free_seat(s, g, time):
    """A slot is free; whoever waits gets it later in this picosecond."""
    pool = s[unit_row(s, g) + POOL]
    p = pool_row(s, pool)
    heap = s[T_SEATS] + s[p + SEATS_AT]
    i = s[p + FREE_SEATS]
    s[p + FREE_SEATS] = i + 1
    while i > 0 and s[heap + ((i - 1) >> 1)] > g:
        s[heap + i] = s[heap + ((i - 1) >> 1)]
        i = (i - 1) >> 1
    s[heap + i] = g
    if s[p + FIRST_WAITING] != NONE:
        dispatch_at(s, pool, time)


@jit
def where(s, g, level, number):
    """The hardware unit at which instance ``g`` reaches one of a level: its place if ``g`` belongs to it or
    no slots are between; an instance of a level with slots is reached at the first unit it may get."""
    x = level_row(s, level)
    if s[x + HARDWARE] == 0:
        return number
    a = g
    while a != NONE and s[unit_row(s, a) + LEVEL] != level:
        a = s[unit_row(s, a) + PARENT]
    if a != NONE and s[unit_row(s, a) + NUMBER] == number:
        return s[unit_row(s, a) + PLACE]
    place = 0
    if s[x + PLACES] != NONE:
        place = s[s[T_LISTS] + s[x + PLACES] + number % s[x + PER_PARENT]]
    if s[x + PARENT_LEVEL] != NONE:
        place += where(s, g, s[x + PARENT_LEVEL], number // s[x + PER_PARENT]) * s[x + BELOW_PARENT]
    return place


@jit
def seen_from(s, g, level, number):
    """The same in units of the scale of ``g``: what contains it; of what it contains, its own or first."""
    place = where(s, g, level, number)
    mine = s[level_row(s, s[unit_row(s, g) + LEVEL]) + HARDWARE]
    other = s[level_row(s, level) + HARDWARE]
    if mine == other:
        return place
    if other > mine:
        return place * mine // other
    own = s[unit_row(s, g) + PLACE]
    if own * other // mine == place:
        return own
    return place * (mine // other)
