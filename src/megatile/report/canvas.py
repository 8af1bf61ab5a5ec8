"""A sheet of pixels to draw on: boxes, lines and texts that know how wide they are.

Coordinates are pixels of the finished picture, x to the right, y downwards. Matplotlib is loaded on first
use. The same calls give the same bytes: no dates, no random identifiers, no dependence on user settings.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatile.core.cached import cached
from megatile.core.errors import MegatileError
from megatile.core.files import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = tuple[float, float]

SUFFIXES = (".png", ".svg", ".pdf")
PIXELS_PER_INCH = 100
"""Resolution of PNG files."""
PNG_PIXELS_PER_INCH = 150  # one and a half image pixels per pixel of the layout keeps small text sharp
CAP_HEIGHT = 0.36  # from the middle of a capital letter to its baseline, per pixel of font size
SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: searchable, and small
    "svg.hashsalt": "megatile",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],
    "path.simplify": False,
}


@cached(most=4096)
def text_width(text: str, size: float, bold: bool = False) -> float:
    """Return pixels that a text takes, with a small reserve for other renderers."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    properties = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")
    font = get_font(findfont(properties))
    font.set_size(size, 72)
    font.set_text(text, 0.0)
    return font.get_width_height()[0] / 64 * 1.03


def fit(text: str, room: float, size: float, bold: bool = False) -> str:
    """Return the text, shortened with an ellipsis until it fits; empty if not even that does."""
    if text_width(text, size, bold) <= room:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        fits = text_width(text[:middle].rstrip() + "…", size, bold) <= room
        low, high = (middle, high) if fits else (low, middle - 1)
    return text[:low].rstrip() + "…" if low else ""


def wrap(pieces: Sequence[str], room: float, size: float, joint: str = " · ") -> list[str]:
    """Return pieces joined into as few lines as fit; a piece that is too wide alone is shortened."""
    lines: list[str] = []
    for piece in pieces:
        joined = f"{lines[-1]}{joint}{piece}" if lines else piece
        if lines and text_width(joined, size) <= room:
            lines[-1] = joined
        else:
            lines.append(fit(piece, room, size))
    return lines


class Canvas:
    """One picture in the making."""

    def __init__(self, width: float, height: float):
        size = width / PIXELS_PER_INCH, height / PIXELS_PER_INCH
        self.figure = new_figure(*size, dpi=PIXELS_PER_INCH, facecolor="white")
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, width), ylim=(height, 0))
        self.axes.set_axis_off()

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        color: str,
        *,
        bold: bool = False,
        align: str = "left",
        room: float = math.inf,
    ) -> str:
        """Return one line of text, shortened if it is wider than ``room``: what is written. ``y`` is the
        middle of its capital letters, ``align`` says what ``x`` is."""
        written = text if room == math.inf else fit(text, room, size, bold)
        self.axes.text(
            x,
            y + CAP_HEIGHT * size,
            written,
            fontsize=size * 72 / PIXELS_PER_INCH,
            color=color,
            fontweight="bold" if bold else "normal",
            ha=align,
            va="baseline",
            parse_math=False,
            zorder=9,
        )
        return written

    def lines(self, x: float, y: float, step: float, lines: Sequence[str], size: float, color: str) -> None:
        """Write lines of text below each other."""
        for number, text in enumerate(lines):
            self.text(x, y + step * number, text, size, color)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str,
        edge: str,
        line: float = 1.0,
        radius: float = 0.0,
        dashed: bool = False,
        layer: float = 5,
    ) -> None:
        from matplotlib.patches import FancyBboxPatch

        style: Any = (
            f"round,pad=0,rounding_size={min(radius, width / 2, height / 2)}" if radius else "square,pad=0"
        )
        self._add(
            FancyBboxPatch((x, y), width, height, boxstyle=style),
            facecolor=fill,
            edgecolor=edge,
            linewidth=line * 72 / PIXELS_PER_INCH,
            linestyle=(0, (4, 2.5)) if dashed else "solid",
            zorder=layer,
        )

    def path(
        self,
        points: Sequence[Point],
        *,
        color: str,
        line: float = 1.2,
        curved: bool = False,
        dashed: bool = False,
        fill: str | None = None,
        layer: float = 3,
    ) -> None:
        """Draw a line through the points; ``curved``: a Bézier curve of four points; ``fill``: a closed
        area."""
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path as Outline

        rest = Outline.CURVE4 if curved else Outline.LINETO
        codes = [Outline.MOVETO] + [rest] * (len(points) - 1)
        self._add(
            PathPatch(Outline(list(points), codes)),
            facecolor=fill or "none",
            edgecolor=color,
            linewidth=line * 72 / PIXELS_PER_INCH,
            linestyle=(0, (3, 2)) if dashed else "solid",
            capstyle="round",
            joinstyle="round",
            zorder=layer,
        )

    def dot(self, x: float, y: float, radius: float, color: str) -> None:
        from matplotlib.patches import Circle

        self._add(Circle((x, y), radius), facecolor=color, edgecolor="none", zorder=6)

    def _add(self, patch: Any, **style: Any) -> None:
        patch.set(clip_on=False, **style)
        self.axes.add_artist(patch)


def check_target(path: str | Path) -> Path:
    """Return the path of a picture to write, or a refusal before any work is done."""
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise MegatileError(
            f"'{target.name}' is not the name of a picture that can be written",
            advice=f"end the name with {' or '.join(SUFFIXES)}",
        )
    return check_folder(target)


def check_folder(target: Path) -> Path:
    """Return the path of a file to write later: that it cannot be is said before the work begins."""
    try:
        if not target.absolute().parent.is_dir():
            raise MegatileError(
                f"cannot write {target}: there is no folder '{target.parent}'", advice="make the folder first"
            )
        if target.is_dir():
            raise MegatileError(f"cannot write {target}: it is a folder", advice="give the name of a file")
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise MegatileError(f"cannot write '{target}': {reason}", advice="choose another name") from None
    return target


@contextmanager
def settings() -> Iterator[None]:
    """Within this, matplotlib has the same settings for every user."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        parameters: Any = matplotlib.rcParams
        parameters.update(SETTINGS)
        yield


def new_figure(width: float, height: float, **options: Any) -> Figure:
    """Return a figure of so many inches that needs no screen and leaves nothing behind in pyplot."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), **options)


def save(figure: Figure, path: str | Path, title: str, dpi: int = PNG_PIXELS_PER_INCH) -> Path:
    """Write a figure, in the format of the name; the file is either whole or not touched."""
    target = check_target(path)
    kind = target.suffix.lower()[1:]
    # Without the time of writing, equal pictures are equal files.
    metadata: dict[str, Any] = {
        "svg": {"Date": None, "Creator": "megatile", "Title": title},
        "pdf": {"CreationDate": None, "Creator": "megatile", "Title": title},
    }.get(kind, {"Software": None})
    # The highest compression takes a third of the time of a picture and saves a tenth of the bytes.
    options: dict[str, Any] = {"pil_kwargs": {"compress_level": 4}} if kind == "png" else {}
    data = io.BytesIO()
    figure.savefig(data, format=kind, metadata=metadata, dpi=dpi, **options)
    with whole_file(target) as out:
        out.write(data.getvalue())
    return target
