"""Caches: blocks in order of use, what is missing comes from behind."""

from __future__ import annotations

from megatile.records.marks import jit
from megatile.records.rows import Words
from megatile.sim.engine.accesses import storage_of
from megatile.sim.engine.completion import has_left
from megatile.sim.engine.events import claim, push, serve
from megatile.sim.engine.transfers import occupied
from megatile.sim.engine.values import serialise
from megatile.sim.state import HOPS, LOW, NONE, OWN_BLOCKS, REQUESTS, UNKNOWN, State


@jit
def span_of(s: State, unit_id: int, access_id: int) -> int:
    """Return the blocks that an access touches; NONE where there are none."""
    access = s.accesses[access_id]
    first_block = storage_of(s, unit_id, access.storage).blocks
    if first_block == NONE:
        return NONE
    described = s.lists.at(first_block)
    dimensions = described[0]
    span_id = s.free_span
    if span_id == NONE:
        span_id = s.top_span
        s.top_span = claim(s, span_id, s.spans.size, State.spans)
    else:
        s.free_span = s.spans[span_id].next
    span = s.spans[span_id]
    owner = access.owner
    if owner == NONE:
        owner = s.units[unit_id].number
    storage_id = access.storage + described[2]
    if described[2] == 0:
        storage_id += OWN_BLOCKS + ((s.launches[s.units[unit_id].launch].serial & 0xFFFF) << 21)
    span.update(key=(storage_id << 24) + owner, nbytes=described[1], dimensions=dimensions)
    stride = 1
    for i in range(dimensions):
        j = dimensions - 1 - i
        size = described[3 + j]
        count = described[3 + dimensions + j]
        first = 0
        last = count - 1
        if access.dimensions > 0:
            first = access.bounds[2 * j] // size
            end = access.bounds[2 * j] + access.bounds[2 * j + 1]
            last = (end - 1) // size if end > access.bounds[2 * j] else first - 1
        span.bounds[3 * j] = first
        span.bounds[3 * j + 1] = last - first + 1
        span.bounds[3 * j + 2] = stride
        stride *= count
    return span_id


@jit
def free_span(s: State, span_id: int) -> None:
    s.spans[span_id].next = s.free_span
    s.free_span = span_id


@jit
def span_count(s: State, span_id: int) -> int:
    span = s.spans[span_id]
    total = 1
    for i in range(span.dimensions):
        total *= span.bounds[3 * i + 1]
    return total


@jit
def span_index(s: State, span_id: int, n: int) -> int:
    """Return the number of the ``n``-th block of a span."""
    span = s.spans[span_id]
    index = 0
    for i in range(span.dimensions):
        bounds = span.bounds.at(3 * (span.dimensions - 1 - i))
        index += (bounds[0] + n % bounds[1]) * bounds[2]
        n = n // bounds[1]
    return index


@jit
def bucket_number(s: State, cache_id: int, key: int, index: int) -> int:
    """Return the bucket of a block; also of columns of blocks."""
    h = (key & LOW) * 31 + (key >> 28) * 104729 + cache_id * 7919 + index * 2654435761
    return (h ^ (h >> 21)) & (s.buckets.size - 1)


@jit
def bucket_of(s: State, cache_id: int, key: int, index: int) -> Words:
    """Return the word with the first block of a bucket."""
    return s.buckets.at(bucket_number(s, cache_id, key, index))


@jit
def find_block(s: State, cache_id: int, key: int, index: int) -> int:
    block_id = bucket_of(s, cache_id, key, index)[0]
    while block_id != NONE:
        block = s.blocks[block_id]
        if block.index == index and block.key == key and block.cache == cache_id:
            return block_id
        block_id = block.next
    return NONE


@jit
def unlink(s: State, block_id: int) -> None:
    """A block out of the order of use."""
    block = s.blocks[block_id]
    cache = s.caches[block.cache]
    if block.newer == NONE:
        cache.newest = block.older
    else:
        s.blocks[block.newer].older = block.older
    if block.older == NONE:
        cache.oldest = block.newer
    else:
        s.blocks[block.older].newer = block.newer


@jit
def link(s: State, block_id: int) -> None:
    """A block is the one used last."""
    block = s.blocks[block_id]
    cache = s.caches[block.cache]
    s.sequence += 1
    block.update(used_at=s.sequence, newer=NONE, older=cache.newest)
    if cache.newest == NONE:
        cache.oldest = block_id
    else:
        s.blocks[cache.newest].newer = block_id
    cache.newest = block_id


@jit
def insert_block(s: State, cache_id: int, key: int, index: int, nbytes: int, time: int) -> int:
    """Add a block to a cache and return it; the one used longest ago makes room, if need be when it is
    behind."""
    cache = s.caches[cache_id]
    room_at = time
    if cache.used < cache.capacity:
        block_id = cache.first_block + cache.used
        cache.used += 1
    else:
        block_id = cache.oldest
        block = s.blocks[block_id]
        unlink(s, block_id)
        bucket = bucket_of(s, cache_id, block.key, block.index)
        if bucket[0] == block_id:
            bucket[0] = block.next
        else:
            last = bucket[0]
            while s.blocks[last].next != block_id:
                last = s.blocks[last].next
            s.blocks[last].next = block.next
        if block.dirty == 1:
            room_at = write_behind(s, cache_id, block.key, block.index, block.nbytes, time)
    block = s.blocks[block_id]
    block.update(
        cache=cache_id, key=key, index=index, nbytes=nbytes, dirty=0, filled_at=UNKNOWN, room_at=room_at
    )
    bucket = bucket_of(s, cache_id, key, index)
    block.next = bucket[0]
    bucket[0] = block_id
    link(s, block_id)
    return block_id


@jit
def write_behind(s: State, cache_id: int, key: int, index: int, nbytes: int, time: int) -> int:
    """Write a block that was changed to what is behind its cache; return when it is there."""
    cache = s.caches[cache_id]
    cache.evicted += nbytes
    end = ask_behind(s, cache_id, time, nbytes)
    behind = cache.behind
    if behind == NONE:
        return end
    block_id = find_block(s, behind, key, index)
    if block_id == NONE:
        block_id = insert_block(s, behind, key, index, nbytes, time)
        s.blocks[block_id].filled_at = time
        end = max(end, s.blocks[block_id].room_at)
    else:
        unlink(s, block_id)
        link(s, block_id)
    s.blocks[block_id].dirty = 1
    return end


@jit
def ask_behind(s: State, cache_id: int, time: int, nbytes: int) -> int:
    """Return when what is behind a cache has served so many bytes."""
    cache = s.caches[cache_id]
    busy = serialise(nbytes, cache.behind_rate)
    cache.spent += busy
    if cache.behind_server == NONE:
        return time + busy
    return serve(s, cache.behind_server, time, busy) + busy


@jit
def load(s: State, command_id: int, time: int) -> int:
    """Look up what a copy reads; what is missing comes from behind. Whether the head has to wait for that."""
    command = s.commands[command_id]
    span_id = command.span_read
    command.span_read = NONE
    nearest = s.paths[command.path].read_cache
    key = s.spans[span_id].key
    nbytes = s.spans[span_id].nbytes
    s.caches[nearest].read += command.nbytes
    there = 0
    for n in range(span_count(s, span_id)):
        index = span_index(s, span_id, n)
        cache_id = nearest
        while cache_id != NONE:
            cache = s.caches[cache_id]
            cache.touched += 1
            block_id = find_block(s, cache_id, key, index)
            if block_id != NONE:
                cache.hits += 1
                there = max(there, s.blocks[block_id].filled_at)
                unlink(s, block_id)
                link(s, block_id)
                break
            cache.misses += 1
            cache.missing += nbytes
            insert_block(s, cache_id, key, index, nbytes, time)
            cache_id = cache.behind
    free_span(s, span_id)
    head = UNKNOWN
    tail = time
    latency = 0
    cache_id = nearest
    while cache_id != NONE:
        cache = s.caches[cache_id]
        missing = cache.missing
        if missing > 0:
            end = ask_behind(s, cache_id, time, missing)
            cache.filled += missing
            head = max(head, end - serialise(missing, cache.behind_rate))
            tail = max(tail, end)
            latency += cache.behind_latency
        cache_id = cache.behind
    cache_id = nearest
    while cache_id != NONE:
        cache = s.caches[cache_id]
        block_id = cache.newest
        if cache.missing > 0:
            for _ in range(min(cache.touched, cache.used)):
                if s.blocks[block_id].filled_at == UNKNOWN:
                    s.blocks[block_id].filled_at = tail + latency
                block_id = s.blocks[block_id].older
        cache.missing = 0
        cache.touched = 0
        cache_id = cache.behind
    command.tail = max(command.tail, there)
    if head == UNKNOWN:
        return 0
    command.tail = max(command.tail, tail + latency)
    has_left(s, command_id, head + occupied(s, command.path, command.nbytes))
    command.head = head + latency
    push(s, command.head, REQUESTS, command.flow, command.order * HOPS + 1, command_id)
    return 1


@jit
def store(s: State, command_id: int, time: int) -> int:
    """Write what a copy writes into the caches; when these had room for it, and it is in what is behind those
    that do not keep it."""
    command = s.commands[command_id]
    span_id = command.span_written
    command.span_written = NONE
    key = s.spans[span_id].key
    nbytes = s.spans[span_id].nbytes
    tail = 0
    latency = 0
    cache_id = s.paths[command.path].write_cache
    while cache_id != NONE:
        cache = s.caches[cache_id]
        cache.written += command.nbytes
        for n in range(span_count(s, span_id)):
            index = span_index(s, span_id, n)
            block_id = find_block(s, cache_id, key, index)
            if block_id != NONE:
                unlink(s, block_id)
                link(s, block_id)
            elif cache.writes_back == 1:
                block_id = insert_block(s, cache_id, key, index, nbytes, time)
                s.blocks[block_id].filled_at = time
                tail = max(tail, s.blocks[block_id].room_at)
            if cache.writes_back == 1:
                s.blocks[block_id].dirty = 1
        if cache.writes_back == 1:
            break
        cache.evicted += command.nbytes
        latency += cache.behind_latency
        tail = max(tail, ask_behind(s, cache_id, time, command.nbytes) + latency)
        cache_id = cache.behind
    free_span(s, span_id)
    return tail


@jit
def touch_caches(s: State, unit_id: int, command_id: int, source: int, target: int) -> None:
    """What a copy reads and writes through caches, as it is when it is issued."""
    command = s.commands[command_id]
    path = s.paths[command.path]
    if path.contended == 0 or command.nbytes == 0:
        return
    if path.read_cache != NONE and source != NONE:
        command.span_read = span_of(s, unit_id, source)
    if path.write_cache != NONE:
        command.span_written = span_of(s, unit_id, target)
