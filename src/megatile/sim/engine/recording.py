"""What is recorded of a command."""

from __future__ import annotations

from megatile.sim.engine.marks import inlined, jit
from megatile.sim.state import ACCESS_BITS, NONE, UNKNOWN, State


@inlined
def note(
    s: State,
    unit_id: int,
    pc: int,
    kind: int,
    engine: int,
    start: int,
    end: int,
    why: int,
    nbytes: int,
    queue: int,
    message: int,
    path: int,
) -> int:
    """Record a command (times may be filled in later); its number, or NONE where nothing is recorded."""
    if s.recording == 0:
        return NONE
    record_id = s.record_base + s.recorded
    s.recorded += 1
    recorded = s.records[record_id - s.record_base]
    recorded.actor = s.units[unit_id].actor if unit_id != NONE else NONE
    recorded.pc = pc
    recorded.start = start
    recorded.end = end
    recorded.cause = why
    recorded.nbytes = nbytes
    recorded.queue = queue
    recorded.message = message
    recorded.arrived = UNKNOWN
    recorded.path = path
    recorded.accesses = NONE
    recorded.kind = kind
    recorded.engine = engine
    return record_id


@inlined
def keep_accesses(s: State, count: int) -> int:
    """Where it is kept what a recorded command touches: the number of its accesses, then of each what it is
    (`ACCESS_BITS`), its owner and its bounds."""
    words = s.recorded_accesses
    first = s.recorded_words
    words[first] = count
    at = first + 1
    for k in range(count):
        access = s.accesses[k]
        bounds = 2 * access.dimensions
        words[at] = (access.storage << ACCESS_BITS) + bounds + access.write
        words[at + 1] = access.owner
        at += 2
        for i in range(bounds):
            words[at + i] = access.bounds[i]
        at += bounds
    s.recorded_words = at
    return first + s.words_base


@jit
def note_accesses(s: State, record_id: int, count: int) -> None:
    if record_id != NONE and count > 0 and s.recording == 2:
        s.records[record_id - s.record_base].accesses = keep_accesses(s, count)
