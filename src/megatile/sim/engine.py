"""The engine: every instance follows its instructions, every command takes its time. One loop for all plans.

An instance runs ahead on its own clock (``NOW``) until something holds up its issue. What only it uses is
arithmetic: such commands have all their times at once. A request for something that others use too (a server:
a link, a memory, an engine) goes into the time queue and is granted in order of time; a command whose times
are not known yet is a row of ``command``, counts the unfinished ones that it needs, and is ready when there
are none. The queue is asked only when no instance can go on: nothing can then ask for an earlier time, so
that what it grants is final. When the queue is empty, all are done or the state is a deadlock.

The functions are plain Python over the arena of `state.py`; `compiled.py` translates them to machine code.
They return to Python with a reason (``ASK_…``) where a figure of the machine is needed that is not in the
tables yet, and are called again when it is.
"""

from __future__ import annotations

import numpy as np

from megatile.sim.state import *


def jit(function):  # type: ignore[no-untyped-def]
    """Marks what `compiled` translates: integers only, ``s`` is the arena."""
    return function


def load_float(s, at):  # type: ignore[no-untyped-def]
    """A number of the arena that is a float."""
    return s[at : at + 1].view(np.float64)[0]


# --- rows: where a row of a table begins -------------------------------------------------------------------


@jit
def code_row(s, i):
    return s[T_CODE] + i * W_CODE


@jit
def expr_row(s, i):
    return s[T_EXPR] + i * W_EXPR


@jit
def bytecode_row(s, i):
    return s[T_BYTECODE] + i * W_BYTECODE


@jit
def region_row(s, i):
    return s[T_REGION] + i * W_REGION


@jit
def tile_row(s, i):
    return s[T_TILE] + i * W_TILE


@jit
def channel_row(s, i):
    return s[T_CHANNEL] + i * W_CHANNEL


@jit
def launch_row(s, i):
    return s[T_LAUNCH] + i * W_LAUNCH


@jit
def memory_row(s, i):
    return s[T_MEMORY_OF] + i * W_MEMORY_OF


@jit
def unit_row(s, i):
    return s[T_UNIT] + i * W_UNIT


@jit
def queue_of_row(s, i):
    return s[T_QUEUE_OF] + i * W_QUEUE_OF


@jit
def level_row(s, i):
    return s[T_LEVEL] + i * W_LEVEL


@jit
def stream_row(s, i):
    return s[T_STREAM] + i * W_STREAM


@jit
def pool_row(s, i):
    return s[T_POOL] + i * W_POOL


@jit
def below_row(s, i):
    return s[T_BELOW] + i * W_BELOW


@jit
def held_row(s, i):
    return s[T_HELD] + i * W_HELD


@jit
def tail_row(s, i):
    return s[T_TAILS] + i * W_TAILS


@jit
def queue_row(s, i):
    return s[T_QUEUE] + i * W_QUEUE


@jit
def ring_row(s, i):
    return s[T_RING] + i * W_RING


@jit
def flag_row(s, i):
    return s[T_FLAG] + i * W_FLAG


@jit
def counter_row(s, i):
    return s[T_COUNTER] + i * W_COUNTER


@jit
def meeting_row(s, i):
    return s[T_MEETING] + i * W_MEETING


@jit
def path_row(s, i):
    return s[T_PATH] + i * W_PATH


@jit
def stage_row(s, i):
    return s[T_STAGE] + i * W_STAGE


@jit
def server_row(s, i):
    return s[T_SERVER] + i * W_SERVER


@jit
def cache_row(s, i):
    return s[T_CACHE] + i * W_CACHE


@jit
def block_row(s, i):
    return s[T_BLOCK] + i * W_BLOCK


@jit
def span_row(s, i):
    return s[T_SPAN] + i * s[W_SPAN]


@jit
def command_row(s, i):
    return s[T_COMMAND] + i * W_COMMAND


@jit
def log_row(s, i):
    return s[T_LOG] + i * s[W_LOG]


@jit
def node_row(s, i):
    return s[T_NODE] + i * W_NODE


@jit
def memo_row(s, i):
    return s[T_MEMO] + i * W_MEMO


@jit
def record_row(s, i):
    return s[T_RECORD] + (i - s[RECORD_BASE]) * W_RECORD


@jit
def access_row(s, i):
    return s[T_ACCESS] + i * s[W_ACCESS]


# --- figures -----------------------------------------------------------------------------------------------


@jit
def serialise(amount, rate):
    """Picoseconds for an amount at a rate per second, rounded up."""
    if amount <= 0 or rate == np.inf:
        return 0
    return -int((-(float(amount) * 1e12)) // rate)


@jit
def find(s, tag, a, b, c, d):
    """The row of `memo` that answers a question to the machine, or NONE."""
    mask = s[N_MEMO] - 1
    h = a * 31 + (b % 1000003) * 7919 + c * 127 + d * 8191 + tag
    h = (h ^ (h >> 17)) & mask
    while s[memo_row(s, h)] != NONE:
        m = memo_row(s, h)
        if s[m] == tag and s[m + 1] == a and s[m + 2] == b and s[m + 3] == c and s[m + 4] == d:
            return h
        h = (h + 1) & mask
    return NONE


@jit
def ask(s, reason, a, b, c, d, e):
    q = s[T_ASK]
    s[q] = reason
    s[q + 1] = a
    s[q + 2] = b
    s[q + 3] = c
    s[q + 4] = d
    s[q + 5] = e
    return reason


@jit
def evaluate(s, x, frame):
    """The value of expression ``x`` for the instance whose integers begin at ``frame``."""
    kind = s[expr_row(s, x)]
    at = s[expr_row(s, x) + 1]
    if kind == CONSTANT:
        return at
    if kind == SYMBOL:
        return s[s[T_FRAME] + frame + at]
    top = s[T_SCRATCH] - 1
    while True:
        op = s[bytecode_row(s, at)]
        if op == STOP:
            return s[top]
        if op == PUSH:
            top += 1
            s[top] = s[bytecode_row(s, at) + 1]
        elif op == LOAD:
            top += 1
            s[top] = s[s[T_FRAME] + frame + s[bytecode_row(s, at) + 1]]
        elif op == LOOKUP:
            first = s[bytecode_row(s, at) + 1]
            index = min(max(s[top], 0), s[s[T_CONSTANTS] + first] - 1)
            s[top] = s[s[T_CONSTANTS] + first + 1 + index]
        elif op == SELECT:
            top -= 2
            if s[top] == 0:
                s[top] = s[top + 2]
            else:
                s[top] = s[top + 1]
        else:
            top -= 1
            a = s[top]
            b = s[top + 1]
            if op == 0:
                s[top] = a + b
            elif op == 1:
                s[top] = a - b
            elif op == 2:
                s[top] = a * b
            elif op == 3:
                s[top] = a // b if b != 0 else 0
            elif op == 4:
                s[top] = a % b if b != 0 else 0
            elif op == 5:
                s[top] = a & b
            elif op == 6:
                s[top] = a | b
            elif op == 7:
                s[top] = a ^ b
            elif op == 8:
                s[top] = a << b
            elif op == 9:
                s[top] = a >> b
            elif op == 10:
                s[top] = 1 if a < b else 0
            elif op == 11:
                s[top] = 1 if a <= b else 0
            elif op == 12:
                s[top] = 1 if a > b else 0
            elif op == 13:
                s[top] = 1 if a >= b else 0
            elif op == 14:
                s[top] = 1 if a == b else 0
            elif op == 15:
                s[top] = 1 if a != b else 0
            elif op == 16:
                s[top] = min(a, b)
            else:
                s[top] = max(a, b)
        at += 1


# --- the time queue ----------------------------------------------------------------------------------------


@jit
def before(s, a, b):
    """Whether the event at ``a`` comes before that at ``b``."""
    if s[a] != s[b]:
        return s[a] < s[b]
    if s[a + 1] != s[b + 1]:
        return s[a + 1] < s[b + 1]
    return s[a + 2] < s[b + 2]


@jit
def put(s, at, time, key, order, what):
    s[at] = time
    s[at + 1] = key
    s[at + 2] = order
    s[at + 3] = what


@jit
def push(s, time, phase, flow, order, what):
    """Put an event into the time queue; ties go by phase, flow, order."""
    heap = s[T_HEAP]
    i = s[EVENTS]
    s[EVENTS] = i + 1
    put(s, heap + 4 * i, time, phase * PHASE + flow, order, what)
    while i > 0:
        up = (i - 1) >> 1
        a = heap + 4 * up
        b = heap + 4 * i
        if before(s, a, b):
            break
        swap(s, a, b)
        i = up


@jit
def swap(s, a, b):
    for k in range(4):
        kept = s[a + k]
        s[a + k] = s[b + k]
        s[b + k] = kept


@jit
def pop(s):
    """Drop the earliest event."""
    heap = s[T_HEAP]
    n = s[EVENTS] - 1
    s[EVENTS] = n
    last = heap + 4 * n
    i = 0
    while True:
        down = 2 * i + 1
        if down >= n:
            break
        a = heap + 4 * down
        if down + 1 < n and before(s, a + 4, a):
            down += 1
            a += 4
        if not before(s, a, last):
            break
        put(s, heap + 4 * i, s[a], s[a + 1], s[a + 2], s[a + 3])
        i = down
    put(s, heap + 4 * i, s[last], s[last + 1], s[last + 2], s[last + 3])


@jit
def serve(s, server, time, busy):
    """When a server takes a request: first come, first served; a wide one serves several at a time."""
    at = s[server_row(s, server) + LANES]
    for lane in range(at + 1, s[server_row(s, server) + LANES] + s[server_row(s, server) + WIDTH]):
        if s[s[T_LANE] + lane] < s[s[T_LANE] + at]:
            at = lane
    turn = max(time, s[s[T_LANE] + at])
    s[s[T_LANE] + at] = turn + busy
    return turn


# --- instances ---------------------------------------------------------------------------------------------


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
def block(s, g, state, on):
    u = unit_row(s, g)
    if s[u + SINCE] == NONE:
        s[u + SINCE] = s[u + NOW]
    s[u + STATE] = state
    s[u + WAITS] = on


@jit
def wake_all(s, g, time, why):
    """Let a list of instances go on."""
    while g != NONE:
        after = s[unit_row(s, g) + CHAIN]
        wake(s, g, time, why)
        g = after


@jit
def ended(s, g, time):
    """Something of an instance's launch ends."""
    if time > s[LAST]:
        s[LAST] = time
    n = launch_row(s, s[unit_row(s, g) + LAUNCH])
    if time > s[n + LAUNCH_LAST]:
        s[n + LAUNCH_LAST] = time


# --- instances begin, end, and are found -------------------------------------------------------------------
# One without a parent begins when its launch has come and the instances before it on its unit of the hardware
# are over. Those below begin with it, or wait for a slot. It is over when it has issued everything, that has
# finished, and all below it are over.


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
    since = s[launch_row(s, s[u + LAUNCH]) + BEGAN]
    if time > since:
        why = note(s, g, s[u + PC], BEGIN, NONE, since, time, why, 0, NONE, NONE, NONE)
    if s[level_row(s, s[u + LEVEL]) + HARDWARE] == 0:
        wake(s, g, time, why)
    else:
        start(s, g, s[u + NUMBER], time, why)


@jit
def let_go(s, g):
    """An instance may have finished all that it has issued."""
    u = unit_row(s, g)
    if s[u + STATE] != DONE or s[u + OPEN] > 0:
        return
    s[u + STATE] = OVER
    for head in range(s[u + STORE], s[u + STORE] + s[launch_row(s, s[u + LAUNCH]) + STORAGES]):
        e = s[s[T_HEADS] + head]
        while e != NONE:
            after = s[log_row(s, e) + LOG_NEXT]
            forget(s, e)
            e = after
        s[s[T_HEADS] + head] = NONE
    if s[u + LATEST] >= s[u + NOW]:
        part_over(s, g, s[u + LATEST], s[u + LATEST_BY])
    else:
        part_over(s, g, s[u + NOW], s[u + CAUSE])
    one_less(s, s[u + LAUNCH])


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
def over(s, g, time):
    """An instance and all below it are over: its slot is free, and those behind it go on."""
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
    if s[u + POOL] != NONE:
        free_seat(s, g, time)


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
        start(s, g, number, time, why)


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


@jit
def note(s, g, at, kind, engine, start, end, why, nbytes, queue, message, path):
    """Record a command (times may be filled in later); its number, or NONE where nothing is recorded."""
    if s[RECORDING] == 0:
        return NONE
    n = s[RECORD_BASE] + s[RECORDED]
    s[RECORDED] += 1
    r = record_row(s, n)
    s[r + R_WHO] = s[unit_row(s, g) + ACTOR] if g != NONE else NONE
    s[r + R_AT] = at
    s[r + R_START] = start
    s[r + R_END] = end
    s[r + R_CAUSE] = why
    s[r + R_BYTES] = nbytes
    s[r + R_QUEUE] = queue
    s[r + R_MESSAGE] = message
    s[r + R_ARRIVED] = UNKNOWN
    s[r + R_PATH] = path
    s[r + R_AUX] = NONE
    s[r + R_KIND] = kind
    s[r + R_ENGINE] = engine
    return n


@jit
def keep_accesses(s, count):
    """Where it is kept what a recorded command touches: the rows of its accesses, their number first."""
    first = s[AUX]
    at = s[T_AUX] + first
    s[at] = count
    at += 1
    for k in range(count):
        a = access_row(s, k)
        n = A_BOUNDS + 2 * s[a + A_DIMENSIONS]
        for i in range(n):
            s[at + i] = s[a + i]
        at += n
    s[AUX] = at - s[T_AUX]
    return first + s[AUX_BASE]


@jit
def note_accesses(s, record, count):
    if record != NONE and count > 0 and s[RECORDING] == 2:
        s[record_row(s, record) + R_AUX] = keep_accesses(s, count)


# --- commands in flight ------------------------------------------------------------------------------------


@jit
def new_command(s, what, g, at):
    c = s[FREE_COMMAND]
    if c == NONE:
        c = s[TOP_COMMAND]
        s[TOP_COMMAND] = c + 1
    else:
        s[FREE_COMMAND] = s[command_row(s, c) + WAITERS]
    m = command_row(s, c)
    s[LIVE_COMMANDS] += 1
    s[launch_row(s, s[unit_row(s, g) + LAUNCH]) + UNFINISHED] += 1
    s[m + WHAT] = what
    s[m + WHO] = g
    s[m + AT] = at
    s[m + RECORD] = NONE
    s[m + READY_AT] = s[unit_row(s, g) + NOW]
    s[m + WHY] = s[unit_row(s, g) + CAUSE]
    s[m + NEED] = 0
    s[m + WAITERS] = NONE
    s[m + LEFT_WAITERS] = NONE
    s[m + START] = UNKNOWN
    s[m + LEFT] = UNKNOWN
    s[m + FINISH] = UNKNOWN
    s[m + TAIL_OF] = NONE
    s[m + DELAY] = 0
    s[m + PARENT_OF] = NONE
    s[m + ENTRIES] = NONE
    s[m + SHARED_LAST] = c
    s[m + SERVER_OF] = NONE
    s[m + SPAN_READ] = NONE
    s[m + SPAN_WRITTEN] = NONE
    s[m + PIECES_LEFT] = 0
    s[m + MESSAGE_QUEUE] = NONE
    return c


@jit
def free_command(s, c):
    g = s[command_row(s, c) + WHO]
    s[command_row(s, c) + WAITERS] = s[FREE_COMMAND]
    s[FREE_COMMAND] = c
    s[LIVE_COMMANDS] -= 1
    one_less(s, s[unit_row(s, g) + LAUNCH])


@jit
def depend(s, c, time, on, why, left):
    """Command ``c`` waits for a time, or for a command in flight (until its source has left, or its end)."""
    m = command_row(s, c)
    if on == NONE:
        if time > s[m + READY_AT]:
            s[m + READY_AT] = time
            s[m + WHY] = why
        return
    column = LEFT_WAITERS if left else WAITERS
    last = s[command_row(s, on) + column]
    if last != NONE and s[node_row(s, last) + 1] == c:
        return  # it waits for that already
    n = s[FREE_NODE]
    if n == NONE:
        n = s[TOP_NODE]
        s[TOP_NODE] = n + 1
    else:
        s[FREE_NODE] = s[node_row(s, n)]
    s[LIVE_NODES] += 1
    s[node_row(s, n)] = last
    s[node_row(s, n) + 1] = c
    s[command_row(s, on) + column] = n
    s[m + NEED] += 1


@jit
def notify(s, first, time, why):
    """Those who wait on a list know the time now."""
    n = first
    while n != NONE:
        after = s[node_row(s, n)]
        m = command_row(s, s[node_row(s, n) + 1])
        if time > s[m + READY_AT] or (time == s[m + READY_AT] and s[m + WHY] == NONE):
            s[m + READY_AT] = time
            s[m + WHY] = why
        s[m + NEED] -= 1
        if s[m + NEED] == 0:
            s[s[T_TODO] + s[TODO]] = s[node_row(s, n) + 1]
            s[TODO] += 1
        s[node_row(s, n)] = s[FREE_NODE]
        s[FREE_NODE] = n
        s[LIVE_NODES] -= 1
        n = after


@jit
def soon(s, c):
    """A command that waits for nothing; `drain` starts it."""
    s[s[T_TODO] + s[TODO]] = c
    s[TODO] += 1


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


@jit
def seen(s, engines, time, why):
    """An access that others see ends at ``time``; the first queue of an instance keeps the latest."""
    t = tail_row(s, engines)
    if time > s[t]:
        s[t] = time
        s[t + 2] = why


@jit
def has_left(s, c, time):
    """The source of a command's engine is free from ``time`` on."""
    m = command_row(s, c)
    parent = s[m + PARENT_OF]
    if parent != NONE:
        p = command_row(s, parent)
        s[p + LEFT] = max(s[p + LEFT], time)
        s[m + LEFT] = time
        s[p + PIECES_LEFT] -= 1
        if s[p + PIECES_LEFT] == 0:
            source_free(s, parent, s[p + LEFT])
        return
    source_free(s, c, time)


@jit
def source_free(s, c, time):
    m = command_row(s, c)
    s[m + LEFT] = time
    t = s[m + TAIL_OF]
    if t != NONE and s[tail_row(s, t) + 1] == c:
        s[tail_row(s, t)] = time
        s[tail_row(s, t) + 1] = NONE
        s[tail_row(s, t) + 2] = s[m + RECORD]
        if s[unit_row(s, s[m + WHO]) + STATE] == AHEAD:
            wake(s, s[m + WHO], 0, NONE)
    first = s[m + LEFT_WAITERS]
    s[m + LEFT_WAITERS] = NONE
    notify(s, first, time, s[m + RECORD])
    if s[m + WHAT] == SEND:
        settle(s, c, time)
        end_known(s, s[m + WHO], time, s[m + RECORD])
        if s[m + RECORD] != NONE:
            s[record_row(s, s[m + RECORD]) + R_END] = time
        first = s[m + WAITERS]
        s[m + WAITERS] = NONE
        notify(s, first, time, s[m + RECORD])
        closed(s, s[m + WHO])
    ended(s, s[m + WHO], time)
    if s[m + FINISH] != UNKNOWN:
        free_command(s, c)


@jit
def end_known(s, g, time, record):
    """The latest end of what an instance has issued, and the record of it."""
    u = unit_row(s, g)
    if time > s[u + LATEST]:
        s[u + LATEST] = time
        s[u + LATEST_BY] = record


@jit
def closed(s, g):
    """The end of a command of an instance is known."""
    s[unit_row(s, g) + OPEN] -= 1
    let_go(s, g)


@jit
def finished(s, c, time):
    """A command has done what it had to do: its data is there."""
    m = command_row(s, c)
    if s[m + PARENT_OF] != NONE:
        free_command(s, c)
        c = s[m + PARENT_OF]
        m = command_row(s, c)
        s[m + TAIL] = max(s[m + TAIL], time)
        s[m + TAILS_LEFT] -= 1
        if s[m + TAILS_LEFT] > 0:
            return
        time = s[m + TAIL]
    s[m + FINISH] = time
    ended(s, s[m + WHO], time)
    what = s[m + WHAT]
    record = s[m + RECORD]
    if what == SEND:
        q = s[m + MESSAGE_QUEUE]
        arrive(s, q, s[m + MESSAGE], time, record)
        if record != NONE:
            s[record_row(s, record) + R_ARRIVED] = time
    else:
        if record != NONE:
            s[record_row(s, record) + R_END] = time
        settle(s, c, time)
        end_known(s, s[m + WHO], time, s[m + RECORD])
        if what == INTO:
            give_back(s, s[m + MESSAGE_QUEUE], s[m + MESSAGE], time, record, s[m + AMOUNT])
        first = s[m + WAITERS]
        s[m + WAITERS] = NONE
        notify(s, first, time, record)
        closed(s, s[m + WHO])
    if s[m + LEFT] != UNKNOWN and s[m + PIECES_LEFT] == 0:
        free_command(s, c)


# --- queues ------------------------------------------------------------------------------------------------


@jit
def arrive(s, q, message, time, why):
    """A message is in its slot from ``time`` on."""
    k = queue_row(s, q)
    row = s[k + RING] + message % s[k + SLOTS]
    s[ring_row(s, row) + ARRIVED] = time
    s[ring_row(s, row) + ARRIVED_BY] = why
    g = s[k + DATA_WAITER]
    if g == NONE:
        return
    if s[unit_row(s, g) + STATE] == ANYDATA:
        offer(s, g)
    elif s[k + TAKEN] == message:
        s[k + DATA_WAITER] = NONE
        wake_all(s, g, time, why)


@jit
def give_back(s, q, message, time, why, credit):
    """A slot is free at ``time``: its credit goes to the sender."""
    k = queue_row(s, q)
    n = note(s, NONE, NONE, RELEASE, NONE, time, time, why, 0, q, message, NONE)
    if n != NONE:
        s[record_row(s, n) + R_WHO] = s[k + RECEIVER]
    row = s[k + RING] + message % s[k + SLOTS]
    s[ring_row(s, row) + RETURNED] = time + credit
    s[ring_row(s, row) + RETURNED_BY] = why
    g = s[k + CREDIT_WAITER]
    if g != NONE and s[k + SENT] == message + s[k + SLOTS]:
        s[k + CREDIT_WAITER] = NONE
        wake_all(s, g, time + credit, why)


@jit
def offer(s, g):
    """A receive-from-any is decided at the earliest arrival that is known; another may come before that."""
    best = NONE
    at = s[unit_row(s, g) + WAITS]
    for i in range(s[s[T_LISTS] + at]):
        q = queue_number(s, channel_of(s, g), receiver_of(s, g), s[s[T_LISTS] + at + 1 + i]) - 1
        if q >= 0:
            k = queue_row(s, q)
            if s[k + SENT] > s[k + TAKEN]:
                time = s[ring_row(s, s[k + RING] + s[k + TAKEN] % s[k + SLOTS]) + ARRIVED]
                if time != UNKNOWN and (best == NONE or time < best):
                    best = time
    if best != NONE:
        s[SEQUENCE] += 1
        push(s, best, DECISIONS, g, s[SEQUENCE], g)


@jit
def channel_of(s, g):
    """The channel that the instance's instruction names."""
    return (
        s[launch_row(s, s[unit_row(s, g) + LAUNCH]) + CHANNELS] + s[code_row(s, s[unit_row(s, g) + PC]) + A]
    )


@jit
def receiver_of(s, g):
    """The instance of the channel's level that the instance's instruction receives as."""
    u = unit_row(s, g)
    return s[u + NUMBER] // s[code_row(s, s[u + PC]) + H]


@jit
def queue_place(s, channel, receiver, member):
    """Where a queue of a launch stands in `queue_of`; NONE where there is none."""
    k = channel_row(s, channel)
    if receiver < 0 or receiver >= s[k + CHANNEL_UNITS] or member < 0 or member >= s[k + MEMBERS]:
        return NONE
    return s[k + FIRST_QUEUE] + receiver * s[k + MEMBERS] + member


@jit
def queue_number(s, channel, receiver, member):
    """1 + the number of a queue among those in use; 0 where it has not been used, -1 where there is none."""
    place = queue_place(s, channel, receiver, member)
    if place == NONE:
        return -1
    return s[queue_of_row(s, place)]


@jit
def hold(s, g, storage):
    first = s[launch_row(s, s[unit_row(s, g) + LAUNCH]) + FIRST_SLOT]
    if storage >= first:
        s[held_row(s, s[unit_row(s, g) + HOLD] + storage - first) + HELD] += 1


@jit
def drop(s, g, storage):
    """One name less on a slot; when none is left, its credit goes back after all that uses it."""
    first = s[launch_row(s, s[unit_row(s, g) + LAUNCH]) + FIRST_SLOT]
    if storage < first:
        return
    h = s[unit_row(s, g) + HOLD] + storage - first
    s[held_row(s, h) + HELD] -= 1
    if s[held_row(s, h) + HELD] > 0:
        return
    c = new_command(s, RELEASE, g, s[unit_row(s, g) + PC])
    m = command_row(s, c)
    s[m + MESSAGE_QUEUE] = s[held_row(s, h) + HELD_QUEUE]
    s[m + MESSAGE] = s[held_row(s, h) + HELD_MESSAGE]
    s[m + AMOUNT] = s[held_row(s, h) + HELD_CREDIT]
    head = s[unit_row(s, g) + STORE] + storage
    e = s[s[T_HEADS] + head]
    while e != NONE:
        after = s[log_row(s, e) + LOG_NEXT]
        depend(
            s, c, s[log_row(s, e) + LOG_TIME], s[log_row(s, e) + LOG_COMMAND], s[log_row(s, e) + LOG_WHY], 0
        )
        forget(s, e)
        e = after
    s[s[T_HEADS] + head] = NONE
    if s[m + NEED] == 0:
        soon(s, c)


@jit
def bind(s, g, slot, storage):
    """A name means a storage from here on (which is held already)."""
    at = s[unit_row(s, g) + FRAME] + slot
    old = s[s[T_FRAME] + at]
    s[s[T_FRAME] + at] = storage
    if old != NONE:
        drop(s, g, old)


@jit
def bind_all(s, g, moves, integers):
    """The carried or merged names of a loop or branch: all new meanings are found before any is bound."""
    frame = s[unit_row(s, g) + FRAME]
    n = s[s[T_LISTS] + moves]
    for i in range(n):
        at = moves + 1 + 3 * i
        storage = meaning(s, g, s[s[T_LISTS] + at + 1], s[s[T_LISTS] + at + 2])
        s[s[T_SCRATCH] + BINDS + i] = storage
    k = s[s[T_LISTS] + integers]
    for i in range(k):
        s[s[T_SCRATCH] + BINDS + n + i] = evaluate(s, s[s[T_LISTS] + integers + 2 + 2 * i], frame)
    for i in range(n):
        hold(s, g, s[s[T_SCRATCH] + BINDS + i])
    for i in range(k):
        s[s[T_FRAME] + frame + s[s[T_LISTS] + integers + 1 + 2 * i]] = s[s[T_SCRATCH] + BINDS + n + i]
    for i in range(n):
        bind(s, g, s[s[T_LISTS] + moves + 1 + 3 * i], s[s[T_SCRATCH] + BINDS + i])


@jit
def end_names(s, g, names):
    for i in range(s[s[T_LISTS] + names]):
        bind(s, g, s[s[T_LISTS] + names + 1 + i], NONE)


# --- accesses ----------------------------------------------------------------------------------------------


@jit
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


@jit
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


@jit
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


@jit
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


@jit
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
def after_visible(s, g, c):
    """Command ``c`` waits for the accesses of its instance that others see."""
    t = s[unit_row(s, g) + ENGINES]
    depend(s, c, s[tail_row(s, t)], NONE, s[tail_row(s, t) + 2], 0)
    k = s[unit_row(s, g) + SHARED]
    while k != NONE:
        depend(s, c, 0, k, NONE, 0)
        k = s[command_row(s, k) + SHARED_NEXT]


@jit
def behind_tail(s, g, c, engine):
    """Command ``c`` joins the queue of an engine."""
    t = s[unit_row(s, g) + ENGINES] + engine
    depend(s, c, s[tail_row(s, t)], s[tail_row(s, t) + 1], s[tail_row(s, t) + 2], 1)
    s[command_row(s, c) + TAIL_OF] = t


@jit
def join_tail(s, c):
    """The next command of the engine comes after this one."""
    m = command_row(s, c)
    t = s[m + TAIL_OF]
    if s[m + LEFT] == UNKNOWN or s[m + PIECES_LEFT] != 0:
        s[tail_row(s, t) + 1] = c
    else:
        s[tail_row(s, t)] = s[m + LEFT]
        s[tail_row(s, t) + 1] = NONE
        s[tail_row(s, t) + 2] = s[m + RECORD]


# --- transfers ---------------------------------------------------------------------------------------------


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


@jit
def drawn_out(s, p, nbytes):
    """From the head of a transfer to its tail where nobody is in the way: the times of its pieces."""
    count = pieces(s, p, nbytes)
    if count == 1:
        return occupied(s, p, nbytes)
    size = max(s[path_row(s, p) + GRANULE], -(-nbytes // MOST_PIECES))
    return (count - 1) * occupied(s, p, size) + occupied(s, p, nbytes - (count - 1) * size)


@jit
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


@jit
def granted(s, c, time):
    """A request in the time queue has come to its turn."""
    m = command_row(s, c)
    if s[m + SERVER_OF] != NONE:
        # An engine that several units share.
        server = s[m + SERVER_OF]
        s[m + SERVER_OF] = NONE
        now = serve(s, server, time, s[m + BUSY])
        if s[m + WHAT] == WORK:
            work(s, c, now)
        else:
            start_transfer(s, c, now)
        return
    index = s[m + STAGE]
    p = path_row(s, s[m + PATH])
    k = s[p + FIRST_STAGE] + index
    parent = s[m + PARENT_OF]
    if (
        s[m + WAITED] == 0
        and parent != NONE
        and s[m + REST] + 1 < -(-s[command_row(s, parent) + BYTES] // s[command_row(s, parent) + PIECE_BYTES])
    ):
        # The head of the next piece starts when the tail of this one does.
        lead = time
        for i in range(index):
            lead -= s[stage_row(s, s[p + FIRST_STAGE] + i) + STAGE_LATENCY]
        next_piece(s, parent, s[m + REST] + 1, lead + occupied(s, s[m + PATH], s[m + BYTES]))
        m = command_row(s, c)
    if s[m + SPAN_READ] != NONE and load(s, c, time):
        return
    behind = 0
    if s[m + SPAN_WRITTEN] != NONE and index + 1 == s[p + STAGES]:
        behind = store(s, c, time)
    server = s[m + BASE] + s[stage_row(s, k) + STAGE_SERVER]
    now = serve(s, server, time, stage_busy(s, k, s[m + BYTES]))
    s[m + WAITED] = 1
    s[m + STAGE] = index + 1
    turn(s, c, index, now)
    s[m + TAIL] = max(s[m + TAIL], behind)
    move(s, c)


# --- caches ------------------------------------------------------------------------------------------------


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
    serial = s[launch_row(s, s[unit_row(s, g) + LAUNCH]) + SERIAL]
    s[x + SPAN_KEY] = (serial << 44) + (s[a + A_STORAGE] << 24) + owner
    s[x + SPAN_BYTES] = s[at + 1]
    s[x + SPAN_DIMENSIONS] = n
    stride = 1
    for i in range(n):
        j = n - 1 - i
        size = s[at + 2 + j]
        count = s[at + 2 + n + j]
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
def ask_behind(s, cache, time, nbytes):
    """When what is behind a cache serves so many bytes."""
    k = cache_row(s, cache)
    busy = serialise(nbytes, load_float(s, k + BEHIND_RATE))
    s[k + CACHE_SPENT] += busy
    if s[k + BEHIND_SERVER] == NONE:
        return time
    return serve(s, s[k + BEHIND_SERVER], time, busy)


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


@jit
def work(s, c, time):
    m = command_row(s, c)
    s[m + START] = time
    if s[m + RECORD] != NONE:
        s[record_row(s, s[m + RECORD]) + R_START] = time
        s[record_row(s, s[m + RECORD]) + R_CAUSE] = s[m + WHY]
    has_left(s, c, time + s[m + BUSY])
    finished(s, c, time + s[m + BUSY])


@jit
def ready(s, c):
    """Nothing is in the way of a command any more."""
    m = command_row(s, c)
    what = s[m + WHAT]
    time = s[m + READY_AT]
    if what == RELEASE:
        give_back(s, s[m + MESSAGE_QUEUE], s[m + MESSAGE], time, s[m + WHY], s[m + AMOUNT])
        end_known(s, s[m + WHO], time, s[m + WHY])
        free_command(s, c)
    elif what == SIGNAL:
        if s[m + RECORD] != NONE:
            s[record_row(s, s[m + RECORD]) + R_END] = time
            s[record_row(s, s[m + RECORD]) + R_CAUSE] = s[m + WHY]
        ended(s, s[m + WHO], time + s[m + DELAY])
        s[SEQUENCE] += 1
        push(s, time + s[m + DELAY], SIGNALS, s[m + FLOW_OF], s[SEQUENCE], c)
    elif what == READ:
        g = s[m + WHO]
        n = note(s, g, s[m + AT], READ, NONE, time, time, s[m + WHY], 0, NONE, NONE, NONE)
        s[unit_row(s, g) + SINCE] = NONE
        free_command(s, c)
        wake(s, g, time, n)
        s[unit_row(s, g) + CAUSE] = n
    elif what == MEET:
        come(s, c, time)
    elif s[m + SERVER_OF] != NONE:
        push(s, time, REQUESTS, s[m + FLOW_OF], s[m + ORDER] * HOPS + (1 if what == WORK else 0), c)
    elif what == WORK:
        work(s, c, time)
    else:
        start_transfer(s, c, time)


@jit
def come(s, c, time):
    """An instance is at its meeting; the last one completes it."""
    m = command_row(s, c)
    settle(s, c, time)
    b = meeting_row(s, s[m + MESSAGE_QUEUE])
    if s[b + CAME] == 0 or time > s[b + MEET_AT]:
        s[b + MEET_AT] = time
        s[b + MEET_WHY] = s[m + WHY]
    s[b + CAME] += 1
    s[m + SHARED_NEXT] = s[b + MEET_CHAIN]
    s[b + MEET_CHAIN] = c
    if s[b + CAME] < s[b + MEMBERS_OF]:
        return
    end = s[b + MEET_AT] + s[m + DELAY]
    s[b + CAME] = 0
    c = s[b + MEET_CHAIN]
    s[b + MEET_CHAIN] = NONE
    while c != NONE:
        m = command_row(s, c)
        after = s[m + SHARED_NEXT]
        s[m + SHARED_NEXT] = NONE
        g = s[m + WHO]
        n = note(
            s,
            g,
            s[m + AT],
            MEET,
            NONE,
            s[unit_row(s, g) + SINCE],
            end,
            s[b + MEET_WHY],
            s[m + BYTES],
            NONE,
            NONE,
            NONE,
        )
        if n != NONE:
            s[record_row(s, n) + R_AUX] = s[m + REST]
        s[unit_row(s, g) + SINCE] = NONE
        end_known(s, g, end, n)
        ended(s, g, end)
        free_command(s, c)
        wake(s, g, end, n)
        s[unit_row(s, g) + CAUSE] = n
        c = after


@jit
def raise_flag(s, c, time):
    """A signal arrives."""
    m = command_row(s, c)
    f = counter_row(s, s[m + MESSAGE_QUEUE])
    s[f + COUNT] += s[m + AMOUNT]
    s[f + FLAG_BY] = s[m + RECORD]
    g = s[f + FLAG_WAITER]
    s[f + FLAG_WAITER] = NONE
    free_command(s, c)
    while g != NONE:
        after = s[unit_row(s, g) + CHAIN]
        if s[f + COUNT] >= s[unit_row(s, g) + NEEDS]:
            wake(s, g, time, s[f + FLAG_BY])
        else:
            s[unit_row(s, g) + CHAIN] = s[f + FLAG_WAITER]
            s[f + FLAG_WAITER] = g
        g = after


# --- commands: one function each; 0 where the instance goes on, else why it cannot ------------------------
GO_ON, HELD_UP, RETURN = 0, -1, -2


@jit
def do_work(s, g, pc):
    code = code_row(s, pc)
    frame = s[unit_row(s, g) + FRAME]
    busy = s[code + F]
    if busy == NONE:
        flops = evaluate(s, s[code + D], frame)
        nbytes = evaluate(s, s[code + E], frame)
        who = s[unit_row(s, g) + ACTOR] if s[code + G] == 1 else NONE
        m = find(s, ASK_BUSY, pc, flops, nbytes, who)
        if m == NONE:
            return ask(s, ASK_BUSY, pc, flops, nbytes, who, g)
        busy = s[memo_row(s, m) + 5]
    c = new_command(s, WORK, g, pc)
    m = command_row(s, c)
    s[m + BUSY] = busy
    n = look_all(s, g, code)
    for k in range(n):
        conflicts(s, g, c, k)
    behind_tail(s, g, c, s[code + A])
    server = s[tail_row(s, s[m + TAIL_OF]) + 3]
    if server != NONE:
        s[m + SERVER_OF] = server
        s[m + FLOW_OF] = s[unit_row(s, g) + FLOW] + s[code + H]
        s[m + ORDER] = s[unit_row(s, g) + COPIES] * PIECES
        s[unit_row(s, g) + COPIES] += 1
    s[m + RECORD] = note(
        s, g, pc, WORK, s[code + A], UNKNOWN, UNKNOWN, NONE, evaluate(s, s[code + E], frame), NONE, NONE, NONE
    )
    note_accesses(s, s[m + RECORD], n)
    if s[m + NEED] == 0 and server == NONE:
        # The usual case: all its times are known at once.
        time = s[m + READY_AT]
        end = time + busy
        if s[m + RECORD] != NONE:
            s[record_row(s, s[m + RECORD]) + R_START] = time
            s[record_row(s, s[m + RECORD]) + R_END] = end
            s[record_row(s, s[m + RECORD]) + R_CAUSE] = s[m + WHY]
        t = s[m + TAIL_OF]
        s[tail_row(s, t)] = end
        s[tail_row(s, t) + 1] = NONE
        s[tail_row(s, t) + 2] = s[m + RECORD]
        log_accesses(s, g, c, n, end)
        end_known(s, g, end, s[m + RECORD])
        ended(s, g, end)
        free_command(s, c)
        return GO_ON
    s[unit_row(s, g) + OPEN] += 1
    s[tail_row(s, s[m + TAIL_OF]) + 1] = c
    log_accesses(s, g, c, n, UNKNOWN)
    if s[m + NEED] == 0:
        soon(s, c)
    return GO_ON


@jit
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
def site(s, g, own):
    """The figure that an instance always needs at its instruction; those of instances that take turns in a
    row need the same one if it depends on where they are alone (``own``). NONE where it is not known."""
    u = unit_row(s, g)
    at = s[code_row(s, s[u + PC]) + SITE]
    level = level_row(s, s[u + LEVEL])
    if at == NONE or (s[level + FIXED] == 0 and not own):
        return NONE
    return s[s[T_SITE] + at + g - s[level + FIRST_ROW]]


@jit
def copy_path(s, g, source, target):
    """1 + the path between two accesses, or 0 where the machine has to be asked."""
    x = storage_row(s, g, s[access_row(s, source) + A_STORAGE])
    y = storage_row(s, g, s[access_row(s, target) + A_STORAGE])
    one = holder(s, g, source)
    other = holder(s, g, target)
    if one == -2 or other == -2:
        k = source if one == -2 else target
        a = access_row(s, k)
        ask(s, MISUSE, s[unit_row(s, g) + PC], g, 5, s[a + A_OWNER], s[a + A_STORAGE])
        return 0
    p = site(s, g, one == NONE and other == NONE)
    if p != NONE:
        return p + 1
    here = NONE
    there = NONE
    if one != NONE or other != NONE or s[x + PRIVATE] == 0 or s[y + PRIVATE] == 0:
        here = spot(s, g, one)
        there = spot(s, g, other)
    way = 2 * s[unit_row(s, g) + LEVEL] + (1 if one == other else 0)
    memories = s[x + MEMORY] * (1 << 24) + s[y + MEMORY]
    h = find(s, ASK_PATH, way, memories, here, there)
    if h == NONE:
        ask(s, ASK_PATH, way, memories, here, there, g)
        return 0
    return s[memo_row(s, h) + 5] + 1


@jit
def credit_of(s, g, q):
    """How long the credit of a message travels back: UNKNOWN where the machine has to be asked."""
    k = queue_row(s, q)
    u = unit_row(s, g)
    channel = channel_of(s, g)
    level = s[channel_row(s, channel) + CHANNEL_LEVEL]
    if level == s[u + LEVEL] and s[level_row(s, level) + FIXED] == 1:
        return s[k + CREDITED]
    peer = seen_from(s, g, level, s[k + SENDER] - s[level_row(s, level) + FIRST_ACTOR])
    h = find(s, ASK_CREDIT, channel, s[u + LEVEL], s[u + PLACE], peer)
    if h == NONE:
        ask(s, ASK_CREDIT, channel, s[u + LEVEL], s[u + PLACE], peer, g)
        return UNKNOWN
    return s[memo_row(s, h) + 5]


@jit
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


@jit
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


@jit
def do_copy(s, g, pc):
    code = code_row(s, pc)
    frame = s[unit_row(s, g) + FRAME]
    n = look_all(s, g, code)
    p = copy_path(s, g, 0, n - 1) - 1
    nbytes = evaluate(s, s[code + E], frame)
    number = s[unit_row(s, g) + COPIES]
    flow = s[unit_row(s, g) + FLOW]
    delay = 0
    if p != NONE:
        delay = delay_of(s, flow, number, p, nbytes)
    if p == NONE or delay == UNKNOWN:
        # The machine has to be asked first: nothing has happened yet.
        if s[code + C] != NONE:
            s[s[T_FRAME] + frame + s[code + C]] -= 1
        return s[s[T_ASK]]
    c = new_command(s, COPY, g, pc)
    m = command_row(s, c)
    for k in range(n):
        conflicts(s, g, c, k)
    s[m + PATH] = p & CLASS
    s[m + BASE] = p >> CLASSES
    s[m + BYTES] = nbytes
    s[m + DELAY] = delay
    s[m + FLOW_OF] = flow
    s[m + ORDER] = number * PIECES
    s[unit_row(s, g) + COPIES] += 1
    touch_caches(s, g, c, 0, n - 1)
    behind_tail(s, g, c, s[code + A])
    s[m + RECORD] = note(s, g, pc, COPY, s[code + A], UNKNOWN, UNKNOWN, NONE, nbytes, NONE, NONE, p)
    transfer(s, g, c, n, False)
    return GO_ON


@jit
def do_send(s, g, pc):
    code = code_row(s, pc)
    u = unit_row(s, g)
    frame = s[u + FRAME]
    to = evaluate(s, s[code + B], frame)
    member = evaluate(s, s[code + C], frame)
    x = channel_row(s, channel_of(s, g))
    place = queue_place(s, channel_of(s, g), to, member)
    q = NONE if place == NONE else s[queue_of_row(s, place)] - 1
    if q < 0:
        return ask(s, ASK_QUEUE, s[code + A], to, member, g, pc)
    k = queue_row(s, q)
    level = s[x + CHANNEL_LEVEL]
    me = s[level_row(s, level) + FIRST_ACTOR] + s[u + NUMBER] // s[code + F]
    if s[queue_of_row(s, place) + FED_BY] != me:
        return ask(s, MISUSE, pc, g, 0, to, member)
    nbytes = evaluate(s, s[code + E], frame)
    if nbytes > s[x + SLOT_BYTES]:
        return ask(s, MISUSE, pc, g, 1, nbytes, member)
    number = s[k + SENT]
    row = s[k + RING] + number % s[k + SLOTS]
    if number >= s[k + SLOTS]:
        credit = s[ring_row(s, row) + RETURNED]
        if credit == UNKNOWN:
            s[u + CHAIN] = s[k + CREDIT_WAITER]
            s[k + CREDIT_WAITER] = g
            block(s, g, CREDIT, q)
            return HELD_UP
        if credit > s[u + NOW]:
            s[u + NOW] = credit
            s[u + CAUSE] = s[ring_row(s, row) + RETURNED_BY]
    look(s, g, s[code + D], 0, 0)
    memory = s[storage_row(s, g, s[access_row(s, 0) + A_STORAGE]) + MEMORY]
    lane = s[k + VC]
    p = NONE
    h = NONE
    if level == s[u + LEVEL] and s[level_row(s, level) + FIXED] == 1:
        if s[k + QFROM] == memory:
            p = s[k + QPATH]
        else:
            h = find(s, ASK_PATH, place, memory, -2, -2)
            if h == NONE:
                return ask(s, ASK_PATH, place, memory, -2, -2, g)
    else:
        memory = memory * (1 << 24) + s[u + LEVEL]
        peer = seen_from(s, g, level, to)
        h = find(s, ASK_ROUTE, channel_of(s, g), memory, s[u + PLACE], peer)
        if h == NONE:
            return ask(s, ASK_ROUTE, channel_of(s, g), memory, s[u + PLACE], peer, g)
        lane = find(s, ASK_LANE, channel_of(s, g), s[u + LEVEL], s[u + PLACE], peer)
        if lane == NONE:
            return ask(s, ASK_LANE, channel_of(s, g), s[u + LEVEL], s[u + PLACE], peer, g)
        lane = s[memo_row(s, lane) + 5]
    if p == NONE:
        p = s[memo_row(s, h) + 5]
    flow = s[x + CHANNEL_FIRST] + to * s[x + MEMBERS] + member
    delay = delay_of(s, flow, number, p, nbytes)
    if delay == UNKNOWN:
        return ASK_DELAY
    s[u + SINCE] = NONE
    s[k + SENT] = number + 1
    s[queue_of_row(s, place) + QUEUE_SENT] += 1
    s[ring_row(s, row) + ARRIVED] = UNKNOWN
    s[ring_row(s, row) + RETURNED] = UNKNOWN
    s[ring_row(s, row) + SIZE] = nbytes
    c = new_command(s, SEND, g, pc)
    m = command_row(s, c)
    conflicts(s, g, c, 0)
    after_visible(s, g, c)
    s[m + PATH] = p & CLASS
    s[m + BASE] = p >> CLASSES
    s[m + BYTES] = nbytes
    s[m + DELAY] = delay
    s[m + FLOW_OF] = flow
    s[m + ORDER] = number * PIECES
    s[m + MESSAGE_QUEUE] = q
    s[m + MESSAGE] = number
    behind_tail(s, g, c, lane)
    s[m + RECORD] = note(s, g, pc, SEND, lane, UNKNOWN, UNKNOWN, NONE, nbytes, q, number, p)
    transfer(s, g, c, 1, True)
    return GO_ON


@jit
def take(s, g, pc, q, kind):
    """Take the message at the head of a queue: bind its slot to a name, or copy it out."""
    code = code_row(s, pc)
    u = unit_row(s, g)
    frame = s[u + FRAME]
    k = queue_row(s, q)
    number = s[k + TAKEN]
    row = s[k + RING] + number % s[k + SLOTS]
    arrival = s[ring_row(s, row) + ARRIVED]
    nbytes = s[ring_row(s, row) + SIZE]
    if evaluate(s, s[code + E], frame) != nbytes:
        return ask(s, MISUSE, pc, g, 2, nbytes, s[k + QMEMBER])
    storage = (
        s[channel_row(s, channel_of(s, g)) + SLOT_STORAGE]
        + s[k + QMEMBER] * s[k + SLOTS]
        + number % s[k + SLOTS]
    )
    into = s[code + D]
    credit = credit_of(s, g, q)
    if credit == UNKNOWN:
        return ASK_CREDIT
    p = NONE
    delay = 0
    if into != NONE:
        a = access_row(s, 1)
        s[a + A_STORAGE] = storage
        s[a + A_OWNER] = NONE
        if s[code + F] != NONE:
            s[s[T_FRAME] + frame + s[code + F]] += 1
        look(s, g, into, 1, 0)
        p = copy_path(s, g, 1, 0) - 1
        if p != NONE:
            delay = delay_of(s, s[u + FLOW], s[u + COPIES], p, nbytes)
        if p == NONE or delay == UNKNOWN:
            if s[code + F] != NONE:
                s[s[T_FRAME] + frame + s[code + F]] -= 1
            return s[s[T_ASK]]
    begin = s[u + SINCE] if s[u + SINCE] != NONE else s[u + NOW]
    s[u + SINCE] = NONE
    s[k + TAKEN] = number + 1
    by = s[ring_row(s, row) + ARRIVED_BY]
    why = by if arrival >= begin else s[u + CAUSE]
    if arrival > s[u + NOW]:
        s[u + NOW] = arrival
    if into == NONE or s[u + NOW] > begin or kind == ANY:
        n = note(s, g, pc, kind, NONE, begin, s[u + NOW], why, nbytes, q, number, NONE)
        if n != NONE:
            s[record_row(s, n) + R_ARRIVED] = arrival
            s[u + CAUSE] = n
    if into == NONE:
        h = s[u + HOLD] + storage - s[launch_row(s, s[u + LAUNCH]) + FIRST_SLOT]
        s[held_row(s, h) + HELD] = 1
        s[held_row(s, h) + HELD_QUEUE] = q
        s[held_row(s, h) + HELD_MESSAGE] = number
        s[held_row(s, h) + HELD_CREDIT] = credit
        bind(s, g, s[code + C], storage)
        return GO_ON
    c = new_command(s, INTO, g, pc)
    m = command_row(s, c)
    conflicts(s, g, c, 0)
    s[m + PATH] = p & CLASS
    s[m + BASE] = p >> CLASSES
    s[m + BYTES] = nbytes
    s[m + DELAY] = delay
    s[m + FLOW_OF] = s[u + FLOW]
    s[m + ORDER] = s[u + COPIES] * PIECES
    s[m + MESSAGE_QUEUE] = q
    s[m + MESSAGE] = number
    s[m + AMOUNT] = credit
    s[u + COPIES] += 1
    touch_caches(s, g, c, NONE, 0)
    behind_tail(s, g, c, DMA)
    s[m + RECORD] = note(s, g, pc, INTO, DMA, UNKNOWN, UNKNOWN, NONE, nbytes, q, number, p)
    transfer(s, g, c, 1, False)
    return GO_ON


@jit
def do_receive(s, g, pc):
    code = code_row(s, pc)
    member = evaluate(s, s[code + B], s[unit_row(s, g) + FRAME])
    q = queue_number(s, channel_of(s, g), receiver_of(s, g), member) - 1
    if q < 0:
        return ask(s, ASK_QUEUE, s[code + A], receiver_of(s, g), member, g, pc)
    k = queue_row(s, q)
    if (
        s[k + SENT] <= s[k + TAKEN]
        or s[ring_row(s, s[k + RING] + s[k + TAKEN] % s[k + SLOTS]) + ARRIVED] == UNKNOWN
    ):
        s[unit_row(s, g) + CHAIN] = s[k + DATA_WAITER]
        s[k + DATA_WAITER] = g
        block(s, g, DATA, q)
        return HELD_UP
    return take(s, g, pc, q, RECEIVE)


@jit
def do_any(s, g, pc):
    code = code_row(s, pc)
    u = unit_row(s, g)
    at = s[code + B]
    if s[u + NEXT] != NONE:
        outcome = take(s, g, pc, s[u + NEXT], ANY)
        if outcome == GO_ON:
            s[u + NEXT] = NONE
        return outcome
    for i in range(s[s[T_LISTS] + at]):
        q = queue_number(s, channel_of(s, g), receiver_of(s, g), s[s[T_LISTS] + at + 1 + i]) - 1
        if q < 0:
            return ask(s, ASK_QUEUE, s[code + A], receiver_of(s, g), s[s[T_LISTS] + at + 1 + i], g, pc)
        s[queue_row(s, q) + DATA_WAITER] = g
    block(s, g, ANYDATA, at)
    offer(s, g)
    return HELD_UP


@jit
def decide(s, g, now):
    """A receive-from-any takes the earliest arrival (the lowest member on ties)."""
    u = unit_row(s, g)
    if s[u + STATE] != ANYDATA:
        return
    at = s[u + WAITS]
    pc = s[u + PC]
    best = NONE
    when = 0
    for i in range(s[s[T_LISTS] + at]):
        member = s[s[T_LISTS] + at + 1 + i]
        q = queue_number(s, channel_of(s, g), receiver_of(s, g), member) - 1
        k = queue_row(s, q)
        if s[k + SENT] > s[k + TAKEN]:
            time = s[ring_row(s, s[k + RING] + s[k + TAKEN] % s[k + SLOTS]) + ARRIVED]
            if time != UNKNOWN and (
                best == NONE or time < when or (time == when and member < s[queue_row(s, best) + QMEMBER])
            ):
                best = q
                when = time
    if best == NONE or when > now:
        return  # decided already: this was offered for an earlier one
    for i in range(s[s[T_LISTS] + at]):
        q = queue_number(s, channel_of(s, g), receiver_of(s, g), s[s[T_LISTS] + at + 1 + i]) - 1
        s[queue_row(s, q) + DATA_WAITER] = NONE
    s[u + NEXT] = best
    s[s[T_FRAME] + s[u + FRAME] + s[code_row(s, pc) + G]] = s[queue_row(s, best) + QMEMBER]
    s[u + STATE] = READY
    s[s[T_READY] + s[READIES]] = g
    s[READIES] += 1


@jit
def do_read(s, g, pc):
    code = code_row(s, pc)
    u = unit_row(s, g)
    frame = s[u + FRAME]
    count = s[s[T_FRAME] + frame + s[code + C]]
    h = find(s, ASK_VALUE, pc, s[u + ACTOR], count, 0)
    if h == NONE:
        return ask(s, ASK_VALUE, pc, s[u + ACTOR], count, 0, g)
    s[s[T_FRAME] + frame + s[code + C]] = count + 1
    s[s[T_FRAME] + frame + s[code + B]] = s[memo_row(s, h) + 5]
    c = new_command(s, READ, g, pc)
    look(s, g, s[code + A], 0, 0)
    conflicts(s, g, c, 0)
    block(s, g, HAZARD, pc)
    s[u + PC] = pc + 1
    if s[command_row(s, c) + NEED] == 0:
        soon(s, c)
    return HELD_UP


@jit
def do_signal(s, g, pc):
    code = code_row(s, pc)
    u = unit_row(s, g)
    frame = s[u + FRAME]
    to = evaluate(s, s[code + B], frame)
    member = evaluate(s, s[code + C], frame)
    f = flag_row(s, s[launch_row(s, s[u + LAUNCH]) + FLAGS] + s[code + A])
    if to < 0 or to >= s[f + FLAG_UNITS] or member < 0 or member >= s[f + FLAG_MEMBERS]:
        return ask(s, MISUSE, pc, g, 3, to, member)
    delay = site(s, g, 0)
    if delay == NONE:
        peer = seen_from(s, g, s[f + FLAG_LEVEL], to)
        h = find(s, ASK_MESSAGE, s[u + LEVEL], s[u + PLACE], peer, 0)
        if h == NONE:
            return ask(s, ASK_MESSAGE, s[u + LEVEL], s[u + PLACE], peer, 0, g)
        delay = s[memo_row(s, h) + 5]
    c = new_command(s, SIGNAL, g, pc)
    m = command_row(s, c)
    s[m + DELAY] = delay
    s[m + AMOUNT] = evaluate(s, s[code + D], frame)
    s[m + MESSAGE_QUEUE] = s[f + FIRST_COUNTER] + to * s[f + FLAG_MEMBERS] + member
    s[m + FLOW_OF] = s[m + MESSAGE_QUEUE]
    after_visible(s, g, c)
    s[m + RECORD] = note(s, g, pc, SIGNAL, NONE, s[u + NOW], UNKNOWN, NONE, 0, NONE, NONE, NONE)
    if s[m + NEED] == 0:
        soon(s, c)
    return GO_ON


@jit
def do_wait(s, g, pc):
    code = code_row(s, pc)
    u = unit_row(s, g)
    frame = s[u + FRAME]
    member = evaluate(s, s[code + C], frame)
    value = evaluate(s, s[code + B], frame)
    f = flag_row(s, s[launch_row(s, s[u + LAUNCH]) + FLAGS] + s[code + A])
    if member < 0 or member >= s[f + FLAG_MEMBERS]:
        return ask(s, MISUSE, pc, g, 3, s[u + NUMBER], member)
    x = s[f + FIRST_COUNTER] + s[u + NUMBER] // s[code + D] * s[f + FLAG_MEMBERS] + member
    if s[counter_row(s, x) + COUNT] < value:
        s[u + CHAIN] = s[counter_row(s, x) + FLAG_WAITER]
        s[counter_row(s, x) + FLAG_WAITER] = g
        s[u + NEEDS] = value
        block(s, g, FLAG, x)
        return HELD_UP
    begin = s[u + SINCE] if s[u + SINCE] != NONE else s[u + NOW]
    s[u + SINCE] = NONE
    s[u + CAUSE] = note(s, g, pc, WAIT, NONE, begin, s[u + NOW], s[u + CAUSE], 0, NONE, NONE, NONE)
    return GO_ON


@jit
def do_meet(s, g, pc):
    code = code_row(s, pc)
    u = unit_row(s, g)
    frame = s[u + FRAME]
    x = s[s[T_LISTS] + s[code + A] + s[u + NUMBER]]
    if x == NONE:
        return ask(s, MISUSE, pc, g, 4, 0, 0)
    x += s[launch_row(s, s[u + LAUNCH]) + MEETINGS]
    nbytes = evaluate(s, s[code + C], frame)
    here = 0 if s[level_row(s, s[u + LEVEL]) + FIXED] == 1 else s[u + PLACE]
    h = find(s, ASK_MEETING, pc, x, nbytes, here)
    if h == NONE:
        return ask(s, ASK_MEETING, pc, x, nbytes, here, g)
    c = new_command(s, MEET, g, pc)
    m = command_row(s, c)
    s[m + DELAY] = s[memo_row(s, h) + 5]
    s[m + MESSAGE_QUEUE] = x
    s[m + BYTES] = nbytes
    at = s[code + B]
    reads = s[s[T_LISTS] + at]
    writes = s[s[T_LISTS] + at + 1]
    for k in range(reads + writes):
        look(s, g, s[s[T_LISTS] + at + 2 + k], 1 if k >= reads else 0, k)
    for k in range(reads + writes):
        conflicts(s, g, c, k)
    s[m + REST] = NONE
    if s[RECORDING] == 2 and reads + writes > 0:
        s[m + REST] = keep_accesses(s, reads + writes)
    after_visible(s, g, c)
    log_accesses(s, g, c, reads + writes, UNKNOWN)
    block(s, g, MEETING, x)
    s[u + PC] = pc + 1
    if s[m + NEED] == 0:
        soon(s, c)
    return HELD_UP


# --- control flow ------------------------------------------------------------------------------------------


@jit
def control(s, g, pc):
    """One instruction of control flow; the next one's place."""
    code = code_row(s, pc)
    frame = s[unit_row(s, g) + FRAME]
    kind = s[code + KIND]
    if kind == TEST:
        i = frame + s[code + A]
        at = s[s[T_FRAME] + i]
        stop = s[s[T_FRAME] + i + 1]
        step = s[s[T_FRAME] + i + 2]
        return pc + 1 if (at < stop if step > 0 else at > stop) else s[code + B]
    if kind == AGAIN:
        bind_all(s, g, s[code + C], s[code + D])
        end_names(s, g, s[code + E])
        i = frame + s[code + A]
        s[s[T_FRAME] + i] += s[s[T_FRAME] + i + 2]
        return s[code + B]
    if kind == BRANCH:
        return pc + 1 if evaluate(s, s[code + A], frame) != 0 else s[code + B]
    if kind == JUMP:
        return s[code + A]
    if kind == MERGE:
        bind_all(s, g, s[code + A], s[code + B])
        end_names(s, g, s[code + C])
        return pc + 1
    if kind == ENTER:
        bind_all(s, g, s[code + E], s[code + F])
        i = frame + s[code + A]
        start = evaluate(s, s[code + B], frame)
        stop = evaluate(s, s[code + C], frame)
        s[s[T_FRAME] + i + 2] = evaluate(s, s[code + D], frame)
        s[s[T_FRAME] + i + 1] = stop
        s[s[T_FRAME] + i] = start
        end_names(s, g, s[code + G])
        return pc + 1
    end_names(s, g, s[code + A])  # FREE and END
    return pc + 1


@jit
def far_ahead(s, g, pc):
    """Whether all that comes after a round of a loop has to wait for commands that are under way: then it is
    early enough to issue it when the last of those on some engine has its turn."""
    at = s[T_LISTS] + s[code_row(s, pc) + F]
    if s[code_row(s, pc) + F] == NONE:
        return 0
    for i in range(s[at]):
        if s[tail_row(s, s[unit_row(s, g) + ENGINES] + s[at + 1 + i]) + 1] == NONE:
            return 0
    return 1


@jit
def issue(s, g):
    """Follow an instance until something holds it up; why the engine must return to Python, or GO_ON."""
    u = unit_row(s, g)
    while True:
        if no_room(s):
            return GROW
        if s[STEPS] <= 0:
            return BUDGET
        s[STEPS] -= 1
        pc = s[u + PC]
        kind = s[code_row(s, pc) + KIND]
        if kind < END:
            s[u + PC] = control(s, g, pc)
            drain(s)
            if kind == AGAIN and s[u + OPEN] >= s[MOST_OPEN] and far_ahead(s, g, pc):
                s[u + STATE] = AHEAD
                return GO_ON
            continue
        if kind == END:
            control(s, g, pc)
            drain(s)
            s[u + STATE] = DONE
            ended(s, g, s[u + NOW])
            let_go(s, g)
            return GO_ON
        if kind == WORK:
            outcome = do_work(s, g, pc)
        elif kind == SEND:
            outcome = do_send(s, g, pc)
        elif kind == RECEIVE:
            outcome = do_receive(s, g, pc)
        elif kind == COPY:
            outcome = do_copy(s, g, pc)
        elif kind == SIGNAL:
            outcome = do_signal(s, g, pc)
        elif kind == WAIT:
            outcome = do_wait(s, g, pc)
        elif kind == MEET:
            outcome = do_meet(s, g, pc)
        elif kind == READ:
            outcome = do_read(s, g, pc)
        else:
            outcome = do_any(s, g, pc)
        if outcome > 0:
            return outcome
        drain(s)
        if outcome == HELD_UP:
            return GO_ON
        s[u + PC] = pc + 1


@jit
def drain(s):
    """Start the commands that have become ready."""
    while s[TODO] > 0:
        s[TODO] -= 1
        ready(s, s[s[T_TODO] + s[TODO]])


@jit
def no_room(s):
    """Whether a table may be full before the next instruction or event is done."""
    live = s[LIVE_COMMANDS]
    return (
        2 * live + 64 > s[N_COMMAND]
        or s[LIVE_NODES] + s[LIVE_LOGS] + 64 > s[N_NODE]
        or s[LIVE_LOGS] + 64 > s[N_LOG]
        or s[EVENTS] + live + s[SEATS] + 64 > s[N_HEAP]
        or live + 64 > s[N_TODO]
        or (s[RECORDING] > 0 and s[RECORDED] + 2 * live + 64 > s[N_RECORD])
        or s[AUX] + 4096 > s[N_AUX]
        or s[LIVE_SPANS] + 64 > s[N_SPAN]
    )


@jit
def run(s):
    """Go on until nothing can, a launch has ended, the budget is spent, or Python is needed."""
    while True:
        while s[READIES] > 0:
            g = s[s[T_READY] + s[READIES] - 1]
            s[READIES] -= 1
            outcome = issue(s, g)
            if outcome != GO_ON:
                s[s[T_READY] + s[READIES]] = g
                s[READIES] += 1
                return outcome
        if s[EVENTS] == 0:
            return FINISHED
        if no_room(s):
            return GROW
        time = s[s[T_HEAP]]
        if time > s[UNTIL]:
            return PAUSED
        phase = s[s[T_HEAP] + 1] // PHASE
        what = s[s[T_HEAP] + 3]
        pop(s)
        s[CLOCK] = time
        if phase == HOSTS:
            return ask(s, ENDED, what, 0, 0, 0, 0)
        if phase == REQUESTS:
            granted(s, what, time)
        elif phase == SIGNALS:
            raise_flag(s, what, time)
        elif phase == DISPATCH:
            dispatch(s, what, time)
        elif phase == DECISIONS:
            decide(s, what, time)
        elif phase == OVERS:
            over(s, what, time)
        elif phase == BEGINS and what != NONE:
            begin_launch(s, what, time)
        drain(s)
