"""``megatile machines``, ``megatile machine show|check|compare|diff|route`` and ``megatile measure``."""

from __future__ import annotations

import os
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from megatile.cli.output import Commands, console, print_json, print_table, warnings_as_notes
from megatile.core.errors import MegatileError
from megatile.core.limits import time_limit
from megatile.core.quantities import format_rate, format_time

if TYPE_CHECKING:
    from megatile.hda import HDA


app = Commands(help="Show, check and compare machine descriptions.", no_args_is_help=True)


def complete_machine(incomplete: str) -> list[str]:
    from megatile.hda import machine_names

    return [name for name in machine_names() if name.startswith(incomplete)]


Name = Annotated[
    str,
    typer.Argument(
        help="A shipped machine ('megatile machines') or a YAML file.", autocompletion=complete_machine
    ),
]
Machine = Annotated[
    str,
    typer.Option(
        "-m", "--machine", help="A shipped machine or a YAML file.", autocompletion=complete_machine
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set a parameter (nodes=4) or a value (networks.nvlink.bandwidth='900 GB/s' or 2x). Repeatable.",
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="KEY=VALUE",
        help="NCCL variables: NCCL_ALGO, NCCL_PROTO, … Repeatable.",
    ),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Allow machine files to extend files outside their folder.")
]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Import modules that ccl.yaml names; allow files outside the machine file's folder.",
    ),
]
KINDS = ("GPU node", "GPU rack", "GPU cluster", "TPU", "wafer", "near-memory", "host")
"""In this order; others follow."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
WhatHelps = Annotated[bool, typer.Option("--what-helps", help="Print what a better machine would gain.")]


def _limit(context: typer.Context, seconds: float | None) -> float | None:
    """Let the simulations of a command end after so many seconds."""
    context.with_resource(time_limit(seconds, "--max-seconds"))
    return seconds


MaxSeconds = Annotated[
    float | None,
    typer.Option("--max-seconds", metavar="SECONDS", callback=_limit, help="Time limit for simulations."),
]


def load(name: str, settings: list[str] | None = None, trust: bool = False) -> HDA:
    """Return the machine that a command line names."""
    from megatile.hda import machine

    return machine(name, trust=trust, **overrides(settings))


def overrides(settings: list[str] | None) -> dict[str, Any]:
    """``["nodes=4"]`` → ``{"nodes": 4}``; values are read as YAML scalars."""
    import yaml

    found: dict[str, Any] = {}
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise MegatileError(
                f"'{setting}' is not NAME=VALUE", advice="write --set NAME=VALUE, like --set nodes=4"
            )
        try:
            found[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            found[key.strip()] = value
    return found


def environment(settings: list[str] | None) -> dict[str, str]:
    """``["NCCL_ALGO=Ring"]`` → ``{"NCCL_ALGO": "Ring"}``."""
    pairs = [setting.partition("=") for setting in settings or []]
    for key, equals, _ in pairs:
        if not equals or not key.strip():
            raise MegatileError(
                f"'{key}' is not KEY=VALUE", advice="write --env KEY=VALUE, like NCCL_ALGO=Ring"
            )
    return {key.strip(): value for key, _, value in pairs}


def machines(json: Json = False) -> None:
    """List the shipped machines by kind."""
    from megatile.hda import machine, machine_names
    from megatile.report.machine_text import summary_row

    rows = [summary_row(machine(name)) for name in machine_names()]
    rows.sort(key=lambda row: (KINDS.index(row["kind"]) if row["kind"] in KINDS else len(KINDS), row["name"]))
    if json:
        print_json("machines", rows)
        return
    columns = ["name", "devices", "blocks per device", "peak per device", "memory", "network", "parameters"]
    shown: list[tuple[Any, ...]] = []
    for kind, members in groupby(rows, key=lambda row: row["kind"]):
        shown.append((kind, *[""] * (len(columns) - 1)))
        for row in members:
            parameters = ", ".join(f"{k}={v}" for k, v in row["parameters"].items())
            shown.append((f"  {row['name']}", *(row[c] for c in columns[1:-1]), parameters))
    print_table(columns, shown, left=len(columns))
    print(
        "\nmegatile machine show NAME shows more, machine compare A B sets them side by side; --set changes "
        "a parameter; a YAML file works like a name."
    )


@app.command()
def show(
    name: Name,
    settings: Set = None,
    trust: Trust = False,
    svg: Annotated[Path | None, typer.Option(help="Write a picture as SVG.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write a picture as PNG.")] = None,
    yaml: Annotated[bool, typer.Option("--yaml", help="Print the resolved description as YAML.")] = False,
    json: Json = False,
) -> None:
    """Show levels, memories, networks, engines and peak rates of a machine.

    Examples: megatile machine show dgx-h100 · megatile machine show h100-cluster --set nodes=4 --svg out.svg
    """
    from megatile.report.machine_text import machine_json

    hda = load(name, settings, trust)
    pictures = {".svg": svg, ".png": png}
    written = [_picture(hda, path, suffix) for suffix, path in pictures.items() if path is not None]
    if json:
        print_json("machine", machine_json(hda))
    elif yaml:
        print(hda.to_yaml(), end="")
    else:
        _print_tree(hda)
        for path in written:
            print(f"picture written to {path}")


def _picture(hda: HDA, path: Path, suffix: str) -> Path:
    from megatile.report.machine_picture import draw_machine

    if path.suffix.lower() != suffix:
        raise MegatileError(f"'{path}' does not end in {suffix}", advice=f"write --{suffix[1:]} NAME{suffix}")
    draw_machine(hda, path)
    return path


def _print_tree(hda: HDA) -> None:
    from rich.text import Text
    from rich.tree import Tree

    from megatile.report.machine_text import describe_host, level_lines, level_title

    title = f"{hda.name}: {hda.spec.description}" if hda.spec.description else hda.name
    tree = branch = Tree(Text(title, style="bold"))
    for line in describe_host(hda):
        tree.add(Text(line, style="dim"))
    for level in reversed(hda.levels):
        branch = branch.add(Text(level_title(hda, level), style="bold cyan"))
        for kind, line in level_lines(hda, level):
            branch.add(Text.assemble((f"{kind:<10}", "dim"), line))
    console().print(tree)


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(help="Machine files to check.")],
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Check machine files; print problems with their lines, and notes on missing entries."""
    from megatile.hda import problems
    from megatile.hda.lint import lint

    found = {str(file): problems(file, trust=trust) for file in files}
    if json:
        print_json(
            "machine.check", [{"file": f, "problems": list(map(_problem_json, p))} for f, p in found.items()]
        )
    else:
        for file, list_ in found.items():
            for problem in list_:
                print(problem)
            if not list_:
                hda = load(file, trust=trust)
                print(f"{file}: valid, {hda!r}")
                for note in lint(hda):
                    print(f"note: {note.path}: {note.message} (try: {note.advice})", file=sys.stderr)
    if any(found.values()):
        raise typer.Exit(1)


def _problem_json(problem: MegatileError) -> dict[str, Any]:
    place = problem.place
    return {
        "line": place.line if place else None,
        "path": place.path if place else None,
        "message": problem.message,
        "advice": problem.advice,
    }


@app.command()
def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="MACHINE...", help="Shipped machines or YAML files.", autocompletion=complete_machine
        ),
    ],
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Compare machines: peak rates, memories, networks, scales, and ratios such as FLOP/B.

    Example: megatile machine compare dgx-h100 b200-8 mi300x-8
    """
    from megatile.report.machine_compare import compared

    figures = compared([load(name, trust=trust) for name in names])
    if json:
        rows = [figure.json(names) for figure in figures]
        print_json("machine.compare", {"machines": names, "figures": rows})
        return
    shown: list[tuple[str, ...]] = []
    for section, members in groupby(figures, key=lambda figure: figure.section):
        shown.append((section, *[""] * len(names)))
        shown += [(f"  {figure.name}", *figure.words()) for figure in members]
    print_table(("", *names), shown)


@app.command()
def diff(
    a: Name,
    b: Name,
    sources: Annotated[bool, typer.Option("--sources", help="Compare sources, too.")] = False,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Compare two machines value by value."""
    from megatile.report.machine_text import differences

    rows = differences(load(a, trust=trust), load(b, trust=trust), sources)
    if json:
        print_json("machine.diff", [{"path": path, "a": left, "b": right} for path, left, right in rows])
        return
    if not rows:
        print(f"{a} and {b} are the same machine")
        return
    shown = [(path, *("–" if side is None else side for side in sides)) for path, *sides in rows]
    print_table(("value", a, b), shown, left=3)


@app.command()
def route(
    name: Name,
    a: Annotated[str, typer.Argument(help="A unit: gpu:0, device:3, core:17, …")],
    b: Annotated[str, typer.Argument(help="Another unit.")],
    via: Annotated[str | None, typer.Option(help="Use only this network.")] = None,
    settings: Set = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Show the route between two units: networks, links, latency, bandwidth.

    Example: megatile machine route dgx-h100 gpu:0 gpu:7
    """
    from megatile.report.machine_text import route_rows

    hda = load(name, settings, trust)
    found = hda.route(a, b, via)
    rows = route_rows(found)
    total = {
        "hops": found.hop_count,
        "latency_ps": found.latency_ps,
        "bandwidth_bytes_per_s": found.bandwidth,
    }
    if json:
        print_json("machine.route", {"machine": hda.name, "from": a, "to": b, **total, "legs": rows})
        return
    if not rows:
        print(f"{a} and {b} are one unit: nothing is crossed")
        return
    shown = [
        (row["network"], row["inside"], row["steps"], row["hops"], format_time(row["latency_ps"]),
         format_rate(row["bandwidth_bytes_per_s"])) for row in rows
    ]  # fmt: skip
    print_table(("network", "inside", "steps", "links", "latency", "bandwidth"), shown, left=3)
    print(
        f"{a} to {b}: {found.hop_count} links, {format_time(found.latency_ps)}, "
        f"{format_rate(found.bandwidth)} at the narrowest"
    )


@app.command()
def fit(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG…", help="Logs of nccl-tests or rccl-tests.")],
    machine: Machine = "dgx-h100",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write a machine file (.yaml).")
    ] = None,
    operation: Annotated[
        str | None, typer.Option("--operation", help="The collective, if the log does not name it.")
    ] = None,
    env: Env = None,
    settings: Set = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Fit a machine's transports to logs of nccl-tests or rccl-tests; a third of the rows is held out.

    Example: megatile machine fit all_reduce.log all_gather.log -m dgx-h100 -o mine.yaml
    """
    from megatile.core.files import write_text
    from megatile.hda.load import find
    from megatile.timing.collective_choice import rule_of
    from megatile.timing.fit_transports import fit_measurements, machine_text
    from megatile.timing.measurements import read_devices, read_measurements

    hda = load(machine, settings, trust)
    rows = [row for log in logs for row in read_measurements(log, hda.name, operation=operation)]
    devices = list(dict.fromkeys(name for log in logs for name in read_devices(log)))
    with warnings_as_notes():
        found = fit_measurements(hda, rows, env=environment(env), devices=devices)
    scores = {
        "fitted rows, before": found.before,
        "fitted rows, after": found.after,
        "held-out rows, before": found.held_before,
        "held-out rows, after": found.held_after,
    }
    if json:
        constants = {
            c.name: {**c.quantity(found.figures), "deviation": d}
            for c, d in zip(found.constants, found.deviations, strict=True)
        }
        judged = {name: score._asdict() for name, score in scores.items() if score}
        print_json("machine.fit", {"machine": hda.name, "constants": constants, "errors": judged})
    else:
        counted = f"{found.before.rows} of {len(rows)} rows"
        print(f"{len(found.constants)} constants of {hda.name}, fitted to {counted}")
        shown = [
            (name, score.rows, f"{score.median:.1%}", f"{score.p90:.1%}", f"{score.bias:+.1%}")
            for name, score in scores.items()
            if score
        ]
        print_table(("errors", "rows", "median", "p90", "signed"), shown, left=1)
    if output is not None:
        names = ", ".join(log.name for log in logs)
        source = f"fitted to {names} ({found.before.rows} rows, megatile machine fit)"
        library = rule_of(hda).library
        base = machine if find(machine) else os.path.relpath(machine, output.parent)
        there = machine if find(machine) else str(Path(machine).resolve())
        _check_fitted(machine_text(output.stem, there, library, found, source))
        write_text(output, machine_text(output.stem, base, library, found, source), MegatileError)
        print(f"machine file written to {output}; use it as -m {output}", file=sys.stderr)


def _check_fitted(text: str) -> None:
    """Refuse constants that no machine file may have, as those of a log with impossible times."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder, "fitted.yaml")
        path.write_text(text, encoding="utf-8")
        try:
            load(str(path), trust=True)
        except MegatileError as error:
            raise MegatileError(
                f"the fitted constants cannot be used: {error.message}",
                advice="look at the times in the log: nothing was written",
            ) from None


def measure(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the machine file (.yaml).")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Faster, with larger errors.")] = False,
    db: Annotated[
        Path | None,
        typer.Option("--db", envvar="MEGATILE_PERFDB", help="Also store GEMM times in this database."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure this computer: compute rates, bandwidths, latencies, launches.

    What is found is kept: k.compare takes it for machine='cpu' from now on.

    Example: megatile measure -o host.yaml
    """
    from megatile.runtime.measure import measure as measured

    found = measured(output, quick=quick, database=db, keep=True)
    if json:
        print_json("measure", found.json())
    else:
        print(found)
    print("saved: comparisons use it as machine 'cpu'", file=sys.stderr)
    if output is not None:
        print(
            f"machine file written to {output}; use it as machine='{output}' or -m {output}", file=sys.stderr
        )
