"""``mt.launch(program, *arrays, processes=n)``: tile programs as machine code in processes.

Every process runs the same code on its part of the units: of the devices, or of all blocks where they need
not wait for each other. Arrays, tiles of devices and the places where units meet lie in memory that the
processes, which are forked here, share. Under torchrun see ``launch_ranks``.
"""

from __future__ import annotations

from typing import Any

from megatile.language.tile.tiles import InputArray
from megatile.runtime import ranks
from megatile.runtime.errors import check_timeout
from megatile.runtime.forked import prepared, run_forked
from megatile.runtime.launch_ranks import launch_on_ranks
from megatile.runtime.processes import Started


def launch_program(
    prog: Any,
    *arrays: Any,
    machine: Any = "cpu",
    processes: int | None = None,
    timeout: float = 120.0,
    started: Started | None = None,
) -> float:
    """Run a tile program in several processes; results are in the arrays, the seconds are returned.

    Without ``processes`` there is one for each device of the program; where torchrun has started this one,
    it runs on its ranks (``launch_ranks``). A process that dies or is stopped ends the others,
    and the `LaunchError` names it.
    """
    check_timeout(timeout)
    if processes is None and ranks.started():
        given = [a.array if isinstance(a, InputArray) else a for a in arrays]
        return launch_on_ranks(prog, given, machine, timeout, started)
    memory, count = prepared(prog, arrays, machine, processes)
    return run_forked(memory, count, timeout, started)
