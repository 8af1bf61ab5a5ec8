"""``megatile collective``: predicted collectives, in the table that nccl-tests users know."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from megatile.cli.machine import Env, Json, Machine, MaxSeconds, Set, TrustCode, environment, load
from megatile.cli.output import print_json, print_table, read_names, warnings_as_notes
from megatile.core.errors import MegatileError, QuantityError
from megatile.core.progress import shown
from megatile.core.quantities import format_time, size
from megatile.report.canvas import SUFFIXES, check_folder

if TYPE_CHECKING:
    from megatile.collectives.planner import Prediction
    from megatile.collectives.sweeps import Line
    from megatile.hda import HDA
    from megatile.timing.machine_timing import Origin

MAX_SIZES = 1000
"""Sizes of one sweep."""
ALGORITHMS = ("no algorithm is named", "use -a auto, -a all, or names such as -a ring,tree")
MAX_RANKS = 1_000_000
"""Ranks that a list such as 0-99 may name."""


def read_size(text: str) -> int:
    """Return bytes as ``nbytes=`` reads them: ``8``, ``64K`` or nccl-tests' ``128M`` (1024), ``64 kB``."""
    try:
        return size(text)
    except QuantityError as problem:
        advice = f"{problem.advice}, or 64K (64 KiB)"
        if "," in text:
            advice = "give a range: -b 64K -e 16M -f 16 predicts 64 KiB, 1 MiB and 16 MiB"
        raise MegatileError(f"{text[:80]!r} is not a size in bytes", advice=advice) from None


def read_ranks(text: str | None) -> int | list[int] | None:
    """Read ``16`` (the first 16) or ``0,8,16-23`` (these units)."""
    if text is None:
        return None
    numbers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?", part)
        if not found:
            raise MegatileError(f"'{text[:80]}' is not a list of ranks", advice="write 16 or 0,8,16-23")
        first, last = int(found[1]), int(found[2] or found[1])
        if last - first + len(numbers) > MAX_RANKS:
            raise MegatileError(f"'{text[:80]}' names more than {MAX_RANKS} ranks")
        numbers += range(first, last + 1)
    return numbers[0] if len(numbers) == 1 and "," not in text and "-" not in text else numbers


def _complete_operation(incomplete: str) -> list[str]:
    from megatile.collectives.job import OPERATIONS

    return [name for name in OPERATIONS if name.startswith(incomplete)]


Operation = Annotated[
    str, typer.Argument(help="all_reduce, all_gather, …", autocompletion=_complete_operation)
]


def collective(
    operation: Operation,
    machine: Machine = "dgx-h100",
    begin: Annotated[
        str,
        typer.Option(
            "-b", "--begin", help="Smallest size in bytes; K is 1024, kB 1000. Alone: the only size."
        ),
    ] = "8",
    end: Annotated[str | None, typer.Option("-e", "--end", help="Largest size.")] = None,
    factor: Annotated[float, typer.Option("-f", "--factor", help="Factor between sizes.")] = 2.0,
    algorithm: Annotated[
        str, typer.Option("-a", "--algorithm", help="auto, nccl, rccl, custom, fastest, all, or names.")
    ] = "auto",
    scale: Annotated[str, typer.Option(help="Scale of the ranks: device, block, pe, …")] = "device",
    ranks: Annotated[str | None, typer.Option(help="Number of ranks, or a list: 16 or 0,8,16-23.")] = None,
    dtype: Annotated[str, typer.Option("-d", "--dtype", help="Element type.")] = "f32",
    redop: Annotated[str, typer.Option("-o", "--op", help="sum, max, min, prod or avg.")] = "sum",
    root: Annotated[
        int, typer.Option("-r", "--root", help="Root of broadcast, reduce, gather, scatter.")
    ] = 0,
    in_place: Annotated[
        bool | None,
        typer.Option(
            "--in-place/--out-of-place",
            help="In place by default; all_to_all is out of place by default (in place needs equal blocks).",
            show_default=False,
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Check results and count wrong elements.")
    ] = True,
    plot: Annotated[Path | None, typer.Option(help="Draw time and bus bandwidth over size.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write the trace of the last size (.json).")] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Print all candidates: times, bounds, and the estimates by which NCCL chooses."
        ),
    ] = False,
    among: Annotated[str | None, typer.Option(help="Algorithms to choose from: ring,tree,…")] = None,
    protocol: Annotated[str | None, typer.Option(help="LL, LL128, Simple or NVLS.")] = None,
    graph: Annotated[
        bool,
        typer.Option("-G", "--graph", help="As in a captured graph: no host launch (no effect for NCCL)."),
    ] = False,
    registered: Annotated[
        bool, typer.Option("--registered", help="Buffers are registered with the library.")
    ] = False,
    env: Env = None,
    db: Annotated[Path | None, typer.Option("--db", help="Prefer measured times from this database.")] = None,
    table: Annotated[Path | None, typer.Option(help="Cache chosen algorithms in this .json file.")] = None,
    ccl: Annotated[Path | None, typer.Option(help="A ccl.yaml with more kernels for -a.")] = None,
    trust: TrustCode = False,
    max_seconds: MaxSeconds = None,
    settings: Set = None,
    json: Json = False,
) -> None:
    """Predict a collective over a range of sizes; results are checked on data.

    Example: megatile collective all_reduce -m dgx-h100 -b 8 -e 1GiB -f 4 -a ring,tree,auto --plot out.png
    """
    from megatile.collectives.sweeps import sizes, sweep
    from megatile.compat.ccl.config import load_ccl_config

    hda = load(machine, settings, trust)
    if not 1 < factor < float("inf"):
        raise MegatileError(f"factor {factor:g} must be greater than 1", advice="use -f 2")
    first = read_size(begin)
    last = read_size(end) if end else first
    if last < first:
        raise MegatileError(f"no size from {first} to {last} bytes", advice="let -e be at least -b")
    for file, kinds in ((plot, SUFFIXES), (trace, TRACES), (table, TABLES)):
        _can_write(file, kinds)
    every = _whole_elements(sizes(first, last, factor), dtype)
    fields: dict[str, Any] = {"scale": scale, "ranks": read_ranks(ranks), "dtype": dtype}
    fields |= {"reduction": redop, "root": root, "in_place": _in_place(operation, in_place)}
    kernels = load_ccl_config(ccl)
    names = _algorithms(operation, algorithm, hda, every[0], fields, kernels)
    _among_needs_auto(among, names)
    fields |= {"protocol": protocol, "launch": not graph, "table": table}
    fields |= {"among": None if among is None else read_names(among, ALGORITHMS)}
    fields |= {"env": environment(env)} if env else {}
    fields |= {"registered": True} if registered else {}
    fields |= {"database": db} if db else {}
    work = sweep(operation, hda, every, names, verify=check, kernels=kernels, trust=trust, **fields)
    with warnings_as_notes():
        found = _progress(work, len(every) * len(names))
    lines = [line for line, _ in found]
    if json:
        print_json("collective", [_record(line, prediction, explain, hda) for line, prediction in found])
    else:
        _print_table(hda.name, found[0][1], lines)
        _print_in_network([prediction for _, prediction in found])
        rules = [p.origin.source for _, p in found if p.origin is not None and p.origin.kind == "rule"]
        for text in dict.fromkeys(rules):
            print(f"# by the rule: {text}")
    if explain and not json:
        from megatile.timing.origins import origin_lines

        for _, prediction in found:
            print("\n" + "\n".join([*_measured(prediction), str(prediction.explanation)]))
            print("\n".join(origin_lines(_origins(hda, prediction))))
    if plot is not None:
        _plot(lines, plot, f"{operation} on {hda.name}, {found[0][1].job.ranks} ranks")
    if trace is not None:
        _trace(hda, found[-1][1], trace, launch=not graph)
    if any(line.wrong for line in lines):
        raise typer.Exit(1)


def _in_place(operation: str, asked: bool | None) -> bool:
    from megatile.collectives.job import operation_name

    return operation_name(operation) != "all_to_all" if asked is None else asked


def _among_needs_auto(among: str | None, names: list[str]) -> None:
    from megatile.collectives.libraries import LIBRARIES

    if among is not None and not {"auto", "fastest", *LIBRARIES} & set(names):
        raise MegatileError(
            f"--among is for -a auto, not for {', '.join(names)}", advice="leave one of them out"
        )


def _can_write(path: Path | None, kinds: tuple[str, ...]) -> None:
    """Say at once, not after a long sweep, that a file cannot be written."""
    if path is None:
        return
    if not path.name.endswith(kinds):
        raise MegatileError(f"cannot write '{path}'", advice=f"use a name that ends in {', '.join(kinds)}")
    check_folder(path)


_WITH_UNITS = {"size": "size_bytes", "algbw": "algbw_gb_per_s", "busbw": "busbw_gb_per_s"}


def _origins(hda: HDA, prediction: Prediction) -> dict[str, Origin]:
    """Return where the times of a prediction come from."""
    from megatile.timing.resources import Resources

    return Resources(hda, prediction.plan).origins()


def _measured(prediction: Prediction) -> list[str]:
    """Say where a time comes from that is not among the candidates' prices."""
    origin = prediction.origin
    if origin is None or origin.kind == "rule":
        return []
    return [
        f"{format_time(prediction.time_ps)}: {origin.kind} rows ({origin.source}). Without them, by the rule:"
    ]


def _record(line: Line, prediction: Prediction, explain: bool, hda: HDA) -> dict[str, Any]:
    named = {_WITH_UNITS.get(key, key): value for key, value in line.as_dict().items()}
    if not explain or prediction.explanation is None:
        return named
    origins = {name: origin._asdict() for name, origin in _origins(hda, prediction).items()}
    return named | {"candidates": prediction.explanation.as_dicts(), "origins": origins}


def _algorithms(
    operation: str, asked: str, hda: Any, size: int, fields: dict[str, Any], kernels: dict[str, Any]
) -> list[str]:
    """Return the names asked for; ``all`` means every algorithm that can do the job."""
    from megatile.collectives.algorithms import algorithms, find_algorithm
    from megatile.collectives.libraries import NAMED
    from megatile.collectives.requests import make_job

    if asked == "all":
        job, _ = make_job(operation, machine=hda, nbytes=size, **fields)
        return [a.name for a in algorithms().values() if a.reason_against(job) is None]
    names = read_names(asked, ALGORITHMS)
    for name in names:
        if name not in ("auto", "fastest", *NAMED) and name not in kernels["algorithms"]:
            find_algorithm(name)
    return names


TABLES = (".json",)
TRACES = (".json", ".json.gz", ".jsonl", ".jsonl.gz")


def _whole_elements(sizes: Iterable[int], dtype: str) -> list[int]:
    """As nccl-tests does, sizes are rounded down to whole elements; 0 stays, less than one is left out."""
    from megatile.core.dtypes import dtype as dtype_name, itemsize

    unit = itemsize(dtype_name(dtype))
    sizes = list(islice(sizes, MAX_SIZES + 1))
    if len(sizes) > MAX_SIZES:
        raise MegatileError(
            f"more than {MAX_SIZES} sizes from {sizes[0]} bytes on",
            advice="use a larger -f, or a smaller range",
        )
    whole = list(dict.fromkeys(size // unit * unit for size in sizes if size >= unit or size == 0))
    if not whole:
        raise MegatileError(f"no {dtype} fits into these sizes", advice=f"let -e be at least {unit}")
    return whole


def _progress(work: Iterator[tuple[Line, Prediction]], total: int) -> list[tuple[Line, Prediction]]:
    """Return all of it, under a bar that moves from candidate to candidate."""
    found = []
    with shown(f"{total} predictions") as advance:
        for line in work:
            found.append(line)
            advance()
    return found


def _print_table(machine: str, first: Prediction, lines: list[Line]) -> None:
    job = first.job
    place = "in place" if job.in_place else "out of place"
    print(f"# {job.operation} on {machine}: {job.ranks} ranks of scale {job.scale}, {place}, predicted")
    head = (
        "size (B)",
        "count",
        "type",
        "redop",
        "algorithm",
        "model",
        "time (us)",
        "algbw (GB/s)",
        "busbw (GB/s)",
        "#wrong",
    )
    rows = [
        (
            str(x.size), str(x.count), x.type, x.redop, x.algorithm, x.model,
            f"{x.time_us:.2f}", f"{x.algbw:.2f}", f"{x.busbw:.2f}",
            "N/A" if x.wrong is None else str(x.wrong),
        )
        for x in lines
    ]  # fmt: skip
    print_table(head, rows, left=0)
    print(f"# Avg bus bandwidth: {sum(x.busbw for x in lines) / len(lines):.4g} GB/s")


def _print_in_network(found: list[Prediction]) -> None:
    """Say who reduces, where the algorithm's name does not."""
    from megatile.collectives.candidates import IN_NETWORK

    names = [p.candidate.label for p in found if p.explanation and p.explanation.network_reduces]
    for name in dict.fromkeys(name for name in names if "in_network" not in name):
        print(f"# {name}: {IN_NETWORK}")


def _plot(lines: list[Line], path: Path, title: str) -> None:
    from megatile.report.plots import plot_sweep

    by_name: dict[str, list[tuple[int, float, float]]] = {}
    chosen: dict[str, list[str]] = {}
    for line in lines:
        by_name.setdefault(line.asked, []).append((line.size, line.time_us, line.busbw))
        chosen.setdefault(line.asked, []).append(line.algorithm)
    several = {name: names for name, names in chosen.items() if set(names) != {name}}
    plot_sweep(by_name, path, title, several)
    print(f"picture written to {path}", file=sys.stderr)


def _trace(hda: Any, found: Prediction, path: Path, launch: bool) -> None:
    from megatile.sim import simulate

    simulate(found.plan, machine=hda, launch=launch).write_trace(path)
    print(f"trace written to {path}", file=sys.stderr)
