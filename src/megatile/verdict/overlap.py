"""Collectives rewritten: in parts that computation hides, or several of them as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from megatile.core.expr import Const, Symbol, known, linear, rebuild, substitute, symbols, trips
from megatile.ir import nodes as n
from megatile.ir.expr import Coord
from megatile.ir.passes.driver import rewrite_expressions
from megatile.ir.program import Program, bindings
from megatile.verdict.changes import renamed, replaced


@dataclass(frozen=True)
class Split:
    """A region of blocks and the collective of what it writes; both could go in parts."""

    region: n.ScaleRegion
    collective: n.Collective
    axis: int
    """Of the grid."""
    dim: int
    """Of the tensor."""
    blocks: int
    """Along the axis."""
    extent: int
    """Along the dimension."""

    def divides(self, parts: int) -> bool:
        return self.blocks % parts == 0

    def text(self, program: Program, parts: int) -> str:
        """How to write it."""
        name, size = self.collective.to[0].source, self.extent // parts
        grid = list(program.launch.extents(program.launch.dispatch))
        grid[self.axis] //= parts
        slices = [":"] * len(self.collective.to[0].dims)
        slices[self.dim] = f"p * {size} : (p + 1) * {size}"
        return (
            f"overlap in {parts} parts: block=({', '.join(map(str, grid))}); for p in range({parts}) the "
            f"region of line {_line(self.region)}, moved by p * {size} along dimension {self.dim} of "
            f"'{name}', then T.{self.collective.kind}({name}[{', '.join(slices)}]) (line "
            f"{_line(self.collective)}); the next part is computed meanwhile"
        )


def _size(dim: n.Dim) -> int | None:
    return 1 if dim.extent is None else known(dim.extent)


def _line(node: n.Node) -> str:
    return str(node.span.line) if node.span is not None else "?"


def splits(program: Program) -> Iterator[Split]:
    """The ways to divide the one region of blocks and the all-reduce after it; rows first."""
    launch, table = program.launch, bindings(program)
    regions = [r for r in n.each(n.ScaleRegion, program.body) if r.scale == launch.dispatch]
    after = [c for c in n.each(n.Collective, program.body) if c.kind == "allreduce" and len(c.to) == 1]
    if len(regions) != 1 or len(after) != 1 or program.launch.is_private(after[0].scale):
        return
    (region,), (collective,) = regions, after
    base, whole = table[collective.to[0].source].base, collective.to[0].dims
    touching = [(k, r) for m in n.walk(region.body) for k, r in n.regions(m) if table[r.source].base == base]
    if not touching or any(kind == "read" for kind, _ in touching):
        return
    for axis, count in reversed(list(enumerate(launch.extents(launch.dispatch)))):
        for dim, (start, extent) in enumerate((d.start, _size(d)) for d in whole):
            steps = {_step(r.dims[dim], Coord(launch.dispatch, axis)) for _, r in touching}
            if (
                known(start) == 0
                and extent
                and steps == {extent // count}
                and extent % count == 0
                and count > 1
            ):
                yield Split(region, collective, axis, dim, count, extent)


def _step(dim: n.Dim, coordinate: Coord) -> int:
    """How far a run moves from one block to the next, if they follow each other without a gap; else 0."""
    terms, offset = linear(dim.start)
    alone = set(terms) == {coordinate} and not offset
    return terms[coordinate] if alone and _size(dim) == terms[coordinate] else 0


def divided(program: Program, split: Split, parts: int) -> Program:
    """Regions and collectives of parts, one after the other."""
    launch, size, each = program.launch, split.extent // parts, split.blocks // parts
    at = launch.depth(launch.dispatch) - 1
    extents = tuple(each if d == split.axis else e for d, e in enumerate(launch.scales[at].extents))
    scales = (*launch.scales[:at], replace(launch.scales[at], extents=extents), *launch.scales[at + 1 :])
    here, found = Coord(launch.dispatch, split.axis), list[n.Node]()
    direct = any(split.region is m for m in program.body)
    for part in range(parts):
        names = {name: f"{name}_part{part}" for name in _defined(split.region)} if part else {}
        moved = _moved(split.region, here, part * each)
        found.append(renamed(moved, names))
        dim = replace(split.collective.to[0].dims[split.dim], start=Const(part * size), extent=Const(size))
        regions = tuple(
            replace(r, dims=(*r.dims[: split.dim], dim, *r.dims[split.dim + 1 :]))
            for r in split.collective.to
        )
        one = replace(split.collective, to=regions, source=regions)
        found.append(n.ScaleRegion(one.scale, (one,), span=one.span) if direct else one)

    def change(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        for node in body:
            if node is split.region:
                result += found
            elif node is not split.collective:
                new = n.with_bodies(node, change)
                if not (isinstance(new, n.ScaleRegion) and not new.body):
                    result.append(new)
        return tuple(result)

    return replace(program, launch=replace(launch, scales=scales), body=change(program.body))


def _defined(region: n.ScaleRegion) -> set[str]:
    names = {
        m.name
        for m in n.walk(region.body)
        if isinstance(m, (n.Alloc, n.View, n.Reshape, n.Let, n.ReadScalar))
    }
    return names | {m.var for m in n.walk(region.body) if isinstance(m, n.Loop)}


def _moved(node: Any, here: Coord, blocks: int) -> Any:
    """The statement in a block so many further on."""
    change = lambda e: rebuild(e, lambda part: here + blocks if part == here else part)  # noqa: E731
    if not blocks:
        return node
    inner = n.with_bodies(node, lambda body: tuple(_moved(m, here, blocks) for m in body))
    return rewrite_expressions(inner, change)


def batches(program: Program) -> list[tuple[list[n.Node], n.Collective]]:
    """Collectives of neighbouring parts of one tensor or tile, each with the one that does all of them."""
    found: list[tuple[list[n.Node], n.Collective]] = []

    def visit(body: tuple[n.Node, ...]) -> None:
        run: list[n.Collective] = []
        for node in (*body, None):
            if isinstance(node, n.Collective) and (not run or _next_to(run[-1], node)):
                run.append(node)
                continue
            if len(run) > 1:
                found.append((list(run), _union(run)))
            run = [node] if isinstance(node, n.Collective) else []
        for node in body:
            if isinstance(node, n.Loop) and len(node.body) == 1 and isinstance(node.body[0], n.Collective):
                whole = _of_loop(node, node.body[0])
                if whole is not None:
                    found.append(([node], whole))
                    continue
            for _, inner in n.bodies(node):
                visit(inner)

    visit(program.body)
    return found


def _alike(c: n.Collective) -> bool:
    return c.kind == "allreduce" and len(c.to) == 1 and c.to == c.source and c.fn is None


def _next_to(one: n.Collective, other: n.Collective) -> bool:
    """Whether the second takes the elements after the first's, along one dimension."""
    if not (_alike(one) and _alike(other)) or replace(one, to=other.to, source=other.source) != other:
        return False
    a, b = one.to[0], other.to[0]
    apart = [(x, y) for x, y in zip(a.dims, b.dims, strict=False) if x != y]
    if a.source != b.source or len(a.dims) != len(b.dims) or len(apart) != 1:
        return False
    ((x, y),) = apart
    low, size, following = known(x.start), _size(x), known(y.start)
    return low is not None and size is not None and low + size == following


def _union(run: list[n.Collective]) -> n.Collective:
    first, last = run[0].to[0], run[-1].to[0]
    dims = []
    for x, y in zip(first.dims, last.dims, strict=True):
        low, high, size = known(x.start), known(y.start), _size(y)
        known_all = low is not None and high is not None and size is not None
        dims.append(replace(x, extent=Const(high + size - low)) if x != y and known_all else x)  # type: ignore[operator]
    region = replace(first, dims=tuple(dims))
    return replace(run[0], to=(region,), source=(region,))


def _of_loop(loop: n.Loop, one: n.Collective) -> n.Collective | None:
    """The collective of all that a loop's ones take, if these follow each other without a gap."""
    start, stop, step = (known(e) for e in (loop.start, loop.stop, loop.step))
    if not _alike(one) or start is None or stop is None or step != 1 or stop - start < 2:
        return None
    dims, moving = [], 0
    for dim in one.to[0].dims:
        if loop.var not in symbols(dim.start):
            dims.append(dim)
            continue
        terms, _ = linear(dim.start)
        size = _size(dim)
        if terms.get(Symbol(loop.var)) != size or size is None:
            return None
        first = substitute(dim.start, {loop.var: Const(start)})
        dims.append(replace(dim, start=first, extent=Const(size * (stop - start))))
        moving += 1
    region = replace(one.to[0], dims=tuple(dims))
    return replace(one, to=(region,), source=(region,)) if moving == 1 else None


def batched(program: Program) -> Program:
    """Every run of such collectives as one."""
    made: dict[int, tuple[n.Node, ...]] = {}
    for nodes, whole in batches(program):
        made |= {id(node): () for node in nodes} | {id(nodes[0]): (whole,)}
    return replaced(program, made) if made else program


def independent(program: Program) -> Iterator[tuple[n.Collective, int]]:
    """Yield collectives that go one after the other though none needs another's result, with their number: of
    several tiles, or of each round of a loop."""
    table = bindings(program)

    def base(region: n.Region) -> str:
        return table[region.source].base

    def visit(body: tuple[n.Node, ...]) -> Iterator[tuple[n.Collective, int]]:
        run, changed = list[n.Collective](), set[str]()
        for node in (*body, None):
            every = [(k, r) for m in n.walk((node,)) for k, r in n.regions(m)] if node is not None else []
            uses = {base(r) for k, r in every if k != "write"}
            alike = isinstance(node, n.Collective) and _alike(node)
            if isinstance(node, n.Collective) and alike and not uses & changed and (
                not run or _same_kind(run[-1], node)
            ):  # fmt: skip
                run.append(node)
                changed |= {base(node.to[0])}
                continue
            if (
                node is not None
                and not uses & changed
                and not isinstance(node, (n.Collective, n.ScaleRegion))
            ):
                continue
            if len(run) > 1:
                yield run[0], len(run)
            run, changed = [], set()
        for node in body:
            rounds = trips(node) if isinstance(node, n.Loop) else None
            ones = [m for m in node.body if isinstance(m, n.Collective)] if isinstance(node, n.Loop) else []
            several = rounds is not None and len(rounds) > 1 and len(ones) == 1 and _alike(ones[0])
            if isinstance(node, n.Loop) and several and _anew(node, ones[0], base):
                yield ones[0], len(rounds or ())
                continue
            for _, inner in n.bodies(node):
                yield from visit(inner)

    yield from visit(program.body)


def _same_kind(one: n.Collective, other: n.Collective) -> bool:
    return replace(one, to=other.to, source=other.source) == other and one.to[0].dims == other.to[0].dims


def _anew(loop: n.Loop, one: n.Collective, base: Callable[[n.Region], str]) -> bool:
    """Whether no round of a loop takes to a collective what an earlier round has got from it."""
    at = next(i for i, m in enumerate(loop.body) if m is one)
    inside = [(i, k, r) for i, m in enumerate(loop.body) for x in n.walk((m,)) for k, r in n.regions(x)]
    touched: dict[str, list[tuple[int, str, n.Region]]] = {}
    for item in inside:
        touched.setdefault(base(item[2]), []).append(item)
    got = {base(one.to[0])}
    for i, m in enumerate(loop.body):
        every = [(k, r) for x in n.walk((m,)) for k, r in n.regions(x)]
        if i > at and any(k != "write" and base(r) in got for k, r in every):
            got |= {base(r) for k, r in every if k != "read"}
    for name in got:
        first, region = touched[name][0], touched[name][0][2]
        own = all(r == region for _, _, r in touched[name]) and any(
            loop.var in symbols(d.start) for d in region.dims
        )
        if not own and any(k != "write" and i <= at for i, k, _ in touched[name]) and first[1] != "write":
            return False
    return True
