"""What a stretch of C is written in: the unit it is for, its variables, and where its elements are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from megatile.core.expr import (
    Const,
    Expr,
    Symbol,
    binary,
    bounds,
    constant,
    difference,
    rebuild,
    simplify,
    table,
)
from megatile.core.expr.tree import folded
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Pick, Rank
from megatile.targets.common.allocation import Path, Storage
from megatile.targets.common.elements import Value, loaded
from megatile.targets.common.errors import CompileError
from megatile.targets.common.expressions import whole


class Text:
    """Lines of C, indented by blocks."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self.depth = depth

    def add(self, *lines: str) -> None:
        self.lines += [f"{'  ' * self.depth}{line}" if line else "" for line in lines]

    @contextmanager
    def block(self, head: str = "") -> Iterator[None]:
        self.add(f"{head} {{".lstrip())
        self.depth += 1
        yield
        self.depth -= 1
        self.add("}")


@dataclass(frozen=True)
class Share:
    """What of a dimension an index counts in: ``length`` elements from ``start``, or those of a table."""

    start: Expr
    length: Expr
    table: Pick | None = None


@dataclass
class Axis:
    """One dimension of a box: the elements ``low`` to ``high`` of its ``extent`` exist (None: all)."""

    extent: Expr
    stride: int
    low: str | None = None
    high: str | None = None
    table: str | None = None

    @property
    def clipped(self) -> bool:
        return self.low is not None


@dataclass
class Box:
    """A region, found: the pointer to its first element and its dimensions."""

    storage: Storage
    pointer: str
    axes: list[Axis]
    copies: int = 1
    copy_stride: int = 0
    guard: str | None = None
    """A condition without which none of it exists."""
    parts: bool = False
    """Whether it has several copies, each with a part of the elements."""
    panels: bool = False
    """Whether columns lie in panels of two vectors, each over all rows."""

    @property
    def clipped(self) -> bool:
        return self.guard is not None or any(a.clipped or a.table for a in self.axes)

    def at(self, indices: list[str]) -> str:
        """Return the pointer to an element."""
        return self.pointer + "".join(map(offset, self.axes, indices))


@dataclass
class ResumeFrame:
    """What a unit that waits keeps: its variables, and how many places and meetings there are."""

    name: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    states: int = 0
    keys: dict[Any, int] = field(default_factory=dict)

    def add(self, c_type: str, name: str) -> str:
        if (c_type, name) not in self.fields:
            self.fields.append((c_type, name))
        return f"f->{name}"

    def struct(self) -> str:
        return "".join(f" {c_type} {name};" for c_type, name in self.fields)


@dataclass
class Peer:
    """Another unit: its path, down to ``depth``; where its instance's memory begins, if it has its own."""

    path: Path
    depth: int
    instance: str = ""


@dataclass
class Scope:
    """The unit at ``path``; ``vars`` are the C variables of the Program's scalars."""

    gen: Any
    text: Text
    path: Path
    depth: int
    vars: dict[str, Value] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    group: tuple[int, int] = (0, 0)
    """The depths between which the units of the innermost region are."""
    instance: bool = False
    """Whether it runs inside a dispatched instance."""
    frame: ResumeFrame | None = None
    """Where variables are that must outlive a wait."""
    spread: tuple[int, str] = (0, "")
    """At which depth units have each an instance's memory, and the C of it for the one of rank ``{}``."""
    once: set[str] = field(default_factory=set)
    """Variables that are set in one place only."""
    rank: str = "f->is.rank"
    """This unit's number in its group, where its units meet."""

    # --- expressions ------------------------------------------------------------------------------

    def own(self, expr: Expr, path: Path | None = None) -> Expr:
        """Return the expression with this unit's coordinates."""
        path = path or self.path
        launch = self.gen.launch

        def change(part: Expr) -> Expr:
            if isinstance(part, Coord):
                extents = launch.extents(part.scale)
                index = path[part.scale]
                if len(extents) == 1 or isinstance(index, Const):
                    return index
                if path is self.path:
                    return Symbol(f"@{part.scale}.{part.axis}")
                below = 1
                for extent in extents[: part.axis]:
                    below *= extent
                return binary("%", binary("//", index, below), extents[part.axis])
            if isinstance(part, Rank):
                result: Expr = Const(0)
                for scale in launch.scales[launch.depth(part.within) : launch.depth(part.scale)]:
                    result = binary("+", binary("*", result, scale.count), path[scale.name])
                return result
            return folded(part)

        return rebuild(expr, change)

    def bound(self, expr: Expr) -> tuple[int, int] | None:
        return bounds(expr, self.ranges)

    def whole(self, expr: Expr) -> str:
        return whole(simplify(self.own(expr)), self)

    def variable(self, symbol: Symbol) -> Value:
        found = self.vars.get(symbol.name)
        if found is None:
            raise CompileError(f"'{symbol.name}' has no value here", advice="give it one before the loop")
        return found

    def load(self, expr: Load) -> Value:
        storage, pointer, guard = self.element(expr.source, expr.index)
        value = loaded(storage.dtype, storage.wide, pointer, False)
        return value if guard is None else Value(f"({guard} ? {value.text} : 0)", value.dtype)

    # --- elements ---------------------------------------------------------------------------------

    def element(
        self, name: str, index: tuple[Expr, ...], peer: Peer | None = None
    ) -> tuple[Storage, str, str | None]:
        """Return the storage, the pointer to an element, and the condition under which a padded one
        exists."""
        storages = self.gen.storages
        storage = storages.storage(name)
        path, depth = (peer.path, peer.depth) if peer is not None else (self.path, self.depth)
        start, _, _ = storages.place(name, path, depth)
        place = start
        terms: list[str] = []
        guards: list[str] = []
        for d, expr in enumerate(index):
            at, share = self.share(expr, storage.shape[d])
            place = self._index(name, d, share, at, storage.strides[d], place, terms, guards)
        return storage, self.pointer(storage, place, terms, peer), " && ".join(guards) or None

    def share(self, start: Expr, length: int, limits: tuple[Expr, Expr] | None = None) -> tuple[Expr, Share]:
        """Return an index of a dimension of ``length`` elements, and what it counts in."""
        at = simplify(self.own(start))
        if isinstance(at, Pick):
            found = table([len(s) for s in at.sets], at.row)
            if all(s == tuple(range(s[0], s[0] + len(s))) for s in at.sets if s):
                return at.index, Share(table([s[0] if s else 0 for s in at.sets], at.row), found)
            return at.index, Share(Const(0), found, at)
        if limits is None:
            return at, Share(Const(0), Const(length))
        low, high = map(self.own, limits)
        return difference(at, low), Share(low, difference(high, low))

    def _index(
        self,
        name: str,
        d: int,
        share: Share,
        at: Expr,
        stride: int,
        place: Expr,
        terms: list[str],
        guards: list[str],
    ) -> Expr:
        """Adds one index to a place: to the expression where it is surely inside, else to checked terms."""
        if self.is_inside(at, Const(1), share.length):
            if share.table is None:
                return binary("+", place, binary("*", binary("+", share.start, at), stride))
            text = whole(at, self)
        else:
            text, length = whole(at, self), whole(share.length, self)
            if name in self.gen.padded:
                guards.append(f"(u64)({text}) < (u64)({length})")
            else:
                count = constant(share.length) or "fewer"
                what = f"'{name}[{{}}]' is out of bounds: dimension {d} has {count} elements"
                text = f"inside(failure, {self.gen.failure_site('bounds', what)}, {text}, {length})"
        if share.table is not None:
            text = f"{self.table_row(share.table)}[{text}]"
        elif share.start != Const(0):
            text = f"({whole(share.start, self)} + {text})"
        terms.append(f"{text} * {stride}")
        return place

    def table_row(self, pick: Pick) -> str:
        name = self.gen.constant_table(pick.flat)
        return f"({name} + {whole(binary('*', pick.row, pick.width), self)})"

    def is_inside(self, at: Expr, size: Expr, length: Expr) -> bool:
        """Return whether ``size`` elements from ``at`` surely lie in 0..length."""
        low = self.bound(at)
        over = self.bound(simplify(binary("-", binary("+", at, size), length)))
        return low is not None and low[0] >= 0 and over is not None and over[1] <= 0

    def pointer(self, storage: Storage, place: Expr, terms: list[str], peer: Peer | None = None) -> str:
        offset = [] if place == Const(0) else [whole(simplify(place), self)]
        base = self.gen.base(storage)
        if peer is not None and peer.instance and storage.home == "instance":
            base = f"(({storage.c_type} *)({peer.instance} + {storage.offset}))"
        return " + ".join([base, *offset, *terms])

    # --- regions ----------------------------------------------------------------------------------

    def box(self, region: n.Region, peer: Peer | None = None) -> Box:
        """Return where a region is for this unit; with ``peer``, in the tiles of another."""
        storages = self.gen.storages
        home, depth = (peer.path, peer.depth) if peer is not None else (self.path, self.depth)
        storage = storages.storage(region.source)
        place, copies, copy_stride = storages.place(region.source, home, depth)
        terms: list[str] = []
        guards: list[str] = []
        axes = []
        for d, dim in enumerate(region.dims):
            at, share = self.share(dim.start, storage.shape[d], dim.limits)
            stride = storage.strides[d]
            if dim.extent is None:
                place = self._index(region.source, d, share, at, stride, place, terms, guards)
                continue
            size = simplify(self.own(dim.extent))
            axis = Axis(size, stride)
            if not self.is_inside(at, size, share.length):
                self._clip(region, dim, axis, at, share)
            if share.table is not None:
                axis.table = f"({self.table_row(share.table)} + {whole(at, self)})"
            else:
                place = binary("+", place, binary("*", binary("+", share.start, at), stride))
            axes.append(axis)
        parts = copies > 1 and storages.names[region.source].valid is not None
        pointer = self.pointer(storage, place, terms, peer)
        return Box(storage, pointer, axes, copies, copy_stride, " && ".join(guards) or None, parts)

    def _clip(self, region: n.Region, dim: n.Dim, axis: Axis, at: Expr, share: Share) -> None:
        start, size, length = (whole(e, self) for e in (at, axis.extent, share.length))
        axis.low, axis.high = self.gen.fresh("low"), self.gen.fresh("high")
        self.text.add(
            f"const long {axis.low} = lmin(lmax(-({start}), 0), {size}), "
            f"{axis.high} = lmax(lmin({length} - ({start}), {size}), {axis.low});"
        )
        found = self.gen.storages.names[region.source]
        if found.alloc is None or region.source in self.gen.padded or dim.limits is not None:
            return
        what = f"'{region.source}' has fewer elements than this region wants (it starts at {{}})"
        missing = f"{axis.high} - {axis.low} < {size}"
        self.text.add(f"if ({missing}) fail(failure, {self.gen.failure_site('bounds', what)}, {start});")

    def most(self, extent: Expr) -> int:
        """Return the largest value of an extent, at least 1."""
        found = self.bound(extent)
        if found is None:
            raise CompileError(
                "a region here has an extent without a known bound", advice="T.read_scalar(..., bound=)"
            )
        return max(found[1], 1)

    # --- loops ------------------------------------------------------------------------------------

    def limits(self, extent: Expr) -> tuple[int, int] | None:
        """Return the bounds of an index below an extent."""
        found = self.bound(extent)
        return (0, max(found[1] - 1, 0)) if found is not None else None

    def loop_limits(self, node: n.Loop) -> tuple[int, int] | None:
        """Return the bounds of a loop's variable."""
        low, high = self.bound(self.own(node.start)), self.bound(self.own(node.stop))
        return None if low is None or high is None else (low[0], max(high[1] - 1, low[0]))

    @contextmanager
    def serial(self, node: n.Loop) -> Iterator[None]:
        """A loop inside elementwise code."""
        name = self.gen.name(node.var)
        start, stop, step = (self.whole(e) for e in (node.start, node.stop, node.step))
        end = f"{name}_stop"
        head = f"for (long {name} = {start}, {end} = {stop}; {name} < {end}; {name} += {step})"
        with self.text.block(head), self.known(node.var, Value(name, "int"), self.loop_limits(node)):
            yield

    @contextmanager
    def counted(self, variables: Iterable[tuple[str, Expr]]) -> Iterator[None]:
        """Loops over all iterations of variables of the Program, each below its extent."""
        with ExitStack() as stack:
            for name, extent in variables:
                c_name = self.gen.name(name)
                stack.enter_context(self.loop(c_name, "0", whole(extent, self)))
                stack.enter_context(self.known(name, Value(c_name, "int"), self.limits(extent)))
            yield

    @contextmanager
    def loop(self, variable: str, start: str, stop: str) -> Iterator[None]:
        with self.text.block(f"for (long {variable} = {start}; {variable} < {stop}; {variable}++)"):
            yield

    @contextmanager
    def known(self, name: str, value: Value, range_: tuple[int, int] | None) -> Iterator[None]:
        """A variable of the Program, inside a loop."""
        before, ranged = self.vars.get(name), self.ranges.get(name)
        self.vars[name] = value
        self.ranges.pop(name, None)
        if range_ is not None:
            self.ranges[name] = range_
        yield
        self.vars.pop(name), self.ranges.pop(name, None)
        if before is not None:
            self.vars[name] = before
        if ranged is not None:
            self.ranges[name] = ranged


# --- boxes ----------------------------------------------------------------------------------------

Pair = tuple[Axis, Axis]


def matched(scope: Scope, to: Box, source: Box) -> list[Pair]:
    """Return the dimensions of two boxes that belong together; those of one element belong to none."""
    left = [a for a in to.axes if constant(a.extent) != 1]
    right = [a for a in source.axes if constant(a.extent) != 1]
    if len(left) != len(right):
        raise CompileError(
            "the sides of this statement have extents that are known only at run time, and a "
            "different number of them",
            advice="give both sides the same dimensions",
        )
    for a, b in zip(left, right, strict=True):
        if a.extent != b.extent:
            if constant(a.extent) is not None and constant(b.extent) is not None:
                raise CompileError(f"extents {a.extent} and {b.extent} differ", advice="copy equal shapes")
            x, y = whole(a.extent, scope), whole(b.extent, scope)
            site = scope.gen.failure_site("shape", "the two sides have different extents, one of them {}")
            scope.text.add(f"if ({x} != {y}) fail(failure, {site}, {y});")
    return list(zip(left, right, strict=True))


def single(box: Box) -> tuple[str, list[str]]:
    """Return the pointer past dimensions of one element, and the conditions under which those exist."""
    found, conditions = box.pointer, [box.guard] if box.guard else []
    for axis in box.axes:
        if constant(axis.extent) == 1:
            if axis.low is not None:
                conditions.append(f"{axis.low} < {axis.high}")
            if axis.table is not None:
                found += f" + {axis.table}[0] * {axis.stride}"
    return found, conditions


def offset(axis: Axis, index: str) -> str:
    place = f"{axis.table}[{index}]" if axis.table else index
    if place == "0":
        return ""
    return f" + {place}" if axis.stride == 1 else f" + ({place}) * {axis.stride}"


def refuse_parts(box: Box) -> None:
    if box.parts:
        raise CompileError(
            f"reading all of '{box.storage.name}', whose parts lie in different units, cannot be compiled",
            advice="T.allgather its view first",
        )
