"""Run a ``tl`` kernel with no plan and no machine: every rank is a coroutine, tiles are NumPy arrays.

    outputs = run_kernel_in_mock(kernel, 4, "ring_1d", [np.ones(8, "f2")] * 4, (8,))

The function runs as plain Python, unrewritten, so this is a second opinion on what the reader makes of it.
Queues are unbounded unless ``n_slots`` is given; a deadlock is found as soon as nobody can move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from megatile.core.dtypes import dtype as dtype_name
from megatile.core.dtypes import itemsize, numpy_dtype
from megatile.core.operations import apply
from megatile.language.directions import (
    IpcqDeadlock,
    IpcqInvalidDirection,
    neighbor_maps,
    wiring,
)
from megatile.language.math import Math
from megatile.language.symbols import KernelError
from megatile.language.values import RecvFuture, Ref, TileRef
from megatile.plan.expr import expr

Array = Any


class MockTile(TileRef):
    """A tile that has its contents."""

    data: Array

    def __init__(self, data: Array, dtype: str, tl: Any, space: str = "tcm", addr: Any = None):
        values = {"name": "tile", "shape": tuple(data.shape), "dtype": dtype, "space": space, "tl": tl}
        for key, value in (values | {"addr": addr, "data": data}).items():
            object.__setattr__(self, key, value)


class Memory:
    """Bytes by address: the tensors' ranges, which all ranks see, and pages of a rank's own for anything
    else.
    """

    PAGE = 4096

    def __init__(self, segments: list[tuple[int, Array]]):
        self.segments = segments
        self.pages: dict[tuple[str, int], Array] = {}

    def locate(self, address: int, nbytes: int) -> Array | None:
        for base, data in self.segments:
            if base <= address and address + nbytes <= base + len(data):
                return data[address - base : address - base + nbytes]
        return None

    def read(self, space: str, address: int, nbytes: int) -> Array:
        found = self.locate(address, nbytes) if space == "hbm" else None
        if found is not None:
            return found.copy()
        return np.asarray([self._byte(space, a) for a in range(address, address + nbytes)], dtype=np.uint8)

    def _byte(self, space: str, address: int) -> int:
        page = self.pages.get((space, address // self.PAGE))
        return 0 if page is None else int(page[address % self.PAGE])

    def write(self, space: str, address: int, data: Array) -> None:
        found = self.locate(address, len(data)) if space == "hbm" else None
        if found is not None:
            found[:] = data
            return
        for at, byte in enumerate(data):
            key = (space, (address + at) // self.PAGE)
            page = self.pages.setdefault(key, np.zeros(self.PAGE, dtype=np.uint8))
            page[(address + at) % self.PAGE] = byte


class MockTl(Math):
    """The ``tl`` argument of a kernel that runs for real."""

    def __init__(self, rank: int, world: World):
        self.rank, self.world = rank, world
        self.memory = Memory(world.segments)
        self.here = None
        self.turn = 0

    @property
    def world_size(self) -> int:
        return len(self.world.neighbors)

    def error(self, message: str, advice: str | None = None) -> KernelError:
        return KernelError(f"rank {self.rank}: {message}", advice=advice)

    def program_id(self, axis: int = 0) -> int:
        per = self.world.pes_per_cube
        return self.rank // per if axis == 1 else self.rank % per

    def num_programs(self, axis: int = 0) -> int:
        per = self.world.pes_per_cube
        return self.world_size // per if axis == 1 else per

    @staticmethod
    def static_range(*bounds: int) -> tuple[int, ...]:
        return tuple(range(*bounds))

    # --- memory and arithmetic -------------------------------------------------------------------

    def emit(self, operation: str, reads: Any, shape: Any, dtype: str, **options: Any) -> MockTile:
        options.pop("stem", None)
        arrays = [r.data for r in reads]
        result = apply(operation, arrays, dtype, **options)
        return MockTile(np.broadcast_to(result, shape).copy(), dtype, self)

    def load(self, ptr: Any, shape: Any, dtype: Any = "f16") -> MockTile:
        extents = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
        element = dtype_name(dtype)
        raw = self.memory.read("hbm", int(ptr), prod(extents) * itemsize(element))
        return MockTile(raw.view(numpy_dtype(element)).reshape(extents), element, self, "hbm", ptr)

    def store(self, ptr: Any, handle: MockTile) -> None:
        self.write("hbm", ptr, handle.data)

    def write(self, space: str, ptr: Any, data: Array) -> None:
        self.memory.write(space, int(ptr), np.ascontiguousarray(data).reshape(-1).view(np.uint8))

    def ref(self, ptr: Any, shape: Any, dtype: Any = "f16") -> Ref:
        return Ref(ptr, tuple(shape), dtype_name(dtype))

    def composite(
        self, op: str = "gemm", a: Any = None, b: Any = None, out_ptr: Any = None, tile: Any = None
    ) -> None:
        if op != "gemm":
            raise self.error(f"there is no composite '{op}'", advice="composites there are: gemm")
        left, right = (self.load(r.pointer, r.shape, r.dtype) for r in (a, b))
        self.store(out_ptr, self.dot(left, right))  # type: ignore[arg-type]

    def read_scalar(self, tile: MockTile, index: Any = 0, *, bound: int) -> int:
        value = int(tile.data[index])
        if not 0 <= value <= bound:
            raise self.error(f"read_scalar gave {value}, outside 0..{bound}", advice="raise the bound")
        return value

    # --- queues ----------------------------------------------------------------------------------

    def direction(self, name: Any) -> Any:
        known = self.world.neighbors[self.rank]
        if isinstance(name, int) and f"d{name}" in known:
            return f"d{name}"
        if name not in known:
            raise IpcqInvalidDirection(
                f"rank {self.rank} has no neighbour in direction {name!r}; "
                f"it has {', '.join(known) or 'none'}"
            )
        return name

    def send(
        self,
        dir: Any,
        src: MockTile | None = None,
        *,
        src_addr: Any = None,
        nbytes: int | None = None,
        shape: Any = None,
        dtype: Any = "f16",
        space: str = "tcm",
    ) -> None:
        dir = self.direction(dir)
        if src is None:
            element = dtype_name(dtype)
            size = nbytes if nbytes is not None else prod(shape) * itemsize(element)
            data = self.memory.read(space, int(src_addr), size).view(numpy_dtype(element))
            data = data.reshape(shape) if shape is not None else data
        else:
            data = src.data
        peer, heard = self.world.arrival(self.rank, dir)
        self.world.block(
            self.rank, lambda: self.world.has_room(peer, heard), f"a free slot towards {dir} (rank {peer})"
        )
        self.world.queue(peer, heard).append(data.copy())

    def recv(
        self,
        dir: Any = None,
        shape: Any = (),
        dtype: Any = "f16",
        *,
        dst_addr: Any = None,
        dst_space: str | None = None,
    ) -> MockTile:
        """The next message from a direction, or from any in turn."""
        dir = None if dir is None else self.direction(dir)
        mine = list(self.world.neighbors[self.rank]) if dir is None else [dir]
        source = f"rank {self.world.neighbors[self.rank][dir]} in direction {dir}" if dir else "any direction"
        waiting = f"a message from {source}"
        self.world.block(self.rank, lambda: any(self.world.queue(self.rank, d) for d in mine), waiting)
        order = mine[self.turn % len(mine) :] + mine[: self.turn % len(mine)] if dir is None else mine
        chosen = next(d for d in order if self.world.queue(self.rank, d))
        if dir is None:
            self.turn = mine.index(chosen) + 1
        data = self.world.queue(self.rank, chosen).popleft()
        element = dtype_name(dtype)
        extents = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
        if shape != () and data.nbytes != prod(extents) * itemsize(element):
            raise self.error(f"expects {element}{list(extents)}, the message has {data.nbytes} bytes")
        data = data.view(numpy_dtype(element)).reshape(extents if shape != () else data.shape)
        if dst_addr is None:
            return MockTile(data, element, self)
        space = dst_space or "hbm"
        self.write(space, dst_addr, data)
        return MockTile(data, element, self, space, dst_addr)

    def recv_async(self, dir: Any = None, shape: Any = (), dtype: Any = "f16", **options: Any) -> RecvFuture:
        if dir is not None:
            self.direction(dir)
        return RecvFuture(dir, shape, dtype_name(dtype), tuple(sorted(options.items())))

    def wait(self, future: RecvFuture) -> MockTile:
        if not isinstance(future, RecvFuture):
            raise self.error("tl.wait takes what tl.recv_async gave")
        return self.recv(future.direction, future.shape, future.dtype, **dict(future.options))


class World:
    """All ranks, their queues, and who waits for what."""

    def __init__(
        self, neighbors: list[dict[str, int]], heard: Any, segments: Any, pes: int, slots: int | None
    ):
        self.neighbors, self.heard, self.segments, self.slots = neighbors, heard, segments, slots
        self.pes_per_cube = pes or len(neighbors)
        self.queues: dict[tuple[int, str], deque[Array]] = {}
        self.waits: dict[int, tuple[Callable[[], bool], str]] = {}
        self.scheduler = getcurrent()

    def queue(self, rank: int, direction: str) -> deque[Array]:
        return self.queues.setdefault((rank, direction), deque())

    def arrival(self, rank: int, direction: str) -> tuple[int, str]:
        return self.neighbors[rank][direction], self.heard(rank, direction)

    def has_room(self, rank: int, direction: str) -> bool:
        return self.slots is None or len(self.queue(rank, direction)) < self.slots

    def block(self, rank: int, ready: Callable[[], bool], what: str) -> None:
        """Give the others a turn until ``ready``."""
        while not ready():
            self.waits[rank] = (ready, what)
            self.scheduler.switch()

    def run(self, workers: list[greenlet]) -> None:
        """Round robin until all have ended; nobody ready means deadlock."""
        alive = list(range(len(workers)))
        while alive:
            moved = [r for r in alive if r not in self.waits or self.waits[r][0]()]
            if not moved:
                lines = [f"  rank {r} waits for {self.waits[r][1]}" for r in alive[:16]]
                message = "\n".join(["deadlock: nothing can proceed", *lines, *self.dump(alive[:16])])
                for rank in alive:
                    workers[rank].throw()
                raise IpcqDeadlock(message, [])
            for rank in moved:
                self.waits.pop(rank, None)
                workers[rank].switch()
            alive = [r for r in alive if not workers[r].dead]

    def dump(self, ranks: list[int]) -> list[str]:
        """How full the queues of the waiting ranks are."""
        rows = [(r, d, len(self.queue(r, d))) for r in ranks for d in self.neighbors[r]]
        return [f"  rank {r} queue {d}: {count} messages" for r, d, count in rows if count]


def run_kernel_in_mock(
    kernel_fn: Callable[..., Any],
    world_size: int,
    topology: Any,
    inputs: Sequence[Any],
    kernel_args: Sequence[Any] = (),
    algo_module: Any = None,
    pes_per_cube: int = 0,
    *,
    n_slots: int | None = None,
) -> list[Array]:
    """Run a kernel ``kernel_fn(t_ptr, *kernel_args, tl=...)`` on every rank; what each rank's part of ``t``
    holds then.

    ``inputs[r]`` is rank r's part of the tensor and lies at ``t_ptr + r * nbytes``. ``topology`` is a name, a
    function (rank, world_size) -> neighbours, or a module's ``neighbors()`` by ``algo_module``.
    ``pes_per_cube`` divides the ranks between the axes of ``program_id``. A direction without a neighbour is
    an ``IpcqInvalidDirection``, no progress an ``IpcqDeadlock``.
    """
    if len(inputs) != world_size:
        raise KernelError(f"{len(inputs)} inputs for {world_size} ranks")
    arrays = [np.ascontiguousarray(a) for a in inputs]
    if len({(a.shape, a.dtype) for a in arrays}) > 1:
        raise KernelError("the inputs of all ranks must have one shape and dtype")
    neighbors = getattr(algo_module, "neighbors", None)
    maps = neighbor_maps(topology, world_size, neighbors)
    data = np.concatenate([a.reshape(-1).view(np.uint8) for a in arrays])
    heard = _arrivals(topology, world_size, neighbors)
    world = World(maps, heard, [(0, data)], pes_per_cube, n_slots)
    workers = []
    for rank in range(world_size):
        context = MockTl(rank, world)
        workers.append(greenlet(lambda tl=context: kernel_fn(0, *kernel_args, tl=tl)))
    world.run(workers)
    parts = np.split(data, world_size)
    return [part.view(arrays[0].dtype).reshape(arrays[0].shape) for part in parts]


def _arrivals(topology: Any, world_size: int, neighbors: Any) -> Callable[[int, str], str]:
    """In which of its directions a peer hears a message."""
    wires = wiring(topology, world_size, neighbors)
    everyone = {"unit": np.arange(world_size)}
    rules = [wires.towards(expr(d))[1] for d in range(len(wires.names))]
    tables = [np.broadcast_to(rule.evaluate(everyone), world_size) for rule in rules]
    return lambda rank, direction: wires.names[int(tables[wires.names.index(direction)][rank])]
