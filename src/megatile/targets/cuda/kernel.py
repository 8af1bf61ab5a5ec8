"""``mt.compile(prog, target="cuda")``: CUDA C++, and a callable that runs it on the CPU by its meaning."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from megatile.ir.program import Program
from megatile.targets.common.errors import CompileError
from megatile.targets.common.kernel import CompiledKernel, Failure, MachineCode, Profile
from megatile.targets.common.names import with_usual_memories
from megatile.targets.common.toolchain import Making
from megatile.targets.cuda.alignment import WIDEST
from megatile.targets.cuda.generator import EMULATE, generate_cuda

_ONE_AT_A_TIME = threading.Lock()
_FLAGS = ("-O1", "-fno-strict-aliasing", "-ffp-contract=off")


def emulated(text: str, options: tuple[str, ...] = ()) -> Making:
    """CUDA source being compiled for the CPU."""
    return Making(text.replace('#include "emulate.h"', EMULATE), (*_FLAGS, *options), "c++")


def _aligned(array: np.ndarray) -> np.ndarray:
    if array.__array_interface__["data"][0] % WIDEST == 0:
        return array
    room = np.empty(array.nbytes + WIDEST, np.uint8)
    first = -room.__array_interface__["data"][0] % WIDEST
    copy = room[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class CudaCode(MachineCode):
    """One binding of a program's symbolic extents; compiled for the CPU when it is first called."""

    def _prepare(self, options: tuple[str, ...]) -> None:
        self.source = self.made = generate_cuda(self.program)
        self.options = options
        self.launch: Any = None

    def __call__(self, arrays: tuple[Any, ...], times: Any = None) -> None:
        self._carefully(arrays, times)

    def held(self, arrays: list[Any]) -> tuple[list[Any], Any]:
        """Arrays that begin at multiples of 16 bytes, as tensors on a device do."""
        held = [_aligned(array) for array in super().held(arrays)[0]]
        return held, self.addresses(held)

    def _compiled(self) -> Any:
        if self.launch is None:
            library = emulated(self.source.text, self.options).load("megatile_launch")
            self.launch = library.megatile_launch
            self.launch.argtypes, self.launch.restype = [ctypes.c_void_p] * 3, None
        return self.launch

    def _run(self, pointers: Any, times: Any) -> None:
        failure = Failure()
        with _ONE_AT_A_TIME:
            room = np.empty(max(self.made.launch_bytes, 1), np.uint8)
            self._compiled()(pointers, room.ctypes.data, ctypes.byref(failure))
        self.raise_failure(failure)


class CudaKernel(CompiledKernel):
    """CUDA C++ of a program. ``k.source`` is the text; ``k(*arrays)`` runs it on the CPU (``k.ran_on``)."""

    code = CudaCode

    def _code(self, program: Program) -> MachineCode:
        return super()._code(with_usual_memories(program, self.machine))

    ran_on = "the CPU, thread by thread; never on a GPU"

    def profile(self, *arrays: Any, repeat: int = 5) -> Profile:
        raise CompileError(
            "CUDA source runs on the CPU thread by thread here: its times mean nothing",
            advice="mt.simulate predicts them",
        )

    def __repr__(self) -> str:
        return f"<CUDA source of '{self.name}'; calls run on {self.ran_on}>"
