"""Compile a tile program and run it in forked processes that share memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from megatile.core.quantities import whole
from megatile.ir.program import Program
from megatile.runtime.errors import LaunchError, PeerError
from megatile.runtime.processes import Started
from megatile.runtime.program_memory import ProgramMemory
from megatile.runtime.shared import World, run
from megatile.runtime.shared.world import library
from megatile.targets.compile import compile as compile_program
from megatile.targets.cpu.kernel import CpuCode
from megatile.targets.interpret.arguments import arrays_of, built

MAX_CACHED_PROGRAMS = 16
"""Compiled programs that the parent process keeps."""


def run_forked(
    memory: ProgramMemory,
    count: int,
    timeout: float,
    started: Started | None = None,
    watch: Callable[[], None] = lambda: None,
) -> float:
    """Run a program in forked processes and bring its results into the arrays; the seconds of the slowest."""
    world = World.make(count, -(-memory.nbytes // count))
    base = world.part(0)
    heap = world.heap.bytes[base:]
    memory.fill(heap)

    def work(mine: World) -> float:
        shared, header = library(), world.heap.address(0)
        mine.barrier()
        try:
            return memory.call(
                world.heap.address(base), mine.rank, count, header, shared.mt_barrier, shared.mt_idle
            )
        except PeerError:
            lost = int(shared.mt_lost(header))
            raise PeerError(f"rank {lost} is gone", ranks=(lost,)) from None

    seconds = max(run(work, count, world=world, timeout=timeout, started=started, watch=watch))
    memory.take(heap)
    return float(seconds)


_codes: dict[int, CpuCode] = {}
"""The programs that were launched last, by identity."""


def _code(program: Program) -> CpuCode:
    """A program is compiled once, however often it is launched."""
    found = _codes.get(id(program))
    if found is None or found.program is not program:
        made = compile_program(program, threads=1).code_for(())
        assert isinstance(made, CpuCode)
        if len(_codes) >= MAX_CACHED_PROGRAMS:
            _codes.clear()
        found = _codes[id(program)] = made
    return found


def prepared(
    prog: Any, arrays: tuple[Any, ...], machine: Any, processes: int | None
) -> tuple[ProgramMemory, int]:
    """Return the compiled program with its memory, and the number of processes."""
    code = _code(built(prog, arrays_of(prog, arrays), machine))
    scales = code.program.launch.scales
    units = max(1, math.prod(s.count for s in scales))
    count = processes
    if count is None:
        count = math.prod(s.count for s in scales if s.name in ("node", "device"))
    found = whole(count)
    if found is None or not 1 <= found <= units:
        raise LaunchError(f"processes={processes!r}", advice=f"give a whole number from 1 to {units}")
    return ProgramMemory(code, arrays), found
