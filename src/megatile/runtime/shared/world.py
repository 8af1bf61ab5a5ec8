"""One rank's view of the memory that all ranks map."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.resources import files
from math import prod
from typing import Any

import numpy as np

from megatile.core.cached import cached
from megatile.core.dtypes import dtype as dtype_name, numpy_dtype
from megatile.core.errors import did_you_mean
from megatile.core.quantities import format_bytes
from megatile.runtime.errors import LaunchError, PeerError
from megatile.targets.common.toolchain import Making

KINDS = {"f32": 0, "f64": 1, "i32": 2, "i64": 3, "f16": 4, "bf16": 5, "i8": 6, "u8": 7}
OPERATIONS = {"sum": 0, "max": 1, "min": 2, "prod": 3}
_LINE = 64
"""Bytes of a cache line; arrays begin on one."""
_ARGUMENTS = {
    "world_bytes": "l", "world_begin": "plll", "barrier": "p", "signal": "ppl", "wait": "ppl", "lose": "pl",
    "all_reduce": "plplii", "reduce_scatter": "plpplii", "all_gather": "plppl", "all_to_all": "plppl",
    "broadcast": "plpll", "lost": "p",
}  # fmt: skip
_C = {"l": ctypes.c_long, "p": ctypes.c_void_p, "i": ctypes.c_int}


def native(folder: str, file: str, arguments: Mapping[str, str], *flags: str) -> ctypes.CDLL:
    """Return a C file of a folder as machine code of this computer; letters say what its functions take."""
    text = files(folder).joinpath(file).read_text(encoding="utf-8")
    made = Making(text, flags).load(*(f"mt_{name}" for name in arguments))
    for name, kinds in arguments.items():
        getattr(made, f"mt_{name}").argtypes = [_C[kind] for kind in kinds]
    return made


@cached()
def library() -> ctypes.CDLL:
    """Return the collectives as machine code of this computer."""
    made = native("megatile.runtime.shared", "world.c", _ARGUMENTS, "-O3")
    made.mt_world_bytes.restype = made.mt_lost.restype = ctypes.c_long
    return made


class Heap:
    """Shared memory without a name: it is gone with the last process that maps it, however that ends."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = max(mmap.PAGESIZE, nbytes)
        try:
            if self.nbytes > _available():
                raise OSError(f"{format_bytes(_available())} of memory are free")
            handle = _unnamed()
            try:
                os.ftruncate(handle, self.nbytes)
                if hasattr(os, "posix_fallocate"):
                    # Now, and not by a signal in the middle of the work.
                    os.posix_fallocate(handle, 0, self.nbytes)
                self.map = mmap.mmap(handle, self.nbytes)
            finally:
                os.close(handle)
        except (OSError, ValueError, OverflowError) as problem:
            raise LaunchError(
                f"there is no room for {format_bytes(self.nbytes)} of shared memory ({problem})",
                advice="use smaller arrays, or enlarge /dev/shm",
            ) from None
        self.bytes = np.frombuffer(self.map, np.uint8)

    def close(self) -> None:
        """Give the memory back now, unless somebody still looks at it."""
        del self.bytes
        with contextlib.suppress(BufferError):
            self.map.close()

    def address(self, offset: int) -> int:
        return int(self.bytes.ctypes.data) + offset


def _available() -> int:
    """Return the free bytes of memory that the system reports."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return sys.maxsize


def _unnamed() -> int:
    """Return a file of shared memory without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("megatile", os.MFD_CLOEXEC)
    handle, name = tempfile.mkstemp(prefix="megatile-")
    os.unlink(name)
    return handle


class Symmetric:
    """An array that every rank has at the same place of its part of the heap."""

    def __init__(self, world: World, offset: int, shape: tuple[int, ...], dtype: str) -> None:
        self.world, self.offset, self.shape, self.dtype = world, offset, shape, dtype

    @property
    def nbytes(self) -> int:
        return self.count * numpy_dtype(self.dtype).itemsize

    def of(self, rank: int) -> np.ndarray:
        """Return the array of a rank, for puts and gets."""
        if not 0 <= rank < self.world.size:
            raise PeerError(f"there is no rank {rank}", advice=f"there are {self.world.size}, from 0")
        start = self.world.part(rank) + self.offset
        raw = self.world.heap.bytes[start : start + self.nbytes]
        return raw.view(numpy_dtype(self.dtype)).reshape(self.shape)

    @cached_property
    def places(self) -> Any:
        """Where it is in the parts of all ranks, as C has it."""
        parts = (self.world.part(rank) for rank in range(self.world.size))
        return (ctypes.c_void_p * self.world.size)(*(self.world.heap.address(p + self.offset) for p in parts))

    @cached_property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def local(self) -> np.ndarray:
        return self.of(self.world.rank)


class World:
    """A rank among those that share a heap: symmetric arrays, signals, barriers, collectives."""

    def __init__(self, heap: Heap, size: int, part_bytes: int) -> None:
        self.heap, self.size, self.part_bytes = heap, size, part_bytes
        self.rank = -1
        self._used = 0
        self._head = _aligned(int(library().mt_world_bytes(size)))
        self._world = heap.address(0)

    @classmethod
    def make(cls, size: int, part_bytes: int) -> World:
        """Return the memory of ``size`` ranks, ``part_bytes`` each."""
        most = int(library().mt_most_members())
        if not 1 <= size <= most:
            raise LaunchError(f"{size} processes cannot share memory", advice=f"use 1 to {most}")
        part = _aligned(part_bytes)
        heap = Heap(_aligned(int(library().mt_world_bytes(size))) + size * part)
        world = cls(heap, size, part)
        library().mt_world_begin(world._world, size, os.cpu_count() or 1, os.getpid())
        return world

    def part(self, rank: int) -> int:
        """Return where a rank's part of the heap begins."""
        return self._head + rank * self.part_bytes

    # memory

    def symmetric(self, shape: int | Sequence[int], dtype: Any = "f32") -> Symmetric:
        """Return an array on every rank; all ranks must make theirs in the same order."""
        extents = (shape,) if isinstance(shape, int) else tuple(int(s) for s in shape)
        array = Symmetric(self, self._used, extents, dtype_name(dtype))
        after = self._used + _aligned(array.nbytes)
        if after > self.part_bytes:
            free = self.part_bytes - self._used
            raise LaunchError(
                f"a symmetric array of {format_bytes(array.nbytes)} does not fit: {format_bytes(free)} of "
                f"{format_bytes(self.part_bytes)} are free",
                advice="give run(…, heap=) more bytes per rank",
            )
        self._used = after
        return array

    # order

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self._done(library().mt_barrier(self._world))

    def signal(self, flag: Symmetric, rank: int, amount: int = 1, index: int = 0) -> None:
        """Count up a flag (i32) of a rank; what was written before is seen by who waits for it."""
        address = self.heap.address(self.part(rank) + flag.offset + 4 * index)
        library().mt_signal(self._world, address, amount)

    def wait(self, flag: Symmetric, value: int, index: int = 0) -> None:
        """Wait until one's own flag has reached a value."""
        address = self.heap.address(self.part(self.rank) + flag.offset + 4 * index)
        self._done(library().mt_wait(self._world, address, value))

    def _done(self, code: int) -> None:
        if code:
            lost = int(library().mt_lost(self._world))
            named = () if lost < 0 else (lost,)
            what = f"rank {lost} is gone" if named else "the process that began all ranks is gone"
            raise PeerError(what, ranks=named)

    # collectives

    def all_reduce(self, x: Symmetric, op: str = "sum") -> None:
        """Merge the arrays of all ranks, in the order of ranks; every rank gets the result."""
        how = _reduction(x.dtype, op)
        self._done(library().mt_all_reduce(self._world, self.rank, x.places, x.count, *how))

    def reduce_scatter(self, out: Symmetric, x: Symmetric, op: str = "sum") -> None:
        """``out`` gets the merge of everybody's part number ``rank`` of ``x``."""
        self._fits(x, out, "reduce_scatter")
        how, at = _reduction(x.dtype, op), out.places[self.rank]
        self._done(library().mt_reduce_scatter(self._world, self.rank, x.places, at, out.count, *how))

    def all_gather(self, out: Symmetric, x: Symmetric) -> None:
        """``out`` gets the arrays of all ranks, one after the other."""
        self._fits(out, x, "all_gather")
        at = out.places[self.rank]
        self._done(library().mt_all_gather(self._world, self.rank, x.places, at, x.nbytes))

    def all_to_all(self, out: Symmetric, x: Symmetric) -> None:
        """Part r of ``x`` goes to rank r, into the part of ``out`` that belongs to the sender."""
        if out.nbytes != x.nbytes or x.nbytes % self.size:
            raise PeerError(f"all_to_all of {x.shape} into {out.shape} among {self.size} ranks does not fit")
        size, at = x.nbytes // self.size, out.places[self.rank]
        self._done(library().mt_all_to_all(self._world, self.rank, x.places, at, size))

    def broadcast(self, x: Symmetric, root: int = 0) -> None:
        """Give all ranks the root's array."""
        x.of(root)
        self._done(library().mt_broadcast(self._world, self.rank, x.places, x.nbytes, root))

    def lose(self, rank: int) -> None:
        """Tell all ranks that one of them is gone: those that wait raise `PeerError`."""
        library().mt_lose(self._world, rank)

    def _fits(self, whole: Symmetric, part: Symmetric, what: str) -> None:
        if whole.dtype != part.dtype or whole.count != self.size * part.count:
            raise PeerError(
                f"{what}: {whole.dtype}{list(whole.shape)} is not {self.size} times "
                f"{part.dtype}{list(part.shape)}"
            )


def _reduction(dtype: str, name: str) -> tuple[int, int]:
    """Return the numbers of an element type and of an operation."""
    if dtype not in KINDS:
        raise PeerError(f"{dtype} cannot be reduced", advice=did_you_mean(dtype, KINDS, what="dtypes"))
    if name not in OPERATIONS:
        raise PeerError(
            f"there is no reduction '{name}'", advice=did_you_mean(str(name), OPERATIONS, what="reductions")
        )
    return KINDS[dtype], OPERATIONS[name]


def _aligned(nbytes: int) -> int:
    return -(-max(1, nbytes) // _LINE) * _LINE
