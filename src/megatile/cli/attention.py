"""``megatile attention plan|predict|bench``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from megatile.cli.attention_predict import SCHEDULES, predict, read_length
from megatile.cli.machine import Json
from megatile.cli.output import console, print_json, print_table, read_names
from megatile.core.errors import MegatileError
from megatile.report.canvas import check_target

if TYPE_CHECKING:
    from megatile.attention.schedules import Schedule

app = typer.Typer(help="Attention over divided sequences: schedules and measurements.", no_args_is_help=True)
Causal = Annotated[bool, typer.Option("--causal", help="With a causal mask.")]
SHOWN_RANKS = 32
app.command()(predict)


@app.command()
def plan(
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=1, max=4096, help="Number of ranks.")] = 8,
    schedule: Annotated[
        str, typer.Option(help="ring, zigzag, striped, direct, hamilton, hamilton:4x2, ulysses:2+ring …")
    ] = "hamilton",
    seqlen: Annotated[str, typer.Option(help="Tokens of the whole sequence: 8192 or 10K.")] = "0",
    causal: Causal = False,
    png: Annotated[
        Path | None, typer.Option(help="Draw the cycles into this file (png, svg or pdf).")
    ] = None,
    json: Json = False,
) -> None:
    """Show how a schedule moves KV: its cycles, the load of the links, the work of each step."""
    from megatile.attention.schedules import make_schedule, schedule_summary

    found = make_schedule(schedule, ranks)
    summary = schedule_summary(found, read_length(seqlen, 0), causal)
    if png is not None:
        _draw(summary["cycles"], check_target(png), found)
    print_json("attention.plan", summary) if json else _show(summary)


@app.command()
def bench(
    nproc: Annotated[int, typer.Option(min=1, help="Processes on this machine.")] = 4,
    schedule: Annotated[
        str, typer.Option(help="Schedules, separated by commas.")
    ] = "ring,zigzag,direct,hamilton",
    seqlen: Annotated[str, typer.Option(help="Tokens of the whole sequence: 8192 or 10K.")] = "4096",
    heads: Annotated[int, typer.Option(min=1, help="Query heads.")] = 8,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Default: as many as heads.")] = None,
    dim: Annotated[int, typer.Option(min=1, help="Size of a head.")] = 64,
    dtype: Annotated[str, typer.Option(help="f32, bf16 or f16.")] = "f32",
    causal: Causal = False,
    backward: Annotated[bool, typer.Option("--backward", help="Forward and backward.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Runs; the best counts.")] = 3,
    json: Json = False,
) -> None:
    """Time schedules with real processes (gloo), and check their results."""
    from importlib.util import find_spec

    from megatile.attention.bench import BenchCase, run_bench
    from megatile.runtime.errors import MissingTorchError

    if find_spec("torch") is None:
        raise MissingTorchError("the benchmark needs torch: pip install 'megatile[torch]'")
    names = read_names(schedule, SCHEDULES)
    case = BenchCase(
        nproc,
        read_length(seqlen),
        heads,
        kv_heads or heads,
        dim,
        causal=causal,
        backward=backward,
        dtype=dtype,
        repeats=repeats,
    )
    rows = run_bench(case, names, _progress(len(names), json))
    if json:
        print_json("attention.bench", [_with_units(row) for row in rows])
    else:
        _show_bench(rows, case)
    if not all(row.correct for row in rows):
        raise MegatileError("a schedule gave wrong results: see the column 'error'")


def _with_units(row: Any) -> dict[str, Any]:
    times = {"seconds": "time_s", "communication": "communication_s", "computation": "computation_s"}
    return {times.get(key, key): value for key, value in vars(row).items()}


def _progress(count: int, quiet: bool) -> Any:
    numbers = iter(range(1, count + 1))

    def tell(name: str) -> None:
        if not quiet:
            typer.echo(f"{next(numbers)}/{count} {name} …", err=True)

    return tell


def _draw(cycles: list[list[int]], png: Path, schedule: Schedule) -> None:
    from megatile.report.attention_cycles import draw_cycles

    if not cycles:
        raise MegatileError(f"the schedule '{schedule.name}' has no cycles to draw")
    nodes = re.fullmatch(r".*hamilton:(\d+)x\d+", schedule.name)
    title = f"{schedule.name}, {len(cycles[0])} ranks: {len(cycles)} ways of KV"
    draw_cycles(cycles, png, title, int(nodes[1]) if nodes else None)
    print(f"picture written to {png}", file=sys.stderr)


def _show(summary: dict[str, Any]) -> None:
    cycles, steps = summary.pop("cycles"), summary.pop("steps")
    screen = console()
    screen.print("  ".join(f"{name}: [bold]{value}[/bold]" for name, value in summary.items()))
    for number, cycle in enumerate(cycles):
        shown = " → ".join(map(str, cycle[:SHOWN_RANKS])) + (" → …" if len(cycle) > SHOWN_RANKS else "")
        screen.print(f"chunk {number:>3}: {shown} → {cycle[0]}")
    shown_steps = [
        ["–".join(map(str, v)) if isinstance(v, list) else v for v in row.values()] for row in steps
    ]
    print_table(list(steps[0]), shown_steps)


def _show_bench(rows: list[Any], case: Any) -> None:
    from rich.text import Text

    kind = f"{'causal' if case.causal else 'full'}, {'forward and backward' if case.backward else 'forward'}"
    title = (
        f"{case.processes} processes, {case.seqlen} tokens, {case.heads} x {case.dim}, {case.dtype}, {kind}"
    )
    best = min(row.seconds for row in rows)
    cells = []
    for row in rows:
        times = [f"{x * 1e3:.2f}" for x in (row.seconds, row.communication, row.computation)]
        name = Text(row.schedule, style="bold" if row.seconds == best else "")
        cells.append((name, *times, f"{row.error:.1e}", "yes" if row.correct else "NO"))
    print_table(("schedule", "ms", "communication ms", "computation ms", "error", "correct"), cells, title)
