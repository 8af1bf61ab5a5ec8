"""Regions: those of further levels with the flags between phases, and those inside an instance."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise

from megatile.core.expr import ZERO, Const, Expr, Symbol, expr, known, select, substitute, symbols, unit
from megatile.ir import nodes as n
from megatile.lowering.collectives import between_copies
from megatile.lowering.elementwise import elementwise_units, is_elementwise
from megatile.lowering.errors import LoweringError, cannot
from megatile.lowering.levels import communicates
from megatile.lowering.loops import branch, loop_scopes
from megatile.lowering.streams import Stream, StreamScope, rule
from megatile.lowering.units import Place, split_number, tidy
from megatile.lowering.waits import Meeting, Started
from megatile.plan import model as pm

UNROLLED = 8
"""Units inside an instance whose statements are written out."""


@rule(n.ScaleRegion)
def _scale(scope: StreamScope, node: n.ScaleRegion) -> None:
    state, launch = scope.state, scope.place.launch
    target, outer = launch.depth(node.scale), scope.place.depth
    if outer < state.first.depth:  # every device runs it, as a part of the larger unit or as itself
        counts = [s.count for s in launch.scales[: state.first.depth]]
        high = min(target, state.first.depth)
        path = tuple(tidy(e, scope.ranges) for e in split_number(unit, counts)[:high])
        scope = scope.inside(Place(launch, path), (outer, high))
    if target < state.first.depth and state.first.total > 1:
        _check_larger(node, launch.at(state.first.depth))
    if target == scope.place.depth:
        scope.lower(node.body)
        _phase_of_devices(scope, node, outer)
        return
    scale = state.structure.child_scale(node, scope.place.depth)
    if scale is not None:
        child(scope, node, scale, outer)
    else:
        within(scope, node, outer)


def _check_larger(node: n.ScaleRegion, device: str) -> None:
    """Refuse statements of a unit larger than a device: it has neither engines nor memory of its own."""
    for one in n.own_statements(node.body):
        if any(True for _ in n.regions(one)) or isinstance(one, (n.Alloc, n.Barrier, n.Signal, n.Wait)):
            raise LoweringError(
                f"a {type(one).__name__.lower()} of a '{node.scale}' itself, which has no engine",
                place=one.place,
                advice=f'put it inside with T.Scale("{device}"); there scale="{node.scale}" means the others',
            )


def _phase_of_devices(scope: StreamScope, node: n.ScaleRegion, outer: int) -> None:
    """Devices that reached into each other's memory meet before the next region. Messages of a collective
    need no barrier: a unit that has received the last one is done."""
    if scope.state.first.total > 1 and communicates(_without_messages(node), scope.state.homes.table):
        key = scope.place.rank(0, outer)
        scope.stream.out.append(
            Meeting(pm.Collective("barrier", scope.state.declared.barrier(scope.level, key)))
        )


def _without_messages(node: n.ScaleRegion) -> n.ScaleRegion:
    """Return the region without collectives that the library does."""

    def rest(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        return tuple(n.with_bodies(m, rest) for m in body if not _by_messages(m))

    return replace(node, body=rest(node.body))


def _by_messages(node: n.Node) -> bool:
    return isinstance(node, n.Collective) and node.impl not in n.WITHOUT_LIBRARY


def child(scope: StreamScope, node: n.ScaleRegion, scale: str, outer: int) -> None:
    """Lower a region of a further level: its stream, and the flags between it and this one. ``outer`` is the
    depth of the unit whose region it is (the launch, where ``scope`` is a device)."""
    state, launch = scope.state, scope.place.launch
    level, part = state.levels[scale], state.structure.parts[id(node)]
    first, each, times, stride = part
    parent = scope.place
    shared = scope.level is level.parent and not scope.stream.everyone
    stream = Stream(level, part, scope.stream if shared else None)
    level.streams.append(stream)
    number = unit if level.parents > 1 else unit - first
    if level.parents > 1:
        number = (
            (unit % level.total - first) % (stride * times)
            if each * times < level.total
            else unit % level.total
        )
    above = unit // level.total if level.parents > 1 else ZERO
    turn = number // stride if times > 1 else ZERO
    inner = number % stride if times > 1 else number
    if stride > each:
        inner = inner % each
    if level.total > each or shared:
        mine = stream.runs_it(unit)
        stream.meets = lambda key: select(mine, key * times + turn, -1)
    values: dict[str, Expr] = {"unit": above}
    below = times
    for loop in scope.turns:
        below //= loop.trips
        index = turn // below % loop.trips if below * loop.trips < times else turn // below
        values[loop.name] = substitute(loop.start, values) + index * loop.step
    moved = {k: substitute(v, values) for k, v in scope.names.items()}
    path = tuple(substitute(e, values) for e in parent.path)
    scales = launch.scales[parent.depth : level.depth]
    counts = [s.count for s in scales]
    if scales[-1].count == each and not level.communicates:
        inner = rasterised(inner, scales[-1].extents, node.body)
    low, high = (first, part.last) if level.parents == 1 else (0, level.instances - 1)
    ranges = {"unit": (low, high)}
    path = (*(tidy(e, ranges) for e in path), *(tidy(e, ranges) for e in split_number(inner, counts)))
    place = Place(launch, path)
    child = StreamScope(
        state, stream, place, moved, dict(scope.values), ranges,
        group=(outer, level.depth), around=(*scope.around, scope.group), node=node,
    )  # fmt: skip
    _phase(scope, child, node, (turn, each), tuple(substitute(c, values) for c in scope.conditions))


def rasterised(number: Expr, grid: tuple[int, ...], body: tuple[n.Node, ...]) -> Expr:
    """Return which block of a grid begins as ``number``: in order, or as hints say. ``use_swizzle``: in
    panels of some rows (columns), column by column (row by row) and to and fro, so that blocks of one time
    share rows and columns. ``reverse_blocks``: the last one first."""
    words = {m.word: m.text for m in body if isinstance(m, n.Hint)}
    if "reverse_blocks" in words:
        number = math.prod(grid) - 1 - number
    text = words.get("use_swizzle", "enable=False")
    sizes = [int(word) for word in re.findall(r"(?<![\w=])\d+|(?<=panel_size=)\d+", text)]
    if not sizes or len(grid) < 2 or sizes[0] < 1 or "enable=False" in text:
        return number
    columns = "column" in text
    across, rows = grid[1::-1] if columns else grid[:2]
    height = min(sizes[0], rows)
    flat = number % (across * rows)
    panel = flat // (height * across)
    within = flat % (height * across)
    last = rows - (rows - 1) // height * height
    tall = select(panel < (rows - 1) // height, height, last) if last != height else expr(height)
    column = within // tall
    column = select(panel % 2 > 0, across - 1 - column, column)
    row = panel * height + within % tall
    return number - flat + (column * rows + row if columns else row * across + column)


def _phase(
    scope: StreamScope,
    child: StreamScope,
    node: n.ScaleRegion,
    counted: tuple[Expr, int],
    conditions: tuple[Expr, ...],
) -> None:
    state = scope.state
    turn, each = counted
    number, streams = state.declared.fresh(), state.streams
    if any(symbols(condition) - {"unit"} for condition in conditions):
        raise cannot("a region under a condition that data decides", node)
    index: Expr = ZERO
    for loop in scope.turns:
        index = index * loop.trips + (Symbol(loop.name) - loop.start) // loop.step
    rounds = math.prod(loop.trips for loop in scope.turns) if conditions else 1
    if scope.place.launch.depth(node.scale) > child.level.depth:
        within(child, node, child.level.depth)
    else:
        child.lower(node.body)
    first = scope.level is state.first
    above = child.place.rank(0, scope.level.depth) if first else unit // child.level.total
    scope.stream.out.append(
        Started(
            number, child.stream, child.ranges, scope.level.name, above, rounds, turn, index, each,
            bool(scope.turns), conditions, state.streams == streams, node.phase, node.after, node.place,
        )
    )  # fmt: skip


def within(scope: StreamScope, node: n.ScaleRegion, low: int) -> None:
    """Lower a region inside the instance: every unit's statements, one after the other."""
    launch, high = scope.place.launch, scope.place.launch.depth(node.scale)
    counts = [s.count for s in launch.scales[scope.place.depth : high]]
    total, group = math.prod(counts), (low, high)
    if total > 1 and is_elementwise(node):
        elementwise_units(scope, node, total, counts, group)
        return
    if total > UNROLLED:
        raise cannot(f"code of {total} {node.scale}s that is not all elementwise", node)
    scopes = [
        scope.inside(Place(launch, (*scope.place.path, *split_number(Const(r), counts))), group)
        for r in range(total)
    ]
    together(scopes, node.body, node.scale)


def together(scopes: list[StreamScope], body: tuple[n.Node, ...], scale: str) -> None:
    """Lower the statements of units that run one region, each for all of them before the next."""
    for node in body:
        if len(scopes) == 1:
            scopes[0].lower((node,))
        elif isinstance(node, (n.Barrier, n.Collective)) and node.scale != scale:
            if not scopes[0].meets(node.scale):
                raise cannot(
                    f"a meeting of scale '{node.scale}' by {len(scopes)} {scale}s of one instance", node
                )
            for scope in scopes[:1] if isinstance(node, n.Barrier) else scopes:
                scope.lower((node,))
        elif isinstance(node, (n.Barrier, n.Fence)):
            continue
        elif isinstance(node, n.Collective):
            for scope in scopes:
                scope.node = node
            between_copies(scopes, node)
        elif isinstance(node, n.Loop) and _meets(node):
            scopes[0].node = node
            with loop_scopes(scopes, node) as inners:
                together(inners, node.body, scale)
        elif isinstance(node, n.If) and _meets(node):
            conditions = [f.whole(node.condition) for f in scopes]
            if any(c != conditions[0] for c in conditions):
                _on_both_sides(scopes, node, [known(c) for c in conditions], scale)
            else:
                branch(scopes, node, conditions[0], lambda inners, body: together(inners, body, scale))
        else:
            for scope in scopes:
                scope.lower((node,))


def _on_both_sides(scopes: list[StreamScope], node: n.If, taken: list[int | None], scale: str) -> None:
    """Units take different sides of a branch and meet where these have the same meetings in the same order:
    each does what is before on its side, then they meet."""
    sides = [_between_meetings(body) for body in (node.orelse, node.body)]
    if None in (*taken, *sides[0][0], *sides[1][0]) or sides[0][1] != sides[1][1]:
        raise cannot("a branch whose sides, taken by different units, have different meetings", node)
    for i, before in enumerate(zip(*(side[0] for side in sides), strict=True)):
        for scope, side in zip(scopes, taken, strict=True):
            scope.lower(before[bool(side)] or ())
        together(scopes, tuple(sides[0][1][i : i + 1]), scale)


def _between_meetings(body: tuple[n.Node, ...]) -> tuple[list[tuple[n.Node, ...] | None], list[n.Node]]:
    """Return the statements before, between and after the meetings of a body (None: one has a meeting
    inside), and these."""
    meetings: list[n.Node] = [m for m in body if isinstance(m, (n.Barrier, n.Collective))]
    ends = [-1, *(i for i, m in enumerate(body) if isinstance(m, (n.Barrier, n.Collective))), len(body)]
    parts = [body[a + 1 : b] for a, b in pairwise(ends)]
    return [None if any(map(_meets, part)) else part for part in parts], meetings


def _meets(node: n.Node) -> bool:
    return any(isinstance(m, (n.Barrier, n.Collective)) for m in n.walk((node,)))
