"""How long kernels take: predicted on a machine, or measured as machine code on this computer's CPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.core.errors import MegatileError
from megatile.core.expr import known, trips
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.program import Program, bindings
from megatile.lowering.calls import simulate
from megatile.targets.compile import compile as compile_program
from megatile.targets.interpret.run import run_on_new_arrays

Runner = Callable[..., Any]


def interpret(program: Program, *arrays: Any, unwritten: dict[str, np.ndarray] | None = None) -> None:
    """Run a Program with all checks on; ``unwritten``: elements of arguments that have no value yet."""
    run_on_new_arrays(program, *arrays, unwritten={} if unwritten is None else unwritten)


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

    def __call__(self, program: Program, *arrays: Any, unwritten: Any = None) -> None:
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


# --- the least time --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """Work that must be done, and the time it takes at least."""

    flops: int
    nbytes: int
    seconds: float


def least_time(program: Program, machine: HDA) -> Bound:
    """The bound of one launch on one device: matrix products at peak, every tensor moved once, but for
    results that a cache may keep.

    Nothing can beat it, but it is not a prediction: caches, latency, occupancy and everything elementwise are
    left out. Products under conditions, and in loops whose length is known only at run time, count nothing.
    """
    work: dict[str, int] = {}
    dtypes = {name: binding.dtype for name, binding in bindings(program).items()}
    _count(program.body, program.launch.count(program.launch.dispatch), work, dtypes)
    nbytes = sum(math.prod(int(e) for e in p.shape) * itemsize(p.dtype) for p in program.params)
    device = machine.scale("device").name
    seconds = (nbytes - _cached_bytes(program, machine)) / float(machine.memory("l2").bandwidth)
    busy = sum(flops / (machine.throughput(device, dtype) or math.inf) for dtype, flops in work.items())
    return Bound(sum(work.values()), nbytes, max(seconds, busy))


def _cached_bytes(program: Program, machine: HDA) -> int:
    """Bytes of results that may lie in a cache when the kernel ends."""
    touched = {access: set[str]() for access in ("read", "write")}
    for node in n.walk(program.body):
        for access, region in n.regions(node):
            for kind in touched:
                if kind in access:
                    touched[kind].add(region.source)
    results = [p for p in program.params if p.name in touched["write"] - touched["read"]]
    room = max((m.size for m in machine.memories if m.cache and m.write == "write_back"), default=0)
    return min(int(room), sum(math.prod(int(e) for e in p.shape) * itemsize(p.dtype) for p in results))


def _count(body: tuple[n.Node, ...], times: int, work: dict[str, int], dtypes: dict[str, str]) -> None:
    for node in body:
        if isinstance(node, n.Gemm):
            extents = [known(e) or 0 for region in (node.a, node.c) for e in region.extents[-2:]]
            flops = 2 * math.prod(extents[2:]) * extents[0 if node.transpose_a else 1]
            element = dtypes[node.a.source]
            work[element] = work.get(element, 0) + flops * times
        elif isinstance(node, n.Loop):
            rounds = trips(node) if node.kind != "bounded" else None
            _count(node.body, times * len(rounds or ()), work, dtypes)
        elif isinstance(node, n.ScaleRegion):
            _count(node.body, times, work, dtypes)
