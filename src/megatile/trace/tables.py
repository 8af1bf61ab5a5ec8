"""Plain-text tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def text_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns padded to their widest cell; every column but the first is aligned to the right."""
    cells = [[str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(headers), *cells]) for i in range(len(headers))]
    lines = [_line(headers, widths), "  ".join("-" * w for w in widths)]
    return "\n".join(lines + [_line(row, widths) for row in cells])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first = row[0].ljust(widths[0])
    rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return "  ".join([first, *rest]).rstrip()
