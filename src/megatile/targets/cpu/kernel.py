"""A tile program as machine code for this computer."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from megatile.core.cached import cached
from megatile.hda.probe import host_flags, vector_bits
from megatile.ir.program import Program
from megatile.targets.common.kernel import CompiledKernel, Failure, MachineCode
from megatile.targets.common.toolchain import Making
from megatile.targets.common.writer import Source
from megatile.targets.cpu.dots import words_of
from megatile.targets.cpu.generator import generate
from megatile.targets.interpret.errors import RunError

_POOL = Path(__file__).parent / "pool.c"


@cached()
def _pool(threads: int) -> int:
    library = Making(_POOL.read_text(encoding="utf-8")).load("megatile_pool")
    library.megatile_pool.restype = ctypes.c_void_p
    library.megatile_pool.argtypes = [ctypes.c_long]
    return int(library.megatile_pool(threads) or 0)


@cached()
def _collectives(text: str, options: tuple[str, ...]) -> tuple[ctypes.c_void_p, ...]:
    library = Making(text, options).load("collective", "own_share")
    return tuple(ctypes.cast(f, ctypes.c_void_p) for f in (library.collective, library.own_share))


def generated(program: Program) -> Source:
    """Return the C of a Program, for the vectors of this computer."""
    bits = vector_bits()
    return generate(program, max(bits // 32, 4), {512: 14, 256: 6}.get(bits, 6), words_of(host_flags()))


class CpuCode(MachineCode):
    """Compiled C."""

    def _prepare(self, options: tuple[str, ...]) -> None:
        self.source = generated(self.program)
        making = Making(self.source.text, options)
        self.collectives = self.source.collectives and _collectives(self.source.collectives, options)
        self.pool = ctypes.c_void_p(_pool(self.threads) if self.threads > 1 else None)
        self.library = making.load("megatile_run")
        if self.collectives:
            self.library.megatile_collectives(*self.collectives)
        self.function = self.library.megatile_run
        self.function.argtypes = [ctypes.c_void_p] * 4

    def _run(self, pointers: Any, times: Any) -> None:
        failure = Failure()
        done = self.function(pointers, self.pool, ctypes.byref(failure), times)
        if done:
            raise RunError(
                "there is not enough memory for the tiles of this program", advice="use smaller tiles"
            )
        self.raise_failure(failure)


class CpuKernel(CompiledKernel):
    """C of a program, compiled; ``threads`` share its blocks."""

    code = CpuCode

    def __repr__(self) -> str:
        return f"<compiled '{self.name}' for the CPU, {self.threads} thread{'s' * (self.threads > 1)}>"
