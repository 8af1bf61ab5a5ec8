"""Sketches of units behind switches: one switch, tiers of a fat tree, rails."""

from __future__ import annotations

import math

from megatile.hda.switched import Switched
from megatile.report.sketch import Inside, Shape, Sketch, row, shown, spread, unit

BAR = 22.0  # height of a switch
RISE = 38.0  # between a switch and what hangs below it


def sketch_switches(inside: Inside, switched: Switched, width: float) -> Sketch:
    """Switches above the units, the top tier highest."""
    if len(switched.arity) > 1 and switched.rails == 1 and not inside.parts:
        return _tiers(inside, switched, width)
    sketch = Sketch(width)
    upper = _upper_bars(sketch, switched)
    y = upper[-1].y + BAR + RISE if upper else 0.0
    leaves = _leaf_bars(sketch, switched, y)
    for leaf in leaves.values():
        if upper:
            sketch.wire((leaf.top[0], upper[-1].y + BAR), leaf.top, weight=2.0)
    ends = row(sketch, inside, y + BAR + RISE + (34 if switched.rails > 1 else 0))
    per_unit = inside.parts or 1
    for (number, part), shape in ends.items():
        if inside.parts and shape.kind == "unit":
            continue
        rail = (number * per_unit + part) % switched.rails
        if rail in leaves:
            leaf = leaves[rail]
            straight = switched.rails == 1
            start = (shape.top[0] if straight else leaf.bottom[0], leaf.y + BAR)
            sketch.wire(start, shape.top, faint=rail > 0)
    return sketch


def switch_counts(switched: Switched) -> list[int]:
    """Return how many switches each tier has, the leaves first."""
    leaf = switched.arity[0]
    plugs = -(-(switched.size // switched.rails) // leaf) * leaf * switched.rails
    return [-(-plugs // math.prod(switched.arity[: tier + 1])) for tier in range(len(switched.arity))]


def _upper_bars(sketch: Sketch, switched: Switched) -> list[Shape]:
    """Return one bar for each tier above the leaves, the top first."""
    bars: list[Shape] = []
    for tier, count in reversed(list(enumerate(switch_counts(switched), 1))[1:]):
        y = bars[-1].y + BAR + 16 if bars else 0.0
        bar = sketch.add(Shape(0, y, sketch.width, BAR, "switch", _tier_labels(tier, count)))
        if bars:
            for share in (0.2, 0.4, 0.6, 0.8):
                x = sketch.width * share
                sketch.wire((x, bars[-1].y + BAR), (x, y), weight=3.0)
        bars.append(bar)
    return bars


def _tier_labels(tier: int, count: int) -> tuple[str, ...]:
    several = f"{count} switches" if count > 1 else "1 switch"
    return f"tier {tier}: {several}", f"tier {tier}", str(tier)


def _leaf_bars(sketch: Sketch, switched: Switched, y: float) -> dict[int, Shape]:
    """Return the lowest tier: one bar, or one for each rail."""
    count = switch_counts(switched)[0]
    if switched.rails == 1:
        labels = ("switch",) if count == 1 else _tier_labels(1, count)
        return {0: sketch.add(Shape(0, y, sketch.width, BAR, "switch", labels))}
    slots = shown(switched.rails, 8)
    middles, pitch = spread(slots, 0, sketch.width, 120.0)
    leaves = {}
    for rail, x in zip(slots, middles, strict=True):
        if rail is None:
            sketch.gap(x, y + BAR / 2, pitch / 10)
        else:
            labels = (f"rail {rail}", str(rail))
            leaves[rail] = sketch.add(Shape(x - pitch * 0.42, y, pitch * 0.84, BAR, "switch", labels))
    return leaves


def _tiers(inside: Inside, switched: Switched, width: float) -> Sketch:
    """Return a fat tree: a few leaf switches with a few of their units, and the switches above these."""
    tiers = len(switched.arity)
    groups = _leaf_groups(switched, width)
    slots = [number for _, numbers in groups for number in numbers]
    middles, pitch = spread(slots, 0, width, 90.0)
    sketch = Sketch(width)
    y = (tiers - 1) * (BAR + RISE)
    below: dict[int, tuple[float, float]] = {}
    place = 0
    for leaf, numbers in groups:
        xs = middles[place : place + len(numbers)]
        place += len(numbers)
        if leaf is None:
            sketch.gap(xs[0], y + BAR / 2)
            sketch.gap(xs[0], y + BAR + RISE + 18)
            continue
        below[leaf] = (xs[0] - pitch * 0.4, xs[-1] + pitch * 0.4)
        bar = _bar(sketch, y, below[leaf], (f"leaf {leaf}", str(leaf)))
        for number, x in zip(numbers, xs, strict=True):
            if number is None:
                sketch.gap(x, y + BAR + RISE + 18, pitch / 12)
            else:
                sketch.wire((x, bar.y + BAR), (x, y + BAR + RISE))
                sketch.add(unit(x, y + BAR + RISE + 18, pitch * 0.8, 36, inside.name, number))
    _bars_above(sketch, switched, below, y)
    return sketch


def _leaf_groups(switched: Switched, width: float) -> list[tuple[int | None, list[int | None]]]:
    """Return leaf switches to draw and their units to draw."""
    leaf = switched.arity[0]
    most = 4 if width > 400 else 3
    groups: list[tuple[int | None, list[int | None]]] = []
    for number in shown(-(-switched.size // leaf), most):
        if number is None:
            groups.append((None, [None]))
            continue
        inside = min(leaf, switched.size - number * leaf)
        ends = [n if n is None else n + number * leaf for n in shown(inside, 3 if most > 3 else 2)]
        groups.append((number, ends))
    return groups


def _bars_above(sketch: Sketch, switched: Switched, below: dict[int, tuple[float, float]], y: float) -> None:
    """Draw the switches above those drawn, tier by tier, each as wide as what hangs below it."""
    counts = switch_counts(switched)
    for tier in range(1, len(switched.arity)):
        y -= BAR + RISE
        above: dict[int, tuple[float, float]] = {}
        for number, (left, right) in below.items():
            owner = number // switched.arity[tier]
            low, high = above.get(owner, (left, right))
            above[owner] = (min(low, left), max(high, right))
            middle = (left + right) / 2
            sketch.wire((middle, y + BAR), (middle, y + BAR + RISE), weight=1.0 + tier)
        for number, extent in above.items():
            alone = counts[tier] == 1
            labels = (
                _tier_labels(tier + 1, 1) if alone else (f"tier {tier + 1}: switch {number}", str(number))
            )
            _bar(sketch, y, extent, labels)
        below = above


def _bar(sketch: Sketch, y: float, extent: tuple[float, float], labels: tuple[str, ...]) -> Shape:
    return sketch.add(Shape(extent[0], y, extent[1] - extent[0], BAR, "switch", labels))
