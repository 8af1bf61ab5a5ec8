"""Flags between phases, at the finest grain that is safe.

The instances of a region (a `Phase`) count a flag up when they have ended. Whoever comes later waits only for
what it touches: where every instance has its own box of a tensor, and a later access surely lies inside one
*granule* (a box of whole instances' boxes: one block's tile, or a row of them), there is a counter for each
granule, and the access waits for that one. Otherwise it waits for the count of the whole phase; what touches
nothing of a phase does not wait at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.expr import (
    ZERO,
    Const,
    Expr,
    Symbol,
    bounds,
    divide,
    known,
    linear,
    minimum,
    simplify,
    symbols,
)
from megatile.lowering.units import Ranges, tidy
from megatile.plan import model as pm
from megatile.plan.statements import reads_of, regions_of, write_of

if TYPE_CHECKING:
    from megatile.lowering.streams import LoweringState

Accesses = list[tuple[pm.Region, bool]]
"""Regions of a tile, and whether they are written."""


Box = tuple[tuple[int, int] | None, ...]
"""Per dimension the first element and the one behind the last; None: it may be any."""


@dataclass
class Touched:
    """Boxes of tiles that commands read and write."""

    reads: dict[str, set[Box]] = field(default_factory=dict)
    writes: dict[str, set[Box]] = field(default_factory=dict)

    def conflicts(self, other: Touched) -> bool:
        return (
            any(other.meets(name, box, True) for name, every in self.writes.items() for box in every)
            or any(other.meets(name, box, False) for name, every in self.reads.items() for box in every)
        )  # fmt: skip

    def meets(self, tile: str, box: Box, writes: bool) -> bool:
        """Return whether an access of a box has to wait for these."""
        mine = self.writes.get(tile, set()) | (self.reads.get(tile, set()) if writes else set())
        return any(boxes_meet(box, one) for one in mine)


def boxes_meet(one: Box, other: Box) -> bool:
    """Return whether two boxes of a tile may have an element in common."""
    pairs = zip(one, other, strict=False)
    return all(a is None or b is None or (a[0] < b[1] and b[0] < a[1]) for a, b in pairs)


def box_of(region: pm.Region, ranges: Ranges) -> Box:
    """Return the box that a region lies in, whatever units and loops count."""
    if region.at is not None:
        return ()
    box: list[tuple[int, int] | None] = []
    for start, shape in zip(region.start, region.shape, strict=True):
        low, size = (bounds(simplify(e), ranges) for e in (start, shape))
        box.append(None if low is None or size is None else (low[0], low[1] + max(0, size[1])))
    return tuple(box)


def touched(body: Iterable[Any], ranges: Ranges, units: int = 0) -> Touched | None:
    """Return what statements touch; None where they wait for or meet others. With ``units``, what is another
    unit's own copy in every unit is left out, and messages are looked at as well."""
    found = Touched()
    for s in body:
        if isinstance(s, (pm.Loop, pm.If)):
            continue
        if not isinstance(s, BESIDE if units else WITHIN) or (units and _only_meets(s)):
            return None
        write = write_of(s)
        for region, where in (
            *((r, found.reads) for r in reads_of(s)),
            *(((write, found.writes),) if write else ()),
        ):
            if not (units and region.at is not None and _elsewhere(region.at, units)):
                where.setdefault(region.tile, set()).add(box_of(region, ranges))
    return found


WITHIN = (pm.Compute, pm.Signal, pm.Wait, pm.ReadScalar, pm.Collective)
"""Statements of a region whose accesses are known."""
BESIDE = (pm.Compute, pm.Send, pm.Receive, pm.Start, pm.Free, pm.Collective)
"""Statements that a region may begin before, if it touches something else."""


def _only_meets(statement: Any) -> bool:
    return isinstance(statement, pm.Collective) and not regions_of(statement)


def _elsewhere(at: Any, units: int) -> bool:
    """Return whether an owner is another unit for every unit, whatever loops count."""
    numbers = np.arange(units)
    try:
        return bool(np.all(np.broadcast_to(at.evaluate({"unit": numbers}), numbers.shape) != numbers))
    except KeyError:  # it depends on a loop
        return False


def earliest(out: list[Any], region: Touched, units: int) -> int:
    """From which place in a stream on nothing concerns a region: it may begin there."""
    place, ranges = len(out), {"unit": (0, units - 1)}
    while place:
        last = out[place - 1]
        inside = touched(pm.statements((last,)), ranges, units)
        if inside is None or inside.conflicts(region) or (isinstance(last, pm.Loop) and not _sends(last)):
            break
        place -= 1
    return place


def _sends(loop: pm.Loop) -> bool:
    """Return whether a loop is one of a collective."""
    return any(isinstance(s, pm.Send) for s in pm.statements(loop.body))


@dataclass(frozen=True)
class Granule:
    """A counter for each box of ``sizes`` elements of a tile."""

    flag: str
    sizes: tuple[int, ...]
    counts: tuple[int, ...]
    """Granules along each dimension."""
    boxes: tuple[tuple[int, int], ...]
    """Boxes of instances along each dimension: in one granule, and in all."""
    each: int
    """Instances that have the same box."""

    def index(self, starts: Sequence[Expr], ranges: Ranges) -> list[Expr]:
        found = []
        for start, size, count in zip(starts, self.sizes, self.counts, strict=True):
            # An access without elements may begin behind the end.
            at = divide(start, size, ranges)[0]
            found.append(ZERO if count == 1 else tidy(minimum(at, count - 1), ranges))
        return found

    def member(self, index: Sequence[Expr]) -> Expr:
        number: Expr = ZERO
        for at, count in zip(index, self.counts, strict=True):
            number = number * count + at
        return simplify(number)

    def wanted(self, index: Sequence[Expr]) -> Expr:
        """Return how many instances count the granule up."""
        total: Expr = Const(self.each)
        for at, (inside, every) in zip(index, self.boxes, strict=True):
            total = total * (inside if every % inside == 0 else minimum(inside, every - at * inside))
        return simplify(total)


@dataclass(eq=False)
class Phase:
    """Instances of a region at work beside the stream that began it."""

    wait: pm.Wait
    """For all of them."""
    state: LoweringState
    units: Any
    """The numbers of its instances, and those of the units above that have them."""
    parents: Any
    owner: str | None
    """The level whose units have its flags."""
    above: Expr
    out: list[Any]
    """Its statements; the last one says that an instance has ended."""
    touched: Touched | None
    fine: bool
    number: int = 0
    granules: dict[tuple[str, tuple[int, ...], bool], Granule | None] = field(default_factory=dict)

    @cached_property
    def accesses(self) -> dict[str, Accesses]:
        found: dict[str, Accesses] = {}
        for s in pm.statements(tuple(self.out)):
            write = write_of(s)
            for region in regions_of(s):
                found.setdefault(region.tile, []).append((region, region is write))
        return found

    def waits(self, region: pm.Region, writes: bool, ranges: Ranges, units: Any) -> pm.Wait | None:
        """Return what an access of ``units`` waits for; None: the whole phase."""
        tile = self.state.declared.tiles.get(region.tile)
        if not self.fine or tile is None or region.at is not None or not region.start:
            return None
        box = self._box(region.tile, writes)
        if box is None:
            return None
        sizes = []
        for start, shape, whole, mine in zip(region.start, region.shape, tile.shape, box, strict=True):
            most = known(shape) or (bounds(simplify(shape), ranges) or (0, whole))[1]
            extent = int((mine[2] - mine[1]).max(initial=0))
            wide = sorted({max(extent, most, 1), math.lcm(max(extent, 1), max(most, 1))})
            fits = (g for g in wide if _in_one(start, most, g, units) and self._holds(mine, g))
            sizes.append(min(next(fits, whole), whole))
        found = self._granule(region.tile, tuple(sizes), writes)
        if found is None:
            return None
        index = found.index(region.start, ranges)
        return pm.Wait(found.flag, found.wanted(index), found.member(index))

    def _holds(self, box: tuple[Expr, Any, Any], size: int) -> bool:
        """Return whether every instance's run of a dimension lies in one of ``size`` elements."""
        start, low, high = box
        at = np.broadcast_to(start.evaluate({"unit": self.units}), self.units.shape) // size
        return bool(np.all((at >= 0) & (at * size <= low) & (high <= (at + 1) * size)))

    def _box(self, tile: str, reads: bool) -> list[tuple[Expr, Any, Any]] | None:
        """Return each instance's part of a tile that it writes (``reads``: or reads): per dimension where it
        begins, as an expression, where that is and where it ends."""
        every = [(r, w) for r, w in self.accesses.get(tile, []) if w or reads]
        first = next((r for r, w in every if w), None)
        if first is None or any(r.at is not None or not r.start for r, _ in every):
            return None
        shape = self.state.declared.tiles[tile].shape
        box: list[tuple[Expr, Any, Any]] = []
        for dim, whole in enumerate(shape):
            parts = [self._part(r.start[dim], r.shape[dim], whole) for r, _ in every]
            low, high = (np.array([p[i] for p in parts]) for i in (0, 1))
            start = first.start[dim] if symbols(first.start[dim]) <= {"unit"} else ZERO
            box.append((start, low.min(axis=0), high.max(axis=0)))
        return box

    def _part(self, start: Expr, shape: Expr, whole: int) -> tuple[Any, Any]:
        """Return where every instance's run of a dimension begins and ends; all of it where loops or data
        decide."""
        if symbols(start) | symbols(shape) <= {"unit"}:
            low, length = (np.broadcast_to(e.evaluate({"unit": self.units}), self.units.shape)
                           for e in (start, shape))  # fmt: skip
            return low, low + np.maximum(length, 0)
        return np.zeros_like(self.units), np.full_like(self.units, whole)

    def _granule(self, tile: str, sizes: tuple[int, ...], writes: bool) -> Granule | None:
        """Return the counters for granules of a tile, made where every instance lies in one of them."""
        key = (tile, sizes, writes)
        if key not in self.granules:
            self.granules[key] = self._made(tile, sizes, writes)
        return self.granules[key]

    def _made(self, tile: str, sizes: tuple[int, ...], writes: bool) -> Granule | None:
        shape, box = self.state.declared.tiles[tile].shape, self._box(tile, writes)
        counts = tuple(-(-whole // size) for whole, size in zip(shape, sizes, strict=True))
        if box is None or math.prod(counts) == 1:
            return None
        boxes = []
        for (start, _, _), size, count in zip(box, sizes, counts, strict=True):
            at = np.broadcast_to(start.evaluate({"unit": self.units}), self.units.shape)
            begins = np.unique(at) if count > 1 else np.zeros(1, np.int64)
            boxes.append((int(np.max(np.bincount(begins // size))), len(begins)))
        each = len(self.units) // max(1, len(np.unique(self.parents)) * math.prod(b for _, b in boxes))
        known_as = [g for g in self.granules.values() if g is not None]
        name = f"{self.wait.flag}_{len(known_as) + 1}" if known_as else f"{self.wait.flag}_{tile}"
        made = Granule(name, sizes, counts, tuple(boxes), each)
        mine = made.index([start for start, _, _ in box], {})
        if not self._adds_up(made, mine):
            return None
        same = next((g for g in known_as if replace(g, flag=name) == made and self._alike(g, tile)), None)
        if same is not None:
            return same
        self.state.declared.flags[name] = pm.Flag(name, math.prod(counts), self.owner)
        self.out.insert(-1, pm.Signal(name, self.above, made.member(mine), source=self.out[-1].source))
        return made

    def _alike(self, granule: Granule, tile: str) -> bool:
        return any(key[0] == tile for key, g in self.granules.items() if g is granule)

    def _adds_up(self, granule: Granule, mine: list[Expr]) -> bool:
        """Return whether the instances of every unit above count up every granule as often as is waited
        for."""
        numbers = np.broadcast_to(granule.member(mine).evaluate({"unit": self.units}), self.units.shape)
        above, rows = np.unique(self.parents, return_inverse=True)
        total = math.prod(granule.counts)
        found = np.bincount(rows * total + numbers, minlength=len(above) * total).reshape(len(above), total)
        names = {f"g{d}": at for d, at in enumerate(np.unravel_index(np.arange(total), granule.counts))}
        wanted = granule.wanted([Symbol(name) for name in names]).evaluate(names)
        return bool(np.all(found == np.broadcast_to(wanted, (total,))))


def _in_one(start: Expr, size: int, granule: int, units: Any) -> bool:
    """Return whether ``size`` elements from ``start`` always lie in one granule."""
    terms, offset = linear(simplify(start))
    step = math.gcd(granule, *terms.values())
    if offset % step + size <= step:
        return True
    if not symbols(start) <= {"unit"}:
        return False
    return bool(np.all(np.asarray(start.evaluate({"unit": units})) % granule + size <= granule))


class Guard:
    """Puts waits for phases in front of what touches the same as they do."""

    def __init__(self, phases: Sequence[Phase], ranges: Ranges, units: Any):
        self.phases, self.ranges, self.units = list(phases), dict(ranges), units
        self.whole: list[Phase] = []
        """Phases that all of what is guarded has to wait for."""

    def body(self, body: Iterable[Any]) -> list[Any]:
        """Return the statements with their waits; phases for which no granule can be named are in
        ``whole``."""
        result: list[Any] = []
        seen: set[pm.Wait] = set()
        for s in body:
            if isinstance(s, pm.Loop):
                result.append(self.loop(s))
            elif isinstance(s, pm.If):
                result.append(replace(s, body=tuple(self.body(s.body)), orelse=tuple(self.body(s.orelse))))
            else:
                for wait in self.before(s):
                    if wait not in seen:
                        seen.add(wait)
                        result.append(replace(wait, source=s.source))
                result.append(s)
        return result

    def loop(self, s: pm.Loop) -> pm.Loop:
        low, high = (bounds(simplify(e), self.ranges) for e in (s.start, s.stop - 1))
        before = self.ranges.pop(s.index, None)
        if low is not None and high is not None and (known(s.step) or 0) > 0:
            self.ranges[s.index] = (low[0], max(low[0], high[1]))
        made = replace(s, body=tuple(self.body(s.body)))
        self.ranges.pop(s.index, None)
        if before is not None:
            self.ranges[s.index] = before
        return made

    def before(self, s: Any) -> Iterator[pm.Wait]:
        if isinstance(s, (pm.Signal, pm.Wait)) or (isinstance(s, pm.Collective) and not regions_of(s)):
            self.whole += [p for p in self.phases if p not in self.whole]  # others may see what it has done
        write = write_of(s)
        for phase in self.phases:
            assert phase.touched is not None
            for region in dict.fromkeys((*reads_of(s), *((write,) if write is not None else ()))):
                writes = region == write
                if not phase.touched.meets(region.tile, box_of(region, self.ranges), writes):
                    continue
                found = phase.waits(region, writes, self.ranges, self.units)
                if found is not None:
                    yield found
                elif phase not in self.whole:
                    self.whole.append(phase)


def guarded(
    body: list[Any], phases: Sequence[Phase], ranges: Ranges, units: Any
) -> tuple[list[Any], list[Phase]]:
    """Return statements with waits for phases, and the phases that must have ended before all of them."""
    whole: list[Phase] = []
    while True:
        guard = Guard([p for p in phases if p not in whole], ranges, units)
        found = guard.body(body)
        if not guard.whole:
            return found, whole
        whole += guard.whole
