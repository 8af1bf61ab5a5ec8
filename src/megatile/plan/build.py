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

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from megatile.core.dtypes import dtype as dtype_name
from megatile.core.dtypes import itemsize
from megatile.core.errors import Place
from megatile.core.operations import OPERATIONS, work_of
from megatile.plan.expr import ONE, ZERO, Expr, IntLike, Symbol, expr, unit
from megatile.plan.liveness import with_frees
from megatile.plan.model import (
    CarryInt,
    CarryTile,
    Channel,
    Collective,
    Compute,
    Flag,
    Group,
    If,
    Loop,
    MergeInt,
    MergeTile,
    Plan,
    PlanError,
    ReadScalar,
    Receive,
    ReceiveAny,
    Region,
    Send,
    Signal,
    Statement,
    Stream,
    Tile,
    Wait,
    Work,
)

Shape = tuple[IntLike, ...]


@dataclass(frozen=True)
class Handle:
    """A name of a tile in a stream, with what is needed to use it."""

    name: str
    shape: Shape
    dtype: str
    memory: str

    def __getitem__(self, index: Any) -> Part:
        items = index if isinstance(index, tuple) else (index,)
        start: list[Expr] = []
        shape: list[Expr] = []
        for axis, extent in enumerate(self.shape):
            item = items[axis] if axis < len(items) else slice(None)
            low, length = _interval(item, extent)
            start.append(low)
            shape.append(length)
        if len(items) > len(self.shape):
            raise PlanError(f"{self.name} has {len(self.shape)} dimensions, not {len(items)}")
        return Part(self, Region(self.name, tuple(start), tuple(shape)))

    def whole(self) -> Part:
        return Part(self, Region(self.name))

    def at(self, owner: IntLike) -> Part:
        """Another owner's copy (a put or a get)."""
        return Part(self, Region(self.name, at=expr(owner)))


def _interval(item: Any, extent: IntLike) -> tuple[Expr, Expr]:
    if not isinstance(item, slice):
        return expr(item), ONE
    low = expr(0 if item.start is None else item.start)
    high = expr(extent if item.stop is None else item.stop)
    return low, high - low


@dataclass(frozen=True)
class Part:
    """A region together with the handle it belongs to."""

    handle: Handle
    region: Region

    @property
    def shape(self) -> Shape:
        return self.region.shape or self.handle.shape

    @property
    def dtype(self) -> str:
        return self.handle.dtype

    def at(self, owner: IntLike) -> Part:
        return replace(self, region=replace(self.region, at=expr(owner)))


Operand = Handle | Part


def part(operand: Operand) -> Part:
    return operand.whole() if isinstance(operand, Handle) else operand


def nbytes_of(operand: Operand) -> Expr:
    return expr(prod(operand.shape)) * itemsize(operand.dtype)


class LoopScope:
    """The inside of a loop: its ``index``, and the carried names as attributes; ``next`` says what they
    become.
    """

    def __init__(self, index: Symbol, carried: dict[str, Handle | Symbol]):
        self.index = index
        self.carried = carried
        self.following: dict[str, Operand | IntLike] = {}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.carried[name]
        except KeyError:
            raise AttributeError(f"the loop carries no '{name}'") from None

    def next(self, **values: Any) -> None:
        """What carried names mean in the next iteration; those not mentioned stay."""
        for name, value in values.items():
            if name not in self.carried:
                raise PlanError(f"the loop carries no '{name}'")
            self.following[name] = value


class BranchScope:
    """An ``If`` under construction; see ``PlanBuilder.when``."""

    def __init__(self, builder: PlanBuilder, condition: Expr, place: Place | None):
        self.builder, self.condition, self.place = builder, condition, place
        self.sides: list[tuple[Statement, ...]] = []
        self.merges: list[MergeTile | MergeInt] = []

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        with self.builder.collect() as body:
            yield
        self.sides.append(tuple(body))
        self._rewrite()

    def merge(self, then: Any, orelse: Any, name: str | None = None) -> Any:
        """A name that means ``then`` after the one branch and ``orelse`` after the other."""
        if isinstance(then, Handle) and isinstance(orelse, Handle):
            if (then.shape, then.dtype) != (orelse.shape, orelse.dtype):
                raise PlanError(f"{then.name} and {orelse.name} differ in shape or dtype", place=self.place)
            merged = replace(then, name=self.builder.fresh(name or then.name))
            self.merges.append(MergeTile(merged.name, then.name, orelse.name))
            self._rewrite()
            return merged
        symbol = Symbol(self.builder.fresh(name or "merged"))
        self.merges.append(MergeInt(symbol.name, expr(then), expr(orelse)))
        self._rewrite()
        return symbol

    def _rewrite(self) -> None:
        then, orelse = (*self.sides, (), ())[:2]
        statement = If(self.condition, then, orelse, tuple(self.merges), self.place)
        self.builder.body[-1] = statement


class PlanBuilder:
    """Collects tiles, channels and statements; ``finish`` gives the Plan.

    ``grid`` gives coordinates their extents (the first varies fastest); ``units`` is short for one dimension.
    ``place`` (settable) is the source position given to the statements that follow.
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

    # --- declarations ----------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        """A name not used before in this plan."""
        stem = self.prefix + stem
        taken = self._counts.get(stem)
        self._counts[stem] = (taken or 0) + 1
        return stem if taken is None else f"{stem}_{taken}"

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
    ) -> Handle:
        """Declare storage; see ``plan.model`` for what the fields mean."""
        name = self.fresh(name)
        extents = tuple(int(s) for s in shape)
        tile = Tile(name, extents, dtype_name(dtype), memory, versions, role, owner, owners, offset)
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
    ) -> Channel:
        """Declare a family of queues; ``members`` is a count or the names of directions."""
        names = () if isinstance(members, int) else tuple(members)
        count = members if isinstance(members, int) else len(names)
        channel = Channel(self.fresh(name), count, expr(source), slots, slot_bytes, memory, names, offset)
        self.channels[channel.name] = channel
        return channel

    def flag(self, name: str, members: int = 1) -> Flag:
        return self.flags.setdefault(name, Flag(name, members))

    def group(self, name: str, key: IntLike = 0) -> Group:
        return self.groups.setdefault(name, Group(name, expr(key)))

    # --- commands --------------------------------------------------------------------------------

    def add(self, statement: Statement) -> None:
        self.body.append(statement)

    def compute(
        self,
        operation: str,
        write: Operand,
        reads: Sequence[Operand] = (),
        *,
        engine: str | None = None,
        fresh: bool = False,
        work: Work | None = None,
        **attributes: Any,
    ) -> Operand:
        """``write = operation(*reads)``; the engine and the work follow from the operation unless given."""
        rule = OPERATIONS.find(operation, self.place)
        if len(reads) != rule.operands:
            raise PlanError(f"{operation} takes {rule.operands} operands, not {len(reads)}", place=self.place)
        unknown = set(attributes) - set(rule.attributes)
        if unknown:
            raise PlanError(f"{operation} has no attribute '{min(unknown)}'", place=self.place)
        parts = [part(r) for r in reads]
        target = part(write)
        if work is None:
            work = _work(operation, target, parts, attributes)
        self.add(
            Compute(
                operation,
                target.region,
                tuple(p.region for p in parts),
                tuple(sorted(attributes.items())),
                engine or rule.engine,
                work,
                fresh,
                self.place,
            )
        )
        return write

    def copy(self, write: Operand, read: Operand, **options: Any) -> Operand:
        return self.compute("copy", write, [read], **options)

    def send(self, channel: Channel, read: Operand, *, to: IntLike, member: IntLike | str = 0) -> None:
        source = part(read)
        work = Work(ZERO, nbytes_of(source), source.dtype)
        index = _member(channel, member)
        self.add(Send(channel.name, expr(to), index, source.region, work, self.place))

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
        element = dtype_name(dtype)
        work = Work(ZERO, expr(prod(shape)) * itemsize(element), element)
        bound = None if into is not None else self.fresh(name)
        extents = tuple(expr(s) for s in shape)
        region = part(into).region if into is not None else None
        index = _member(channel, member)
        self.add(Receive(channel.name, index, bound, extents, element, region, fresh, work, self.place))
        return into if bound is None else Handle(bound, tuple(shape), element, channel.memory)

    def receive_any(
        self,
        channel: Channel,
        shape: Shape,
        dtype: Any,
        *,
        members: Sequence[int | str] | None = None,
        name: str = "message",
    ) -> tuple[Handle, Symbol]:
        """A message from whichever member has one: a handle on the slot, and the member it came from."""
        element = dtype_name(dtype)
        work = Work(ZERO, expr(prod(shape)) * itemsize(element), element)
        which = range(channel.members) if members is None else members
        numbers = tuple(channel.names.index(m) if isinstance(m, str) else m for m in which)
        bound, chosen = self.fresh(name), self.fresh("chosen")
        extents = tuple(expr(s) for s in shape)
        self.add(
            ReceiveAny(channel.name, numbers, bound, chosen, extents, element, None, False, work, self.place)
        )
        return Handle(bound, tuple(shape), element, channel.memory), Symbol(chosen)

    def read_scalar(self, read: Operand, bound: int, name: str = "scalar") -> Symbol:
        """A runtime integer from one element of a tile."""
        symbol = Symbol(self.fresh(name))
        self.add(ReadScalar(symbol.name, part(read).region, bound, self.place))
        return symbol

    def signal(self, flag: Flag, *, to: IntLike, member: IntLike = 0, amount: IntLike = 1) -> None:
        self.add(Signal(flag.name, expr(to), expr(member), expr(amount), self.place))

    def wait(self, flag: Flag, value: IntLike, *, member: IntLike = 0) -> None:
        self.add(Wait(flag.name, expr(value), expr(member), self.place))

    def barrier(self, group: Group) -> None:
        self.add(Collective("barrier", group.name, place=self.place))

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
        """An operation that the network itself does for a group: "all_reduce" or "broadcast"."""
        source, target = part(read), part(write)
        work = Work(ZERO, nbytes_of(source), source.dtype)
        regions = source.region, target.region
        self.add(Collective(kind, group.name, *regions, reduction, expr(root), work, self.place))

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
        place = self.place
        symbol = Symbol(self.fresh(index))
        names: dict[str, Handle | Symbol] = {}
        for name, value in carried.items():
            inside = self.fresh(name)
            names[name] = replace(value, name=inside) if isinstance(value, Handle) else Symbol(inside)
        scope = LoopScope(symbol, names)
        with self.collect() as body:
            yield scope
        carries = tuple(_carry(scope, name, value) for name, value in carried.items())
        loop = Loop(symbol.name, expr(start), expr(stop), tuple(body), expr(step), carries, (), place)
        self.add(loop)

    @contextmanager
    def when(self, condition: IntLike) -> Iterator[BranchScope]:
        """``If``: the body of the ``with``; ``scope.otherwise()`` is the other branch, ``scope.merge`` joins
        values.
        """
        scope = BranchScope(self, expr(condition), self.place)
        with self.collect() as body:
            yield scope
        scope.sides.append(tuple(body))
        self.add(If(scope.condition, tuple(body), (), (), scope.place))

    @contextmanager
    def stream(self, units: Sequence[int] | range) -> Iterator[None]:
        """The statements inside are for these units only."""
        with self.collect() as body:
            yield
        self.streams.append(Stream(runs(units), with_frees(tuple(body))))

    def finish(self) -> Plan:
        """The plan. Statements outside any ``stream`` are for all units."""
        streams = list(self.streams)
        if self.body and streams:
            raise PlanError("statements stand both inside and outside of streams")
        if not streams:
            streams = [Stream(((0, self.plan.units, 1),), with_frees(tuple(self.body)))]
        return replace(
            self.plan,
            tiles=tuple(self.tiles.values()),
            channels=tuple(self.channels.values()),
            flags=tuple(self.flags.values()),
            groups=tuple(self.groups.values()),
            streams=tuple(streams),
        )


def _work(operation: str, target: Part, parts: list[Part], attributes: dict[str, Any]) -> Work:
    flops = expr(work_of(operation, target.shape, [p.shape for p in parts], attributes))
    moved = nbytes_of(target)
    for read in parts:
        moved = moved + nbytes_of(read)
    if operation == "copy":
        moved = nbytes_of(target)
    return Work(flops, moved, parts[0].dtype if parts else target.dtype)


def _member(channel: Channel, member: IntLike | str) -> Expr:
    if isinstance(member, str):
        if member not in channel.names:
            raise PlanError(f"channel '{channel.name}' has no member '{member}'")
        return expr(channel.names.index(member))
    return expr(member)


def _carry(scope: LoopScope, name: str, init: Any) -> CarryTile | CarryInt:
    inside = scope.carried[name]
    following = scope.following.get(name, inside)
    if isinstance(inside, Handle):
        if not isinstance(following, Handle):
            raise PlanError(f"'{name}' is a tile and must stay one")
        if (following.shape, following.dtype) != (inside.shape, inside.dtype):
            raise PlanError(f"'{name}' changes shape or dtype in the loop")
        return CarryTile(inside.name, init.name, following.name)
    return CarryInt(inside.name, expr(init), expr(following))  # type: ignore[arg-type]


def runs(units: Sequence[int] | range) -> tuple[tuple[int, int, int], ...]:
    """Unit numbers as arithmetic runs (start, stop, step)."""
    if isinstance(units, range):
        return ((units.start, units.stop, units.step),) if len(units) else ()
    numbers = sorted(int(u) for u in units)
    result: list[tuple[int, int, int]] = []
    at = 0
    while at < len(numbers):
        step = numbers[at + 1] - numbers[at] if at + 1 < len(numbers) else 1
        end = at + 1
        while end < len(numbers) and numbers[end] - numbers[end - 1] == step:
            end += 1
        result.append((numbers[at], numbers[end - 1] + 1, step))
        at = end
    return tuple(result)
