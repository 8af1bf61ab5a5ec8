"""The ``tl`` argument of a kernel while it is read: each call becomes statements of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from megatile.core.dtypes import dtype as dtype_name, itemsize
from megatile.core.expr import ONE, ZERO, Expr, divide, expr, simplify, split, symbols, unit
from megatile.language.kernel.blocks import flat_region, pieces_of, shaped_as, sub_block
from megatile.language.kernel.directions import Wiring
from megatile.language.kernel.math import Math
from megatile.language.kernel.reader import Reader
from megatile.language.kernel.symbols import NoBlockError, Sym, to_expr, wrap
from megatile.language.kernel.values import Pointer, TensorHandle, TileRef
from megatile.plan.handles import Handle, Part
from megatile.plan.model import Channel

QUEUES = "ipcq"
MAX_TRIED = 1 << 14
"""Units for which an expression is tried one by one."""


class Settings:
    """Where things lie and how the queues are: what surrounds a kernel."""

    def __init__(
        self,
        grid: tuple[int, ...],
        wires: Wiring,
        *,
        memory: str,
        scratch: str,
        buffer_kind: str,
        n_slots: int,
        slot_size: int | None,
        split: bool,
    ):
        self.grid, self.wires = grid, wires
        self.memory, self.scratch, self.buffer_kind = memory, scratch, buffer_kind
        self.n_slots, self.slot_size, self.split = n_slots, slot_size, split
        self.units = prod(grid)


class Tl(Math):
    """The ``tl`` argument of a kernel while it is read."""

    def __init__(self, reader: Reader, settings: Settings, channel: Channel, number: int | None):
        self.reader, self.settings, self.channel, self.number = reader, settings, channel, number

    @property
    def here(self) -> Any:
        return self.reader.here

    # --- who am I --------------------------------------------------------------------------------

    def program_id(self, axis: int = 0) -> Any:
        """My coordinate along an axis (0 varies fastest)."""
        grid = self.settings.grid
        if not 0 <= axis < max(2, len(grid)):
            raise self.error(f"there is no axis {axis}; the grid is {grid}")
        if axis >= len(grid):
            return 0
        me: Expr = unit if self.number is None else expr(self.number)
        whole = me // prod(grid[:axis])
        return wrap(whole if axis == len(grid) - 1 else whole % grid[axis], self.reader)

    def num_programs(self, axis: int = 0) -> int:
        return self.settings.grid[axis] if axis < len(self.settings.grid) else 1

    @property
    def rank(self) -> Any:
        return wrap(unit if self.number is None else expr(self.number), self.reader)

    @property
    def world_size(self) -> int:
        return self.settings.units

    # --- memory ----------------------------------------------------------------------------------

    def at_address(self, handle: TensorHandle) -> TileRef:
        extents, element = self.extents(handle.shape), dtype_name(handle.dtype)
        source = self.memory_at(handle.addr, extents, element, handle.space)
        return self.emit("copy", [source], extents, element, stem="load")

    def put(self, ptr: Any, tile: Any) -> None:
        target = self.memory_at(ptr, tile.shape, tile.dtype, write=True)
        self.reader.plan.copy(target, tile.handle())

    def memory_at(
        self, ptr: Any, shape: tuple[int, ...], element: str, space: str | None = None, write: bool = False
    ) -> Part:
        """Return the region at an address: of a tensor, or raw memory that is a tile of its own for each
        address."""
        if isinstance(ptr, Pointer):
            return self.tensor_region(ptr, shape, element)
        if not isinstance(ptr, (int, Sym)):
            raise self.error(f"{ptr!r} is not an address")
        memory, address = space or self.settings.memory, simplify(to_expr(ptr))
        return self.reader.raw.block(self, address, prod(shape), element, memory, write)

    def tensor_region(self, ptr: Pointer, shape: tuple[int, ...], element: str) -> Part:
        tensor = ptr.tensor
        if element != tensor.dtype:
            raise self.error(
                f"tensor '{tensor.name}' holds {tensor.dtype}, not {element}",
                advice=f"load it with dtype='{tensor.dtype}', or give the host's array as {element}",
            )
        ranges = self.reader.ranges
        index, odd = divide(to_expr(ptr.offset), itemsize(element), ranges)
        # Multiples of a part's size choose the owner; that the rest stays inside the part is checked when it
        # runs.
        me = unit if self.number is None else expr(self.number)
        number, first = (me, index) if tensor.replicated else split(index, prod(tensor.shape), ranges)
        owner = me if tensor.replicated else tensor.owner(number, me)
        if odd != ZERO:
            raise self.error(f"address {ptr!r} is not a multiple of the element size of {element}")
        handle = Handle(tensor.name, tensor.shape, element, tensor.memory or self.settings.memory)
        region = flat_region(tensor, first, prod(shape), ranges)
        if region is None:
            raise NoBlockError(
                f"{prod(shape)} elements at {ptr!r} are not a block of tensor '{tensor.name}' {tensor.shape}",
                to_expr(ptr.offset),
                self.here,
            )
        own = self.settings.units == 1 or simplify(owner) == me or self.always(owner, me)
        return Part(handle, replace(region, at=None if own else owner))

    def always(self, owner: Expr, me: Expr) -> bool:
        """Return whether an expression of the unit's number is that number, for all of not too many units."""
        if self.settings.units > MAX_TRIED or symbols(owner) - {"unit"} or symbols(me) - {"unit"}:
            return False
        units = {"unit": np.arange(self.settings.units)}
        return bool(np.all(np.asarray(owner.evaluate(units)) == np.asarray(me.evaluate(units))))

    def emit(
        self,
        operation: str,
        reads: Sequence[Any],
        shape: tuple[int, ...],
        dtype: str,
        *,
        stem: str | None = None,
        **attributes: Any,
    ) -> TileRef:
        """Emit a command whose result is a new tile in scratch memory."""
        plan, memory = self.reader.plan, self.settings.scratch
        versions = 2 if self.reader.depth else 1
        target = plan.tile(stem or operation, shape, dtype, memory=memory, versions=versions)
        sources = [r.handle() if isinstance(r, TileRef) else r for r in reads]
        plan.compute(operation, target, sources, fresh=True, **attributes)
        return TileRef(target.name, shape, dtype, memory, self)

    def read_scalar(self, tile: TileRef, index: Any = 0, *, bound: int) -> Any:
        """Return one element of an integer tile as a number: for trip counts, peers, indices and branches."""
        position = index if isinstance(index, tuple) else (index,)
        parts = tuple(map(to_expr, position))
        region = tile.handle()[tuple(slice(p, p + ONE) for p in parts)]
        symbol = self.reader.plan.read_scalar(region, bound)
        self.reader.ranges[symbol.name] = (0, bound)
        return Sym(symbol, self.reader)

    def composite(
        self, op: str = "gemm", a: Any = None, b: Any = None, out_ptr: Any = None, tile: Any = (64, 64, 64)
    ) -> None:
        """Run an operation on tensors in memory, cut into tiles and streamed so that they overlap."""
        from megatile.language.kernel.composite import stream_gemm

        if op != "gemm":
            raise self.error(f"there is no composite '{op}'", advice="composites: gemm")
        stream_gemm(self, a, b, out_ptr, self.extents(tile))

    # --- queues ----------------------------------------------------------------------------------

    def direction(self, name: Any) -> Expr:
        """Return the number of a direction; counted directions may be symbolic."""
        return self.settings.wires.index(name.expr if isinstance(name, Sym) else name, self.here)

    def send(
        self,
        dir: Any,
        src: TileRef | TensorHandle | None = None,
        *,
        src_addr: Any = None,
        nbytes: int | None = None,
        shape: Any = None,
        dtype: Any = "f16",
        space: str = "tcm",
    ) -> None:
        """Send a tile (or memory at ``src_addr``) to the neighbour in a direction; blocks while its queue is
        full.
        """
        wires = self.settings.wires
        direction = self.direction(dir)
        wires.check_use(dir, sending=True, place=self.here)
        src = self.sent(src, src_addr, nbytes, shape, dtype, space)
        extents, element = self.extents(src.shape), dtype_name(src.dtype)
        source: Handle | Part
        if isinstance(src, TileRef):
            source = src.handle()
        else:
            source = self.memory_at(src.addr, extents, element, src.space)
        to, member = wires.towards(direction)
        for start, piece in self.pieces(extents, element):
            part = source if piece == extents else sub_block(source, start, piece)
            self.reader.plan.send(self.channel, part, to=to, member=member)

    def recv(
        self,
        dir: Any = None,
        shape: Any = (),
        dtype: Any = "f16",
        *,
        dst_addr: Any = None,
        dst_space: str | None = None,
    ) -> TileRef:
        """Receive from a direction, or from any; the tile is the queue's slot, or a copy at ``dst_addr``."""
        extents, element = self.extents(shape), dtype_name(dtype)
        number = None if dir is None else self.direction(dir)
        self.settings.wires.check_use(dir, sending=False, place=self.here)
        if dst_addr is not None:
            return self.receive_into(number, extents, element, dst_addr, dst_space)
        pieces = self.pieces(extents, element)
        if len(pieces) > 1:
            return self.receive_pieces(number, extents, element, pieces)
        plan = self.reader.plan
        if number is None:
            handle, _ = plan.receive_any(self.channel, extents, element, name="recv")
        else:
            handle = plan.receive(self.channel, extents, element, member=number, name="recv")
        return TileRef(handle.name, extents, element, handle.memory, self)

    def receive_into(
        self, number: Expr | None, extents: tuple[int, ...], element: str, address: Any, space: str | None
    ) -> TileRef:
        target = self.memory_at(address, extents, element, space, write=True)
        plan = self.reader.plan
        for start, piece in self.pieces(extents, element):
            part = target if piece == extents else sub_block(shaped_as(target, extents), start, piece)
            if number is None:
                handle, _ = plan.receive_any(self.channel, piece, element, name="recv")
                plan.copy(part, handle)
            else:
                plan.receive(self.channel, piece, element, member=number, into=part)
        where = {"addr": address, "space": space or self.settings.memory}
        if target.handle.shape == extents and not isinstance(address, Pointer):
            return replace(TileRef(target.handle.name, extents, element, target.handle.memory, self), **where)
        return replace(self.emit("copy", [target], extents, element, stem="received"), **where)

    def receive_pieces(
        self, number: Expr | None, extents: tuple[int, ...], element: str, pieces: list[Any]
    ) -> TileRef:
        plan, memory = self.reader.plan, self.settings.scratch
        target = plan.tile("recv", extents, element, memory=memory, versions=2 if self.reader.depth else 1)
        for count, (start, piece) in enumerate(pieces):
            part = sub_block(target, start, piece)
            if number is None:
                raise self.error("a message in pieces cannot be received from any direction")
            plan.receive(self.channel, piece, element, member=number, into=part, fresh=count == 0)
        return TileRef(target.name, extents, element, memory, self)

    def pieces(self, shape: tuple[int, ...], element: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return a message as the blocks that fit a slot: (start, shape) each."""
        pieces = pieces_of(self, shape, element, self.settings.slot_size, self.settings.split)
        largest = max(prod(piece) for _, piece in pieces) * itemsize(element)
        self.reader.largest_message = max(self.reader.largest_message, largest)
        return pieces
