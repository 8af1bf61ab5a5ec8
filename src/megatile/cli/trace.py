"""``megatile trace show|convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Look at traces of simulated runs.", no_args_is_help=True)
File = Annotated[Path, typer.Argument(help="A trace: *.json, *.json.gz (Perfetto) or *.jsonl (op log).")]


@app.command()
def show(
    file: File,
    limit: Annotated[int, typer.Option("--limit", help="Rows of the critical path.")] = 10,
    png: Annotated[Path | None, typer.Option("--png", help="Draw the timeline into this file.")] = None,
) -> None:
    """Where the time of a run went, and its critical path."""
    from megatile.report import draw_timeline, summary
    from megatile.trace import read_trace, why_slow

    trace = read_trace(file)
    print(summary(trace))
    print()
    print(why_slow(trace, limit))
    if png is not None:
        print(f"timeline in {draw_timeline(trace, png)}")


@app.command()
def convert(
    file: File,
    target: Annotated[Path, typer.Argument(help="The file to write; its name says the format (.png too).")],
) -> None:
    """Write a trace in another format: Perfetto (.json.gz), op log (.jsonl) or a picture (.png)."""
    from megatile.report import draw_timeline
    from megatile.trace import convert_trace, read_trace

    if target.suffix == ".png":
        draw_timeline(read_trace(file), target)
    else:
        convert_trace(file, target)
    print(f"wrote {target}")
