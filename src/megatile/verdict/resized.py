"""Programs with other tiles where no argument sets their sizes: an axis of the grid, or the step of a loop,
is scaled, with every tile, elementwise loop and region that goes along."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import zip_longest
from math import prod
from typing import Any

from megatile.core.cached import cached_in_owner
from megatile.core.expr import Binary, Const, Expr, Symbol, known, linear, rebuild, trips, walk
from megatile.cost.cheapest import Search
from megatile.cost.static_bound import floor
from megatile.cost.wave_bound import wave_bound
from megatile.ir import nodes as n
from megatile.ir.expr import Coord
from megatile.ir.passes.driver import rewrite_expressions
from megatile.ir.program import Program, bindings
from megatile.lowering.lowered import Lowered
from megatile.verdict.arguments import STEP, Trial, arguments_of, same_work
from megatile.verdict.grid import carried
from megatile.verdict.study import OutOfBudget, Study

FACTORS = (Fraction(2), Fraction(4), Fraction(8), Fraction(3, 2), Fraction(1, 2), Fraction(1, 4))
MAX_ROUNDS = 3
"""Rounds of the search over axes; each begins with the fastest program of the last."""
MAX_NAMED = 3
"""Tiles that are named with their sizes."""
Key = tuple[Any, Any]
"""What has a size: a dimension of a tile, by name and number, or a variable of an elementwise loop."""
FIXED: Key = ("", "")
"""What keeps its size."""
SCALED: Key = ("", 0)
"""What is scaled: the rows of a tensor that a block, or a step of a loop, takes."""
UNTOUCHED = (n.Hint, n.Barrier, n.Fence, n.View, n.ScaleRegion)
"""Statements in which no size stands."""


def axes(program: Program) -> Iterator[tuple[Expr, n.Loop | None]]:
    """Yield what may be scaled: coordinates of the grid, and loops from 0 (with that loop)."""
    for axis, extent in enumerate(program.launch.extents(program.launch.dispatch)):
        if extent > 1:
            yield Coord(program.launch.dispatch, axis), None
    for loop in n.each(n.Loop, program.body):
        rounds = trips(loop)
        if rounds is not None and len(rounds) > 1 and (rounds.start, rounds.step) == (0, 1):
            yield Symbol(loop.var), loop


def resized(program: Program, here: Expr, loop: n.Loop | None, factor: Fraction) -> Program | None:
    """Return the program whose blocks (or steps of a loop) take so many times the rows, and are so many times
    fewer; None where some size does not go along."""
    sizes = _Sizes(program, here, loop is not None)
    wide = sizes.scaled()
    kept = set() if loop is None else carried(loop, sizes.table, {p.name for p in program.params})
    if wide is None or kept & {name for name, _ in wide}:
        return None
    count = (
        program.launch.extents(program.launch.dispatch)[here.axis] if isinstance(here, Coord)
        else len(trips(loop) or ())
    )  # fmt: skip
    fewer = count / factor
    if fewer.denominator != 1:
        return None
    try:
        body = tuple(_Change(sizes, wide, here, loop, factor).node(node) for node in program.body)
    except _DoesNotDivide:
        return None
    launch = program.launch
    if isinstance(here, Coord):
        at = launch.depth(launch.dispatch) - 1
        extents = tuple(int(fewer) if d == here.axis else e for d, e in enumerate(launch.scales[at].extents))
        scale = replace(launch.scales[at], extents=extents)
        launch = replace(launch, scales=(*launch.scales[:at], scale, *launch.scales[at + 1 :]))
    return replace(program, launch=launch, body=body)


def sizes_of(program: Program) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tiles of blocks."""
    launch = program.launch
    block = launch.depth(launch.dispatch)
    return {a.name: a.shape for a in n.each(n.Alloc, program.body) if launch.depth(a.scale) >= block}


class _DoesNotDivide(Exception):
    """A size is no multiple."""


class _Sizes:
    """Which sizes of a program go along with which."""

    def __init__(self, program: Program, here: Expr, in_loop: bool) -> None:
        self.here, self.in_loop = here, in_loop
        self.table = bindings(program)
        self.tiles = sizes_of(program)
        self.links: dict[Key, set[Key]] = {}
        for node in n.walk(program.body, (n.Parallel,)):
            self._statement(node)

    def scaled(self) -> set[Key] | None:
        """Return all that is scaled; None if that has a size that stays."""
        wide, left = {SCALED}, [SCALED]
        while left:
            more = self.links.get(left.pop(), set()) - wide
            wide |= more
            left += more
        return None if FIXED in wide or len(wide) == 1 else wide

    def _link(self, one: Key, other: Key) -> None:
        self.links.setdefault(one, set()).add(other)
        self.links.setdefault(other, set()).add(one)

    def _fix(self) -> None:
        """Nothing can be scaled."""
        self._link(SCALED, FIXED)

    def dims(self, region: n.Region) -> list[tuple[Key, int | None]]:
        """Return the sizes of a region, each with its extent."""
        found: list[tuple[Key, int | None]] = []
        for number, dim in enumerate(region.dims):
            extent = None if dim.extent is None else known(dim.extent)
            if region.source in self.tiles:
                whole = extent == self.tiles[region.source][number] and known(dim.start) == 0
                key = (region.source, number) if whole else FIXED
                if not whole:
                    self._link((region.source, number), FIXED)
                if any(p == self.here for p in walk(dim.start)):
                    self._fix()
            else:
                by = linear(dim.start)[0].get(self.here, 0)
                inside = any(p == self.here for p in walk(dim.start))
                key = SCALED if by and by == extent else FIXED
                if inside and key is FIXED:
                    self._fix()
            if dim.extent is not None:
                found.append((key, extent))
            elif region.source in self.tiles:
                self._link(key, FIXED)
        return found

    def _pair(self, one: list[tuple[Key, int | None]], other: list[tuple[Key, int | None]]) -> None:
        """Sizes of two regions go along, in their order; single elements are left out where one has more."""
        if len(one) != len(other):
            for side in (one, other):
                for key, extent in list(side):
                    if extent == 1 and len(one) != len(other):
                        self._link(key, FIXED)
                        side.remove((key, extent))
        for (a, _), (b, _) in zip_longest(one, other, fillvalue=(FIXED, None)):
            self._link(a, b)

    def _statement(self, node: n.Node) -> None:
        if isinstance(node, (n.Copy, n.AtomicRegion)):
            ranks = [e for e in (node.dst, getattr(node, "src", None)) if e is not None]
            if any(self.here in set(walk(e)) for e in ranks):
                self._fix()
            self._pair(self.dims(node.to), self.dims(node.source))
        elif isinstance(node, n.Gemm):
            a, b, c = (self.dims(r)[-2:] for r in (node.a, node.b, node.c))
            if any(len(x) != 2 for x in (a, b, c)):
                self._fix()
                return
            m, k = a[::-1] if node.transpose_a else a
            q, columns = b[::-1] if node.transpose_b else b
            for one, other in ((m[0], c[0][0]), (columns[0], c[1][0]), (k[0], q[0])):
                self._link(one, other)
            if not self.in_loop:
                self._link(k[0], FIXED)
        elif isinstance(node, (n.Reduce, n.Cumsum)):
            source, to = self.dims(node.source), self.dims(node.to)
            along = node.dim % len(source)
            if isinstance(node, n.Cumsum):
                self._link(source[along][0], FIXED)
            else:
                if not self.in_loop:
                    self._link(source[along][0], FIXED)
                del source[along]
            self._pair(source, to)
        elif isinstance(node, n.Fill):
            self.dims(node.to)
        elif isinstance(node, n.Parallel):
            self._elements(node)
        elif isinstance(node, n.Loop):
            if any(p == self.here for e in (node.start, node.step) for p in walk(e)):
                self._fix()
        elif not isinstance(node, (*UNTOUCHED, n.Alloc)):
            self._other(node)

    def _other(self, node: n.Node) -> None:
        """A statement of another kind: what it touches keeps its size."""
        if any(p == self.here for e in n.expressions(node) for p in walk(e)):
            self._fix()
        for _, region in n.regions(node):
            for number in range(len(self.tiles.get(region.source, ()))):
                self._link((region.source, number), FIXED)

    def _elements(self, nest: n.Parallel) -> None:
        extents = {v: known(e) for v, e in zip(nest.vars, nest.extents, strict=True)}
        for node in n.walk(nest.body):
            if not isinstance(node, (n.Store, n.Atomic, n.If, n.Let)):
                self._fix()
            for _, name, index in n.element_accesses(node):
                for number, at in enumerate(index):
                    self._index(id(nest), extents, (name, number), at)

    def _index(self, nest: int, extents: dict[str, int | None], key: Key, at: Expr) -> None:
        """One index of an element that elementwise code takes."""
        used = [v for v in extents if Symbol(v) in set(walk(at))]
        shape, by = self.tiles.get(key[0]), linear(at)[0].get(self.here, 0)
        if shape is not None and at in [Symbol(v) for v in used] and extents[used[0]] == shape[key[1]]:
            self._link((nest, used[0]), key)
            return
        if shape is not None:
            self._link(key, FIXED)
        own = [v for v in used if by and linear(at)[0].get(Symbol(v)) == 1 and extents[v] == by]
        if own and shape is None:
            self._link((nest, own[0]), SCALED)
        elif any(p == self.here for p in walk(at)):
            self._fix()
        for v in used:
            if v not in own[:1] or shape is not None:
                self._link((nest, v), FIXED)


class _Change:
    """Writes a program with what is scaled in its new size."""

    def __init__(
        self, sizes: _Sizes, wide: set[Key], here: Expr, loop: n.Loop | None, factor: Fraction
    ) -> None:
        self.sizes, self.wide, self.here, self.loop, self.factor = sizes, wide, here, loop, factor

    def node(self, node: n.Node) -> n.Node:
        if isinstance(node, n.Alloc) and node.name in self.sizes.tiles:
            shape = tuple(self._size((node.name, d), e) for d, e in enumerate(node.shape))
            return replace(node, shape=shape)
        changed: n.Node = n.with_bodies(node, lambda body: tuple(map(self.node, body)))
        regions = {name: self._region(v) for name, v in vars(changed).items() if isinstance(v, n.Region)}
        changed = replace(changed, **regions) if regions else changed  # type: ignore[arg-type]
        if isinstance(changed, n.Parallel):
            extents = tuple(
                Const(self._size((id(node), v), known(e) or 0)) if (id(node), v) in self.wide else e
                for v, e in zip(changed.vars, changed.extents, strict=True)
            )
            changed = replace(changed, extents=extents)
        if isinstance(changed, n.Loop) and self.here in set(walk(changed.stop)):
            return replace(changed, stop=self._last(changed.stop))
        changed = rewrite_expressions(changed, self._expression)
        if isinstance(changed, n.Loop) and node is self.loop:
            changed = replace(changed, stop=Const(int(len(trips(self.loop) or ()) / self.factor)))
        return changed

    def _size(self, key: Key, size: int) -> int:
        after = size * self.factor if key in self.wide else Fraction(size)
        if after.denominator != 1:
            raise _DoesNotDivide
        return int(after)

    def _region(self, region: n.Region) -> n.Region:
        dims = []
        for number, dim in enumerate(region.dims):
            key = (region.source, number)
            if region.source not in self.sizes.tiles:
                by = linear(dim.start)[0].get(self.here, 0)
                key = SCALED if by and dim.extent is not None and by == known(dim.extent) else FIXED
            extent = dim.extent
            if extent is not None and key in self.wide:
                extent = Const(self._size(key, known(extent) or 0))
            dims.append(replace(dim, extent=extent))
        return replace(region, dims=tuple(dims))

    def _last(self, stop: Expr) -> Expr:
        """The end of a loop that grows with the number of the block: that of the last of those in one."""
        if self.factor.denominator != 1:
            raise _DoesNotDivide
        last = self.here * int(self.factor) + (int(self.factor) - 1)
        return rebuild(stop, lambda p: last if p == self.here else p)

    def _expression(self, expr: Expr) -> Expr:
        """The same place, where every block or step takes other rows."""
        parts = list(walk(expr))
        if self.here not in parts:
            return expr
        if self.factor.denominator == 1:
            return rebuild(expr, lambda p: self.here * int(self.factor) if p == self.here else p)
        products = 0

        def change(part: Expr) -> Expr:
            nonlocal products
            if isinstance(part, Binary) and part.operator == "*" and self.here in (part.left, part.right):
                by = known(part.right if part.left == self.here else part.left)
                if by is not None:
                    products += 1
                    return self.here * self._size(SCALED, by)
            return part

        changed = rebuild(expr, change)
        if products != parts.count(self.here):
            raise _DoesNotDivide
        return changed


@cached_in_owner
def best_resized(study: Study) -> Trial | None:
    """Return the fastest program with other tiles that a climb over all axes finds, if it is faster than this
    one; None where arguments set the sizes of tiles."""
    if study.lowered is None or arguments_of(study).named("tile"):
        return None
    best: Trial | None = None
    try:
        for _ in range(MAX_ROUNDS):
            before = best
            for found in _faster(study, before):
                best = found
            if best is before:
                break
    except OutOfBudget:
        pass
    return best


def _faster(study: Study, best: Trial | None) -> Iterator[Trial]:
    """Yield programs with one axis of this one scaled, each faster than those before it."""
    mine = study.lowered
    assert mine is not None
    source = mine.source if best is None else best.lowered.source
    goal = (study.base_ps if best is None else best.time_ps) * (1 - STEP)
    search, number = Search[Lowered](), 0
    most = arguments_of(study).most_commands
    for here, loop in axes(source):
        for factor in FACTORS:
            made = resized(source, here, loop, factor)
            low = study.lower(made) if made is not None else None
            number += 1
            if low is not None and study.cost(low.plan) <= most and same_work(mine, low):
                search.add(low, max(floor(low.plan, study.hda), wave_bound(low.plan, study.hda)), number)
    search.timed(-1, goal)
    for _, low in search:
        took = study.plan_ps(low.plan)
        if took is not None and took < goal:
            goal = took
            search.timed(-1, goal)
            yield Trial({}, took, low, changed_sizes(mine.source, low.source))


def changed_sizes(one: Program, other: Program) -> str:
    """``'a' 16×128 -> 64×128, 'c' …``; of a program without tiles the extents of T.Parallel."""
    before, after = sizes_of(one), sizes_of(other)
    pairs = [(f"'{name}'", before[name], after[name]) for name in before if after[name] != before[name]]
    if not pairs:
        loops = zip(*(n.each(n.Parallel, x.body) for x in (one, other)), strict=True)
        extents = [[tuple(known(e) or 0 for e in loop.extents) for loop in both] for both in loops]
        pairs = [("T.Parallel", x, y) for x, y in extents if x != y]
    shown = [
        f"{name} {'×'.join(map(str, x))} -> {'×'.join(map(str, y))}"
        for name, x, y in sorted(pairs, key=lambda pair: -prod(pair[2]))[:MAX_NAMED]
    ]
    return ", ".join(shown) + (" and what goes along" if len(pairs) > MAX_NAMED else "")


__all__ = ["axes", "best_resized", "changed_sizes", "resized", "sizes_of"]
