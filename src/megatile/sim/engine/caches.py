"""Caches: blocks in order of use, what is missing comes from behind."""

from __future__ import annotations

from megatile.sim.engine.accesses import storage_row
from megatile.sim.engine.endings import has_left
from megatile.sim.engine.events import push, serve
from megatile.sim.engine.rows import (
    access_row,
    block_row,
    cache_row,
    command_row,
    jit,
    launch_row,
    load_float,
    path_row,
    span_row,
    unit_row,
)
from megatile.sim.engine.transfers import occupied
from megatile.sim.engine.values import serialise
from megatile.sim.state import *


@jit
def span(s, g, k):
    """The blocks that access ``k`` touches; NONE where there are none."""
    a = access_row(s, k)
    at = s[storage_row(s, g, s[a + A_STORAGE]) + BRICKS]
    if at == NONE:
        return NONE
    at += s[T_LISTS]
    n = s[at]
    r = s[FREE_SPAN]
    if r == NONE:
        r = s[TOP_SPAN]
        s[TOP_SPAN] = r + 1
    else:
        s[FREE_SPAN] = s[span_row(s, r) + SPAN_NEXT]
    x = span_row(s, r)
    s[LIVE_SPANS] += 1
    owner = s[a + A_OWNER]
    if owner == NONE:
        owner = s[unit_row(s, g) + NUMBER]
    storage = s[a + A_STORAGE] + s[at + 2]
    if s[at + 2] == 0:
        storage += s[launch_row(s, s[unit_row(s, g) + LAUNCH]) + SERIAL] << 21
    s[x + SPAN_KEY] = (storage << 24) + owner
    s[x + SPAN_BYTES] = s[at + 1]
    s[x + SPAN_DIMENSIONS] = n
    stride = 1
    for i in range(n):
        j = n - 1 - i
        size = s[at + 3 + j]
        count = s[at + 3 + n + j]
        first = 0
        if s[a + A_DIMENSIONS] > 0:
            first = s[a + A_BOUNDS + 2 * j] // size
            if s[a + A_BOUNDS + 2 * j + 1] == 0:
                s[x + SPAN_BOUNDS + 3 * j + 1] = 0
            else:
                last = (s[a + A_BOUNDS + 2 * j] + s[a + A_BOUNDS + 2 * j + 1] - 1) // size
                s[x + SPAN_BOUNDS + 3 * j + 1] = last - first + 1
        else:
            s[x + SPAN_BOUNDS + 3 * j + 1] = count
        s[x + SPAN_BOUNDS + 3 * j] = first
        s[x + SPAN_BOUNDS + 3 * j + 2] = stride
        stride *= count
    return r


@jit
def free_span(s, r):
    s[span_row(s, r) + SPAN_NEXT] = s[FREE_SPAN]
    s[FREE_SPAN] = r
    s[LIVE_SPANS] -= 1


@jit
def span_count(s, r):
    x = span_row(s, r)
    total = 1
    for i in range(s[x + SPAN_DIMENSIONS]):
        total *= s[x + SPAN_BOUNDS + 3 * i + 1]
    return total


@jit
def span_index(s, r, n):
    """The number of the ``n``-th block of a span."""
    x = span_row(s, r)
    index = 0
    for i in range(s[x + SPAN_DIMENSIONS]):
        b = x + SPAN_BOUNDS + 3 * (s[x + SPAN_DIMENSIONS] - 1 - i)
        index += (s[b] + n % s[b + 1]) * s[b + 2]
        n = n // s[b + 1]
    return index


@jit
def bucket(s, cache, key, index):
    h = key * 31 + cache * 7919 + index * 2654435761
    return s[T_BUCKET] + ((h ^ (h >> 21)) & (s[N_BUCKET] - 1))


@jit
def into_bucket(s, b):
    x = block_row(s, b)
    at = bucket(s, s[x + BLOCK_CACHE], s[x + BLOCK_KEY], s[x + BLOCK_INDEX])
    s[x + BLOCK_CHAIN] = s[at]
    s[at] = b


@jit
def find_block(s, cache, key, index):
    b = s[bucket(s, cache, key, index)]
    while b != NONE:
        x = block_row(s, b)
        if s[x + BLOCK_INDEX] == index and s[x + BLOCK_KEY] == key and s[x + BLOCK_CACHE] == cache:
            return b
        b = s[x + BLOCK_CHAIN]
    return NONE


@jit
def unlink(s, b):
    """A block out of the order of use."""
    x = block_row(s, b)
    k = cache_row(s, s[x + BLOCK_CACHE])
    if s[x + NEWER] == NONE:
        s[k + NEWEST] = s[x + OLDER]
    else:
        s[block_row(s, s[x + NEWER]) + OLDER] = s[x + OLDER]
    if s[x + OLDER] == NONE:
        s[k + OLDEST] = s[x + NEWER]
    else:
        s[block_row(s, s[x + OLDER]) + NEWER] = s[x + NEWER]


@jit
def link(s, b):
    """A block is the one used last."""
    x = block_row(s, b)
    k = cache_row(s, s[x + BLOCK_CACHE])
    s[x + NEWER] = NONE
    s[x + OLDER] = s[k + NEWEST]
    if s[k + NEWEST] == NONE:
        s[k + OLDEST] = b
    else:
        s[block_row(s, s[k + NEWEST]) + NEWER] = b
    s[k + NEWEST] = b


@jit
def insert_block(s, cache, key, index, nbytes, time):
    """A block that is new in a cache; the one used longest ago makes room."""
    k = cache_row(s, cache)
    if s[k + CACHE_USED] < s[k + CACHE_BLOCKS]:
        s[k + CACHE_USED] += 1
        b = s[BLOCKS]
        s[BLOCKS] += 1
    else:
        b = s[k + OLDEST]
        x = block_row(s, b)
        unlink(s, b)
        at = bucket(s, cache, s[x + BLOCK_KEY], s[x + BLOCK_INDEX])
        if s[at] == b:
            s[at] = s[x + BLOCK_CHAIN]
        else:
            last = s[at]
            while s[block_row(s, last) + BLOCK_CHAIN] != b:
                last = s[block_row(s, last) + BLOCK_CHAIN]
            s[block_row(s, last) + BLOCK_CHAIN] = s[x + BLOCK_CHAIN]
        if s[x + DIRTY] == 1:
            write_behind(s, cache, s[x + BLOCK_KEY], s[x + BLOCK_INDEX], s[x + BLOCK_BYTES], time)
    x = block_row(s, b)
    s[x + BLOCK_CACHE] = cache
    s[x + BLOCK_KEY] = key
    s[x + BLOCK_INDEX] = index
    s[x + BLOCK_BYTES] = nbytes
    s[x + DIRTY] = 0
    s[x + FILLED_AT] = UNKNOWN
    into_bucket(s, b)
    link(s, b)
    return b


@jit
def write_behind(s, cache, key, index, nbytes, time):
    """A block that was changed goes to what is behind its cache; nobody waits for that."""
    k = cache_row(s, cache)
    s[k + CACHE_EVICTED] += nbytes
    ask_behind(s, cache, time, nbytes)
    behind = s[k + BEHIND]
    if behind == NONE:
        return
    b = find_block(s, behind, key, index)
    if b == NONE:
        b = insert_block(s, behind, key, index, nbytes, time)
        s[block_row(s, b) + FILLED_AT] = time
    else:
        unlink(s, b)
        link(s, b)
    s[block_row(s, b) + DIRTY] = 1


@jit
def ask_behind(s, cache, time, nbytes):
    """When what is behind a cache serves so many bytes."""
    k = cache_row(s, cache)
    busy = serialise(nbytes, load_float(s, k + BEHIND_RATE))
    s[k + CACHE_SPENT] += busy
    if s[k + BEHIND_SERVER] == NONE:
        return time
    return serve(s, s[k + BEHIND_SERVER], time, busy)


@jit
def load(s, c, time):
    """Look up what a copy reads; what is missing comes from behind. Whether the head has to wait for that."""
    m = command_row(s, c)
    r = s[m + SPAN_READ]
    s[m + SPAN_READ] = NONE
    nearest = s[path_row(s, s[m + PATH]) + READ_CACHE]
    key = s[span_row(s, r) + SPAN_KEY]
    nbytes = s[span_row(s, r) + SPAN_BYTES]
    s[cache_row(s, nearest) + CACHE_READ] += s[m + BYTES]
    there = 0
    for n in range(span_count(s, r)):
        index = span_index(s, r, n)
        cache = nearest
        while cache != NONE:
            k = cache_row(s, cache)
            s[k + TOUCHED] += 1
            b = find_block(s, cache, key, index)
            if b != NONE:
                s[k + HITS] += 1
                there = max(there, s[block_row(s, b) + FILLED_AT])
                unlink(s, b)
                link(s, b)
                break
            s[k + MISSES] += 1
            s[k + MISSING] += nbytes
            insert_block(s, cache, key, index, nbytes, time)
            cache = s[k + BEHIND]
    free_span(s, r)
    head = UNKNOWN
    tail = time
    latency = 0
    cache = nearest
    while cache != NONE:
        k = cache_row(s, cache)
        missing = s[k + MISSING]
        if missing > 0:
            spent = s[k + CACHE_SPENT]
            now = ask_behind(s, cache, time, missing)
            s[k + CACHE_FILLED] += missing
            head = max(head, now)
            tail = max(tail, now + s[k + CACHE_SPENT] - spent)
            latency += s[k + BEHIND_LATENCY]
        cache = s[k + BEHIND]
    cache = nearest
    while cache != NONE:
        k = cache_row(s, cache)
        b = s[k + NEWEST]
        if s[k + MISSING] > 0:
            for _ in range(min(s[k + TOUCHED], s[k + CACHE_USED])):
                if s[block_row(s, b) + FILLED_AT] == UNKNOWN:
                    s[block_row(s, b) + FILLED_AT] = tail + latency
                b = s[block_row(s, b) + OLDER]
        s[k + MISSING] = 0
        s[k + TOUCHED] = 0
        cache = s[k + BEHIND]
    s[m + TAIL] = max(s[m + TAIL], there)
    if head == UNKNOWN:
        return 0
    s[m + TAIL] = max(s[m + TAIL], tail + latency)
    has_left(s, c, head + occupied(s, s[m + PATH], s[m + BYTES]))
    s[m + HEAD] = head + latency
    push(s, s[m + HEAD], REQUESTS, s[m + FLOW_OF], s[m + ORDER] * HOPS + 1, c)
    return 1


@jit
def store(s, c, time):
    """Write what a copy writes into the caches; when it is in what is behind those that do not keep it."""
    m = command_row(s, c)
    r = s[m + SPAN_WRITTEN]
    s[m + SPAN_WRITTEN] = NONE
    key = s[span_row(s, r) + SPAN_KEY]
    nbytes = s[span_row(s, r) + SPAN_BYTES]
    tail = 0
    latency = 0
    cache = s[path_row(s, s[m + PATH]) + WRITE_CACHE]
    while cache != NONE:
        k = cache_row(s, cache)
        s[k + CACHE_WRITTEN] += s[m + BYTES]
        for n in range(span_count(s, r)):
            index = span_index(s, r, n)
            b = find_block(s, cache, key, index)
            if b != NONE:
                unlink(s, b)
                link(s, b)
            elif s[k + WRITES_BACK] == 1:
                b = insert_block(s, cache, key, index, nbytes, time)
                s[block_row(s, b) + FILLED_AT] = time
            if s[k + WRITES_BACK] == 1:
                s[block_row(s, b) + DIRTY] = 1
        if s[k + WRITES_BACK] == 1:
            break
        spent = s[k + CACHE_SPENT]
        now = ask_behind(s, cache, time, s[m + BYTES])
        s[k + CACHE_EVICTED] += s[m + BYTES]
        latency += s[k + BEHIND_LATENCY]
        tail = max(tail, now + s[k + CACHE_SPENT] - spent + latency)
        cache = s[k + BEHIND]
    free_span(s, r)
    return tail


@jit
def touch_caches(s, g, c, source, target):
    """What a copy reads and writes through caches, as it is when it is issued."""
    m = command_row(s, c)
    p = path_row(s, s[m + PATH])
    if s[p + CONTENDED] == 0 or s[m + BYTES] == 0:
        return
    if s[p + READ_CACHE] != NONE and source != NONE:
        s[m + SPAN_READ] = span(s, g, source)
    if s[p + WRITE_CACHE] != NONE:
        s[m + SPAN_WRITTEN] = span(s, g, target)
