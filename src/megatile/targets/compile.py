"""``mt.compile``: a tile program for one of the targets there are."""

from __future__ import annotations

import os
from importlib import import_module

from megatile.core.errors import MegatileError, did_you_mean
from megatile.core.quantities import whole
from megatile.hda import HDA
from megatile.ir.program import Program
from megatile.language.tile.program import ProgramFunction
from megatile.targets.common.errors import CompileError
from megatile.targets.common.kernel import Kernel

MOST_THREADS = 1024
TARGETS = {"cpu": ("cpu", "CpuKernel", "cpu"), "cuda": ("cuda", "CudaKernel", "hgx-a100")}
"""The folder of each target, its class of kernels, and the machine for which it builds if none is given."""


def compile(
    prog: ProgramFunction | Program,
    target: str = "cpu",
    threads: int | None = None,
    *,
    machine: str | HDA | None = None,
    options: tuple[str, ...] = (),
) -> Kernel:
    """Machine code for a tile program: ``k = mt.compile(prog); k(*arrays)``.

    ``threads``: how many threads share the instances of a phase; without it, all cores this process may use.
    ``machine`` is what the program is built for: its scales, and how much its tiles may take (if not given,
    this computer, and an A100 for "cuda"). ``options`` are given to the compiler as they are.
    ``target="cuda"``: ``k.source`` is CUDA C++ for a GPU; calls run it on the CPU, thread by thread.
    """
    if target not in TARGETS:
        known = tuple(TARGETS)
        raise CompileError(
            f"there is no target '{target}'", advice=did_you_mean(target, known, what="targets")
        )
    if not isinstance(prog, (ProgramFunction, Program)):
        raise CompileError(f"{prog!r} is not a tile program", advice="decorate the function with @T.program")
    if threads is not None and not 1 <= (whole(threads) or 0) <= MOST_THREADS:
        raise CompileError(f"threads={threads!r}", advice=f"give a whole number from 1 to {MOST_THREADS}")
    if isinstance(options, str):
        raise CompileError(f"options={options!r}", advice=f"give a tuple: options=({options!r},)")
    if threads is not None:
        threads = int(threads)
    else:
        try:
            threads = len(os.sched_getaffinity(0))
        except AttributeError:
            threads = os.cpu_count() or 1
    try:
        folder, name, usual = TARGETS[target]
        made: Kernel = getattr(import_module(f"megatile.targets.{folder}.kernel"), name)(
            prog, machine if machine is not None else usual, threads, tuple(options)
        )
        return made
    except MegatileError as error:
        raise error.with_traceback(None) from None
