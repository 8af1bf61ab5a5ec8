"""The inside of a panel as a stack of blocks: heading, network, units, memories, engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

from megatile.core.quantities import format_rate
from megatile.hda import HDA, Engine, MemoryLayer, Network
from megatile.report import palette
from megatile.report.canvas import Canvas, text_width, wrap
from megatile.report.machine_panels import Panel
from megatile.report.machine_words import (
    engine_figure,
    memory_figures,
    network_figures,
    number,
    peak,
    plural,
    scales_of,
    wiring,
)
from megatile.report.sketch import Shape, Sketch
from megatile.report.sketch_networks import sketch_network

PADDING = 16.0
"""Points between the border of a box and its contents."""


class DrawnBlock(ABC):
    """Something as wide as the panel's inside, with the height it needs."""

    height: float
    space: float = 10.0  # free pixels above

    @abstractmethod
    def draw(self, canvas: Canvas, x: float, y: float, width: float) -> None: ...


@dataclass
class Heading(DrawnBlock):
    """Name and number of units; below, what programs call it, its clock and its peak."""

    name: str
    count: str
    details: list[str]
    width: float
    height: float = 0.0
    space: float = 0.0

    def __post_init__(self) -> None:
        self.lines = wrap(self.details, self.width, palette.TEXT)
        self.height = 22.0 + 20 * len(self.lines)

    def draw(self, canvas: Canvas, x: float, y: float, width: float) -> None:
        taken = text_width(self.count, palette.TEXT)
        canvas.text(x, y + 9, self.name, palette.HEADING, palette.INK, bold=True, room=width - taken - 14)
        canvas.text(x + width, y + 9, self.count, palette.TEXT, palette.SOFT, align="right")
        canvas.lines(x, y + 33, 20, self.lines, palette.TEXT, palette.SOFT)


@dataclass
class Wires(DrawnBlock):
    """A network's name, wiring, rate and latency, beside a piece of its line."""

    network: Network
    extra: bool
    height: float = 38.0
    space: float = 14.0

    def draw(self, canvas: Canvas, x: float, y: float, width: float) -> None:
        canvas.path(
            [(x + 1, y + 8), (x + 21, y + 8)], color=palette.NETWORK, line=2.4, layer=5, dashed=self.extra
        )
        room, look = width - 30, (palette.TEXT, palette.NETWORK)
        name = canvas.text(x + 30, y + 8, self.network.name, *look, bold=True, room=room * 0.6)
        after = text_width(name, palette.TEXT, bold=True) + 8
        words = wiring(self.network) + (f" of {plural(self.network.connects)}" if self.extra else "")
        canvas.text(x + 30 + after, y + 8, words, *look, room=room - after)
        canvas.text(x + 30, y + 28, network_figures(self.network), *look, room=room)


@dataclass
class Units(DrawnBlock):
    """The sketch of the units inside, and below it how many there really are."""

    sketch: Sketch
    caption: str
    zoom: Shape | None
    height: float = 0.0
    space: float = 14.0
    placed: Shape | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.height = self.sketch.height + 28

    def draw(self, canvas: Canvas, x: float, y: float, width: float) -> None:
        for wire in self.sketch.wires:
            canvas.path(
                [(x + px, y + py) for px, py in wire.points],
                color=palette.NETWORK_FAINT if wire.faint else palette.NETWORK,
                line=0.9 + 0.5 * wire.weight,
                curved=wire.curved,
                layer=3 if wire.faint else 3.5,
            )
        variants = _label_variants(self.sketch.shapes)
        for shape in self.sketch.shapes:
            labels = shape.labels[variants[_peers(shape)] :]
            moved = replace(shape, x=x + shape.x, y=y + shape.y, labels=labels)
            self._shape(canvas, moved, shape is self.zoom)
        for (px, py), (dx, dy) in self.sketch.dots:
            for step in (-1, 0, 1):
                canvas.dot(x + px + step * dx, y + py + step * dy, 1.6, palette.SOFT)
        at = x + width / 2, y + self.sketch.height + 20
        canvas.text(*at, self.caption, palette.TEXT, palette.INK, align="center", room=width)

    def _shape(self, canvas: Canvas, shape: Shape, picked: bool) -> None:
        fill, edge = _SHAPES[shape.kind]
        if picked:
            fill, edge, self.placed = palette.PICKED, palette.PICKED_EDGE, shape
        layer = {"unit": 5.0, "switch": 5.0, "part": 5.5}[shape.kind]
        line, radius = 2.0 if picked else 1.0, min(4.0, shape.h / 4)
        canvas.box(
            shape.x, shape.y, shape.w, shape.h, fill=fill, edge=edge, line=line, radius=radius, layer=layer
        )
        color = palette.NETWORK if shape.kind == "switch" else palette.INK
        for label in shape.labels:
            if _fits(label, shape):
                down = shape.h / 2 if shape.label_y is None else shape.label_y
                canvas.text(
                    shape.x + shape.w / 2, shape.y + down, label, palette.SMALL, color, align="center"
                )
                break


def _fits(label: str, shape: Shape) -> bool:
    return text_width(label, palette.SMALL) <= shape.w - 5 and shape.h >= palette.SMALL + 3


def _peers(shape: Shape) -> tuple[str, float]:
    """Return the key of shapes that get labels of one size: all units, or the switches of one tier."""
    return shape.kind, shape.y if shape.kind == "switch" else 0.0


def _label_variants(shapes: list[Shape]) -> dict[tuple[str, float], int]:
    """For each group of peers the first way of labelling that fits in every one; the last if none does."""
    groups: dict[tuple[str, float], list[Shape]] = {}
    for shape in shapes:
        groups.setdefault(_peers(shape), []).append(shape)
    chosen = {}
    for peers, group in groups.items():
        ways = max(1, min(len(shape.labels) for shape in group))
        fitting = (w for w in range(ways) if all(_fits(s.labels[w], s) for s in group if s.labels))
        chosen[peers] = next(fitting, ways - 1)
    return chosen


_SHAPES = {
    "unit": (palette.UNIT, palette.UNIT_EDGE),
    "part": (palette.PART, palette.PART_EDGE),
    "switch": (palette.SWITCH, palette.NETWORK),
}


@dataclass
class Bar(DrawnBlock):
    """A memory: its name, then size, rate and latency; on two lines where one is too narrow."""

    memory: MemoryLayer
    width: float
    height: float = 28.0
    space: float = 7.0

    def __post_init__(self) -> None:
        self.figures = " · ".join(memory_figures(self.memory))
        wide = text_width(self.memory.name, palette.TEXT, bold=True) + text_width(self.figures, palette.TEXT)
        if wide > self.width - 34:
            self.height = 46.0

    def draw(self, canvas: Canvas, x: float, y: float, width: float) -> None:
        cache = self.memory.cache
        fill, edge = (palette.CACHE, palette.CACHE_EDGE) if cache else (palette.MEMORY, palette.MEMORY_EDGE)
        canvas.box(x, y, width, self.height, fill=fill, edge=edge, dashed=cache, radius=3)
        room, look = width - 20, (palette.TEXT, palette.INK)
        canvas.text(x + 10, y + 14, self.memory.name, *look, bold=True, room=room)
        if self.height > 28:
            canvas.text(x + 10, y + 33, self.figures, *look, room=room)
        else:
            canvas.text(x + width - 10, y + 14, self.figures, *look, align="right", room=room)


@dataclass
class Chips(DrawnBlock):
    """Engines as chips in rows: name and peak."""

    engines: tuple[Engine, ...]
    width: float
    height: float = 0.0
    space: float = 10.0

    def __post_init__(self) -> None:
        self.rows: list[list[tuple[Engine, float]]] = [[]]
        for engine in self.engines:
            name, figure = text_width(engine.name, palette.TEXT, bold=True), engine_figure(engine)
            wide = min(self.width, max(name, text_width(figure, palette.SMALL)) + 18)
            if self.rows[-1] and sum(w + 7 for _, w in self.rows[-1]) + wide > self.width:
                self.rows.append([])
            self.rows[-1].append((engine, wide))
        self.height = len(self.rows) * 49 - 7

    def draw(self, canvas: Canvas, x: float, y: float, width: float) -> None:
        for line, chips in enumerate(self.rows):
            spare = (width - sum(w for _, w in chips) - 7 * (len(chips) - 1)) / len(chips)
            left, top = x, y + 49 * line
            for engine, wide in chips:
                wide += spare
                fill, edge = palette.ENGINES[engine.kind]
                canvas.box(left, top, wide, 42, fill=fill, edge=edge, radius=7)
                middle, room = left + wide / 2, wide - 12
                for down, text, size, bold in (
                    (13, engine.name, palette.TEXT, True),
                    (30, engine_figure(engine), palette.SMALL, False),
                ):
                    canvas.text(
                        middle, top + down, text, size, palette.INK, bold=bold, align="center", room=room
                    )
                left += wide + 7


@dataclass
class Stack:
    """A panel: a rounded box around blocks one above the other."""

    width: float
    blocks: list[DrawnBlock]

    @property
    def height(self) -> float:
        return 2 * PADDING + sum(block.height + block.space for block in self.blocks)

    @property
    def zoom(self) -> Shape | None:
        """Where the unit stands that the next panel enlarges; known when it is drawn."""
        return next((b.placed for b in self.blocks if isinstance(b, Units)), None)

    def draw(self, canvas: Canvas, x: float, y: float) -> None:
        edge = palette.PANEL_EDGE
        canvas.box(x, y, self.width, self.height, fill=palette.PANEL, edge=edge, line=1.4, radius=12, layer=1)
        at = y + PADDING
        for block in self.blocks:
            at += block.space
            block.draw(canvas, x + PADDING, at, self.width - 2 * PADDING)
            at += block.height


def stack(hda: HDA, panel: Panel, width: float) -> Stack:
    """Return the blocks of one panel."""
    inner = width - 2 * PADDING
    level = panel.level
    details = [f"{format_rate(level.clock_hz, 'Hz')}"] if level.clock_hz else []
    if best := peak(hda, level.name):
        details.append(best)
    if names := scales_of(hda, level.name):
        details.append(f"scale {names}")
    count = "the only one" if level.total == 1 else f"one of {number(level.total)}"
    if level is hda.levels[-1]:
        count = "the whole machine"
    blocks: list[DrawnBlock] = [Heading(level.name, count, details, inner)]
    blocks += [Wires(network, extra=i > 0) for i, network in enumerate(panel.networks)]
    if panel.inside:
        sketch = sketch_network(panel.inside, panel.networks[0].topology if panel.networks else None, inner)
        blocks.append(Units(sketch, panel.caption, sketch.zoom(panel.zoom) if panel.zoom else None))
    blocks += [Bar(memory, inner, space=7.0 if i else 13.0) for i, memory in enumerate(panel.memories)]
    if panel.engines:
        blocks.append(Chips(panel.engines, inner))
    return Stack(width, blocks)
