"""Format tables for people, all in one style."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

from megatile.core.arguments import no_none

MAX_LINE_CHARS = 10_000
"""Characters of a table's line: wide enough to never wrap."""


def rich_table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None, left: int = 1
) -> Any:
    """Return a Rich table; all columns but the first ``left`` are aligned to the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for number, header in enumerate(headers):
        table.add_column(Text(header), justify="left" if number < left else "right")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return table


@no_none
def text_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return the same as plain text, as wide as it needs to be."""
    from rich.console import Console

    text = StringIO()
    Console(file=text, width=MAX_LINE_CHARS, color_system=None).print(rich_table(headers, rows))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
