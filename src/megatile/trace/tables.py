"""Plain-text tables and quantities for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

TIMES = ((10**12, "s"), (10**9, "ms"), (10**6, "us"), (10**3, "ns"))
_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def format_ps(ps: int) -> str:
    """
    >>> format_ps(1_500), format_ps(12), format_ps(2_000_000)
    ('1.5 ns', '12 ps', '2 us')
    """
    return _scaled(ps, TIMES, "ps")


def format_bytes(count: int) -> str:
    """
    >>> format_bytes(1536)
    '1.5 KiB'
    """
    return _scaled(count, _SIZES, "B")


def _scaled(value: int, steps: Sequence[tuple[int, str]], smallest: str) -> str:
    for size, unit in steps:
        if abs(value) >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value} {smallest}"


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
