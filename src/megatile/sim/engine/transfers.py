"""Transfers along the stages of their path, cut into granules where others may come between."""

from __future__ import annotations

from megatile.records.marks import inlined, jit
from megatile.sim.engine.accesses import location, owner_of, storage_of
from megatile.sim.engine.commands import new_command
from megatile.sim.engine.completion import complete_later, complete_now, end_command, has_left
from megatile.sim.engine.events import push, serve
from megatile.sim.engine.recording import record_accesses, record_start
from megatile.sim.engine.values import figure, misuse, serialise
from megatile.sim.state import (
    ASK_DELAY,
    ASK_PATH,
    CLASS,
    CLASSES,
    HOPS,
    MAX_PIECES,
    MOVERS,
    NO_OWNER,
    NONE,
    PIECE,
    PIECES,
    REQUESTS,
    UNKNOWN,
    State,
)


@jit
def cached_figure(s: State, unit_id: int, own: int) -> int:
    """Return the figure that an instance always needs at its instruction; those of instances that take turns
    in a row need the same one if it depends on where they are alone (``own``). NONE where it is not known."""
    unit = s.units[unit_id]
    first = s.code[unit.pc].figures
    level = s.levels[unit.level]
    if first == NONE or (level.fixed == 0 and not own):
        return NONE
    return s.figures[first + unit_id - level.first_unit]


@inlined
def copy_path(s: State, unit_id: int, source: int, target: int, mover: int) -> int:
    """Return the path between two accesses by a DMA engine; NONE where there is none, and the run stops."""
    read = storage_of(s, unit_id, s.accesses[source].storage)
    written = storage_of(s, unit_id, s.accesses[target].storage)
    source_owner = owner_of(s, unit_id, source)
    target_owner = owner_of(s, unit_id, target)
    if source_owner == -2 or target_owner == -2:
        wrong = source if source_owner == -2 else target
        access = s.accesses[wrong]
        misuse(s, s.units[unit_id].pc, unit_id, NO_OWNER, access.owner, access.storage)
        return NONE
    spread = s.accesses[source].piece != NONE or s.accesses[target].piece != NONE
    own = source_owner == NONE and target_owner == NONE and not spread
    path_id = cached_figure(s, unit_id, own)
    if path_id != NONE:
        return path_id
    here = NONE
    there = NONE
    if not own or read.private == 0 or written.private == 0:
        here = location(s, unit_id, source, source_owner)
        there = location(s, unit_id, target, target_owner)
    same = source_owner == target_owner and (not spread or here == there)
    asked_by = 2 * (mover * MOVERS + s.units[unit_id].level) + (1 if same else 0)
    memories = read.memory * (1 << 24) + written.memory
    return figure(s, ASK_PATH, asked_by, memories, here, there, unit_id)


@inlined
def new_transfer(s: State, kind: int, unit_id: int, path_id: int, nbytes: int, delay: int) -> int:
    """Return a command that moves bytes along a path."""
    command_id = new_command(s, kind, unit_id, s.units[unit_id].pc)
    command = s.commands[command_id]
    command.update(path=path_id & CLASS, first_server=path_id >> CLASSES, nbytes=nbytes, delay=delay)
    return command_id


@inlined
def number_copy(s: State, unit_id: int, command_id: int) -> None:
    """Give a copy its place among the copies of its instance, which are one flow."""
    s.commands[command_id].flow = s.units[unit_id].flow
    s.commands[command_id].order = s.units[unit_id].copies * PIECES
    s.units[unit_id].copies += 1


@jit
def occupied(s: State, path_id: int, nbytes: int) -> int:
    """Return how long the narrowest stage of a path is busy."""
    if s.paths[path_id].last_bytes != nbytes:
        s.paths[path_id].last_bytes = nbytes
        s.paths[path_id].last_busy = serialise(nbytes, s.paths[path_id].rate)
    return s.paths[path_id].last_busy


@inlined
def piece_bytes(s: State, path_id: int, nbytes: int) -> int:
    """Return how many bytes a piece has of those into which a transfer is cut; all, where it is not."""
    granule = s.paths[path_id].granule
    if granule == 0 or nbytes <= granule:
        return nbytes
    return max(granule, -(-nbytes // MAX_PIECES))


@jit
def head_to_tail_ps(s: State, path_id: int, nbytes: int, least: int) -> int:
    """Return the time from the head of a transfer to its tail without contention: the sum of its pieces, each
    with a minimum."""
    size = piece_bytes(s, path_id, nbytes)
    busy = occupied(s, path_id, size)
    if size == nbytes:
        return max(busy, least)
    whole = (nbytes - 1) // size
    last = whole * busy + max(occupied(s, path_id, nbytes - whole * size), least)
    return max(last, (whole - 1) * busy + max(busy, least))


@jit
def stage_busy(s: State, stage_id: int, nbytes: int) -> int:
    if s.stages[stage_id].last_bytes != nbytes:
        s.stages[stage_id].last_bytes = nbytes
        s.stages[stage_id].last_busy = serialise(nbytes, s.stages[stage_id].rate)
    return s.stages[stage_id].last_busy


@jit
def start_transfer(s: State, command_id: int, time: int) -> None:
    """Move the bytes of a command along its path, cut into granules where others may come between."""
    record_start(s, command_id, time)
    command = s.commands[command_id]
    path = s.paths[command.path]
    nbytes = command.nbytes
    head = time + path.startup + command.delay
    if path.contended == 0:
        has_left(s, command_id, head + head_to_tail_ps(s, command.path, nbytes, path.before))
        end_command(s, command_id, head + head_to_tail_ps(s, command.path, nbytes, 0) + path.latency)
        return
    size = piece_bytes(s, command.path, nbytes)
    if size < nbytes:
        count = -(-nbytes // size)
        command.update(pieces_left=count, tails_left=count, tail=0, piece_bytes=size)
        next_piece(s, command_id, 0, head)
        return
    begin(s, command_id, head)


@jit
def next_piece(s: State, parent_id: int, index: int, head: int) -> None:
    whole = s.commands[parent_id]
    command_id = new_command(s, PIECE, whole.unit, whole.pc)
    command = s.commands[command_id]
    command.update(
        parent=parent_id,
        path=whole.path,
        first_server=whole.first_server,
        flow=whole.flow,
        order=whole.order + index,
        rest=index,
        nbytes=min(whole.piece_bytes, whole.nbytes - index * whole.piece_bytes),
    )
    begin(s, command_id, head)


@jit
def begin(s: State, command_id: int, head: int) -> None:
    command = s.commands[command_id]
    path = s.paths[command.path]
    command.update(
        head=head, tail=head + serialise(command.nbytes, s.paths[command.path].dma_rate), stage=0, served=0
    )
    if path.first_server == NONE:
        has_left(s, command_id, head + max(occupied(s, command.path, command.nbytes), path.before))
    move(s, command_id)


@inlined
def turn(s: State, command_id: int, index: int, time: int) -> None:
    """The head of a transfer passes stage ``index`` at ``time``."""
    command = s.commands[command_id]
    path = s.paths[command.path]
    stage_id = path.first_stage + index
    if index == path.first_server and command.source_free_at == UNKNOWN:
        has_left(
            s, command_id, time - path.before + max(occupied(s, command.path, command.nbytes), path.before)
        )
    latency = s.stages[stage_id].latency
    command.tail = max(command.tail, time + stage_busy(s, stage_id, command.nbytes)) + latency
    command.head = time + latency


@inlined
def move(s: State, command_id: int) -> None:
    """Follow the stages up to the next that is shared, or to the end."""
    command = s.commands[command_id]
    path = s.paths[command.path]
    for index in range(command.stage, path.stages):
        stage_id = path.first_stage + index
        shared = s.stages[stage_id].shared
        time = command.head
        if shared == 1:
            command.stage = index
            push(s, time, REQUESTS, command.flow, command.order * HOPS + index + 1, command_id)
            return
        if shared == 0 and command.served == 1:
            server_id = command.first_server + s.stages[stage_id].server
            time = serve(s, server_id, time, stage_busy(s, stage_id, command.nbytes))
        turn(s, command_id, index, time)
    end_command(s, command_id, max(command.tail, command.head) + path.extra)


@inlined
def transfer(s: State, unit_id: int, command_id: int, count: int) -> None:
    """Start a command that moves data, or let it wait."""
    command = s.commands[command_id]
    server_id = s.engine_queues[command.engine_queue].server
    if server_id != NONE:
        command.server = server_id
        busy = max(occupied(s, command.path, command.nbytes), s.paths[command.path].before)
        command.busy = s.paths[command.path].startup + command.delay + busy
    record_accesses(s, command.record, count)
    if command.dependencies == 0 and server_id == NONE and s.paths[command.path].contended == 0:
        path = s.paths[command.path]
        head = command.ready_at + path.startup + command.delay
        source_free_at = head + head_to_tail_ps(s, command.path, command.nbytes, path.before)
        end = head + head_to_tail_ps(s, command.path, command.nbytes, 0) + path.latency
        complete_now(s, unit_id, command_id, count, source_free_at, end)
    else:
        complete_later(s, unit_id, command_id, count)


@inlined
def delay_of(s: State, flow: int, number: int, path_id: int, nbytes: int) -> int:
    """Return the jitter of a transfer; NONE where that, or its path, is not known."""
    if path_id == NONE or s.jitter == 0:
        return NONE if path_id == NONE else 0
    path_id = path_id & CLASS
    duration = occupied(s, path_id, nbytes) + s.paths[path_id].latency
    return figure(s, ASK_DELAY, flow, number, path_id, nbytes, duration)
