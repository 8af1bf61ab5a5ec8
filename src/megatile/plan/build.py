"""Build plans by hand or from a producer.

>>> b = PlanBuilder("shift", scale="device", units=4)
>>> x = b.tile("x", (8,), "f32", memory="l2", role="inout")
>>> ring = b.channel("ring", source=(unit - 1) % 4, slot_bytes=32, memory="l2")
>>> b.send(ring, x, to=(unit + 1) % 4)
>>> _ = b.receive(ring, (8,), "f32", into=x)
>>> b.finish().units
4

Names of tiles, slots, carried and merged tiles are ``Handle``s; ``handle[i, 0:n]`` is a region of one (an
index counts as an extent of 1, a slice needs a start and a stop).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from keyword import iskeyword
from typing import Any

import numpy as np

from megatile.core.cached import cached
from megatile.core.dtypes import dtype as dtype_name
from megatile.core.errors import Place
from megatile.core.expr import ZERO, Expr, IntLike, Symbol, constant, expr, unit
from megatile.core.frames import PACKAGE, place_of
from megatile.core.operations import OPERATIONS
from megatile.plan import handles
from megatile.plan.handles import (
    BranchScope,
    Handle,
    LoopScope,
    Operand,
    Part,
    Shape,
    carry_of,
    nbytes_of,
    part,
    work_for,
)
from megatile.plan.liveness import with_frees
from megatile.plan.model import (
    Channel,
    Collective,
    Compute,
    Flag,
    Group,
    If,
    Level,
    Loop,
    Plan,
    PlanError,
    ReadScalar,
    Receive,
    ReceiveAny,
    Send,
    Signal,
    Statement,
    Stream,
    Tile,
    Wait,
    Work,
    runs,
)

__all__ = ["Handle", "Part", "PlanBuilder"]
THROUGH = {__file__, handles.__file__, contextlib.__file__}
"""Files whose functions write statements for those who call them."""


class PlanBuilder:
    """Collects tiles, channels and statements; ``finish`` gives the Plan.

    ``grid`` gives coordinates their extents (the first varies fastest); ``units`` is short for one dimension.
    ``place`` (settable) is the source position given to the statements that follow; without one, a statement
    has the line of the user's file that asked for it.
    """

    def __init__(
        self,
        name: str,
        *,
        scale: str,
        units: int | None = None,
        grid: Sequence[int] | None = None,
        placement: Expr = unit,
    ):
        if (units is None) == (grid is None):
            raise PlanError("give either units= or grid=")
        extents = tuple(int(g) for g in grid) if grid is not None else (int(units or 0),)
        self.plan = Plan(name, scale, extents, place=placement)
        self.tiles: dict[str, Tile] = {}
        self.channels: dict[str, Channel] = {}
        self.flags: dict[str, Flag] = {}
        self.groups: dict[str, Group] = {}
        self.streams: list[Stream] = []
        self.body: list[Statement] = []
        self.place: Place | None = None
        self.prefix = ""
        self._counts: dict[str, int] = {}

    @property
    def here(self) -> Place | None:
        """Where the statement at hand was written; what the package itself writes has no line."""
        if self.place is not None:
            return self.place
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename in THROUGH:
            frame = frame.f_back
        return _line(frame.f_code.co_filename, frame.f_lineno)

    # --- declarations ----------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        """Return a name not used before in this plan."""
        stem = self.prefix + stem
        if not stem.isidentifier() or iskeyword(stem):
            raise PlanError(f"'{stem}' cannot be a name: the text form needs an identifier", place=self.here)
        name = stem
        while name in self._counts:
            name = f"{stem}_{self._counts[stem]}"
            self._counts[stem] += 1
        self._counts[name] = 1
        return name

    def tile(
        self,
        name: str,
        shape: Sequence[int],
        dtype: Any,
        *,
        memory: str,
        versions: int = 1,
        role: str = "local",
        owner: Expr = unit,
        owners: int | None = None,
        offset: int | None = None,
        level: str | None = None,
        over: str | None = None,
        block: Sequence[int] = (),
    ) -> Handle:
        """Declare storage; see ``plan.model`` for what the fields mean."""
        name = self.fresh(name)
        extents = tuple(int(s) for s in shape)
        tile = Tile(
            name, extents, dtype_name(dtype), memory, versions, role, owner, owners, offset, level, over,
            tuple(block),
        )  # fmt: skip
        self.tiles[name] = tile
        return Handle(name, extents, tile.dtype, memory)

    def channel(
        self,
        name: str,
        *,
        source: IntLike,
        slot_bytes: int,
        memory: str,
        members: int | Sequence[str] = 1,
        slots: int = 2,
        offset: int | None = None,
        credit_bytes: int | None = None,
        chunk_bytes: int | None = None,
        level: str | None = None,
        installed: bool = False,
    ) -> Channel:
        """Declare a family of queues; ``members`` is a count or the names of directions."""
        names = () if isinstance(members, int) else tuple(members)
        count = members if isinstance(members, int) else len(names)
        where = (slots, slot_bytes, memory, names, offset, credit_bytes, chunk_bytes, level, installed)
        channel = Channel(self.fresh(name), count, expr(source), *where)
        self.channels[channel.name] = channel
        return channel

    def level(
        self,
        name: str,
        *,
        scale: str,
        grid: int | Sequence[int],
        placement: Expr = unit,
        parent: str | None = None,
        slots: int | None = None,
    ) -> str:
        """Declare a level beside the first and return its name: what ``level=`` takes."""
        extents = (grid,) if isinstance(grid, int) else tuple(int(g) for g in grid)
        level = Level(self.fresh(name), scale, extents, placement, parent, slots)
        self.plan = replace(self.plan, levels=(*self.plan.levels, level))
        return level.name

    def flag(self, name: str, members: int = 1, level: str | None = None, *, installed: bool = False) -> Flag:
        return self.flags.setdefault(name, Flag(name, members, level, installed))

    def group(self, name: str, key: IntLike = 0, level: str | None = None) -> Group:
        return self.groups.setdefault(name, Group(name, expr(key), level))

    # --- commands --------------------------------------------------------------------------------

    def add(self, statement: Statement) -> None:
        self.body.append(statement)

    def compute(
        self,
        operation: str,
        write: Operand,
        reads: Sequence[Operand] | Operand = (),
        *,
        engine: str | None = None,
        fresh: bool = False,
        work: Work | None = None,
        by: str = "",
        **attributes: Any,
    ) -> Operand:
        """``write = operation(*reads)``; the engine and the work follow from the operation unless given.
        ``by``: the DMA engine of a copy."""
        here = self.here
        reads = [reads] if isinstance(reads, (Handle, Part)) else reads
        rule = OPERATIONS.find(operation, here)
        if len(reads) != rule.operands:
            raise PlanError(f"{operation} takes {rule.operands} operands, not {len(reads)}", place=here)
        unknown = set(attributes) - set(rule.attributes)
        if unknown:
            raise PlanError(f"{operation} has no attribute '{min(unknown)}'", place=here)
        parts = [part(r) for r in reads]
        target = part(write)
        if work is None:
            work = work_for(operation, target, parts, attributes)
        self.add(
            Compute(
                operation,
                target.region,
                tuple(p.region for p in parts),
                tuple(sorted((name, _plain(value)) for name, value in attributes.items())),
                engine or rule.engine,
                work,
                fresh,
                here,
                by=by,
            )
        )
        return write

    def copy(self, write: Operand, read: Operand, **options: Any) -> Operand:
        return self.compute("copy", write, [read], **options)

    def send(self, channel: Channel, read: Operand, *, to: IntLike, member: IntLike | str = 0) -> None:
        source = part(read)
        index = _member(channel, member)
        self.add(Send(channel.name, expr(to), index, source.region, _moved(source), self.here))

    def receive(
        self,
        channel: Channel,
        shape: Shape,
        dtype: Any,
        *,
        member: IntLike | str = 0,
        into: Operand | None = None,
        fresh: bool = False,
        name: str = "message",
    ) -> Any:
        """Bind and return a handle on the slot, or copy the message ``into`` a tile (and return that)."""
        bound = None if into is not None else self.fresh(name)
        message = Handle(bound or "", tuple(shape), dtype_name(dtype), channel.memory)
        region = part(into).region if into is not None else None
        typed = tuple(map(expr, shape)), message.dtype, region, fresh, _moved(message)
        self.add(Receive(channel.name, _member(channel, member), bound, *typed, self.here))
        return message if into is None else into

    def receive_any(
        self,
        channel: Channel,
        shape: Shape,
        dtype: Any,
        *,
        members: Sequence[int | str] | None = None,
        name: str = "message",
    ) -> tuple[Handle, Symbol]:
        """Receive a message from whichever member has one: a handle on the slot, and the member it came
        from."""
        which = range(channel.members) if members is None else members
        numbers = tuple(channel.names.index(m) if isinstance(m, str) else m for m in which)
        message = Handle(self.fresh(name), tuple(shape), dtype_name(dtype), channel.memory)
        chosen = Symbol(self.fresh("chosen"))
        typed = tuple(map(expr, shape)), message.dtype, None, False, _moved(message)
        self.add(ReceiveAny(channel.name, numbers, message.name, chosen.name, *typed, self.here))
        return message, chosen

    def read_scalar(self, read: Operand, bound: int, name: str = "scalar") -> Symbol:
        """Return a runtime integer from one element of a tile."""
        symbol = Symbol(self.fresh(name))
        self.add(ReadScalar(symbol.name, part(read).region, bound, source=self.here))
        return symbol

    def signal(self, flag: Flag, *, to: IntLike, member: IntLike = 0, amount: IntLike = 1) -> None:
        self.add(Signal(flag.name, expr(to), expr(member), expr(amount), self.here))

    def wait(self, flag: Flag, value: IntLike, *, member: IntLike = 0) -> None:
        self.add(Wait(flag.name, expr(value), expr(member), self.here))

    def barrier(self, group: Group) -> None:
        self.add(Collective("barrier", group.name, source=self.here))

    def collective(
        self,
        kind: str,
        group: Group,
        read: Operand,
        write: Operand,
        *,
        reduction: str = "sum",
        root: IntLike = 0,
    ) -> None:
        """Add an operation that the network itself does for a group: "all_reduce" or "broadcast"."""
        source, target = part(read), part(write)
        how = reduction, expr(root), _moved(source)
        self.add(Collective(kind, group.name, source.region, target.region, *how, self.here))

    # --- structure -------------------------------------------------------------------------------

    @contextmanager
    def collect(self) -> Iterator[list[Statement]]:
        """Statements added inside go to the list given."""
        outer, self.body = self.body, []
        try:
            yield self.body
        finally:
            self.body = outer

    @contextmanager
    def loop(
        self, start: IntLike, stop: IntLike, step: IntLike = 1, *, index: str = "k", **carried: Any
    ) -> Iterator[LoopScope]:
        """``for index in range(start, stop, step)`` carrying the named tiles and integers."""
        place = self.here
        symbol = Symbol(self.fresh(index))
        names: dict[str, Handle | Symbol] = {}
        for name, value in carried.items():
            inside = self.fresh(name)
            names[name] = replace(value, name=inside) if isinstance(value, Handle) else Symbol(inside)
        scope = LoopScope(symbol, names)
        with self.collect() as body:
            yield scope
        carries = tuple(carry_of(scope, name, value) for name, value in carried.items())
        loop = Loop(symbol.name, expr(start), expr(stop), tuple(body), expr(step), carries, (), place)
        self.add(loop)

    @contextmanager
    def when(self, condition: IntLike) -> Iterator[BranchScope]:
        """``If``: the body of the ``with``; ``scope.otherwise()`` is the other branch, ``scope.merge`` joins
        values.
        """
        scope = BranchScope(self, expr(condition), self.here)
        with self.collect() as body:
            yield scope
        scope.sides.append(tuple(body))
        self.add(If(scope.condition, tuple(body), (), (), scope.place))

    @contextmanager
    def stream(self, units: Sequence[int] | range | None = None, level: str | None = None) -> Iterator[None]:
        """The statements inside are for these units (all, if not said) of a level."""
        with self.collect() as body:
            yield
        chosen = range(self.plan.instances(level)) if units is None else units
        self.streams.append(Stream(runs(chosen), with_frees(tuple(body)), level))

    def finish(self) -> Plan:
        """Return the plan. Statements outside any ``stream`` are for all units."""
        streams = list(self.streams)
        if self.body and any(stream.level is None for stream in streams):
            raise PlanError("some statements are inside streams and some outside")
        if self.body or not streams:
            streams = [*streams, Stream(((0, self.plan.units, 1),), with_frees(tuple(self.body)))]
        return replace(
            self.plan,
            tiles=tuple(self.tiles.values()),
            channels=tuple(self.channels.values()),
            flags=tuple(self.flags.values()),
            groups=tuple(self.groups.values()),
            streams=tuple(streams),
        )


@cached(most=4096)
def _line(file: str, line: int) -> Place | None:
    return None if file.startswith(PACKAGE) else place_of(file, line)


def _plain(value: Any) -> Any:
    """Return an attribute as plain data: NumPy numbers and constant expressions become Python numbers."""
    known = constant(value) if isinstance(value, Expr) else None
    if known is not None:
        return known
    return value.item() if isinstance(value, np.generic) else value


def _moved(operand: Operand) -> Work:
    """Return the work of what only moves."""
    return Work(ZERO, nbytes_of(operand), operand.dtype)


def _member(channel: Channel, member: IntLike | str) -> Expr:
    if isinstance(member, str):
        if member not in channel.names:
            raise PlanError(f"channel '{channel.name}' has no member '{member}'")
        return expr(channel.names.index(member))
    return expr(member)
