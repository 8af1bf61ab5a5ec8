"""A program as code that can be called, whichever target it is for."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from megatile.core.dtypes import numpy_dtype
from megatile.core.frames import without_frames
from megatile.core.quantities import format_time
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.program import Program
from megatile.language.tile.program import ProgramFunction
from megatile.language.tile.tiles import InputArray
from megatile.targets.common.errors import CompileError
from megatile.targets.common.writer import Site, Source
from megatile.targets.interpret.arguments import arrays_of, built, check_arguments, check_writable
from megatile.targets.interpret.errors import (
    ArgumentError,
    DeadlockError,
    DeviceAssertionError,
    OutOfBoundsError,
    ReplicaMismatchError,
    RunError,
)
from megatile.targets.interpret.places import Places

if TYPE_CHECKING:
    from megatile.targets.common.compare import Comparison

_ERRORS: dict[str, type[RunError]] = {
    "bounds": OutOfBoundsError,
    "assertion": DeviceAssertionError,
    "deadlock": DeadlockError,
}


SPREAD, PAUSE = 1.0, 0.025
"""Seconds over which repeated runs are spread (the best counts), and between two of them: what others do on
the same core (another thread of it may be theirs) comes and goes within tenths of a second."""


class Failure(ctypes.Structure):
    _fields_ = (("site", ctypes.c_int), ("value", ctypes.c_long))


@dataclass(frozen=True)
class Profile:
    """How long a call took: ``seconds`` (the best of several), and what of it each phase took."""

    seconds: float
    phases: dict[str, float]
    flops: int | None
    """Operations of its matrix products, where their number is known beforehand."""

    @property
    def gflops(self) -> float | None:
        """Operations of its matrix products in 10⁹ per second."""
        return None if self.flops is None else self.flops / self.seconds / 1e9

    def __str__(self) -> str:
        rate = f", {self.gflops:.1f} GFLOP/s in matrix products" if self.gflops else ""
        parts = (
            f"\n  {name}: {format_time(seconds * 1e12)}, {100 * seconds / self.seconds:.0f} %"
            for name, seconds in self.phases.items()
        )
        return f"{format_time(self.seconds * 1e12)}{rate}{''.join(parts)}"


class MachineCode:
    """Machine code for one binding of a program's symbolic extents."""

    source: Source

    def __init__(self, program: Program, threads: int, options: tuple[str, ...]):
        self.program, self.threads = program, threads
        self._prepare(options)
        self.shapes = [(numpy_dtype(p.dtype), tuple(p.shape)) for p in program.params]
        names = self.names = Places(program).names
        self.written = {names[w].base for w in n.written(program.body)}
        self.copies = [names[p.name].copies for p in program.params]
        self.constant = {p.name for p in program.params} - self.written
        self.plain = all(c == 1 for c in self.copies)
        self.arguments = ctypes.c_void_p * max(len(self.shapes), 1)

    def _prepare(self, options: tuple[str, ...]) -> None:
        """Write the source and compile it."""
        raise NotImplementedError

    def __call__(self, arrays: tuple[Any, ...], times: Any = None) -> None:
        pointers = self.arguments()
        if self.plain and len(arrays) == len(self.shapes):
            for i, (array, (dtype, shape)) in enumerate(zip(arrays, self.shapes, strict=True)):
                if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                    break
                flags = array.flags
                if not (flags.c_contiguous and flags.writeable and flags.aligned) or not array.size:
                    break
                pointers[i] = array.__array_interface__["data"][0]
            else:
                self._run(pointers, times)
                return
        self._carefully(arrays, times)

    def checked(self, given: tuple[Any, ...]) -> list[Any]:
        """Return arrays of any kind, checked with their names."""
        arrays = arrays_of(self.program, given)
        check_arguments(self.program, arrays)
        check_writable(self.program, arrays, self.constant)
        for param, one in zip(self.program.params, given, strict=True):
            if isinstance(one, InputArray) and param.name not in self.constant:
                raise ArgumentError(
                    f"'{param.name}' is given as T.Input, and the program writes it",
                    advice="give it without T.Input",
                )
        return arrays

    def _carefully(self, given: tuple[Any, ...], times: Any) -> None:
        """Arrays of any kind are copied where the code could not reach them."""
        arrays = self.checked(given)
        held, pointers = self.held(arrays)
        self._run(pointers, times)
        self.take(arrays, held)

    def held(self, arrays: list[Any]) -> tuple[list[Any], Any]:
        """Return arrays as the code reaches them, one for every device where each has its own; their
        addresses."""
        held = []
        for array, copies in zip(arrays, self.copies, strict=True):
            plain = np.require(array, requirements=["C", "A"]) if array.size else np.zeros(64, array.dtype)
            held.append(np.repeat(plain[None], copies, axis=0) if copies > 1 else plain)
        return held, self.addresses(held)

    def addresses(self, held: list[Any]) -> Any:
        pointers = self.arguments()
        for i, array in enumerate(held):
            pointers[i] = array.__array_interface__["data"][0]
        return pointers

    def run_of(self, arrays: tuple[Any, ...]) -> Callable[[Any], None]:
        """Return what a profile times. Where devices have arrays of their own, the copies are made once,
        before."""
        if self.plain:
            return lambda times: self(arrays, times)
        held, _ = self.held(self.checked(arrays))
        return lambda times: self._run(self.addresses(held), times)

    def take(self, arrays: list[Any], held: list[Any]) -> None:
        """Bring what the code has written into the caller's arrays."""
        for param, array, mine, copies in zip(self.program.params, arrays, held, self.copies, strict=True):
            if param.name in self.constant or mine is array or not array.size:
                continue
            if copies > 1:
                mine = self._one(param.name, mine)
            array[...] = mine

    def _one(self, name: str, copies: np.ndarray) -> np.ndarray:
        parts = self.names[name].valid
        if parts is not None:
            whole = np.zeros_like(copies[0])
            for copy, part in zip(copies, parts, strict=True):
                whole[part] = copy[part]
            return whole
        first = copies[0]
        for number, other in enumerate(copies[1:], 1):
            if np.array_equal(first.view(np.uint8), other.view(np.uint8)):
                continue
            if not ((first == other) | ((first != first) & (other != other))).all():
                raise ReplicaMismatchError(
                    f"the copies of '{name}' differ at the end: {number} from 0",
                    advice="a reduction is missing; mt.run says where",
                )
        return np.asarray(first)

    def _run(self, pointers: Any, times: Any) -> None:
        raise NotImplementedError

    def raise_failure(self, failure: Any) -> None:
        """Say what went wrong in the code, if something did."""
        if failure.site:
            raise _error(self.source.sites[failure.site - 1], failure.value)


def _error(site: Site, value: int) -> RunError:
    text = site.what.replace("{}", str(value))
    return _ERRORS.get(site.kind, RunError)(
        text, place=site.place, advice="mt.run says more: it checks every access"
    )


class CompiledKernel:
    """A compiled program. ``k(*arrays)`` runs it: results are in the arrays afterwards."""

    code: ClassVar[type[MachineCode]]

    def __init__(
        self, prog: ProgramFunction | Program, machine: str | HDA, threads: int, options: tuple[str, ...]
    ):
        self.prog, self.machine, self.threads, self.options = prog, machine, threads, options
        self._codes: dict[Any, MachineCode] = {}
        self._only: MachineCode | None = None
        if isinstance(prog, Program) or not prog.symbols:
            self._only = self._code(prog if isinstance(prog, Program) else prog.build(machine))

    def _code(self, program: Program) -> MachineCode:
        return self.code(program, self.threads, self.options)

    def code_for(self, arrays: tuple[Any, ...]) -> MachineCode:
        if self._only is not None:
            return self._only
        views = arrays_of(self.prog, arrays)
        shapes = tuple(v.shape for v in views)
        if shapes not in self._codes:
            self._codes[shapes] = self._code(built(self.prog, views, self.machine))
        return self._codes[shapes]

    @without_frames
    def __call__(self, *arrays: Any) -> None:
        (self._only or self.code_for(arrays))(arrays)

    @cached_property
    def name(self) -> str:
        return self.prog.name if isinstance(self.prog, Program) else self.prog.__name__

    @property
    def source(self) -> str:
        """The C it was compiled from (of the last shapes, where extents are symbolic)."""
        code = self._only or next(reversed(self._codes.values()), None)
        if code is None:
            raise CompileError(
                f"'{self.name}' has symbolic extents: it is compiled when it is called", advice="call it once"
            )
        return code.source.text

    def profile(self, *arrays: Any, repeat: int = 5) -> Profile:
        """Run it ``repeat`` times and say how long the fastest took, phase by phase. With one thread that is
        its own time: others who use the computer meanwhile do not count. Per-device copies of arrays are made
        before the clock starts and are not copied back."""
        code = self.code_for(arrays)
        run = code.run_of(arrays)
        clock = time.thread_time if self.threads == 1 else time.perf_counter
        best: tuple[float, np.ndarray] | None = None
        for _ in range(max(repeat, 1)):
            times = np.zeros(max(len(code.source.phases), 1))
            at = times.ctypes.data
            wall, start = time.perf_counter(), clock()
            run(at)
            seconds, wall = clock() - start, time.perf_counter() - wall
            if best is None or seconds < best[0]:
                best = seconds, times * min(1.0, seconds / wall)
        assert best is not None
        phases = dict(zip(code.source.phases, best[1].tolist(), strict=False))
        return Profile(best[0], phases, code.source.flops)

    def compare(
        self,
        *arrays: Any,
        machine: str | HDA = "cpu",
        repeat: int = 5,
        seconds: float | None = None,
        trace: str | Path | None = None,
    ) -> Comparison:
        """Run it as ``profile`` does, again and again for `SPREAD` seconds, and predict it on a machine: both
        times, phase by phase.

        ``machine`` is best a file of ``megatile measure``. ``seconds`` is what it took elsewhere, as
        ``mt.launch`` returns it; then it is not run. ``trace`` gets both timelines, for Perfetto.
        """
        from megatile.targets.common.compare import compared

        views = tuple(arrays_of(self.prog, arrays))
        profile = self._best(arrays, repeat) if seconds is None else Profile(seconds, {}, None)
        code, elsewhere = self.code_for(arrays), seconds is not None
        return compared(self.prog, self.name, views, code, machine, self.threads, profile, elsewhere, trace)

    def _best(self, arrays: tuple[Any, ...], repeat: int) -> Profile:
        found, end = [self.profile(*arrays, repeat=repeat)], time.perf_counter() + SPREAD
        while time.perf_counter() < end:
            time.sleep(PAUSE)
            found.append(self.profile(*arrays, repeat=repeat))
        return min(found, key=lambda profile: profile.seconds)

    def explain(self, *given: Any, machine: str | HDA | None = None) -> str:
        """Return what does each statement on a machine (else the one it was compiled for), what others
        would cost, and how many blocks run at a time; ``given`` are arrays or shapes, where extents are
        symbolic."""
        from megatile.lowering.lowered import lower

        return lower(self.prog, *given, machine=machine or self.machine).explain()
