"""Writing the dump of a deadlock beside each other as text and as a Graphviz graph."""

from __future__ import annotations

from pathlib import Path

from megatile.core.arguments import no_none
from megatile.core.files import write_text
from megatile.trace import WaitGraph


@no_none
def write_dump(graph: WaitGraph, path: str | Path) -> tuple[Path, Path]:
    """Write ``path.txt`` and ``path.dot``; return both paths."""
    path = Path(path)
    text, dot = path.with_suffix(".txt"), path.with_suffix(".dot")
    return write_text(text, graph.text(limit=1_000_000) + "\n"), write_text(dot, graph.dot())
