"""``megatile plan save|show|check|simulate``: look at plans that were saved as JSON or text."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from megatile.cli.machine import Json, Machine, MaxSeconds, Set, Trust, WhatHelps, load
from megatile.cli.output import Commands, print_json
from megatile.core.errors import MegatileError, Place
from megatile.core.files import read_text, write_text
from megatile.report.canvas import check_folder

if TYPE_CHECKING:
    from megatile.plan.model import Plan

app = Commands(help="Show, save, check and simulate Plans.", no_args_is_help=True)
File = Annotated[Path, typer.Argument(help="A Plan as JSON or text.")]

MAX_FILE_BYTES = 256 << 20
"""Bytes of a Plan file that are read."""
ADVICE = "save a plan by 'megatile plan save', plan.to_json() or str(plan)"


def read_plan(path: Path) -> Plan:
    """Return a plan from a file, in either form."""
    from megatile.plan.model import Plan

    text = read_text(path, MAX_FILE_BYTES, advice=ADVICE)
    try:
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            plan = Plan.from_json(text) if text.lstrip().startswith("{") else Plan.from_text(text)
        for note in notes:
            print(f"note: {path}: {note.message}", file=sys.stderr)
        return plan
    except MegatileError as problem:
        place = problem.place or Place()
        problem.place = place if place.file else replace(place, file=str(path))
        problem.advice = problem.advice or ADVICE
        raise


@app.command()
def show(file: File, json: Json = False) -> None:
    """Print a Plan as text or JSON."""
    plan = read_plan(file)
    print(plan.to_json() if json else str(plan), end="" if not json else "\n")


@app.command()
def save(
    operation: Annotated[str, typer.Argument(help="all_reduce, all_gather, …")],
    file: Annotated[Path, typer.Argument(help="Output file (.json, or .txt for text).")],
    size: Annotated[str, typer.Option("-b", "--size", help="Buffer size: 1MiB.")],
    machine: Machine,
    algorithm: Annotated[str, typer.Option("-a", "--algorithm", help="A name, or auto.")] = "auto",
    scale: Annotated[str, typer.Option(help="Scale of the ranks: device, block, pe, …")] = "device",
    ranks: Annotated[str | None, typer.Option(help="Number of ranks, or a list: 16 or 0,8,16-23.")] = None,
    settings: Set = None,
    trust: Trust = False,
) -> None:
    """Save the Plan of a collective.

    Example: megatile plan save all_reduce ring.json -m dgx-h100 -b 1MiB -a ring
    """
    from megatile.cli.collective import read_ranks, read_size
    from megatile.collectives.planner import collective

    if file.suffix not in (".json", ".txt"):
        raise MegatileError(f"'{file}' is not a Plan file name", advice="end the name in .json or .txt")
    check_folder(file)
    plan = collective(
        operation,
        machine=load(machine, settings, trust),
        nbytes=read_size(size),
        algorithm=algorithm,
        scale=scale,
        ranks=read_ranks(ranks),
    )
    write_text(file, plan.to_json() + "\n" if file.suffix == ".json" else str(plan))
    print(f"plan '{plan.name}' of {plan.units} units written to {file}")


@app.command()
def check(
    file: File,
    machine: Annotated[
        str | None, typer.Option("-m", "--machine", help="Also check against this machine.")
    ] = None,
    settings: Set = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Check a Plan: messages match, no deadlock, everything fits."""
    from megatile.plan.check import check as check_plan

    plan = read_plan(file)
    seen = check_plan(plan, load(machine, settings, trust) if machine else None)
    if json:
        print_json("plan.check", {"plan": plan.name, **vars(seen)})
        return
    print(f"{file}: valid, {seen.units} units, {seen.streams} streams, {seen.messages} messages")


@app.command()
def simulate(
    file: File,
    machine: Machine,
    graph: Annotated[
        bool, typer.Option("-G", "--graph", help="As in a captured graph: no host launch.")
    ] = False,
    trace: Annotated[Path | None, typer.Option(help="Write the trace (.json, .jsonl).")] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report.")] = None,
    sources: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Show source lines from this folder."),
    ] = None,
    helps: WhatHelps = False,
    max_seconds: MaxSeconds = None,
    settings: Set = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Predict how long a Plan takes on a machine."""
    from megatile.plan.check import check as check_plan
    from megatile.report.page import check_page
    from megatile.sim import simulate as simulate_plan

    if report is not None:
        check_page(report, sources)
        check_folder(report)
    plan, hda = read_plan(file), load(machine, settings, trust)
    check_plan(plan)  # a time of what cannot run would mislead
    result = simulate_plan(plan, machine=hda, launch=not graph, progress=True)
    if json:
        print_json(
            "plan.simulate",
            {
                "plan": plan.name,
                "machine": hda.name,
                "model": result.model,
                "time_ps": result.time_ps,
                **({"what_helps": [vars(s) for s in result.sensitivities()]} if helps else {}),
            },
        )
    else:
        print(result.summary())
        if helps:
            print(f"\n{result.what_helps()}")
    if report is not None:
        result.report(report, sources=sources)
        print(f"report written to {report}", file=sys.stderr)
    if trace is not None:
        result.write_trace(trace)
        print(f"trace written to {trace}", file=sys.stderr)
