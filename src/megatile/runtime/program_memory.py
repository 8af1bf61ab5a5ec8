"""Where the arrays and tiles of a compiled program lie in the memory of all processes, and its call."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np

from megatile.runtime.errors import LaunchError, PeerError
from megatile.targets.common.kernel import Failure
from megatile.targets.cpu.kernel import CpuCode

_SPARE_BYTES = 1 << 20
"""Bytes beyond the tiles, for alignment."""


class Processes(ctypes.Structure):
    """What compiled code has to know about the processes that run it together."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("rank", "size", "inside", "lost", "used", "room")),
        *((name, ctypes.c_void_p) for name in ("heap", "world", "barrier", "idle")),
    )  # fmt: skip


class ProgramMemory:
    """First what went wrong, then the arrays with their copies, then tiles."""

    def __init__(self, code: CpuCode, arrays: tuple[Any, ...]):
        self.code, self.views = code, code.checked(arrays)
        self.offsets, at = [], aligned(ctypes.sizeof(Failure))
        for array, copies in zip(self.views, code.copies, strict=True):
            self.offsets.append(at)
            at += aligned(max(64, array.nbytes) * copies)
        self.arguments, self.tiles = at, sum(code.source.room) + _SPARE_BYTES
        self.nbytes = at + self.tiles

    def places(self, heap: np.ndarray) -> list[np.ndarray]:
        """Return the arrays in the heap, [copies, *shape]."""
        found = []
        for array, copies, offset in zip(self.views, self.code.copies, self.offsets, strict=True):
            raw = heap[offset : offset + array.nbytes * copies]
            found.append(raw.view(array.dtype).reshape((copies, *array.shape)))
        return found

    def fill(self, heap: np.ndarray) -> None:
        """Put the caller's arrays into the heap."""
        for place, array in zip(self.places(heap), self.views, strict=True):
            place[...] = array

    def take(self, heap: np.ndarray) -> None:
        """Bring the results into the caller's arrays, or raise what went wrong."""
        self.code.raise_failure(Failure.from_buffer_copy(heap[: ctypes.sizeof(Failure)].tobytes()))
        self.code.take(self.views, [h[0] if len(h) == 1 else h for h in self.places(heap)])

    def call(self, address: int, rank: int, size: int, world: int, barrier: Any, idle: Any) -> float:
        """Run this process's part of the program, with the heap at an address; the seconds it took."""
        pointers, failure = self.code.arguments(), Failure.from_address(address)
        for number, offset in enumerate(self.offsets):
            pointers[number] = address + offset
        meet, rest = (ctypes.cast(f, ctypes.c_void_p).value for f in (barrier, idle))
        begin, used = address + self.arguments, aligned(self.code.source.room[0])
        described = Processes(rank, size, 0, 0, used, self.tiles, begin, world, meet, rest)
        self.code.library.megatile_processes(ctypes.byref(described))
        try:
            begun = time.perf_counter()
            done = self.code.function(pointers, None, ctypes.byref(failure), None)
            seconds = time.perf_counter() - begun
        finally:
            self.code.library.megatile_processes(ctypes.byref(Processes()))
        if done == 2:
            raise PeerError("another rank is gone")
        if done:
            raise LaunchError("there is not enough memory for the tiles of this program")
        return seconds


def aligned(nbytes: int) -> int:
    return -(-nbytes // 64) * 64
