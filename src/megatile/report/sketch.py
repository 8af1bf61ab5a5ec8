"""Where the units inside one unit are drawn: boxes, switches and links, as plain geometry.

A sketch has a given width and the height it needs. When units are too many to draw, the first few and the
last one stand for all, with dots between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Point = tuple[float, float]
Slots = list["int | None"]


@dataclass(frozen=True)
class Inside:
    """The units to draw: ``count`` of ``name``; in each, if asked, ``parts`` smaller units."""

    count: int
    name: str
    parts: int = 0


@dataclass(frozen=True)
class Shape:
    """A rectangle by its top left corner. ``labels``: what may be written in it, the first that fits."""

    x: float
    y: float
    w: float
    h: float
    kind: str  # unit, part or switch
    labels: tuple[str, ...] = ()
    label_y: float | None = None  # where to write, from the top; the middle if not given

    @property
    def top(self) -> Point:
        return self.x + self.w / 2, self.y

    @property
    def bottom(self) -> Point:
        return self.x + self.w / 2, self.y + self.h


@dataclass(frozen=True)
class Wire:
    """A link: a line, or a Bézier curve of four points."""

    points: tuple[Point, ...]
    weight: float = 1.0
    curved: bool = False
    faint: bool = False


@dataclass
class Sketch:
    """What to draw. ``zoom`` is the unit that the next panel enlarges."""

    width: float
    height: float = 0.0
    shapes: list[Shape] = field(default_factory=list)
    wires: list[Wire] = field(default_factory=list)
    dots: list[tuple[Point, Point]] = field(default_factory=list)  # middle, step between dots

    def add(self, shape: Shape) -> Shape:
        self.shapes.append(shape)
        self.height = max(self.height, shape.y + shape.h)
        return shape

    def wire(self, *points: Point, weight: float = 1.0, curved: bool = False, faint: bool = False) -> None:
        self.wires.append(Wire(points, weight, curved, faint))

    def gap(self, x: float, y: float, dx: float = 5.0, dy: float = 0.0) -> None:
        self.dots.append(((x, y), (dx, dy)))

    def zoom(self, kind: str) -> Shape | None:
        """Return the unit nearest to the right, so that nothing stands between it and the panel that enlarges
        it."""
        found = [shape for shape in self.shapes if shape.kind == kind]
        return max(found, key=lambda s: (round(s.x + s.w, 3), -s.y), default=None)


def shown(count: int, most: int) -> Slots:
    """Return numbers to draw, ``None`` for dots: all of them, or the first few and the last."""
    if count <= most:
        return list(range(count))
    return [*range(max(1, most - 2)), None, count - 1]


def spread(slots: Slots, start: float, width: float, widest: float) -> tuple[list[float], float]:
    """Return middles of slots side by side, centred in ``width``, and the distance of two; dots take half a
    slot."""
    shares = [0.5 if slot is None else 1.0 for slot in slots]
    pitch = min(widest, width / sum(shares))
    at = start + (width - pitch * sum(shares)) / 2
    middles = []
    for share in shares:
        middles.append(at + share * pitch / 2)
        at += share * pitch
    return middles, pitch


def unit(x: float, y: float, w: float, h: float, name: str, number: int) -> Shape:
    """Return a box for one unit, around the point (x, y)."""
    return Shape(x - w / 2, y - h / 2, w, h, "unit", labels(name, number))


def labels(name: str, number: int) -> tuple[str, str]:
    """Return ``gpu 3``, or just ``3``; after a name that ends with a digit the number needs a mark."""
    return f"{name}{':' if name[-1:].isdigit() else ' '}{number}", str(number)


def boxes(inside: Inside, width: float) -> Sketch:
    """Return units that no network joins: a compact block of boxes, with their parts inside."""
    if inside.parts:
        return _boxes_with_parts(inside, width)
    columns = next(
        (c for most, c in ((4, inside.count), (8, 4), (12, 4), (24, 6)) if inside.count <= most), 8
    )
    numbers = shown(inside.count, 40)
    sketch = Sketch(width)
    pitch = min(88.0, width / columns)
    left = (width - pitch * columns) / 2
    side = (pitch * 0.84, min(pitch * 0.84, 40.0))
    for place, number in enumerate(numbers):
        row, column = divmod(place, columns)
        x, y = left + (column + 0.5) * pitch, side[1] / 2 + row * side[1] * 1.2
        if number is None:
            sketch.gap(x, y)
        else:
            sketch.add(unit(x, y, *side, inside.name, number))
    return sketch


def _boxes_with_parts(inside: Inside, width: float) -> Sketch:
    numbers = shown(inside.count, 12)
    columns = {1: 1, 2: 2, 3: 3, 4: 2, 8: 4}.get(len(numbers), 3 if len(numbers) <= 9 else 4)
    sketch = Sketch(width)
    pitch = min(width / columns, 210.0)
    left = (width - pitch * columns) / 2
    w = pitch - 10
    across = _columns(inside.parts, w)
    parts = shown(inside.parts, across * 8)
    rows = -(-len(parts) // across)
    size = min(18.0, (w - 12) / across, 84.0 / rows)
    h = 26 + rows * size + 6
    for place, number in enumerate(numbers):
        row, column = divmod(place, columns)
        x, y = left + column * pitch + 5, row * (h + 10)
        if number is None:
            sketch.gap(x + w / 2, y + h / 2)
            continue
        sketch.add(Shape(x, y, w, h, "unit", labels(inside.name, number), label_y=14))
        _fill(sketch, parts, across, x + (w - across * size) / 2, y + 26, size)
    return sketch


def _columns(parts: int, width: float) -> int:
    """Return how many small boxes stand side by side: a wide block, in full rows where that is possible."""
    most = max(2, int((width - 12) // 9))
    wanted = parts if parts <= 6 else max(4, round((parts * 2.2) ** 0.5))
    wanted = min(wanted, most)
    even = [c for c in range(max(1, wanted // 2 + 1), min(most, wanted * 2) + 1) if parts % c == 0]
    return min(even, key=lambda c: abs(c - wanted), default=wanted)


def _fill(sketch: Sketch, numbers: Slots, across: int, x: float, y: float, size: float) -> None:
    for place, number in enumerate(numbers):
        row, column = divmod(place, across)
        px, py = x + column * size, y + row * size
        if number is None:
            sketch.gap(px + size / 2, py + size / 2, size / 4)
        else:
            sketch.add(Shape(px + size * 0.1, py + size * 0.1, size * 0.8, size * 0.8, "part"))


def row(sketch: Sketch, inside: Inside, y: float) -> dict[tuple[int, int], Shape]:
    """Return units side by side with their parts along the top edge.

    Returns the shape that a link meets, by number of unit and of part (0 if there are no parts).
    """
    parts = shown(inside.parts, 8) if inside.parts else []
    narrowest = max(38.0, 9.0 * len(parts) + 8)
    middles, pitch = spread(
        slots := shown(inside.count, max(3, min(8, int(sketch.width / narrowest)))), 0, sketch.width, 150.0
    )
    w, h = pitch * 0.86, 46.0 if parts else 40.0
    ends: dict[tuple[int, int], Shape] = {}
    for slot, x in zip(slots, middles, strict=True):
        if slot is None:
            sketch.gap(x, y + h / 2)
            continue
        down = h - 14 if parts else None
        shape = Shape(x - w / 2, y, w, h, "unit", labels(inside.name, slot), label_y=down)
        ends[slot, 0] = sketch.add(shape)
        ends.update(_top_row(sketch, parts, slot, shape))
    return ends


def _top_row(
    sketch: Sketch, parts: Sequence[int | None], owner: int, box: Shape
) -> dict[tuple[int, int], Shape]:
    middles, pitch = spread(list(parts), box.x + 4, box.w - 8, 24.0) if parts else ([], 0.0)
    side = min(pitch * 0.78, 14.0)
    ends = {}
    for part, x in zip(parts, middles, strict=True):
        if part is None:
            sketch.gap(x, box.y + 5 + side / 2, pitch / 8)
        else:
            ends[owner, part] = sketch.add(Shape(x - side / 2, box.y + 5, side, side, "part"))
    return ends
