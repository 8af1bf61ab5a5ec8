"""``megatile trace show|convert``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from megatile.cli.machine import Json
from megatile.cli.output import Commands, print_json
from megatile.report.canvas import SUFFIXES, check_target

app = Commands(help="Show and convert traces of simulated runs.", no_args_is_help=True)
File = Annotated[Path, typer.Argument(help="A trace: .json, .json.gz or .jsonl.")]


Units = Annotated[
    str | None,
    typer.Option("--units", metavar="LIST", help="Units to draw: 0,8-15 or 'sip0/cube0/*'."),
]


@app.command()
def show(
    file: File,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Rows of the critical path.")] = 10,
    png: Annotated[Path | None, typer.Option("--png", help="Draw the timeline.")] = None,
    units: Units = None,
    json: Json = False,
) -> None:
    """Show where the time went, and the critical path."""
    from megatile.report import draw_timeline, summary, summary_json
    from megatile.trace import read_trace, why_slow

    if png is not None:
        check_target(png)
    trace = read_trace(file)
    if json:
        print_json("trace", summary_json(trace, limit))
    else:
        print(summary(trace))
        print()
        print(why_slow(trace, limit))
    if png is not None:
        print(f"timeline written to {draw_timeline(trace, png, units=units)}", file=sys.stderr)


@app.command()
def convert(
    file: File,
    target: Annotated[Path, typer.Argument(help="Output file; its name sets the format.")],
    units: Units = None,
) -> None:
    """Write a trace in another format: Perfetto (.json.gz), op log (.jsonl) or a picture (.png …)."""
    from megatile.report import draw_timeline
    from megatile.trace import convert_trace, read_trace

    if target.suffix.lower() in SUFFIXES:
        check_target(target)
        draw_timeline(read_trace(file), target, units=units)
    else:
        convert_trace(file, target)
    print(f"wrote {target}")
