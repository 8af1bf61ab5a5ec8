"""Transfers along the stages of their path, cut into granules where others may come between."""

from __future__ import annotations

from megatile.sim.engine.accesses import log_accesses
from megatile.sim.engine.commands import free_command, new_command, soon
from megatile.sim.engine.endings import end_known, finished, has_left
from megatile.sim.engine.events import push, serve
from megatile.sim.engine.instances import ended
from megatile.sim.engine.notes import note_accesses
from megatile.sim.engine.queues import arrive, give_back
from megatile.sim.engine.rows import (
    command_row,
    inlined,
    jit,
    load_float,
    memo_row,
    path_row,
    record_row,
    stage_row,
    tail_row,
    unit_row,
)
from megatile.sim.engine.values import ask, find, serialise
from megatile.sim.state import *


@jit
def occupied(s, p, nbytes):
    """How long the narrowest stage of a path is busy."""
    if s[path_row(s, p) + LAST_SIZE] != nbytes:
        s[path_row(s, p) + LAST_SIZE] = nbytes
        s[path_row(s, p) + LAST_BUSY] = serialise(nbytes, load_float(s, path_row(s, p) + RATE))
    return s[path_row(s, p) + LAST_BUSY]


@jit
def pieces(s, p, nbytes):
    """Into how many pieces a transfer is cut."""
    granule = s[path_row(s, p) + GRANULE]
    if granule == 0 or nbytes <= granule:
        return 1
    size = max(granule, -(-nbytes // MOST_PIECES))
    return -(-nbytes // size)


@inlined
def drawn_out(s, p, nbytes):
    """From the head of a transfer to its tail where nobody is in the way: the times of its pieces."""
    count = pieces(s, p, nbytes)
    if count == 1:
        return occupied(s, p, nbytes)
    size = max(s[path_row(s, p) + GRANULE], -(-nbytes // MOST_PIECES))
    return (count - 1) * occupied(s, p, size) + occupied(s, p, nbytes - (count - 1) * size)


@inlined
def held_until(s, p, nbytes):
    """From the head of a transfer to its source being free where nobody is in the way."""
    least = s[path_row(s, p) + BEFORE]
    count = pieces(s, p, nbytes)
    if count == 1:
        return max(occupied(s, p, nbytes), least)
    size = max(s[path_row(s, p) + GRANULE], -(-nbytes // MOST_PIECES))
    busy = occupied(s, p, size)
    last = (count - 1) * busy + max(occupied(s, p, nbytes - (count - 1) * size), least)
    return max(last, (count - 2) * busy + max(busy, least))


@jit
def stage_busy(s, k, nbytes):
    if s[stage_row(s, k) + STAGE_SIZE] != nbytes:
        s[stage_row(s, k) + STAGE_SIZE] = nbytes
        s[stage_row(s, k) + STAGE_BUSY] = serialise(nbytes, load_float(s, stage_row(s, k) + STAGE_RATE))
    return s[stage_row(s, k) + STAGE_BUSY]


@jit
def start_transfer(s, c, time):
    """Move the bytes of a command along its path, cut into granules where others may come between."""
    m = command_row(s, c)
    s[m + START] = time
    if s[m + RECORD] != NONE:
        s[record_row(s, s[m + RECORD]) + R_START] = time
        s[record_row(s, s[m + RECORD]) + R_CAUSE] = s[m + WHY]
    p = path_row(s, s[m + PATH])
    nbytes = s[m + BYTES]
    head = time + s[p + STARTUP] + s[m + DELAY]
    if s[p + CONTENDED] == 0:
        has_left(s, c, head + held_until(s, s[m + PATH], nbytes))
        finished(s, c, head + drawn_out(s, s[m + PATH], nbytes) + s[p + LATENCY])
        return
    count = pieces(s, s[m + PATH], nbytes)
    if count > 1:
        size = max(s[p + GRANULE], -(-nbytes // MOST_PIECES))
        s[m + PIECES_LEFT] = count
        s[m + TAILS_LEFT] = count
        s[m + TAIL] = 0
        s[m + PIECE_BYTES] = size
        next_piece(s, c, 0, head)
        return
    begin(s, c, head)


@jit
def next_piece(s, parent, index, head):
    p = command_row(s, parent)
    c = new_command(s, PIECE, s[p + WHO], s[p + AT])
    m = command_row(s, c)
    s[m + PARENT_OF] = parent
    s[m + PATH] = s[p + PATH]
    s[m + BASE] = s[p + BASE]
    s[m + FLOW_OF] = s[p + FLOW_OF]
    s[m + ORDER] = s[p + ORDER] + index
    s[m + REST] = index
    s[m + BYTES] = min(s[p + PIECE_BYTES], s[p + BYTES] - index * s[p + PIECE_BYTES])
    begin(s, c, head)


@jit
def begin(s, c, head):
    m = command_row(s, c)
    p = path_row(s, s[m + PATH])
    s[m + HEAD] = head
    s[m + TAIL] = head + serialise(s[m + BYTES], load_float(s, path_row(s, s[m + PATH]) + DMA_RATE))
    s[m + STAGE] = 0
    s[m + WAITED] = 0
    if s[p + FIRST_SERVER] == NONE:
        has_left(s, c, head + max(occupied(s, s[m + PATH], s[m + BYTES]), s[p + BEFORE]))
    move(s, c)


@jit
def turn(s, c, index, time):
    """The head of a transfer passes stage ``index`` at ``time``."""
    m = command_row(s, c)
    p = path_row(s, s[m + PATH])
    k = s[p + FIRST_STAGE] + index
    if index == s[p + FIRST_SERVER] and s[m + LEFT] == UNKNOWN:
        has_left(s, c, time - s[p + BEFORE] + max(occupied(s, s[m + PATH], s[m + BYTES]), s[p + BEFORE]))
    latency = s[stage_row(s, k) + STAGE_LATENCY]
    s[m + TAIL] = max(s[m + TAIL], time + stage_busy(s, k, s[m + BYTES])) + latency
    s[m + HEAD] = time + latency


@jit
def move(s, c):
    """Follow the stages up to the next that is shared, or to the end."""
    m = command_row(s, c)
    p = path_row(s, s[m + PATH])
    for index in range(s[m + STAGE], s[p + STAGES]):
        k = s[p + FIRST_STAGE] + index
        shared = s[stage_row(s, k) + STAGE_SHARED]
        time = s[m + HEAD]
        if shared == 1:
            s[m + STAGE] = index
            push(s, time, REQUESTS, s[m + FLOW_OF], s[m + ORDER] * HOPS + index + 1, c)
            return
        if shared == 0 and s[m + WAITED] == 1:
            server = s[m + BASE] + s[stage_row(s, k) + STAGE_SERVER]
            time = serve(s, server, time, stage_busy(s, k, s[m + BYTES]))
        turn(s, c, index, time)
    finished(s, c, max(s[m + TAIL], s[m + HEAD]) + s[p + EXTRA])


@inlined
def transfer(s, g, c, n, until_left):
    """Start a command that moves data, or let it wait; its accesses end with its source, or at the end."""
    m = command_row(s, c)
    server = s[tail_row(s, s[m + TAIL_OF]) + 3]
    if server != NONE:
        s[m + SERVER_OF] = server
        busy = max(occupied(s, s[m + PATH], s[m + BYTES]), s[path_row(s, s[m + PATH]) + BEFORE])
        s[m + BUSY] = s[path_row(s, s[m + PATH]) + STARTUP] + s[m + DELAY] + busy
    note_accesses(s, s[m + RECORD], n)
    if s[m + NEED] == 0 and server == NONE and s[path_row(s, s[m + PATH]) + CONTENDED] == 0:
        # The usual case: nobody is in the way, all times are known at once.
        p = path_row(s, s[m + PATH])
        time = s[m + READY_AT]
        head = time + s[p + STARTUP] + s[m + DELAY]
        left = head + held_until(s, s[m + PATH], s[m + BYTES])
        end = head + drawn_out(s, s[m + PATH], s[m + BYTES]) + s[p + LATENCY]
        t = s[m + TAIL_OF]
        s[tail_row(s, t)] = left
        s[tail_row(s, t) + 1] = NONE
        s[tail_row(s, t) + 2] = s[m + RECORD]
        until = left if until_left else end
        log_accesses(s, g, c, n, until)
        if s[m + RECORD] != NONE:
            r = record_row(s, s[m + RECORD])
            s[r + R_START] = time
            s[r + R_END] = until
            s[r + R_CAUSE] = s[m + WHY]
            s[r + R_ARRIVED] = end
        end_known(s, g, until, s[m + RECORD])
        ended(s, g, end)
        if s[m + WHAT] == SEND:
            arrive(s, s[m + MESSAGE_QUEUE], s[m + MESSAGE], end, s[m + RECORD])
        elif s[m + WHAT] == INTO:
            give_back(s, s[m + MESSAGE_QUEUE], s[m + MESSAGE], end, s[m + RECORD], s[m + AMOUNT])
        free_command(s, c)
        return
    s[unit_row(s, g) + OPEN] += 1
    s[tail_row(s, s[m + TAIL_OF]) + 1] = c
    log_accesses(s, g, c, n, UNKNOWN)
    if s[m + NEED] == 0:
        soon(s, c)


@inlined
def delay_of(s, flow, number, p, nbytes):
    """The jitter of a transfer: UNKNOWN where the machine has to be asked."""
    if s[JITTER] == 0:
        return 0
    h = find(s, ASK_DELAY, flow, number, p & CLASS, nbytes)
    if h == NONE:
        p = p & CLASS
        ask(s, ASK_DELAY, flow, number, p, nbytes, occupied(s, p, nbytes) + s[path_row(s, p) + LATENCY])
        return UNKNOWN
    return s[memo_row(s, h) + 5]
