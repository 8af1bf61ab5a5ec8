"""``megatile attention plan|predict|bench``."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from megatile.cli.machine import Json, Machine, MaxSeconds, Set, Trust, load
from megatile.cli.output import Commands, console, print_json, print_table, read_names
from megatile.core.errors import MegatileError
from megatile.core.progress import shown
from megatile.report.canvas import check_target

if TYPE_CHECKING:
    from megatile.attention.predict import Comparison
    from megatile.attention.schedules import Schedule

app = Commands(help="Predict and run attention over several devices.", no_args_is_help=True)
Causal = Annotated[bool, typer.Option("--causal", help="Causal mask.")]
SHOWN_RANKS = 32
"""Ranks of a cycle that are printed before "…"."""
SCHEDULES = ("no schedule is named", "--schedule ring,zigzag,hamilton")
_COUNTS = {"k": 1 << 10, "m": 1 << 20}


def read_lengths(text: str) -> list[int]:
    """Read ``8192`` or ``8K,32K,1M`` tokens; K is 1024."""
    return [read_length(part) for part in text.split(",")]


def read_length(text: str, least: int = 1) -> int:
    """Read ``8192``, ``8K`` or ``1M`` tokens; K is 1024."""
    part = text.strip().lower()
    number, factor = (part[:-1], _COUNTS[part[-1]]) if part[-1:] in _COUNTS else (part, 1)
    try:
        exact = float(number) * factor
        length = round(exact) if abs(exact - round(exact)) <= 1e-9 * abs(exact) else least - 1
    except (ValueError, OverflowError):
        length = least - 1
    if length < least:
        raise MegatileError(
            f"'{text.strip()}' is not a number of tokens", advice="write 10000, 8K or 1M (K is 1024)"
        )
    return length


def read_packed(text: str) -> tuple[int, ...]:
    """Return the lengths of packed sequences from where they begin and end: ``0,4096,6000``."""
    ends = [read_length(part, 0) for part in text.split(",")]
    lengths = tuple(b - a for a, b in pairwise(ends))
    if ends[0] != 0 or not lengths or min(lengths) < 1:
        raise MegatileError(
            f"--cu-seqlens {text} must begin with 0 and rise", advice="for three sequences: 0,4096,6000,8192"
        )
    return lengths


def _complete_schedule(incomplete: str) -> list[str]:
    from megatile.attention.schedules import schedule_names

    return [name for name in schedule_names() if name.startswith(incomplete)]


@app.command()
def predict(
    machine: Machine = "dgx-h100",
    seqlen: Annotated[
        str, typer.Option("--seqlen", help="Sequence lengths: 10000 or 8K,32K,1M; K is 1024.")
    ] = "10000,20000,50000,100000",
    heads: Annotated[int, typer.Option("--heads", help="Query heads.")] = 32,
    dim: Annotated[int, typer.Option("--head-dim", help="Head dimension.")] = 128,
    causal: Annotated[bool, typer.Option("--causal", help="Causal mask.")] = False,
    kv_heads: Annotated[
        int | None, typer.Option("--kv-heads", help="KV heads; default: query heads.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", help="Sequences.")] = 1,
    cu_seqlens: Annotated[
        str | None,
        typer.Option(
            "--cu-seqlens", help="Where packed sequences begin and the last ends: 0,4096,6000,8192."
        ),
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="bf16, f16, f32, …")] = "bf16",
    backward: Annotated[bool, typer.Option("--backward", help="Include the backward pass.")] = False,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Schedules, comma-separated; default: all that fit.", autocompletion=_complete_schedule
        ),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option(help="Local kernel: fa2, fa3, cudnn or ck; default: the machine's usual one."),
    ] = None,
    ranks: Annotated[int | None, typer.Option(help="Number of devices; default: all.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw times, link loads and a timeline.")] = None,
    max_seconds: MaxSeconds = None,
    settings: Set = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Compare attention schedules on a machine and name the fastest.

    Example: megatile attention predict -m mi300x-8 --seqlen 8K,128K --heads 32 --head-dim 128 --causal
    """
    from megatile.attention.plans import Problem
    from megatile.attention.predict import predict as compare

    if plot is not None:
        check_target(plot)
    hda = load(machine, settings, trust)
    names = None if schedule is None else read_names(schedule, SCHEDULES)
    found = []
    packed = () if cu_seqlens is None else read_packed(cu_seqlens)
    lengths = [sum(packed)] if packed else read_lengths(seqlen)
    for length in lengths:
        problem = Problem(
            length, heads, dim, kv_heads, batch=batch, causal=causal, dtype=dtype, packed=packed
        )
        with shown(f"{len(lengths)} lengths"):
            options: dict[str, Any] = {"ranks": ranks, "backward": backward, "kernel": kernel}
            found.append(compare(hda, problem, schedules=names, **options))
        if not json:
            print(f"{found[-1]}\n", flush=True)
    if json:
        print_json("attention.predict", [_as_dict(comparison) for comparison in found])
    if plot is not None:
        _plot(found, plot)
        print(f"picture written to {plot}", file=sys.stderr)


@app.command()
def plan(
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=1, max=4096, help="Number of ranks.")] = 8,
    schedule: Annotated[
        str, typer.Option(help="ring, zigzag, striped, direct, hamilton, hamilton:4x2, ulysses:2+ring …")
    ] = "hamilton",
    seqlen: Annotated[str, typer.Option(help="Sequence length: 10000 or 8K; K is 1024.")] = "0",
    causal: Causal = False,
    png: Annotated[Path | None, typer.Option(help="Draw the rings (png, svg or pdf).")] = None,
    json: Json = False,
) -> None:
    """Show how a schedule moves KV: rings, link loads and the work of each step."""
    from megatile.attention.schedules import make_schedule, schedule_summary

    found = make_schedule(schedule, ranks)
    summary = schedule_summary(found, read_length(seqlen, 0), causal)
    if png is not None:
        _draw(summary["cycles"], check_target(png), found)
    print_json("attention.plan", summary) if json else _show(summary)


@app.command()
def bench(
    nproc: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 4,
    schedule: Annotated[
        str, typer.Option(help="Schedules, comma-separated.")
    ] = "ring,zigzag,direct,hamilton",
    seqlen: Annotated[str, typer.Option(help="Sequence length: 10000 or 8K; K is 1024.")] = "4096",
    heads: Annotated[int, typer.Option(min=1, help="Query heads.")] = 8,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="KV heads; default: query heads.")] = None,
    dim: Annotated[int, typer.Option("--head-dim", min=1, help="Head dimension.")] = 64,
    dtype: Annotated[str, typer.Option(help="f32, bf16 or f16.")] = "f32",
    causal: Causal = False,
    backward: Annotated[bool, typer.Option("--backward", help="Include the backward pass.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Number of runs; the fastest counts.")] = 3,
    json: Json = False,
) -> None:
    """Time schedules on real processes (gloo) and check their results."""
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
    from megatile.report.attention_plot import draw_cycles

    if not cycles:
        raise MegatileError(f"the schedule '{schedule.name}' has no cycles to draw")
    nodes = re.fullmatch(r".*hamilton:(\d+)x\d+", schedule.name)
    title = f"{schedule.name}, {len(cycles[0])} ranks: {len(cycles)} rings of KV chunks"
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


def _as_dict(comparison: Comparison) -> dict[str, Any]:
    return {
        "machine": comparison.machine,
        "kernel": comparison.kernel,
        "length": comparison.problem.length,
        "baseline": comparison.baseline.schedule,
        "winner": comparison.winner.schedule,
        "why": comparison.why,
        "schedules": [{**p.as_dict(), "speedup": comparison.speedup(p)} for p in comparison.predictions],
        "unfit": dict(comparison.unfit),
    }


def _plot(found: list[Comparison], path: Path) -> None:
    from megatile.report.attention_plot import draw_prediction

    times: dict[str, list[tuple[int, float]]] = {}
    for comparison in found:
        for p in comparison.predictions:
            times.setdefault(p.schedule, []).append((p.problem.length, p.time_ps / 1e6))
    # Where the schedules differ most.
    last = max(found, key=lambda comparison: comparison.speedup(comparison.winner))
    hamilton = [p for p in last.predictions if p.schedule.startswith("hamilton")][:1]
    shown = {p.schedule: p for p in (last.baseline, *hamilton, last.winner)}
    loads = {name: p.link_bytes() for name, p in shown.items()}
    bars = {name: p.bars() for name, p in shown.items()}
    mask = "causal" if last.problem.causal else "full"
    title = f"{mask} attention on {last.machine}; below: {last.problem.length} tokens"
    draw_prediction(times, loads, bars, path, title, {name: p.links for name, p in shown.items()})
