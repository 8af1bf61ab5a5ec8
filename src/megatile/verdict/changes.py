"""Changes of a Program whose time is asked for: remedies as a programmer would write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

from megatile.core.dtypes import itemsize
from megatile.core.expr import Expr, rebuild, symbols, walk
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load
from megatile.ir.passes.driver import rewrite_expressions, rewrite_nodes
from megatile.ir.program import Program, bindings


def source_line(node: n.Node | None) -> str:
    """Return ``file:line`` of a statement, or an empty text."""
    return f"{node.span.file}:{node.span.line}" if node is not None and node.span is not None else ""


def with_hint(program: Program, word: str, text: str = "", scale: str | None = None) -> Program:
    """Return the program with a hint in every region of the dispatched scale; it replaces others."""
    wanted = scale or program.launch.dispatch

    def change(node: n.Node) -> n.Node | None:
        if isinstance(node, n.Hint) and node.word == word:
            return None
        if isinstance(node, n.ScaleRegion) and node.scale == wanted:
            return replace(node, body=(n.Hint(word, text, span=node.span), *node.body))
        return node

    return replace(program, body=rewrite_nodes(program.body, change))


def loads_tiles(program: Program, loop: n.Loop) -> bool:
    """Whether a loop loads tiles from tensors and computes on them."""
    tensors = {p.name for p in program.params}
    table = bindings(program)
    copies = [m for m in loop.body if isinstance(m, n.Copy) and table[m.source.source].base in tensors]
    written = {m.to.source for m in copies}
    return any(
        region.source in written
        for m in n.walk(loop.body)
        for access, region in n.regions(m)
        if access != "write" and not isinstance(m, n.Copy)
    )


def pipelines(program: Program) -> list[n.Loop]:
    """Return the loops that are pipelines or could be."""
    return [
        loop for loop in n.each(n.Loop, program.body)
        if loop.kind in ("pipelined", "serial", "persistent") and loads_tiles(program, loop)
    ]  # fmt: skip


def with_stages(program: Program, stages: int) -> Program:
    """Return the program whose loops that load tiles and compute on them have at least so many stages."""
    wanted = {id(loop) for loop in pipelines(program) if loop.kind != "persistent" and loop.stages < stages}

    def change(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        result = []
        for node in body:
            new = n.with_bodies(node, change)
            if id(node) in wanted and isinstance(new, n.Loop):
                new = replace(new, kind="pipelined", stages=stages)
            result.append(new)
        return tuple(result)

    return replace(program, body=change(program.body)) if wanted else program


def _reads(expr: Expr) -> bool:
    return any(isinstance(part, Load) for part in walk(expr))


def block_copies(program: Program, remote: bool = False) -> Iterator[n.Copy]:
    """Yield unconditional copies of blocks between tensors and tiles: of this unit, or of other ones."""
    for region in n.each(n.ScaleRegion, program.body):
        if region.scale == program.launch.dispatch:
            copies = (m for m in n.walk(region.body, (n.If,)) if isinstance(m, n.Copy))
            yield from (m for m in copies if bool(n.remote(m)) == remote)


def shared_loads(program: Program, remote: bool = False) -> list[n.Copy]:
    """Return loads that blocks share: their place does not depend on one of the grid's coordinates."""
    tensors, table, launch = {p.name for p in program.params}, bindings(program), program.launch
    counts = launch.extents(launch.dispatch)
    wanted = {axis for axis, count in enumerate(counts) if count > 1}

    def coordinates(copy: n.Copy) -> set[int]:
        parts = (part for e in copy.source.expressions() for part in walk(e))
        return {p.axis for p in parts if isinstance(p, Coord) and p.scale == launch.dispatch}

    loads = (c for c in block_copies(program, remote) if remote or table[c.source.source].base in tensors)
    return [c for c in loads if wanted - coordinates(c)]


def one_block_in(program: Program, axis: int, blocks: int) -> Program:
    """The program with the first of every so many blocks along an axis of the grid, without the others."""
    launch = program.launch
    here, at = Coord(launch.dispatch, axis), launch.depth(launch.dispatch) - 1
    extents = tuple(e // blocks if d == axis else e for d, e in enumerate(launch.scales[at].extents))
    scales = (*launch.scales[:at], replace(launch.scales[at], extents=extents), *launch.scales[at + 1 :])

    def moved(node: n.Node) -> n.Node:
        inner = n.with_bodies(node, lambda body: tuple(map(moved, body)))
        return rewrite_expressions(
            inner, lambda e: rebuild(e, lambda part: here * blocks if part == here else part)
        )

    body = tuple(map(moved, program.body))
    return replace(program, launch=replace(launch, scales=scales), body=body)


def round_trips(program: Program) -> list[tuple[n.Copy, n.Copy]]:
    """Return stores of a tile, each with a later load of the same part in the same body."""
    tensors, table = {p.name for p in program.params}, bindings(program)
    found = []

    def visit(body: tuple[n.Node, ...]) -> None:
        stored: dict[n.Region, n.Copy] = {}
        for node in body:
            if isinstance(node, n.Copy) and not n.remote(node):
                if (
                    node.source in stored
                    and table[node.to.source].base == table[stored[node.source].source.source].base
                ):
                    found.append((stored.pop(node.source), node))
                elif table[node.to.source].base in tensors:
                    stored[node.to] = node
            for _, inner in n.bodies(node):
                visit(inner)

    visit(program.body)
    return found


def carried_in_memory(program: Program) -> Iterator[tuple[n.Loop, n.Copy, n.Copy]]:
    """Yield loops that load the same part of a tensor and store it in every iteration, with both copies."""
    tensors, table = {p.name for p in program.params}, bindings(program)
    for loop in n.each(n.Loop, program.body):
        inside = list(n.walk(loop.body))
        changing = {loop.var} | {m.name for m in inside if isinstance(m, (n.Let, n.ReadScalar))}
        copies = [m for m in loop.body if isinstance(m, n.Copy) and not n.remote(m)]
        for load in copies:
            if table[load.source.source].base not in tensors or any(
                symbols(e) & changing or _reads(e) for e in n.expressions(load)
            ):
                continue
            store = next((m for m in copies if m.to == load.source and m.source == load.to), None)
            touches = [
                r
                for m in inside
                for _, r in n.regions(m)
                if table[r.source].base == table[load.source.source].base
            ]
            if store is not None and len(touches) == 2:
                yield loop, load, store


def carried_in_tile(program: Program) -> Program:
    """Return the program that loads such parts before their loop and stores them after it."""
    before, after, gone = dict[int, list[n.Node]](), dict[int, list[n.Node]](), set[int]()
    for loop, load, store in carried_in_memory(program):
        before.setdefault(id(loop), []).append(load)
        after.setdefault(id(loop), []).append(store)
        gone |= {id(load), id(store)}

    def change(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        for node in body:
            if id(node) not in gone:
                result += [*before.get(id(node), []), n.with_bodies(node, change), *after.get(id(node), [])]
        return tuple(result)

    return replace(program, body=change(program.body)) if gone else program


def without(program: Program, nodes: list[n.Node]) -> Program:
    """Return the program without some statements."""
    return replaced(program, {id(node): () for node in nodes}) if nodes else program


def replaced(program: Program, nodes: Mapping[int, tuple[n.Node, ...]]) -> Program:
    """Return the program with others in place of some statements (by identity)."""

    def change(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        new = (nodes[id(m)] if id(m) in nodes else (n.with_bodies(m, change),) for m in body)
        return tuple(m for part in new for m in part)

    return replace(program, body=change(program.body))


def wide_products(program: Program, narrow: str = "f16") -> tuple[Program, n.Gemm | None]:
    """Return the program with f32 operands of products (and their tensors) in a narrower type."""
    table = bindings(program)
    wide = [
        g for g in n.each(n.Gemm, program.body) if table[g.a.source].dtype == table[g.b.source].dtype == "f32"
    ]
    names = {table[region.source].base for g in wide for region in (g.a, g.b)}
    for copy in n.each(n.Copy, program.body):
        if table[copy.to.source].base in names:
            names.add(table[copy.source.source].base)
    names -= {table[g.c.source].base for g in n.each(n.Gemm, program.body)}
    if not wide or not names & {table[wide[0].a.source].base}:
        return program, None

    def change(node: n.Node) -> n.Node:
        return replace(node, dtype=narrow) if isinstance(node, n.Alloc) and node.name in names else node

    params = tuple(replace(p, dtype=narrow) if p.name in names else p for p in program.params)
    return replace(program, params=params, body=rewrite_nodes(program.body, change)), wide[0]


def widened(program: Program) -> dict[str, str]:
    """Operands of products that are nothing but another tile in a wider type, by the tile's name; only those
    whose product has both operands so, of one type."""
    table = bindings(program)
    writes = [(node, region) for node in n.walk(program.body) for k, region in n.regions(node) if k != "read"]
    stores = {m.target for m in n.walk(program.body) if isinstance(m, n.Store)}
    plain: dict[str, str] = {}
    for node, region in writes:
        if isinstance(node, n.Copy) and not n.remote(node):
            to, source = table[region.source], table[node.source.source]
            alone = sum(table[r.source].base == to.base for _, r in writes) == 1 and to.base not in stores
            whole = node.source == n.whole(source.base, source.shape) and to.shape == source.shape
            wider = itemsize(to.dtype) > itemsize(source.dtype)
            if alone and whole and wider and region == n.whole(to.base, to.shape):
                plain[to.base] = source.base
    found: dict[str, str] = {}
    for gemm in n.each(n.Gemm, program.body):
        mine = {r.source: plain[r.source] for r in (gemm.a, gemm.b) if r.source in plain}
        if {gemm.a.source, gemm.b.source} == mine.keys() and len(
            {table[m].dtype for m in mine.values()}
        ) == 1:
            found |= mine
    return found


def loaded_wider(program: Program) -> dict[str, str]:
    """Operands of products that are loaded from tensors of one narrower type, and that type; only those whose
    product has both operands so, and which nothing else reads."""
    table, tensors = bindings(program), {p.name for p in program.params}
    loads: dict[str, set[str]] = {}
    others = {x for m in n.walk(program.body) for x in stored_or_loaded(m)}
    for node in n.walk(program.body):
        for kind, region in n.regions(node):
            base, copy = table[region.source].base, isinstance(node, n.Copy) and not n.remote(node)
            if kind != "read":
                source = table[node.source.source] if copy else None  # type: ignore[attr-defined]
                outside = source is not None and source.base in tensors
                loads.setdefault(base, set()).add(source.dtype if source is not None and outside else "")
            elif not isinstance(node, n.Gemm):
                others.add(region.source)
    used, found = {table[name].base for name in others if name in table}, dict[str, str]()
    for gemm in n.each(n.Gemm, program.body):
        mine = {table[r.source].base: table[r.source].dtype for r in (gemm.a, gemm.b)}
        kinds = {kind for base in mine for kind in loads.get(base, {""})}
        kind = kinds.pop() if len(kinds) == 1 else ""
        if kind and not used & mine.keys() and all(itemsize(kind) < itemsize(d) for d in mine.values()):
            found |= dict.fromkeys(mine, kind)
    return found


def stored_or_loaded(node: n.Node) -> list[str]:
    """The tensors and tiles whose elements a statement itself reads or changes, one by one."""
    stored = [node.target] if isinstance(node, (n.Store, n.Atomic)) else []
    return [*stored, *(p.source for e in n.expressions(node) for p in walk(e) if isinstance(p, Load))]


def with_types(program: Program, types: Mapping[str, str]) -> Program:
    """Return the program with tiles of other types."""

    def change(node: n.Node) -> n.Node:
        if isinstance(node, n.Alloc) and node.name in types:
            return replace(node, dtype=types[node.name])
        return node

    return replace(program, body=rewrite_nodes(program.body, change))


def narrow_products(program: Program) -> Program:
    """Return the program whose products take tiles in their own type, without the copies that widen them."""
    names = widened(program)

    def change(node: n.Node) -> n.Node | None:
        if isinstance(node, n.Gemm) and {node.a.source, node.b.source} <= names.keys():
            a, b = (replace(r, source=names[r.source]) for r in (node.a, node.b))
            return replace(node, a=a, b=b)
        return None if isinstance(node, n.Copy) and node.to.source in names else node

    changed = replace(program, body=rewrite_nodes(program.body, change))
    read = {r.source for m in n.walk(changed.body) for _, r in n.regions(m)}
    unused = [m for m in n.each(n.Alloc, changed.body) if m.name in names and m.name not in read]
    return without(changed, list(unused)) if names else program


def regions_of_scale(program: Program, scale: str) -> list[n.Node]:
    """Return the regions of a scale."""
    return [s for s in n.each(n.ScaleRegion, program.body) if s.scale == scale]


def atomics(program: Program) -> list[n.Node]:
    """Return the atomics that change tensors."""
    tensors, table = {p.name for p in program.params}, bindings(program)
    found: list[n.Node] = []
    for node in n.walk(program.body):
        name = node.target if isinstance(node, n.Atomic) else getattr(getattr(node, "to", None), "source", "")
        if isinstance(node, (n.Atomic, n.AtomicRegion)) and table[name].base in tensors:
            found.append(node)
    return found


def padded(program: Program, tiles: set[str]) -> Program:
    """Return the program with swizzled tiles."""
    return with_hint(program, "annotate_layout", ", ".join(f"{tile}: swizzled" for tile in sorted(tiles)))


def with_longer_rows(program: Program, tile: str, elements: int) -> Program:
    """Return the program with padded rows in all tiles of the memory that holds this one."""
    level = next(m.level for m in n.each(n.Alloc, program.body) if m.name == tile)

    def change(node: n.Node) -> n.Node:
        if not isinstance(node, n.Alloc) or node.level != level:
            return node
        return replace(node, shape=(*node.shape[:-1], node.shape[-1] + elements))

    return replace(program, body=rewrite_nodes(program.body, change))


def with_algorithm(program: Program, algorithm: str | None) -> Program:
    """Return the program with another algorithm for its collectives; None: the planner's choice."""

    def change(node: n.Node) -> n.Node:
        return replace(node, algorithm=algorithm, impl=None) if isinstance(node, n.Collective) else node

    return replace(program, body=rewrite_nodes(program.body, change))


Fusible = tuple[n.ScaleRegion, n.ScaleRegion, list[tuple[n.Copy, n.Copy]]]


def fusible(program: Program) -> Fusible | None:
    """Two phases of blocks in a row, and stores of the first, each with the load of the same region by the
    second, where these are all that the second has from the first."""
    regions = [r for r in n.each(n.ScaleRegion, program.body) if r.scale == program.launch.dispatch]
    table, tensors = bindings(program), {p.name for p in program.params}
    for one, two in pairwise(regions):
        stores = [m for m in one.body if isinstance(m, n.Copy) and table[m.to.source].base in tensors]
        written = {table[name].base for name in n.written(one.body)} & tensors
        reads = [
            m
            for m in n.walk(two.body)
            for a, r in n.regions(m)
            if a != "write" and table[r.source].base in written
        ]
        pairs = [(s, m) for s in stores for m in two.body if isinstance(m, n.Copy) and m.source == s.to]
        loads = [load for _, load in pairs]
        alone = len({id(s) for s, _ in pairs}) == len(pairs) == len(reads)
        if pairs and alone and all(m in loads for m in reads) and not any(n.remote(s) for s, _ in pairs):
            return one, two, pairs
    return None


def fused(program: Program) -> Program:
    """Phases as one, as long as two follow each other so, without the tensors between them; what both load
    is loaded once."""
    found = fusible(program)
    if found is None:
        return program
    one, two, pairs = found
    names = {b.to.source: a.source.source for a, b in pairs if _same_tile(program, b.to, a.source)}
    gone, stores = [load for _, load in pairs], [store for store, _ in pairs]
    for again, first in loaded_by_both(program, one, two):
        names[again.to.source] = first.to.source
        gone.append(again)
    rest = [m for m in two.body if not (any(m is x for x in gone) or getattr(m, "name", "") in names)]
    body = (*(m for m in one.body if not any(m is x for x in stores)), *renamed(tuple(rest), names))

    def change(inside: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        kept = (m for m in inside if m is not two)
        return tuple(replace(one, body=body) if m is one else n.with_bodies(m, change) for m in kept)

    return fused(replace(program, body=change(program.body)))


def loaded_by_both(
    program: Program, one: n.ScaleRegion, two: n.ScaleRegion
) -> Iterator[tuple[n.Copy, n.Copy]]:
    """Yield loads of the second phase, each with a load of the first that fills an equal tile alike."""
    table, tensors = bindings(program), {p.name for p in program.params}
    writes = [table[name].base for name in n.written(one.body)]
    for again in two.body:
        if not isinstance(again, n.Copy) or table[again.source.source].base not in tensors - set(writes):
            continue
        for first in one.body:
            if (
                isinstance(first, n.Copy)
                and first.source == again.source
                and _same_tile(program, first.to, again.to)
                and sum(r.source == first.to.source for m in n.walk(one.body) for k, r in n.regions(m)
                        if k != "read") == 1
            ):  # fmt: skip
                yield again, first
                break


def _same_tile(program: Program, one: n.Region, other: n.Region) -> bool:
    table = bindings(program)
    a, b = table[one.source], table[other.source]
    return (a.shape, a.dtype) == (b.shape, b.dtype)


def renamed(value: Any, names: dict[str, str]) -> Any:
    """Return a statement, or a part of one, with other names of tiles, loops and variables."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, tuple):
        return tuple(renamed(v, names) for v in value)
    if not names or not is_dataclass(value) or isinstance(value, (type, n.Span)):
        return value
    return replace(value, **{f.name: renamed(getattr(value, f.name), names) for f in fields(value) if f.init})
