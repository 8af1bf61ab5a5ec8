"""Writing the dump of a deadlock beside each other as text and as a Graphviz graph."""

from __future__ import annotations

from pathlib import Path

from megatile.trace import WaitGraph


def write_dump(graph: WaitGraph, path: str | Path) -> tuple[Path, Path]:
    """Write ``path.txt`` and ``path.dot``; return both paths."""
    path = Path(path)
    text, dot = path.with_suffix(".txt"), path.with_suffix(".dot")
    text.write_text(graph.text(limit=1_000_000) + "\n", encoding="utf-8")
    dot.write_text(graph.dot(), encoding="utf-8")
    return text, dot
