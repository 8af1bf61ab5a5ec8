"""What is recorded of a command."""

from __future__ import annotations

from megatile.records.marks import apart, inlined, jit
from megatile.sim.state import ACCESS_BITS, MAX_ACCESS_WORDS, NONE, UNKNOWN, Recorded, State


@jit
def recorded(s: State, record_id: int) -> Recorded:
    """Return a record by its number; those before the first that is still there have been dropped."""
    return s.records[record_id - s.record_base]


@apart
def stop_recording(s: State) -> int:
    """Drop what was recorded: there is too much of it."""
    s.recording = 0
    s.recorded = 0
    s.recorded_words = 0
    s.record_limit = NONE
    return NONE


@inlined
def record(
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
    if s.recorded >= s.record_limit:
        return stop_recording(s)
    record_id = s.record_base + s.recorded
    s.recorded += 1
    entry = recorded(s, record_id)
    entry.update(
        actor=s.units[unit_id].actor if unit_id != NONE else NONE,
        pc=pc,
        start=start,
        end=end,
        cause=why,
        nbytes=nbytes,
        queue=queue,
        message=message,
        arrived=UNKNOWN,
        path=path,
        accesses=NONE,
        kind=kind,
        engine=engine,
    )
    return record_id


@inlined
def record_start(s: State, command_id: int, time: int) -> None:
    """Record when a command starts that was held up, and why then."""
    command = s.commands[command_id]
    if command.record != NONE:
        recorded(s, command.record).start = time
        recorded(s, command.record).cause = command.cause


@inlined
def record_words(s: State, count: int) -> int:
    """Return where it is kept what a recorded command touches: the number of its accesses, then of each what
    it is (`ACCESS_BITS`), its owner and its bounds."""
    words = s.recorded_accesses
    first = s.recorded_words
    if first + MAX_ACCESS_WORDS > s.recorded_accesses.size:
        return stop_recording(s)
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
def record_accesses(s: State, record_id: int, count: int) -> None:
    if record_id != NONE and count > 0 and s.recording == 2:
        recorded(s, record_id).accesses = record_words(s, count)
