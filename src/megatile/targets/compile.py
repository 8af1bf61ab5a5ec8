"""``mt.compile`` and ``mt.export``: a tile program for one of the targets there are, or as their text."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from megatile.core.errors import did_you_mean, how_to_give
from megatile.core.frames import without_frames
from megatile.core.quantities import whole
from megatile.hda import HDA
from megatile.ir.program import Program
from megatile.language.tile.program import ProgramFunction
from megatile.targets.common.errors import CompileError
from megatile.targets.common.kernel import CompiledKernel
from megatile.targets.common.names import with_usual_memories, with_usual_scales

MAX_THREADS = 1024
"""Threads of a compiled program."""
TARGETS = {"cpu": ("cpu.kernel", "CpuKernel", "cpu"), "cuda": ("cuda.kernel", "CudaKernel", "hgx-a100")}
"""Where the class of kernels of each target is, and the machine for which it builds if none is given."""
LANGUAGES = {
    "tilelang": ("tilelang.writer", "generate_tilelang", "hgx-a100"),
    "cuda": ("cuda.generator", "generate_cuda", "hgx-a100"),
    "c": ("cpu.kernel", "generated", "cpu"),
}
"""Where the function that writes each language is, and the machine."""


def _found(table: dict[str, tuple[str, str, str]], name: str, unknown: str, what: str) -> tuple[Any, str]:
    if name not in table:
        raise CompileError(unknown, advice=did_you_mean(name, tuple(table), what=what))
    module, thing, machine = table[name]
    return getattr(import_module(f"megatile.targets.{module}"), thing), machine


def _check_program(prog: Any) -> None:
    if not isinstance(prog, (ProgramFunction, Program)):
        advice = how_to_give(prog, "decorate the function with @T.program")
        raise CompileError(f"{prog!r} is not a tile program", advice=advice)


@without_frames
def compile(
    prog: ProgramFunction | Program,
    target: str = "cpu",
    threads: int | None = None,
    *,
    machine: str | HDA | None = None,
    options: tuple[str, ...] = (),
) -> CompiledKernel:
    """Machine code for a tile program: ``k = mt.compile(prog); k(*arrays)``.

    ``threads``: how many threads share the instances of a phase; without it, all cores this process may use.
    ``machine`` is what the program is built for: its scales, and how much its tiles may take (if not given,
    this computer, and an A100 for "cuda"). ``options`` are given to the compiler as they are.
    ``target="cuda"``: ``k.source`` is CUDA C++ for a GPU; calls run it on the CPU, thread by thread.
    """
    kernel, usual = _found(TARGETS, target, f"there is no target '{target}'", "targets")
    _check_program(prog)
    if threads is not None and not 1 <= (whole(threads) or 0) <= MAX_THREADS:
        raise CompileError(f"threads={threads!r}", advice=f"give a whole number from 1 to {MAX_THREADS}")
    if isinstance(options, str):
        raise CompileError(f"options={options!r}", advice=f"give a tuple: options=({options!r},)")
    if threads is not None:
        threads = int(threads)
    else:
        try:
            threads = len(os.sched_getaffinity(0))
        except AttributeError:
            threads = os.cpu_count() or 1
    made: CompiledKernel = kernel(prog, machine if machine is not None else usual, threads, tuple(options))
    return made


@without_frames
def export(
    prog: ProgramFunction | Program, to: str, *shapes: tuple[int, ...], machine: str | HDA | None = None
) -> str:
    """Return the text of a tile program in TileLang, CUDA C++ or C: ``mt.export(prog, "tilelang")``.

    ``shapes``: of every argument, or arrays, where extents are symbolic; TileLang keeps them symbolic
    without. None of it needs a compiler or a GPU.
    """
    write, usual = _found(LANGUAGES, to, f"programs cannot be written as '{to}'", "languages")
    _check_program(prog)
    chosen = machine
    if not isinstance(prog, Program):
        chosen = machine if machine is not None else usual
        if prog.symbols and not shapes and to == "tilelang":
            program, extents = prog.build_open(chosen)
            return str(write(with_usual_scales(with_usual_memories(program, chosen), chosen), extents))
        extents_of = [tuple(getattr(one, "shape", one)) for one in shapes]
        symbols: dict[str, Any] = prog.bind_symbols(extents_of) if shapes else {}
        prog = prog.build(chosen, **symbols)
    if to == "tilelang":
        prog = with_usual_scales(prog, chosen)
    return str(write(prog if to == "c" else with_usual_memories(prog, chosen)))
