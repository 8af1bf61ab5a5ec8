"""A picture of a machine: panels that enlarge one unit after the other, from the whole to the smallest.

draw_machine(machine("dgx-h100"), "dgx-h100.svg")
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from megatile.hda import HDA
from megatile.report import palette
from megatile.report.canvas import Canvas, check_target, fit, save, settings, text_width, wrap
from megatile.report.machine_blocks import PADDING, Stack, stack
from megatile.report.machine_panels import panels, visible_levels
from megatile.report.machine_words import totals
from megatile.report.sketch import Shape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGIN, GAP, ROW_GAP = 28.0, 36.0, 44.0
PANEL_WIDTH = {1: 620.0, 2: 520.0, 3: 480.0, 4: 359.0}  # by panels in a row; four fill 1600 pixels


def draw_machine(hda: HDA, path: str | Path) -> Path:
    """Write a picture of a machine, SVG or PNG by the suffix; the same machine gives the same bytes."""
    target = check_target(path)
    with settings():
        save(machine_figure(hda), target, hda.name)
    return target


def machine_figure(hda: HDA) -> Figure:
    """Return the picture as a matplotlib figure."""
    with settings():
        return _Picture(hda).draw()


@dataclass
class _Placed:
    stack: Stack
    x: float
    y: float


class _Picture:
    """The layout of one picture, then its drawing."""

    def __init__(self, hda: HDA):
        self.hda = hda
        found = panels(hda)
        rows = -(-len(found) // 4)
        per_row = -(-len(found) // rows)
        width = PANEL_WIDTH[per_row]
        self.width = 2 * MARGIN + per_row * width + (per_row - 1) * GAP
        words = (hda.spec.description or "").split()
        self.title = wrap(words, self.width - 2 * MARGIN, palette.SUBTITLE, joint=" ")[:2]
        self.placed: list[_Placed] = []
        y = MARGIN + 24 + 22 * len(self.title) + 12
        for start in range(0, len(found), per_row):
            stacks = [stack(hda, panel, width) for panel in found[start : start + per_row]]
            height = max(s.height for s in stacks)
            for column, one in enumerate(stacks):
                self.placed.append(_Placed(one, MARGIN + column * (width + GAP), y))
            y += height + ROW_GAP
        self.footer_y = y - ROW_GAP + 28
        figures = totals(hda, visible_levels(hda))
        figures[:1] = [f"In all: {figure}" for figure in figures[:1]]
        self.footer = wrap(figures, self.width - 2 * MARGIN, palette.TEXT)
        self.height = self.footer_y + 21 * (len(self.footer) - 1) + MARGIN

    def draw(self) -> Figure:
        canvas = Canvas(self.width, self.height)
        room = self.width - 2 * MARGIN
        canvas.text(MARGIN, MARGIN + 8, self.hda.name, palette.TITLE, palette.INK, bold=True, room=room)
        canvas.lines(MARGIN, MARGIN + 36, 22, self.title, palette.SUBTITLE, palette.SOFT)
        for placed in self.placed:
            placed.stack.draw(canvas, placed.x, placed.y)
        for here, there in zip(self.placed, self.placed[1:], strict=False):
            self._zoom(canvas, here, there)
        canvas.lines(MARGIN, self.footer_y, 21, self.footer, palette.TEXT, palette.INK)
        self._legend(canvas)
        return canvas.figure

    def _zoom(self, canvas: Canvas, here: _Placed, there: _Placed) -> None:
        """From the enlarged unit to its panel: a beam beside it, or a line to the next row."""
        edge, low = here.x + here.stack.width, there.y + there.stack.height
        shape = here.stack.zoom or Shape(edge, here.y + here.stack.height / 2 - 12, 0, 24, "unit")
        x, top, bottom = shape.x + shape.w, shape.y, shape.y + shape.h
        if there.y == here.y:
            # Inside its own panel the beam stays as high as the unit: it must not cross texts.
            above = [(x, top), (edge, top), (there.x, there.y + 10)]
            below = [(x, bottom), (edge, bottom), (there.x, low - 10)]
            canvas.path([*above, *reversed(below)], color="none", fill=palette.BEAM, layer=2)
            canvas.path(above, color=palette.ZOOM, line=0.9, layer=2.5)
            canvas.path(below, color=palette.ZOOM, line=0.9, layer=2.5)
            return
        middle, gutter, between = (top + bottom) / 2, edge + GAP / 3, there.y - ROW_GAP / 2
        into = there.x + PADDING * 2
        points = [(x, middle), (gutter, middle), (gutter, between), (into, between), (into, there.y)]
        canvas.path(points, color=palette.ZOOM, line=1.2, layer=2.5)

    def _legend(self, canvas: Canvas) -> None:
        """Draw the legend of the colours in use, in the top right corner."""
        entries = palette.legend(self.hda)
        widths = [text_width(name, palette.TEXT) + 40 for name, *_ in entries]
        x = self.width - MARGIN - sum(widths)
        name = text_width(fit(self.hda.name, self.width, palette.TITLE, bold=True), palette.TITLE, bold=True)
        if x < MARGIN + name + 30:
            return
        for (label, fill, edge, dashed), width in zip(entries, widths, strict=True):
            canvas.box(x + 14, MARGIN + 2, 14, 12, fill=fill, edge=edge, dashed=dashed, radius=2)
            canvas.text(x + 34, MARGIN + 8, label, palette.TEXT, palette.SOFT)
            x += width
