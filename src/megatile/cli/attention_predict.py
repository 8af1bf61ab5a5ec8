"""``megatile attention predict|plan|bench``: sequence-parallel attention, predicted and on real processes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from megatile.cli.machine import Json, Set, _complete_machine, load
from megatile.cli.output import print_json
from megatile.core.errors import MegatileError

if TYPE_CHECKING:
    from megatile.attention.predict import Comparison

app = typer.Typer(help="Attention of long sequences divided over ranks.", no_args_is_help=True)
_COUNTS = {"k": 10**3, "m": 10**6}


def read_lengths(text: str) -> list[int]:
    """``8192`` or ``10K,20K,1M`` (thousands and millions of tokens)."""
    lengths = []
    for part in (p.strip().lower() for p in text.split(",")):
        number, factor = (part[:-1], _COUNTS[part[-1]]) if part[-1:] in _COUNTS else (part, 1)
        try:
            lengths.append(round(float(number) * factor))
        except ValueError:
            raise MegatileError(
                f"'{part}' is no number of tokens", advice="write 8192 or 10K,20K,1M"
            ) from None
        if lengths[-1] < 1:
            raise MegatileError(f"'{part}' is no number of tokens", advice="write 8192 or 10K,20K,1M")
    return lengths


def read_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _complete_schedule(incomplete: str) -> list[str]:
    from megatile.attention.schedules import schedule_names

    return [name for name in schedule_names() if name.startswith(incomplete)]


Lengths = Annotated[str, typer.Option("--seqlen", help="Tokens of the whole sequence: 8192 or 10K,20K,1M.")]
Heads = Annotated[int, typer.Option("--heads", help="Query heads.")]
KvHeads = Annotated[int | None, typer.Option("--kv-heads", help="KV heads (as many as query heads).")]
Dim = Annotated[int, typer.Option("--dim", help="Elements of a head.")]
Batch = Annotated[int, typer.Option("--batch", help="Sequences at once.")]
Causal = Annotated[bool, typer.Option("--causal", help="A query sees no later keys.")]
Dtype = Annotated[str, typer.Option("--dtype", help="bf16, f16, f32, …")]


@app.command()
def predict(
    machine: Annotated[
        str,
        typer.Option(
            "-m", "--machine", help="A shipped machine or a YAML file.", autocompletion=_complete_machine
        ),
    ] = "mi300x-8",
    seqlen: Lengths = "10K,20K,50K,100K",
    heads: Heads = 32,
    dim: Dim = 128,
    causal: Causal = False,
    kv_heads: KvHeads = None,
    batch: Batch = 1,
    dtype: Dtype = "bf16",
    schedule: Annotated[
        str | None,
        typer.Option(help="Names joined by commas (all that fit).", autocompletion=_complete_schedule),
    ] = None,
    ranks: Annotated[int | None, typer.Option(help="Devices (all of the machine).")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw times, links per exchange, and what every rank does.")
    ] = None,
    settings: Set = None,
    json: Json = False,
) -> None:
    """Compare schedules on a machine: compute, communication, what is exposed, and who wins.

    Example: megatile attention predict -m mi300x-8 --seqlen 10K,100K --heads 32 --dim 128 --causal
    """
    from megatile.attention.plans import Problem
    from megatile.attention.predict import predict as compare

    hda = load(machine, settings)
    names = read_names(schedule) if schedule else None
    found = []
    lengths = read_lengths(seqlen)
    for length in _progress(lengths, "predicting"):
        problem = Problem(length, heads, dim, kv_heads, batch=batch, causal=causal, dtype=dtype)
        found.append(compare(hda, problem, schedules=names, ranks=ranks))
        if not json:
            print(f"{found[-1]}\n", flush=True)
    if json:
        print_json([_as_dict(comparison) for comparison in found])
    if plot is not None:
        _plot(found, plot)
        print(f"picture written to {plot}", file=sys.stderr)


def _as_dict(comparison: Comparison) -> dict[str, Any]:
    rows = [{**p.as_dict(), "speedup": comparison.speedup(p)} for p in comparison.predictions]
    return {
        "machine": comparison.machine,
        "length": comparison.problem.length,
        "baseline": comparison.baseline.schedule,
        "winner": comparison.winner.schedule,
        "why": comparison.why,
        "schedules": rows,
        "unfit": dict(comparison.unfit),
    }


def _plot(found: list[Comparison], path: Path) -> None:
    from megatile.report.attention_plot import draw_prediction

    times: dict[str, list[tuple[int, float]]] = {}
    for comparison in found:
        for p in comparison.predictions:
            times.setdefault(p.schedule, []).append((p.problem.length, p.time_ps / 1e6))
    last = found[-1]
    shown = {p.schedule: p for p in (last.baseline, last.winner)}
    loads = {name: p.link_bytes() for name, p in shown.items()}
    bars = {name: p.bars() for name, p in shown.items()}
    mask = "causal" if last.problem.causal else "full"
    title = f"{mask} attention on {last.machine}; below: {last.problem.length} tokens"
    draw_prediction(times, loads, bars, path, title)


def _progress(work: list[Any], what: str) -> Iterable[Any]:
    """A progress bar on a terminal's stderr; nothing elsewhere."""
    if not sys.stderr.isatty():
        return work
    from rich.console import Console
    from rich.progress import track

    return track(work, what, console=Console(stderr=True), transient=True)


@app.command()
def plan(
    ranks: Annotated[int, typer.Option("--ranks", help="Ranks of the schedule.")] = 8,
    schedule: Annotated[
        str,
        typer.Option(help="ring, hamilton, hamilton:4x2, …", autocompletion=_complete_schedule),
    ] = "hamilton",
    png: Annotated[Path | None, typer.Option("--png", help="Draw the cycles.")] = None,
    json: Json = False,
) -> None:
    """Show the cycles along which the chunks of KV travel.

    Example: megatile attention plan --ranks 8 --png cycles.png
    """
    from megatile.attention.schedules import CycleRoutes, make_schedule

    chosen = make_schedule(schedule, ranks)
    routes = chosen.routes
    cycles = [list(cycle) for cycle in routes.cycles] if isinstance(routes, CycleRoutes) else []
    links = {(a, b) for cycle in cycles for a, b in zip(cycle, [*cycle[1:], cycle[0]], strict=True)}
    every = routes.ranks * (routes.ranks - 1)
    if json:
        print_json(
            {"schedule": chosen.name, "ranks": ranks, "heads": chosen.heads, "cycles": cycles,
             "exchanges": routes.exchanges, "links_used": len(links), "links": every}
        )  # fmt: skip
    else:
        print(f"{chosen.name}: {ranks} ranks, {routes.chunks} chunks, {routes.exchanges} exchanges")
        if chosen.heads > 1:
            print(f"{chosen.heads} consecutive ranks divide the heads; numbers below are their groups")
        for number, cycle in enumerate(cycles):
            print(f"  chunk {number}: {' → '.join(map(str, [*cycle, cycle[0]]))}")
        if cycles:
            share = f"all {every}" if len(links) == every else f"{len(links)} of {every}"
            print(f"every exchange uses {share} links between the ranks")
        else:
            print("every rank sends its own chunks straight to the others: no cycles")
    if png is not None:
        from megatile.report.attention_plot import draw_cycles

        if not cycles:
            raise MegatileError(
                f"schedule '{chosen.name}' has no cycles to draw", advice="try --schedule hamilton"
            )
        draw_cycles(cycles, routes.ranks, png, f"{chosen.name}, {ranks} ranks")
        print(f"picture written to {png}", file=sys.stderr)


@app.command()
def bench(
    nproc: Annotated[int, typer.Option("--nproc", help="Processes.")] = 4,
    schedule: Annotated[
        str, typer.Option(help="Names joined by commas.", autocompletion=_complete_schedule)
    ] = "ring,zigzag,hamilton",
    seqlen: Lengths = "8192",
    heads: Heads = 8,
    dim: Dim = 64,
    causal: Causal = False,
    kv_heads: KvHeads = None,
    batch: Batch = 1,
    dtype: Dtype = "f32",
    repeat: Annotated[int, typer.Option("--repeat", help="Runs of which the best counts.")] = 3,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds for everything.")] = 600.0,
    json: Json = False,
) -> None:
    """Run schedules on real processes of this computer (gloo), check the results and time them.

    Example: megatile attention bench --nproc 4 --schedule ring,zigzag,hamilton --seqlen 8192
    """
    from megatile.attention.bench import bench as run
    from megatile.attention.plans import Problem
    from megatile.trace import text_table

    names = read_names(schedule)
    found = []
    for length in read_lengths(seqlen):
        problem = Problem(length, heads, dim, kv_heads, batch=batch, causal=causal, dtype=dtype)
        with _steps(len(names), f"{length} tokens") as finished:
            timings = run(problem, names, nproc, repeat=repeat, timeout=timeout, finished=finished)
        found += [{"length": length, **timing.as_dict()} for timing in timings]
    if json:
        print_json(found)
    else:
        mask = "causal" if causal else "full"
        print(
            f"{mask} attention, {heads} heads ({kv_heads or heads} KV) of {dim}, {dtype}, {nproc} processes"
        )
        rows = [
            (
                f["schedule"],
                f["length"],
                f"{f['seconds'] * 1e3:.2f}",
                f"{f['error']:.1e}",
                _verdict(f["correct"]),
            )
            for f in found
        ]
        print(text_table(("schedule", "tokens", "time (ms)", "error", ""), rows))
    if not all(f["correct"] for f in found):
        raise typer.Exit(1)


def _verdict(correct: bool) -> str:
    return "ok" if correct else "WRONG"


class _steps:
    """Progress on a terminal's stderr: a bar that is told how many steps are done."""

    def __init__(self, total: int, what: str):
        self.total, self.what = total, what
        self.bar: Any = None

    def __enter__(self) -> Any:
        if not sys.stderr.isatty():
            return None
        from rich.console import Console
        from rich.progress import Progress

        self.bar = Progress(console=Console(stderr=True), transient=True)
        task = self.bar.add_task(self.what, total=self.total)
        self.bar.start()
        return lambda done: self.bar.update(task, completed=done)

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
