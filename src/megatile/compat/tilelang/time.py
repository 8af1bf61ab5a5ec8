"""How long kernels take: predicted on a machine, or measured as machine code on this computer's CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from megatile.core.errors import MegatileError
from megatile.ir.program import Program
from megatile.lower.calls import simulate
from megatile.targets.compile import compile as compile_program
from megatile.targets.interpret.run import run

Runner = Callable[..., Any]


def interpret(program: Program, *arrays: Any) -> None:
    """Run a Program with all checks on."""
    run(program, *arrays, machine=program.machine)


RUNNER: ContextVar[Runner] = ContextVar("runner", default=interpret)
"""What runs the Programs of kernels."""


def predicted_ms(programs: Iterable[Program], machine: Any = None) -> float:
    """Milliseconds of Programs, one after the other, on a machine (by default the one they are built for)."""
    return sum(float(simulate(p, machine=machine or p.machine).time_ns) for p in programs) / 1e6


def source_of(program: Program) -> str:
    """The C that megatile writes for a Program."""
    return compile_program(program, machine=program.machine).source


class Compiled:
    """Runs Programs as machine code, those that cannot be compiled with the interpreter; adds up the time."""

    def __init__(self) -> None:
        self.kernels: dict[str, Runner] = {}
        self.seconds = 0.0

    def __call__(self, program: Program, *arrays: Any) -> None:
        key = str(program)
        if key not in self.kernels:
            try:
                self.kernels[key] = compile_program(program, machine=program.machine)
            except MegatileError:
                self.kernels[key] = partial(interpret, program)
        start = time.perf_counter()
        self.kernels[key](*arrays)
        self.seconds += time.perf_counter() - start


@contextmanager
def _running(runner: Runner) -> Iterator[None]:
    token = RUNNER.set(runner)
    try:
        yield
    finally:
        RUNNER.reset(token)


def measured_ms(function: Callable[[], Any], repeat: int = 3) -> float:
    """Milliseconds that one call takes on this computer's CPU; of kernels in it, their machine code only."""
    compiled, best = Compiled(), float("inf")
    with _running(compiled):
        function()  # compiles
        for _ in range(repeat):
            compiled.seconds, start = 0.0, time.perf_counter()
            function()
            best = min(best, compiled.seconds or time.perf_counter() - start)
    return best * 1e3
