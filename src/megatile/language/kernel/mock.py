"""Run a ``tl`` kernel with no plan and no machine: every rank is a coroutine, tiles are NumPy arrays.

    outputs = run_kernel_in_mock(kernel, 4, "ring_1d", [np.ones(8, "f2")] * 4, (8,))

The function runs as plain Python, unrewritten, so this is a second opinion on what the reader makes of it.
What went through queues and memory is recorded; ``record.py`` finds deadlocks for want of slots, messages
that nobody receives and races, with the errors that a plan gives.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from megatile.core.dtypes import dtype as dtype_name, itemsize, numpy_dtype
from megatile.core.errors import MegatileError, Place
from megatile.core.expr import expr
from megatile.core.frames import caller
from megatile.core.operations import apply
from megatile.core.quantities import whole
from megatile.language.kernel.blocks import pieces_of
from megatile.language.kernel.context import QUEUES
from megatile.language.kernel.directions import IpcqDeadlock, Wiring, neighbor_maps, wiring
from megatile.language.kernel.math import Math
from megatile.language.kernel.mock_record import Event, Memory, Message, Record
from megatile.language.kernel.symbols import INSIDE, PYTHON_ERRORS, KernelError, explained, raised_at
from megatile.language.kernel.to_plan import read_kernel
from megatile.language.kernel.values import Ref, Tensor, TensorHandle, TileRef
from megatile.plan.check import check
from megatile.plan.model import Channel, PlanError, ReadScalar, ReceiveAny, statements

Array = Any
TENSOR = 1 << 52
"""Where the tensor lies: beyond every raw address."""


class Refused(BaseException):
    """A rank did what no plan may do; the record says what."""


class MockTile(TileRef):
    """A tile that has its contents."""

    data: Array
    message: Message | None
    """The message in whose slot the tile lies."""

    def __init__(
        self,
        data: Array,
        dtype: str,
        tl: Any,
        space: str = "tcm",
        addr: Any = None,
        message: Message | None = None,
    ):
        values = {"name": "tile", "shape": tuple(data.shape), "dtype": dtype, "space": space, "tl": tl}
        for key, value in (values | {"addr": addr, "data": data, "message": message}).items():
            object.__setattr__(self, key, value)

    def __del__(self) -> None:
        """The kernel has no name for the tile any more."""
        message = getattr(self, "message", None)
        if message is not None:
            self.tl.world.record.add(self.tl.rank, Event("end", None, 0, message=message))


class MockTl(Math):
    """The ``tl`` argument of a kernel that runs for real."""

    def __init__(self, rank: int, world: World):
        self.rank, self.world = rank, world
        self.memory = Memory(TENSOR, world.data)
        self.turn = 0

    @property
    def here(self) -> Place | None:
        return caller(*INSIDE)

    @property
    def world_size(self) -> int:
        return len(self.world.neighbors)

    def note(self, kind: str, nbytes: int, **details: Any) -> Event:
        """Write down what this rank does."""
        return self.world.record.add(self.rank, Event(kind, self.here, nbytes, **details))

    def use(self, *tiles: Any) -> None:
        for tile in tiles:
            if isinstance(tile, MockTile) and tile.message is not None:
                self.note("use", tile.message.nbytes, message=tile.message)

    def program_id(self, axis: int = 0) -> int:
        """Return the PE in its cube (0), the cube in its SIP (1), the SIP (2)."""
        return self.rank // prod(self.world.grid[:axis]) % self.num_programs(axis)

    def num_programs(self, axis: int = 0) -> int:
        if not 0 <= axis <= 2:
            raise self.error(f"there is no axis {axis}; axes are PE, cube and SIP")
        return self.world.grid[axis]

    # --- memory and arithmetic -------------------------------------------------------------------

    def emit(self, operation: str, reads: Any, shape: Any, dtype: str, **options: Any) -> MockTile:
        options.pop("stem", None)
        self.use(*reads)
        result = apply(operation, [r.data for r in reads], dtype, **options)
        return MockTile(np.broadcast_to(result, shape).copy(), dtype, self)

    def put(self, ptr: Any, tile: Any) -> None:
        self.use(tile)
        self.write("hbm", ptr, tile.data, tile.dtype)

    def at_address(self, handle: TensorHandle) -> MockTile:
        element, space, shape = dtype_name(handle.dtype), handle.space or "hbm", self.extents(handle.shape)
        raw = self.read(space, handle.addr, prod(shape) * itemsize(element), element)
        return MockTile(raw.view(numpy_dtype(element)).reshape(shape), element, self, space, handle.addr)

    def read(self, space: str, ptr: Any, nbytes: int, element: str) -> Array:
        self.touch("read", ptr, nbytes, element)
        return self.memory.read(space, int(ptr), nbytes)

    def write(self, space: str, ptr: Any, data: Array, element: str) -> None:
        self.touch("write", ptr, data.nbytes, element)
        self.memory.write(space, int(ptr), np.ascontiguousarray(data).reshape(-1).view(np.uint8))

    def touch(self, kind: str, ptr: Any, nbytes: int, element: str) -> None:
        """Note an access to the tensor; an address near it must be a block of it."""
        offset, part = int(ptr) - TENSOR, self.world.record.part
        if offset < 0:
            return
        if element != self.world.element:
            raise self.error(f"tensor 't' holds {self.world.element}, not {element}")
        owner, start = divmod(offset, max(1, part))
        if start % itemsize(element):
            raise self.error(f"address <t + {offset}> is not a multiple of the element size of {element}")
        if owner >= self.world_size or start + nbytes > part:
            first, last = (place // itemsize(element) for place in (start, start + nbytes))
            raise PlanError(
                f"'t' of extents {self.world.shape} has no elements {first}:{last}",
                place=self.here,
            )
        self.note(kind, nbytes, owner=owner, start=start)

    def composite(
        self, op: str = "gemm", a: Any = None, b: Any = None, out_ptr: Any = None, tile: Any = None
    ) -> None:
        if op != "gemm":
            raise self.error(f"there is no composite '{op}'", advice="composites: gemm")
        left, right = (self.load(r.pointer, r.shape, r.dtype) if isinstance(r, Ref) else r for r in (a, b))
        self.store(out_ptr, self.dot(left, right))

    def read_scalar(self, tile: MockTile, index: Any = 0, *, bound: int) -> int:
        self.use(tile)
        value = int(tile.data[index])
        if not 0 <= value <= bound:
            raise PlanError(
                f"read_scalar gave {value}, outside 0..{bound}", place=self.here, advice="raise the bound"
            )
        return value

    # --- queues ----------------------------------------------------------------------------------

    def direction(self, name: Any) -> str:
        """Return a direction by its name; counted ones also by number."""
        wires = self.world.wires
        if type(name) is str and name in wires.names:
            return name
        return wires.names[int(wires.index(name, self.here).evaluate({}))]

    def send(
        self,
        dir: Any,
        src: MockTile | TensorHandle | None = None,
        *,
        src_addr: Any = None,
        nbytes: int | None = None,
        shape: Any = None,
        dtype: Any = "f16",
        space: str = "tcm",
    ) -> None:
        dir = self.direction(dir)
        self.world.wires.check_use(dir, sending=True, place=self.here)
        given = self.sent(src, src_addr, nbytes, shape, dtype, space)
        tile: Any = self.at_address(given) if isinstance(given, TensorHandle) else given
        queue = self.world.arrival(self.rank, dir)
        for _, piece in self.pieces(tile.shape, tile.dtype):
            self.note("send", prod(piece) * itemsize(tile.dtype), queue=queue, message=tile.message)
        if queue[0] < 0:
            raise Refused
        self.world.queues[queue].append(tile.data.copy())

    def pieces(self, shape: tuple[int, ...], element: str) -> Any:
        return pieces_of(self, tuple(shape), element, self.world.slot_size, self.world.split)

    def recv(
        self,
        dir: Any = None,
        shape: Any = (),
        dtype: Any = "f16",
        *,
        dst_addr: Any = None,
        dst_space: str | None = None,
    ) -> MockTile:
        """Receive the next message from a direction, or from any in turn."""
        wires, queues, element = self.world.wires, self.world.queues, dtype_name(dtype)
        extents = self.extents(shape)
        mine = list(self.world.neighbors[self.rank]) if dir is None else [self.direction(dir)]
        self.world.wires.check_use(dir, sending=False, place=self.here)
        pieces = self.pieces(extents, element)
        size = prod(pieces[0][1]) * itemsize(element)
        first = (self.rank, wires.names.index(mine[0]) if mine else 0)
        event = self.note("receive" if dir is not None else "any", size, queue=first)
        self.world.block(self.rank, lambda: any(queues[self.rank, wires.names.index(d)] for d in mine))
        order = mine[self.turn % len(mine) :] + mine[: self.turn % len(mine)] if dir is None else mine
        chosen = next(d for d in order if queues[self.rank, wires.names.index(d)])
        if dir is None:
            self.turn = mine.index(chosen) + 1
        event.queue = queue = (self.rank, wires.names.index(chosen))
        event.message, event.copied = self.world.record.message(size), len(pieces) > 1 or dst_addr is not None
        for _, piece in pieces[1:]:
            more = prod(piece) * itemsize(element)
            self.note("receive", more, queue=queue, message=self.world.record.message(more), copied=True)
        data = queues[queue].popleft()
        if data.nbytes != prod(extents) * itemsize(element):
            raise Refused
        data = data.view(numpy_dtype(element)).reshape(extents)
        if dst_addr is None:
            return MockTile(data, element, self, message=None if event.copied else event.message)
        space = dst_space or "hbm"
        self.write(space, dst_addr, data, element)
        return MockTile(data, element, self, space, dst_addr)


class World:
    """All ranks, their queues, and who waits for what."""

    def __init__(self, wires: Wiring, grid: tuple[int, int, int], inputs: list[Array], slots: int | None):
        units = prod(grid)
        self.grid = grid
        self.wires = wires
        self.neighbors = neighbor_maps(wires, units)
        self.heard = _arrivals(wires, units)
        self.element, self.shape = dtype_name(inputs[0].dtype), inputs[0].shape
        self.data = np.concatenate([a.reshape(-1).view(np.uint8) for a in inputs])
        self.slots = slots
        self.slot_size: int | None = None
        self.split = False
        channel = Channel(QUEUES, max(1, len(wires.names)), wires.source(), slots or 1, 1, "tcm", wires.names)
        self.record = Record(channel, inputs[0].nbytes, [[] for _ in range(units)])
        self.queues: dict[tuple[int, int], deque[Array]] = defaultdict(deque)
        self.waits: dict[int, Callable[[], bool]] = {}
        self.scheduler = getcurrent()

    def arrival(self, rank: int, direction: str) -> tuple[int, int]:
        """Return the peer in a direction (-1: none), and the number of its direction in which it hears us."""
        return self.neighbors[rank].get(direction, -1), self.heard(rank, direction)

    def block(self, rank: int, ready: Callable[[], bool]) -> None:
        """Give the others a turn until ``ready``."""
        while not ready():
            self.waits[rank] = ready
            self.scheduler.switch()

    def run(self, workers: list[greenlet]) -> None:
        """Round robin until all have ended, or nobody can move; then look at what was recorded."""
        alive = list(range(len(workers)))
        moved = alive
        try:
            while moved:
                for rank in moved:
                    self.waits.pop(rank, None)
                    workers[rank].switch()
                alive = [r for r in alive if not workers[r].dead]
                moved = [r for r in alive if r not in self.waits or self.waits[r]()]
        except Refused:
            alive = [r for r in alive if not workers[r].dead]
            refused = True
        else:
            refused = bool(alive)
        finally:
            for rank in alive:
                workers[rank].throw()
        self.record.verify(bounded=self.slots is not None)
        if refused:
            raise IpcqDeadlock(f"deadlock: ranks {alive} wait forever", [])


def run_kernel_in_mock(
    kernel_fn: Callable[..., Any],
    world_size: int,
    topology: Any,
    inputs: Sequence[Any],
    kernel_args: Sequence[Any] = (),
    algo_module: Any = None,
    pes_per_cube: int = 0,
    cubes_per_sip: int = 0,
    *,
    n_slots: int | None = 4,
    slot_size: int | None = None,
    split: bool = False,
) -> list[Array]:
    """Run a kernel ``kernel_fn(t_ptr, *kernel_args, tl=...)`` on every rank; what each rank's part of ``t``
    holds then.

    ``inputs[r]`` is rank r's part of the tensor and lies at ``t_ptr + r * nbytes``. ``topology`` is a name, a
    function (rank, world_size) -> neighbours, or a module's ``neighbors()`` by ``algo_module``.
    ``pes_per_cube`` and ``cubes_per_sip`` divide the ranks between the axes of ``program_id``: PE in its
    cube, cube in its SIP, SIP; without them all ranks are PEs of one cube. Queues are those of
    ``read_kernel`` (``n_slots=None``: without bounds), and so are the errors: a direction without a neighbour
    is an ``IpcqInvalidDirection``, no progress an ``IpcqDeadlock``.
    """
    if not callable(kernel_fn) or whole(world_size) is None or not hasattr(inputs, "__len__"):
        given = ", ".join(type(x).__name__ for x in (kernel_fn, world_size, inputs))
        raise KernelError(f"expected a kernel, a number of ranks and their inputs, got {given}")
    if len(inputs) != world_size:
        raise KernelError(f"{len(inputs)} inputs for {world_size} ranks")
    if world_size < 1:
        raise KernelError(f"kernel '{kernel_fn.__name__}' needs at least one rank, not {world_size}")
    arrays = [np.ascontiguousarray(a) for a in inputs]
    if len({(a.shape, a.dtype) for a in arrays}) > 1:
        raise KernelError("the inputs of all ranks must have one shape and dtype")
    wires = wiring(topology, world_size, getattr(algo_module, "neighbors", None))
    pes = pes_per_cube or world_size
    cubes = cubes_per_sip or max(1, world_size // max(1, pes))
    if pes < 1 or cubes < 1 or world_size % (pes * cubes):
        raise KernelError(
            f"{world_size} ranks are not whole SIPs of {cubes} cubes with {pes} PEs each",
            advice="let pes_per_cube * cubes_per_sip divide the number of ranks",
        )
    world = World(wires, (pes, cubes, world_size // (pes * cubes)), arrays, n_slots)
    world.slot_size, world.split = slot_size, split
    world.run(
        [greenlet(partial(_worker, kernel_fn, kernel_args, MockTl(r, world))) for r in range(world_size)]
    )
    if n_slots is not None and not world.record.replays(bounded=True, to_the_end=True):
        _as_a_plan(kernel_fn, kernel_args, world, topology, algo_module)
    parts = np.split(world.data, world_size)
    return [part.view(arrays[0].dtype).reshape(arrays[0].shape) for part in parts]


def _as_a_plan(
    kernel_fn: Callable[..., Any], arguments: Sequence[Any], world: World, topology: Any, algo_module: Any
) -> None:
    """A name holds its message as long as it may be used, also where this run did not use it. Where that
    matters, the kernel is read as a plan (if it can be, and does not depend on data), which knows."""
    assert world.slots is not None
    try:
        plan = read_kernel(
            kernel_fn,
            [Tensor("t", world.shape, world.element), *arguments],
            grid=world.grid,
            topology=topology,
            neighbors=getattr(algo_module, "neighbors", None),
            n_slots=world.slots,
            slot_size=world.slot_size,
            split=world.split,
        )
        body = [s for stream in plan.streams for s in statements(stream.body)]
        if not any(isinstance(s, (ReadScalar, ReceiveAny)) for s in body):
            check(plan)
    except IpcqDeadlock:
        raise
    except MegatileError:
        return


def _worker(kernel_fn: Callable[..., Any], kernel_args: Sequence[Any], tl: MockTl) -> None:
    try:
        kernel_fn(TENSOR, *kernel_args, tl=tl)
    except PYTHON_ERRORS as error:
        if isinstance(error, MegatileError):
            raise
        raise explained(error, raised_at(error), tl) from error


def _arrivals(wires: Wiring, world_size: int) -> Callable[[int, str], int]:
    """In which of its directions a peer hears a message."""
    everyone = {"unit": np.arange(world_size)}
    rules = [wires.towards(expr(d))[1] for d in range(len(wires.names))]
    tables = [np.broadcast_to(rule.evaluate(everyone), world_size) for rule in rules]
    return lambda rank, direction: int(tables[wires.names.index(direction)][rank])
