"""Blocks for what a loop does: its rounds as blocks of their own, or a reduction divided over blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from megatile.core.expr import (
    ZERO,
    Binary,
    Const,
    Expr,
    Symbol,
    known,
    linear,
    rebuild,
    substitute,
    symbols,
    trips,
    walk,
)
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Rank
from megatile.ir.launch import Launch
from megatile.ir.passes.driver import rewrite_expressions
from megatile.ir.program import Binding, Program, bindings
from megatile.verdict import changes
from megatile.verdict.model import Finding
from megatile.verdict.serial import SERIAL
from megatile.verdict.study import Study, rule

MAX_BLOCKS = 1 << 20
"""Blocks of grids whose conditions are looked at."""


def independent_parts(program: Program) -> n.Loop | None:
    """Return the loop of a block whose iterations each store parts of tensors of their own and begin their
    tiles anew, if there is one."""
    table, tensors = bindings(program), {p.name for p in program.params}
    scale = program.launch.dispatch
    regions = [r for r in n.each(n.ScaleRegion, program.body) if r.scale == scale]
    for region in regions if len(regions) == 1 else ():  # other phases would run in the new blocks too
        if len(program.launch.extents(scale)) > 2:
            continue
        loops = _loops(region)
        if len(loops) != 1 or region.body[-1] is not loops[0]:
            continue
        if most_rounds(loops[0], program.launch) is None:
            continue
        stores = [m for m in n.walk(loops[0].body) if _writes(m, table) & tensors]
        own = all(any(loops[0].var in symbols(e) for e in n.expressions(m)) for m in stores)
        if stores and own and not carried(loops[0], table, tensors):
            return loops[0]
    return None


def _loops(region: n.ScaleRegion) -> list[n.Loop]:
    kinds = (*SERIAL, "pipelined")
    return [m for m in region.body if isinstance(m, n.Loop) and m.kind in kinds]


def over_grid(expr: Expr, launch: Launch) -> np.ndarray | None:
    """Return the value of an expression in every block; None if it depends on more than their coordinates."""
    extents = launch.extents(launch.dispatch)
    if any(isinstance(p, (Load, Rank, Symbol)) for p in walk(expr)) or prod(extents) > MAX_BLOCKS:
        return None
    grid = np.meshgrid(*(np.arange(e) for e in extents), indexing="ij")
    named = rebuild(expr, lambda p: Symbol(f"axis{p.axis}") if isinstance(p, Coord) else p)
    return np.asarray(named.evaluate({f"axis{d}": x for d, x in enumerate(grid)}))


def most_rounds(loop: n.Loop, launch: Launch) -> range | None:
    """Return the rounds of a loop in the block that has most."""
    rounds = trips(loop)
    if rounds is None and known(loop.start) == 0 and known(loop.step) == 1:
        stops = over_grid(loop.stop, launch)
        rounds = None if stops is None else range(int(stops.max(initial=0)))
    return rounds


def independent_turns(program: Program) -> n.Loop | None:
    """Return the serial loop around all regions of blocks whose iterations touch nothing that another one
    writes: every tensor that is written has an index of its own in each. None: there is no such loop."""
    loops = [m for m in program.body if isinstance(m, n.Loop)]
    regions = [m for m in n.each(n.ScaleRegion, program.body) if m.scale == program.launch.dispatch]
    if len(loops) != 1 or loops[0].kind not in SERIAL or trips(loops[0]) is None or not regions:
        return None
    if [m for m in loops[0].body if m in regions] != regions or len(loops[0].body) != len(regions):
        return None
    if len(program.launch.extents(program.launch.dispatch)) > 2 or any(
        map(_meets_others, n.walk(program.body))
    ):
        return None
    table, tensors = bindings(program), {p.name for p in program.params}
    touched: dict[str, list[n.Region]] = {}
    written = set[str]()
    for node in n.walk(loops[0].body):
        for kind, region in n.regions(node):
            base = table[region.source].base
            touched.setdefault(base, []).append(region)
            written |= {base} if kind != "read" else set()
    return loops[0] if all(_own(touched[t], t, loops[0].var) for t in written & tensors) else None


def _meets_others(node: n.Node) -> bool:
    return isinstance(node, (n.Collective, n.Barrier, n.Signal, n.Wait)) or n.remote(node) is not None


def _own(regions: list[n.Region], tensor: str, var: str) -> bool:
    """Whether regions all have one index of a dimension, and that is another for each value of a variable."""
    if any(region.source != tensor for region in regions):
        return False
    each = [
        {
            (at, dim.start)
            for at, dim in enumerate(region.dims)
            if dim.extent is None or known(dim.extent) == 1
        }
        for region in regions
    ]
    return any(linear(start)[0].get(Symbol(var)) for _, start in set.intersection(*each))


@rule("serial loop of phases")
def turns_of_phases(study: Study) -> Iterator[Finding]:
    """A loop runs phases of blocks for one problem after the other, though none needs another."""
    loop = independent_turns(study.lowered.source) if study.lowered is not None else None
    rounds = trips(loop) if loop is not None else None
    if loop is not None and rounds is not None:
        yield from study.finding(
            "serial loop", study.program_ps(parts_in_grid),
            f"program timed again with blocks for each '{loop.var}'",
            bottleneck=f"a serial loop around phases: {len(rounds)} times, all blocks wait for each other",
            reason=f"the iterations of '{loop.var}' need nothing of each other, and the units have "
            "no other blocks while the last ones of a phase run",
            step=f"a dimension of the grid in place of the loop over '{loop.var}'",
            source=changes.source_line(loop),
        )  # fmt: skip


def _writes(node: n.Node, table: Mapping[str, Binding]) -> set[str]:
    """The tensors and tiles that a statement writes."""
    return {table[r.source].base for kind, r in n.regions(node) if kind != "read"}


def carried(loop: n.Loop, table: Mapping[str, Binding], tensors: set[str]) -> set[str]:
    """Return the tiles that an iteration reads as the one before has left them."""
    found: set[str] = set()
    written = {table[name].base for name in n.written(loop.body)} - tensors
    begun: set[str] = set()
    for node in n.walk(loop.body):
        anew = isinstance(node, (n.Fill, n.Copy)) or bool(getattr(node, "clear", False))
        reads = {
            table[r.source].base
            for kind, r in n.regions(node)
            if kind == "read" or (not anew and kind == "update")
        }
        found |= reads & (written - begun)
        begun |= _writes(node, table)
    return found


def scan(program: Program) -> n.Loop | None:
    """Return the loop of blocks whose rounds store a part of a result and leave something to the next."""
    table, tensors = bindings(program), {p.name for p in program.params}
    for region in n.each(n.ScaleRegion, program.body):
        for loop in region.body if region.scale == program.launch.dispatch else ():
            if isinstance(loop, n.Loop) and carried(loop, table, tensors):
                stores = [r for m in n.walk(loop.body) for kind, r in n.regions(m) if kind == "write"
                          and table[r.source].base in tensors]  # fmt: skip
                if any(loop.var in symbols(e) for r in stores for e in r.expressions()):
                    return loop
    return None


def parts_in_grid(program: Program) -> Program:
    """The iterations of such a loop (of parts, or of turns) as blocks of their own."""
    loop = independent_parts(program) or independent_turns(program)
    rounds = most_rounds(loop, program.launch) if loop is not None else None
    if loop is None or rounds is None:
        return program
    launch = program.launch
    here = Coord(launch.dispatch, len(launch.extents(launch.dispatch))) * rounds.step + rounds.start

    def moved(node: n.Node) -> n.Node:
        inner = n.with_bodies(node, lambda body: tuple(map(moved, body)))
        return rewrite_expressions(inner, lambda e: substitute(e, {loop.var: here}))

    def change(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        for node in body:
            if node is not loop:
                result.append(n.with_bodies(node, change))
            elif trips(loop) is not None:
                result += map(moved, loop.body)
            else:
                result.append(n.If(here < loop.stop, tuple(map(moved, loop.body))))
        return tuple(result)

    return replace(program, launch=_with_axis(launch, len(rounds)), body=change(program.body))


def sums(program: Program) -> n.Loop | None:
    """Return the only loop of a block, if all that it leaves are sums in tiles: then parts of it may be added
    up in any order."""
    regions = [m for m in n.each(n.ScaleRegion, program.body) if m.scale == program.launch.dispatch]
    loops = _loops(regions[0]) if len(regions) == 1 else []
    extents = program.launch.extents(program.launch.dispatch)
    if (
        len(loops) != 1
        or trips(loops[0]) is None
        or len(extents) - extents.count(1) > 2
        or (len(extents) > 2 and extents[-1] > 1)
    ):
        return None
    (loop,), table, tensors = loops, bindings(program), {p.name for p in program.params}
    body = list(n.walk(loop.body))
    added = {table[name].base for node in body if (name := added_to(node)) is not None}
    begun, left = set[str](), set[str]()
    for node in body:
        if isinstance(node, n.Loop) or _meets_others(node):
            return None
        reads = {table[r.source].base for kind, r in n.regions(node) if kind != "write"} - tensors
        own = {table[name].base} if (name := added_to(node)) is not None else set()
        left |= reads - begun - own
        begun |= _writes(node, table) - own
    carried = left & {table[name].base for name in n.written(loop.body)}
    after = regions[0].body[regions[0].body.index(loop) + 1 :]
    stores = [m for m in after if isinstance(m, n.Copy) and table[m.to.source].base in tensors]
    return loop if added and stores and not carried and not begun & (added | tensors) else None


def added_to(node: n.Node) -> str | None:
    """The tile to which a statement only adds."""
    if isinstance(node, n.Gemm) and not node.clear:
        return node.c.source
    if isinstance(node, n.Reduce) and node.op == "sum" and not node.clear:
        return node.to.source
    if isinstance(node, n.Store) and isinstance(node.value, Binary) and node.value.operator == "+":
        sides = (node.value.left, node.value.right)
        own = [p for p in walk(node.value) if isinstance(p, Load) and p.source == node.target]
        if len(own) == 1 and own[0] in sides and own[0].index == node.index:
            return node.target
    return None


def split_sums(program: Program, most: int) -> tuple[Program, int]:
    """Return the program with such a loop divided over at most so many blocks, which add up what they have in
    the tensors; and how many these are."""
    bare = _without_axes_of_one(program)
    loop = sums(bare)
    return _split(program, bare, loop, most, adding=True)


def split_rounds(program: Program, most: int) -> tuple[Program, int]:
    """Return the program with a loop whose rounds need nothing of each other divided over at most so many
    blocks, and how many these are."""
    bare = _without_axes_of_one(program)
    return _split(program, bare, independent_parts(bare), most, adding=False)


def _split(
    given: Program, program: Program, loop: n.Loop | None, most: int, adding: bool
) -> tuple[Program, int]:
    rounds = trips(loop) if loop is not None else None
    parts = max((d for d in range(1, most + 1) if rounds and not len(rounds) % d), default=1)
    if loop is None or rounds is None or parts == 1:
        return given, 1
    launch, tensors, table = program.launch, {p.name for p in program.params}, bindings(program)
    each, extents = len(rounds) // parts, launch.extents(launch.dispatch)
    first = Coord(launch.dispatch, len(extents)) * (each * rounds.step) + rounds.start

    def moved(node: n.Node) -> n.Node:
        inner = n.with_bodies(node, lambda body: tuple(map(moved, body)))
        here = Symbol(loop.var) * rounds.step + first
        return rewrite_expressions(inner, lambda e: substitute(e, {loop.var: here}))

    def change(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        for node in body:
            if node is loop:
                inner = tuple(map(moved, loop.body))
                result.append(replace(loop, start=Const(0), stop=Const(each), step=Const(1), body=inner))
            elif (
                adding
                and isinstance(node, n.Copy)
                and table[node.to.source].base in tensors
                and not n.remote(node)
            ):
                result.append(n.AtomicRegion("add", node.to, node.source, span=node.span))
            else:
                result.append(n.with_bodies(node, change))
        return tuple(result)

    return replace(program, launch=_with_axis(launch, parts), body=change(program.body)), parts


def _with_axis(launch: Launch, extent: int) -> Launch:
    """Return the launch with one more axis of the grid."""
    at = launch.depth(launch.dispatch) - 1
    scale = replace(launch.scales[at], extents=(*launch.scales[at].extents, extent))
    return replace(launch, scales=(*launch.scales[:at], scale, *launch.scales[at + 1 :]))


def _without_axes_of_one(program: Program) -> Program:
    """Return the program without the last axes of its grid that have one block, so that there is room for
    another."""
    launch, extents = program.launch, program.launch.extents(program.launch.dispatch)
    while len(extents) > 1 and extents[-1] == 1:
        gone, extents = Coord(launch.dispatch, len(extents) - 1), extents[:-1]
        body = tuple(_replaced(node, gone) for node in program.body)
        program = replace(program, body=body)
    at = launch.depth(launch.dispatch) - 1
    scales = (*launch.scales[:at], replace(launch.scales[at], extents=extents), *launch.scales[at + 1 :])
    return replace(program, launch=replace(launch, scales=scales))


def _replaced(node: n.Node, gone: Coord) -> n.Node:
    inner = n.with_bodies(node, lambda body: tuple(_replaced(m, gone) for m in body))
    return rewrite_expressions(inner, lambda e: rebuild(e, lambda p: ZERO if p == gone else p))
