"""``megatile tune`` and ``megatile sweep``: choices of a program, parameters of a machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from megatile.cli.machine import Json, Machine, MaxSeconds, Set, Trust, load, overrides
from megatile.cli.output import print_json, print_table
from megatile.cli.plan import read_plan
from megatile.cli.run import find_named, find_program, names_of
from megatile.core.errors import MegatileError
from megatile.core.files import exists
from megatile.report.canvas import check_folder

if TYPE_CHECKING:
    from megatile.hda import HDA

Store = Annotated[Path | None, typer.Option(help="Keep results in this file, to resume later.")]
Workers = Annotated[int | None, typer.Option(help="Number of processes; default: cores.")]
MAX_SHOWN_ROWS = 10
"""Choices that are printed, the fastest first."""


def _values(texts: list[str], option: str) -> dict[str, list[Any]]:
    """``["bM=64,128"]`` → ``{"bM": [64, 128]}``; values are read as those of ``--set``."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        if not name or not values:
            raise MegatileError(f"'{text}' has no values", advice=f"write {option} NAME=VALUE,VALUE")
        found[name.strip()] = [overrides([f"v={value.strip()}"])["v"] for value in values.split(",")]
    return found


def tune(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME",
            help="A function that makes programs or Plans (the file is imported): gemm.py:gemm(1024, 1024).",
        ),
    ],
    choose: Annotated[
        list[str],
        typer.Option("-c", "--choose", metavar="NAME=V1,V2", help="Values to try. Repeatable."),
    ],
    machine: Machine = "dgx-h100",
    store: Store = None,
    workers: Workers = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Verify the winner's data.")] = True,
    max_seconds: MaxSeconds = None,
    settings: Set = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Find the fastest combination of parameter values; the first values are the default.

    Example: megatile tune "gemm.py:gemm(1024,1024,1024)" -c bM=64,128 -c bN=64,128 -m dgx-h100
    """
    from megatile.tuning.search import tune as search

    choices = _values(choose, "--choose")
    found = search(
        _factory(factory),
        choices,
        machine=load(machine, settings, trust),
        store=store,
        workers=workers,
        verify=verify,
    )
    rows = found.rows()
    if json:
        summary = {"machine": found.machine.name, "best": found.best, "time_us": found.value / 1e6}
        more = {"speedup": found.speedup, "counts": found.counts, "verified": found.verified}
        print_json("tune", {**summary, **more, "rows": rows})
        return
    columns = [*choices, "result", "time_us", "bound_us"]
    reasons = list(dict.fromkeys(row["why"] for row in rows if row["why"]))
    shown = [
        {**row, "note": f"({reasons.index(row['why']) + 1})"} if row["why"] else row
        for row in rows[:MAX_SHOWN_ROWS]
    ]
    columns += ["note"] if any(row["note"] for row in shown) else []
    plain = [*choices, "result", "note"]
    texts = [[row[c] if c in plain else _number(row[c]) for c in columns] for row in shown]
    print_table([c.replace("_us", " (us)") for c in columns], texts, left=len(choices) + 1)
    for number, why in enumerate(reasons, 1):
        print(f"({number}) refused {sum(row['why'] == why for row in rows)}: {why}")
    counts = ", ".join(f"{count} {kind}" for kind, count in found.counts.items())
    gain = f", {found.speedup:.2f} times as fast as the default" if found.speedup else ""
    note = f" ({found.note})" if found.note else ""
    print(f"\nbest: {found.best}{note}{gain}\n{len(rows)} choices: {counts}; {found.verified}")


def _factory(text: str) -> Any:
    """Return the function that ``FILE.py:NAME`` means, with the arguments of ``FILE.py:NAME(…)``."""
    file, _, name = text.partition(":")
    if not name:
        raise MegatileError(f"'{text}' is not a function", advice=f"write {file}:NAME")
    _, function, arguments, named = find_named(file, names_of(file), name)
    return partial(function, *arguments, **named) if callable(function) else function


def sweep(
    target: Annotated[
        str,
        typer.Argument(
            metavar="PLAN|FILE.py:NAME|COLLECTIVE",
            help="A saved Plan, a tile program as in 'megatile run', or a collective with --bytes.",
        ),
    ],
    over: Annotated[
        list[str],
        typer.Option(
            "-o", "--over", metavar="NAME=V1,V2", help="A machine parameter or path, with values. Repeatable."
        ),
    ],
    machine: Machine = "dgx-h100",
    nbytes: Annotated[str | None, typer.Option("-b", "--bytes", help="Size of a collective: 64MiB.")] = None,
    choose: Annotated[
        list[str] | None,
        typer.Option(
            "-t",
            "--tune",
            metavar="NAME=V1,V2",
            help="Tune on every machine, as in 'megatile tune'. Repeatable.",
        ),
    ] = None,
    store: Store = None,
    workers: Workers = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw times over the first parameter (.png, .svg).")
    ] = None,
    max_seconds: MaxSeconds = None,
    settings: Set = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Time a Plan, program or collective on variants of a machine; with --tune, tune it on each and mark the
    knee: the first machine within 5 % of the fastest.

    Example: megatile sweep all_reduce -b 64MiB -o 'networks.nvlink.bandwidth=225 GB/s,450 GB/s' -o gpus=4,8

    Example: megatile sweep "gemm.py:gemm(512,512,512)" -m own.yaml -o memory.sram.size=1MiB,3MiB -t bM=32,64
    """
    from megatile.tuning.machines import sweep as times

    if plot is not None:
        check_folder(plot)
    values = _values(over, "--over")
    # A machine by its name has parameters; what --set says holds for all of them.
    every = {**{name: [value] for name, value in overrides(settings).items()}, **values}
    choices = _values(choose, "--tune") if choose else None
    made = _factory(target) if choices else _target(target, nbytes)
    found = times(made, every, machine=machine, tune=choices, store=store, workers=workers, trust=trust)
    rows = found.rows()
    if plot is not None:
        from megatile.report.plots import plot_times

        size = f" of {nbytes}" if nbytes else ""
        plot_times(rows, list(values), plot, f"{target}{size} on {found.machine.name}")
    if json:
        print_json("sweep", rows)
        return
    if choices:
        _print_best(found, [*values], [*choices])
        if plot is not None:
            print(f"picture written to {plot}")
        return
    texts = [
        [
            *(row[n] for n in values),
            _number(row["time_us"]),
            row["model"] or "",
            f"refused: {row['why']}" if row["why"] else row["note"] or "",
        ]
        for row in rows
    ]
    width = len(values) + (3 if any(text[-1] for text in texts) else 2)
    head = [*values, "time (us)", "model", "note"]
    print_table(head[:width], [text[:width] for text in texts], left=len(values))
    if plot is not None:
        print(f"picture written to {plot}")


def _print_best(found: Any, values: list[str], choices: list[str]) -> None:
    """Print every machine with its best choice, its time beside the first choice's, and the knee."""
    texts = [
        [*(row[n] for n in values), *("" if row[n] is None else row[n] for n in choices),
         _number(row["time_us"]), _number(row["fixed_us"]), "knee" if row["knee"] else "",
         row["why"] or row["note"]]
        for row in found.rows()
    ]  # fmt: skip
    head = [*values, *choices, "best (us)", "first choice (us)", "", "note"]
    print_table(head, texts, left=len(values))
    counts = ", ".join(f"{count} {kind}" for kind, count in found.counts.items())
    if found.knee is None and len(texts) > 1 and any(row["time_us"] is not None for row in found.rows()):
        print("\nno knee: the last machine is more than 5 % faster than all before it")
    print(f"\n{len(found.machines)} machines × {len(found.choices)} choices: {counts}")
    for why, count in found.refusals.most_common(1):
        print(f"most frequent reason of refusal ({count} of {found.refusals.total()}): {why}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _target(text: str, nbytes: str | None) -> Any:
    if text.partition(":")[0].endswith(".py"):
        return find_program(text)
    from megatile.cli.collective import read_size

    if nbytes is None:
        if not exists(text) and _names_collective(text):
            raise MegatileError(f"{text} needs a size in bytes", advice="give -b 64MiB")
        return read_plan(Path(text))

    return partial(_collective, text, read_size(nbytes))


def _names_collective(text: str) -> bool:
    from megatile.collectives.job import CollectiveError, operation_name

    try:
        return bool(operation_name(text))
    except CollectiveError:
        return False


def _collective(operation: str, nbytes: int, hda: HDA) -> Any:
    from megatile.collectives.planner import collective

    return collective(operation, machine=hda, nbytes=nbytes)
