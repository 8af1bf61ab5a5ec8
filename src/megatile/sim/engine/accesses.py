"""What commands touch: the blocks of storages, and which unfinished accesses they conflict with."""

from __future__ import annotations

from megatile.sim.engine.commands import depend
from megatile.sim.engine.instances import seen_from
from megatile.sim.engine.rows import (
    access_row,
    command_row,
    inlined,
    jit,
    launch_row,
    level_row,
    log_row,
    memory_row,
    region_row,
    tail_row,
    tile_row,
    unit_row,
)
from megatile.sim.engine.values import evaluate
from megatile.sim.state import *


@inlined
def meaning(s, g, mode, what):
    """The storage that a declared tile or a handle means now."""
    frame = s[unit_row(s, g) + FRAME]
    if mode == HANDLE:
        return s[s[T_FRAME] + frame + what]
    t = tile_row(s, what)
    if s[t + TILE_VERSION_SLOT] == NONE:
        return s[t + TILE_BASE]
    return s[t + TILE_BASE] + s[s[T_FRAME] + frame + s[t + TILE_VERSION_SLOT]] % s[t + TILE_VERSIONS]


@jit
def storage_row(s, g, storage):
    """A storage as the level of an instance sees it."""
    return memory_row(s, s[level_row(s, s[unit_row(s, g) + LEVEL]) + MEMORY_BASE] + storage)


@inlined
def holder(s, g, k):
    """Who has what access ``k`` touches: NONE for the instance itself, else level and number in one; -2 where
    there is no such owner."""
    owner = s[access_row(s, k) + A_OWNER]
    if owner == NONE:
        return NONE
    x = storage_row(s, g, s[access_row(s, k) + A_STORAGE])
    number = s[unit_row(s, g) + NUMBER]
    per = s[x + STORAGE_PER]
    level = s[launch_row(s, s[unit_row(s, g) + LAUNCH]) + LEVELS] + s[x + STORAGE_LEVEL]
    if s[x + OWNERS] == NONE:
        if owner < 0 or owner >= s[level_row(s, level) + COUNT_OF]:
            return -2
        if per > 0 and number // per == owner:
            return NONE
        return level * (1 << 40) + owner
    if per > 0 and s[s[T_LISTS] + s[x + OWNERS] + number // per] == owner:
        return NONE
    if owner < 0 or owner >= s[x + OWNER_COUNT] or s[s[T_LISTS] + s[x + FIRST_OWNERS] + owner] == NONE:
        return NONE
    return level * (1 << 40) + s[s[T_LISTS] + s[x + FIRST_OWNERS] + owner]


@jit
def spot(s, g, held_by):
    """Where a holder is, in units of the scale of the instance."""
    if held_by == NONE:
        return s[unit_row(s, g) + PLACE]
    return seen_from(s, g, held_by >> 40, held_by & ((1 << 40) - 1))


@inlined
def look(s, g, region, write, k):
    """Row ``k`` of `access`: storage, owner, whether it writes, dimensions, then start and extent of each.

    Rows end with two notes: whether others may see the access, and whether it can conflict at all.
    """
    r = region_row(s, region)
    a = access_row(s, k)
    frame = s[unit_row(s, g) + FRAME]
    s[a + A_STORAGE] = meaning(s, g, s[r + MODE], s[r + TILE])
    owner = NONE if s[r + OWNER] == NONE else evaluate(s, s[r + OWNER], frame)
    if s[r + OWN] == 0:
        x = storage_row(s, g, s[a + A_STORAGE])
        per = s[x + STORAGE_PER]
        if owner == NONE and s[x + OWNERS] != NONE:
            owner = s[s[T_LISTS] + s[x + OWNERS] + s[unit_row(s, g) + NUMBER] // per]
        elif owner == NONE and per > 1:
            owner = s[unit_row(s, g) + NUMBER] // per
        elif per == 1 and s[x + OWNERS] == NONE and owner == s[unit_row(s, g) + NUMBER]:
            owner = NONE
    elif owner == s[unit_row(s, g) + NUMBER]:
        owner = NONE
    s[a + A_OWNER] = owner
    s[a + A_WRITE] = write
    n = s[r + DIMENSIONS]
    s[a + A_DIMENSIONS] = n
    for i in range(2 * n):
        s[a + A_BOUNDS + i] = evaluate(s, s[s[T_LISTS] + s[r + BOUNDS] + i], frame)
    s[a + A_VISIBLE] = s[r + VISIBLE]
    s[a + A_TRACKED] = s[r + TRACKED]
    for i in range(n):
        if s[a + A_BOUNDS + 2 * i + 1] == 0:
            s[a + A_TRACKED] = 0


@inlined
def look_all(s, g, code):
    """Look up what a compute or copy touches, what it writes last; how many accesses there are."""
    at = s[code + B]
    n = s[s[T_LISTS] + at]
    for k in range(n - 1):
        look(s, g, s[s[T_LISTS] + at + 1 + k], 0, k)
    if s[code + C] != NONE:
        s[s[T_FRAME] + s[unit_row(s, g) + FRAME] + s[code + C]] += 1
    look(s, g, s[s[T_LISTS] + at + n], 1, n - 1)
    return n


@jit
def overlap(s, a, e):
    """Whether a looked-up block and a logged one meet; no dimensions: all of it."""
    for i in range(min(s[a + A_DIMENSIONS], s[e + LOG_DIMENSIONS])):
        mine = s[a + A_BOUNDS + 2 * i]
        low = s[e + LOG_BOUNDS + 2 * i]
        if mine >= low + s[e + LOG_BOUNDS + 2 * i + 1] or low >= mine + s[a + A_BOUNDS + 2 * i + 1]:
            return False
    return True


@jit
def covers(s, a, e):
    """Whether a looked-up block contains a logged one."""
    if s[a + A_DIMENSIONS] == 0:
        return True
    if s[e + LOG_DIMENSIONS] == 0:
        return False
    for i in range(s[a + A_DIMENSIONS]):
        mine = s[a + A_BOUNDS + 2 * i]
        low = s[e + LOG_BOUNDS + 2 * i]
        if mine > low or low + s[e + LOG_BOUNDS + 2 * i + 1] > mine + s[a + A_BOUNDS + 2 * i + 1]:
            return False
    return True


@inlined
def conflicts(s, g, c, k):
    """Command ``c`` waits for the unfinished accesses that its access ``k`` conflicts with."""
    a = access_row(s, k)
    if s[a + A_TRACKED] == 0:
        return
    head = s[unit_row(s, g) + STORE] + s[a + A_STORAGE]
    now = s[unit_row(s, g) + NOW]
    last = NONE
    e = s[s[T_HEADS] + head]
    while e != NONE:
        x = log_row(s, e)
        after = s[x + LOG_NEXT]
        gone = s[x + LOG_COMMAND] == NONE and s[x + LOG_TIME] <= now
        if (
            not gone
            and s[x + LOG_OWNER] == s[a + A_OWNER]
            and (s[a + A_WRITE] == 1 or s[x + LOG_WRITE] == 1)
            and overlap(s, a, x)
        ):
            depend(s, c, s[x + LOG_TIME], s[x + LOG_COMMAND], s[x + LOG_WHY], 0)
            # Whoever conflicts with what is covered here will conflict with this command, which ends later.
            gone = s[a + A_WRITE] == 1 and covers(s, a, x)
        if gone:
            if last == NONE:
                s[s[T_HEADS] + head] = after
            else:
                s[log_row(s, last) + LOG_NEXT] = after
            forget(s, e)
        else:
            last = e
        e = after
    first = s[launch_row(s, s[unit_row(s, g) + LAUNCH]) + ALIASES]
    if first == NONE:
        return
    others = s[s[T_ALIAS] + first + s[a + A_STORAGE]]
    if others == NONE:
        return
    for i in range(s[s[T_LISTS] + others]):
        e = s[s[T_HEADS] + s[unit_row(s, g) + STORE] + s[s[T_LISTS] + others + 1 + i]]
        while e != NONE:
            x = log_row(s, e)
            if s[x + LOG_OWNER] == s[a + A_OWNER] and (s[a + A_WRITE] == 1 or s[x + LOG_WRITE] == 1):
                depend(s, c, s[x + LOG_TIME], s[x + LOG_COMMAND], s[x + LOG_WHY], 0)
            e = s[x + LOG_NEXT]


@inlined
def log_accesses(s, g, c, count, time):
    """Note the accesses of command ``c`` as unfinished until ``time``, or until it says so itself."""
    visible = False
    for k in range(count):
        a = access_row(s, k)
        if s[a + A_VISIBLE] == 1:
            visible = True
        if s[a + A_TRACKED] == 0 or (time != UNKNOWN and time <= s[unit_row(s, g) + NOW]):
            continue
        e = s[FREE_LOG]
        if e == NONE:
            e = s[TOP_LOG]
            s[TOP_LOG] = e + 1
        else:
            s[FREE_LOG] = s[log_row(s, e) + LOG_NEXT]
        x = log_row(s, e)
        s[LIVE_LOGS] += 1
        head = s[unit_row(s, g) + STORE] + s[a + A_STORAGE]
        s[x + LOG_NEXT] = s[s[T_HEADS] + head]
        s[s[T_HEADS] + head] = e
        s[x + LOG_OWNER] = s[a + A_OWNER]
        s[x + LOG_WRITE] = s[a + A_WRITE]
        s[x + LOG_TIME] = time
        s[x + LOG_WHY] = s[command_row(s, c) + RECORD]
        s[x + LOG_DEAD] = 0
        s[x + LOG_COMMAND] = NONE
        if time == UNKNOWN:
            s[x + LOG_COMMAND] = c
            s[x + LOG_OF_COMMAND] = s[command_row(s, c) + ENTRIES]
            s[command_row(s, c) + ENTRIES] = e
        s[x + LOG_DIMENSIONS] = s[a + A_DIMENSIONS]
        for i in range(2 * s[a + A_DIMENSIONS]):
            s[x + LOG_BOUNDS + i] = s[a + A_BOUNDS + i]
    if visible:
        if time == UNKNOWN:
            after = s[unit_row(s, g) + SHARED]
            s[command_row(s, c) + SHARED_NEXT] = after
            s[command_row(s, c) + SHARED_LAST] = NONE
            if after != NONE:
                s[command_row(s, after) + SHARED_LAST] = c
            s[unit_row(s, g) + SHARED] = c
        else:
            seen(s, s[unit_row(s, g) + ENGINES], time, s[command_row(s, c) + RECORD])


@jit
def forget(s, e):
    """An access that matters no longer; one of a command in flight is freed when that ends."""
    if s[log_row(s, e) + LOG_COMMAND] != NONE:
        s[log_row(s, e) + LOG_DEAD] = 1
    else:
        s[log_row(s, e) + LOG_NEXT] = s[FREE_LOG]
        s[FREE_LOG] = e
        s[LIVE_LOGS] -= 1


@jit
def seen(s, engines, time, why):
    """An access that others see ends at ``time``; the first queue of an instance keeps the latest."""
    t = tail_row(s, engines)
    if time > s[t]:
        s[t] = time
        s[t + 2] = why


@jit
def settle(s, c, time):
    """The accesses of a command end at ``time``."""
    m = command_row(s, c)
    e = s[m + ENTRIES]
    while e != NONE:
        after = s[log_row(s, e) + LOG_OF_COMMAND]
        s[log_row(s, e) + LOG_COMMAND] = NONE
        s[log_row(s, e) + LOG_TIME] = time
        if s[log_row(s, e) + LOG_DEAD] == 1:
            forget(s, e)
        e = after
    s[m + ENTRIES] = NONE
    # Out of the list of accesses that others see; from now on its time stands for it.
    g = unit_row(s, s[m + WHO])
    last = s[m + SHARED_LAST]
    if last == c:
        return
    after = s[m + SHARED_NEXT]
    if last == NONE:
        s[g + SHARED] = after
    else:
        s[command_row(s, last) + SHARED_NEXT] = after
    if after != NONE:
        s[command_row(s, after) + SHARED_LAST] = last
    s[m + SHARED_LAST] = c
    seen(s, s[g + ENGINES], time, s[m + RECORD])
