"""``megatile attention predict``: schedules of sequence-parallel attention compared on a machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from megatile.cli.machine import Json, Machine, Set, load
from megatile.cli.output import print_json, read_names
from megatile.core.errors import MegatileError
from megatile.core.progress import shown
from megatile.report.canvas import check_target

if TYPE_CHECKING:
    from megatile.attention.predict import Comparison

SCHEDULES = ("no schedule is named", "--schedule ring,zigzag,hamilton")
_COUNTS = {"k": 10**3, "m": 10**6}


def read_lengths(text: str) -> list[int]:
    """``8192`` or ``10K,20K,1M`` (thousands and millions of tokens)."""
    return [read_length(part) for part in text.split(",")]


def read_length(text: str, least: int = 1) -> int:
    """``8192``, ``10K`` or ``1M`` tokens."""
    part = text.strip().lower()
    number, factor = (part[:-1], _COUNTS[part[-1]]) if part[-1:] in _COUNTS else (part, 1)
    try:
        exact = float(number) * factor
        length = round(exact) if abs(exact - round(exact)) <= 1e-9 * abs(exact) else least - 1
    except (ValueError, OverflowError):
        length = least - 1
    if length < least:
        raise MegatileError(f"'{text.strip()}' is no number of tokens", advice="write 8192, 10K or 1M")
    return length


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


def predict(
    machine: Machine = "mi300x-8",
    seqlen: Lengths = "10K,20K,50K,100K",
    heads: Heads = 32,
    dim: Dim = 128,
    causal: Causal = False,
    kv_heads: KvHeads = None,
    batch: Batch = 1,
    dtype: Dtype = "bf16",
    backward: Annotated[bool, typer.Option("--backward", help="Forward and backward.")] = False,
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

    if plot is not None:
        check_target(plot)
    hda = load(machine, settings)
    names = None if schedule is None else read_names(schedule, SCHEDULES)
    found = []
    lengths = read_lengths(seqlen)
    for length in lengths:
        problem = Problem(length, heads, dim, kv_heads, batch=batch, causal=causal, dtype=dtype)
        with shown(f"{len(lengths)} lengths"):
            found.append(compare(hda, problem, schedules=names, ranks=ranks, backward=backward))
        if not json:
            print(f"{found[-1]}\n", flush=True)
    if json:
        print_json("attention.predict", [_as_dict(comparison) for comparison in found])
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
    # Where the schedules differ most.
    last = max(found, key=lambda comparison: comparison.speedup(comparison.winner))
    hamilton = [p for p in last.predictions if p.schedule.startswith("hamilton")][:1]
    shown = {p.schedule: p for p in (last.baseline, *hamilton, last.winner)}
    loads = {name: p.link_bytes() for name, p in shown.items()}
    bars = {name: p.bars() for name, p in shown.items()}
    mask = "causal" if last.problem.causal else "full"
    title = f"{mask} attention on {last.machine}; below: {last.problem.length} tokens"
    draw_prediction(times, loads, bars, path, title, {name: p.links for name, p in shown.items()})
