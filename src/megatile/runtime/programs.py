"""``mt.launch(program, *arrays, processes=n)``: tile programs as machine code in processes.

Every process runs the same code on its part of the units: of the devices, or of all blocks where they need
not wait for each other. Arrays, tiles of devices and the places where units meet lie in the shared memory.
"""

from __future__ import annotations

import ctypes
import math
import time
from typing import Any

from megatile.core.quantities import whole
from megatile.runtime.errors import LaunchError, PeerError
from megatile.runtime.processes import Started
from megatile.runtime.shared import World, run
from megatile.runtime.shared.world import library
from megatile.targets.common.kernel import Failure
from megatile.targets.compile import compile as compile_program
from megatile.targets.cpu.kernel import CpuCode

_EXTRA = 1 << 20


class _Processes(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_long) for name in ("rank", "size", "inside", "lost", "used", "room")),
        *((name, ctypes.c_void_p) for name in ("heap", "world", "barrier", "idle")),
    )  # fmt: skip


def launch_program(
    prog: Any,
    *arrays: Any,
    machine: Any = "cpu",
    processes: int | None = None,
    timeout: float = 120.0,
    started: Started | None = None,
) -> float:
    """Run a tile program in processes of this computer; results are in the arrays, the seconds are returned.

    Without ``processes`` there is one for each device of the program. A process that dies or is stopped ends
    the others, and the `LaunchError` names it.
    """
    code = compile_program(prog, threads=1, machine=machine).code_for(arrays)
    assert isinstance(code, CpuCode)
    scales = code.program.launch.scales
    units = math.prod(s.count for s in scales)
    count = (
        processes
        if processes is not None
        else math.prod(s.count for s in scales if s.name in ("node", "device"))
    )
    if whole(count) is None or not 1 <= count <= max(1, units):
        raise LaunchError(f"processes={processes!r}", advice=f"give a whole number from 1 to {max(1, units)}")
    views = code.checked(arrays)
    layout, at = [], _aligned(ctypes.sizeof(Failure))
    for array, copies in zip(views, code.copies, strict=True):
        layout.append(at)
        at += _aligned(max(64, array.nbytes) * copies)
    begin, tiles = at, sum(code.source.room) + _EXTRA
    world = World.make(count, -(-(at + tiles) // count))
    base = world.part(0)
    heap = world.heap.bytes[base:]
    pointers = code.arguments()
    held = []
    for number, (array, copies, offset) in enumerate(zip(views, code.copies, layout, strict=True)):
        place = (
            heap[offset : offset + array.nbytes * copies].view(array.dtype).reshape((copies, *array.shape))
        )
        place[...] = array
        held.append(place)
        pointers[number] = world.heap.address(base + offset)
    failure = Failure.from_buffer(world.heap.map, base)

    def work(mine: World) -> float:
        shared, used = library(), _aligned(code.source.room[0])
        described = _Processes(
            mine.rank, count, 0, 0, used, tiles, world.heap.address(base + begin), world.heap.address(0),
            *(ctypes.cast(f, ctypes.c_void_p).value for f in (shared.mt_barrier, shared.mt_idle)),
        )  # fmt: skip
        code.library.megatile_processes(ctypes.byref(described))
        mine.barrier()
        begun = time.perf_counter()
        done = code.function(pointers, None, ctypes.byref(failure), None)
        if done == 2:
            lost = int(shared.mt_lost(world.heap.address(0)))
            raise PeerError(f"rank {lost} is gone", ranks=(lost,))
        if done:
            raise LaunchError("there is not enough memory for the tiles of this program")
        return time.perf_counter() - begun

    seconds = max(run(work, count, world=world, timeout=timeout, started=started))
    code.raise_failure(failure)
    code.take(views, [h[0] if len(h) == 1 else h for h in held])
    return seconds


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 64) * 64
