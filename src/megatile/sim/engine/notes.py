"""What is recorded of a command."""

from __future__ import annotations

from megatile.sim.engine.rows import access_row, inlined, jit, record_row, unit_row
from megatile.sim.state import *


@inlined
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


@inlined
def keep_accesses(s, count):
    """Where it is kept what a recorded command touches: the number of its accesses, then of each what it is
    (`ACCESS_BITS`), its owner and its bounds."""
    first = s[AUX]
    at = s[T_AUX] + first
    s[at] = count
    at += 1
    for k in range(count):
        a = access_row(s, k)
        n = 2 * s[a + A_DIMENSIONS]
        s[at] = (s[a + A_STORAGE] << ACCESS_BITS) + n + s[a + A_WRITE]
        s[at + 1] = s[a + A_OWNER]
        at += 2
        for i in range(n):
            s[at + i] = s[a + A_BOUNDS + i]
        at += n
    s[AUX] = at - s[T_AUX]
    return first + s[AUX_BASE]


@jit
def note_accesses(s, record, count):
    if record != NONE and count > 0 and s[RECORDING] == 2:
        s[record_row(s, record) + R_AUX] = keep_accesses(s, count)
