"""Sketches of units joined by a network, one function per kind of wiring."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from typing import Any

from megatile.hda.direct import Edges, FullMesh, Grid, Tree
from megatile.hda.switched import Switched
from megatile.hda.topology import Topology
from megatile.report.sketch import Inside, Shape, Sketch, Slots, boxes, shown, spread, unit
from megatile.report.sketch_switches import sketch_switches


def sketch_network(inside: Inside, topology: Topology | None, width: float) -> Sketch:
    """Return the units of one unit and what joins them; without a topology just the units."""
    if topology is None or topology.size < 2:
        return boxes(inside, width)
    if isinstance(topology, Grid):
        rank = len(topology.dims)
        return _GRIDS.get((rank, rank == 1 and topology.wrap[0]), _space)(inside, topology, width)
    return _KINDS[type(topology)](inside, topology, width)


def _line(inside: Inside, grid: Grid, width: float) -> Sketch:
    sketch = Sketch(width)
    middles, pitch = spread(slots := shown(grid.size, 8), 0, width, 130.0)
    side = min(pitch * 0.66, 64.0)
    _along(sketch, slots, [(x, side / 2) for x in middles], side, horizontal=True)
    for slot, x in zip(slots, middles, strict=True):
        if slot is not None:
            sketch.add(unit(x, side / 2, side, side, inside.name, slot))
    return sketch


def _plane(inside: Inside, grid: Grid, width: float) -> Sketch:
    """Return a two-dimensional grid; a dimension that wraps has an arc beside each of its lines."""
    wide, high = grid.dims
    margin = 16.0 if any(grid.wrap) else 0.0
    sketch = Sketch(width)
    columns, rows = shown(wide, 6), shown(high, 6)
    truncated = None in columns + rows
    xs, pitch = spread(columns, margin, width - 2 * margin, 92.0)
    ys, pitch_y = spread(rows, 0, min(pitch, 62.0) * sum(0.5 if r is None else 1.0 for r in rows), 92.0)
    w, h = pitch * 0.66, min(pitch, pitch_y) * 0.62
    ys = [y - (pitch_y - h) / 2 + margin for y in ys]
    for r, y in zip(rows, ys, strict=True):
        if r is not None:
            _along(sketch, columns, [(x, y) for x in xs], w, horizontal=True)
            if grid.wrap[0]:
                _arc(sketch, (xs[0], y - h / 2), (xs[-1], y - h / 2), (0, -margin * 1.25))
    for c, x in zip(columns, xs, strict=True):
        if c is not None:
            _along(sketch, rows, [(x, y) for y in ys], h, horizontal=False)
            if grid.wrap[1]:
                _arc(sketch, (x - w / 2, ys[0]), (x - w / 2, ys[-1]), (-margin * 1.25, 0))
    for r, y in zip(rows, ys, strict=True):
        for c, x in zip(columns, xs, strict=True):
            if r is not None and c is not None:
                shape = unit(x, y, w, h, inside.name, c + r * wide)
                sketch.add(replace(shape, labels=(f"{c},{r}",)) if truncated else shape)
    return sketch


def _along(
    sketch: Sketch, slots: Slots, points: list[tuple[float, float]], side: float, horizontal: bool
) -> None:
    """Draw links between neighbours on one line of a grid; at dots a short piece from both sides."""
    step = (5.0, 0.0) if horizontal else (0.0, 5.0)
    for i in range(len(slots) - 1):
        a, b = points[i], points[i + 1]
        if slots[i] is None or slots[i + 1] is None:
            near, dots = (b, a) if slots[i] is None else (a, b)
            sign = 1 if sum(dots) > sum(near) else -1
            reach = sign * (side / 2 + 6)
            sketch.wire(near, (near[0] + reach * horizontal, near[1] + reach * (not horizontal)))
            if slots[i + 1] is None:
                sketch.gap(*dots, *step)
        else:
            sketch.wire(a, b)


def _arc(sketch: Sketch, a: tuple[float, float], b: tuple[float, float], bend: tuple[float, float]) -> None:
    sketch.wire(a, (a[0] + bend[0], a[1] + bend[1]), (b[0] + bend[0], b[1] + bend[1]), b, curved=True)


def _space(inside: Inside, grid: Grid, width: float) -> Sketch:
    """Three dimensions in oblique projection, the third going back; of more dimensions the first three."""
    xs, ys, zs = (shown(extent, most) for extent, most in zip(grid.dims[:3], (5, 5, 4), strict=True))
    sketch = Sketch(width)
    pitch = min(width / (len(xs) + 0.3), 92.0)
    # The layers together go back less than one step, or they would hide each other.
    side, back = pitch * 0.2, pitch * min(0.3, 0.72 / max(1, len(zs) - 1))
    rise = back * 0.8 * (len(zs) - 1)
    left = (width - pitch * (len(xs) - 1) - back * (len(zs) - 1)) / 2

    def at(i: int, j: int, k: int) -> tuple[float, float]:
        return left + i * pitch + k * back, side / 2 + 14 + rise + j * pitch * 0.85 - k * back * 0.8

    ranges = (range(len(xs)), range(len(ys)), range(len(zs)))
    slots = (xs, ys, zs)
    for k in reversed(ranges[2]):
        for j in ranges[1]:
            for i in ranges[0]:
                _space_unit(sketch, grid, slots, (i, j, k), at, side)
    sketch.height += 14.0 if any(grid.wrap[:3]) else 0.0
    return sketch


def _space_unit(
    sketch: Sketch, grid: Grid, slots: tuple[Slots, ...], place: tuple[int, int, int], at: Any, side: float
) -> None:
    numbers = [line[p] for line, p in zip(slots, place, strict=True)]
    here = at(*place)
    if None in numbers:
        # Dots on the front layer, and behind it only along the top edge: more would hide the links.
        if numbers.count(None) == 1 and (place[2] == 0 or (numbers[2] is None and place[1] == 0)):
            x, y = here
            sketch.gap(x, y, dy=4.0, dx=0.0) if numbers[1] is None else sketch.gap(x, y, dx=4.0)
        return
    for axis, line in enumerate(slots):
        after = place[axis] + 1
        there = at(*(p + (a == axis) for a, p in enumerate(place)))
        if after < len(line) and line[after] is not None:
            sketch.wire(here, there)
        elif after == len(line) and grid.wrap[axis]:
            # Wrap-around links would cross everything: they show as loose ends on both sides.
            first = at(*(0 if a == axis else p for a, p in enumerate(place)))
            step = [(t - h) * (20.0 / math.dist(there, here)) for t, h in zip(there, here, strict=True)]
            sketch.wire(here, (here[0] + step[0], here[1] + step[1]))
            sketch.wire(first, (first[0] - step[0], first[1] - step[1]))
    sketch.add(Shape(here[0] - side / 2, here[1] - side / 2, side, side, "unit"))


def _ring(inside: Inside, grid: Grid, width: float) -> Sketch:
    sketch, ends = _circle(inside, shown(grid.size, 16), width)
    slots = list(ends)
    for a, b in zip(slots, slots[1:] + slots[:1], strict=True):
        sketch.wire(ends[a], ends[b])
    return sketch


def _full_mesh(inside: Inside, mesh: FullMesh, width: float) -> Sketch:
    sketch, ends = _circle(inside, shown(mesh.size, 13), width)
    for a, b in combinations(ends, 2):
        if a >= 0 and b >= 0:
            sketch.wire(ends[a], ends[b], weight=0.3)
    return sketch


def _edges(inside: Inside, edges: Edges, width: float) -> Sketch:
    sketch, ends = _circle(inside, shown(edges.size, 16), width)
    for a, b, cables in edges.edges:
        if a in ends and b in ends:
            sketch.wire(ends[a], ends[b], weight=min(cables, 4))
    return sketch


def _circle(inside: Inside, slots: Slots, width: float) -> tuple[Sketch, dict[int, tuple[float, float]]]:
    """Return units around a circle, clockwise from the right. Returns the middles by number; dots have number
    -1."""
    sketch = Sketch(width)
    ring = min(width / 2 - 30, 40 + 10.0 * len(slots), 132.0)
    side = min(54.0, 2 * ring * math.sin(math.pi / max(3, len(slots))) * 0.66)
    centre = (width / 2, ring + side / 2)
    ends: dict[int, tuple[float, float]] = {}
    for place, slot in enumerate(slots):
        angle = 2 * math.pi * place / len(slots)
        x, y = centre[0] + ring * math.cos(angle), centre[1] + ring * math.sin(angle)
        ends[-1 if slot is None else slot] = (x, y)
        if slot is None:
            sketch.gap(x, y, -5 * math.sin(angle), 5 * math.cos(angle))
        else:
            sketch.add(unit(x, y, side, side, inside.name, slot))
    sketch.height = max(sketch.height, centre[1] + ring / 2)
    return sketch, ends


def _tree(inside: Inside, tree: Tree, width: float) -> Sketch:
    """Return units that form a tree: row by row, as long as a row has room."""
    rows, more = [[0]], True
    while more:
        below = [c for node in rows[-1] for c in tree.neighbors(node) if c > node]
        more = bool(below) and len(below) <= 8 and len(rows) < 5
        if more:
            rows.append(below)
        elif below:
            rows.append([below[n] for n in shown(len(below), 9) if n is not None] if len(rows) == 1 else [])
    sketch = Sketch(width)
    widest = max(len(line) for line in rows)
    side = min(46.0, width / widest * 0.7)
    places = _tree_places(tree, [line for line in rows if line], width)
    for depth, line in enumerate(rows):
        y = side / 2 + depth * (side + 26)
        for node in line:
            if node:
                sketch.wire((places[tree.parent(node)], y - side - 26), (places[node], y))
            sketch.add(unit(places[node], y, side, side, inside.name, node))
        if len(line) > 1 and line[-1] > line[-2] + 1:
            sketch.gap((places[line[-2]] + places[line[-1]]) / 2, y, 4.0)
    if sum(map(len, rows)) < tree.size:
        y = sketch.height + 12
        for node in next(line for line in reversed(rows) if line):
            sketch.gap(places[node], y, 0.0, 5.0)
        sketch.height = y + 8
    return sketch


def _tree_places(tree: Tree, rows: list[list[int]], width: float) -> dict[int, float]:
    """Return leaves side by side, every other node above the middle of its children."""
    drawn = {node for line in rows for node in line}
    children = {node: [c for c in tree.neighbors(node) if c > node and c in drawn] for node in drawn}
    leaves: list[int] = []
    waiting = [0]
    while waiting:
        node = waiting.pop()
        waiting.extend(reversed(children[node]))
        if not children[node]:
            leaves.append(node)
    places = {node: width * (i + 0.5) / len(leaves) for i, node in enumerate(leaves)}
    for node in sorted(drawn, reverse=True):
        if children[node]:
            places[node] = sum(places[c] for c in children[node]) / len(children[node])
    return places


_GRIDS: dict[tuple[int, bool], Any] = {(1, False): _line, (1, True): _ring, (2, False): _plane}
_KINDS: dict[type, Any] = {FullMesh: _full_mesh, Edges: _edges, Tree: _tree, Switched: sketch_switches}
