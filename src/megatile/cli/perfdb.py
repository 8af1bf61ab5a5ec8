"""``megatile kernel`` and ``megatile perfdb import|list|export|fit``: times of library kernels."""

from __future__ import annotations

import os
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any

import typer

from megatile.cli.machine import Json, Machine, Set, Trust, load
from megatile.cli.output import Commands, print_json, print_table
from megatile.core.errors import MegatileError
from megatile.core.progress import shown
from megatile.core.quantities import format_time, size

app = Commands(help="Keep measured kernel times, to predict from and to fit.", no_args_is_help=True)
Db = Annotated[
    Path,
    typer.Option("--db", envvar="MEGATILE_PERFDB", help="The database (a SQLite file).", show_default=True),
]
DEFAULT = Path("perf.sqlite")
MAX_SHAPES = 10_000
"""Shapes of one command, over all combinations of extents."""
OnlyMachine = Annotated[str | None, typer.Option("-m", "--machine", help="Only this machine.")]
OnlyOperation = Annotated[str | None, typer.Option("--operation", help="Only this operation.")]
OnlyDtype = Annotated[str | None, typer.Option("-d", "--dtype", help="Only this element type.")]
OnlyKernel = Annotated[str | None, typer.Option("--implementation", help="Only this kernel.")]


def kernel(
    context: typer.Context,
    operation: Annotated[str, typer.Argument(help="gemm, attention, moe, all_reduce, …")],
    machine: Machine = "dgx-h100",
    dtype: Annotated[
        str | None,
        typer.Option("-d", "--dtype", help="Element type, or fp8_block, int4, mxfp4, nvfp4."),
    ] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="KV cache type, if different.")] = None,
    library: Annotated[
        str | None, typer.Option("-l", "--library", help="vllm, trtllm, sglang or torch.")
    ] = None,
    graph: Annotated[
        bool, typer.Option("-G", "--graph", help="As in a captured graph: no host time.")
    ] = False,
    implementation: Annotated[str | None, typer.Option(help="Kernel name in the database.")] = None,
    db: Annotated[
        Path | None,
        typer.Option("--db", envvar="MEGATILE_PERFDB", help="Prefer measured times from this database."),
    ] = None,
    settings: Set = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Predict how long a library's kernel takes on one device. Pass each dimension as an option, with one
    value or several, e.g. --m 64,128.

    Examples: megatile kernel gemm --m 16,256,4096 --n 4096 --k 4096 -d fp8 --library trtllm ·
    megatile kernel attention --batch 8 --queries 1 --context 4096 --heads 32 --kv-heads 8 --kv-dtype fp8
    """
    from contextlib import nullcontext

    from megatile.timing.database import Database, predict_kernel
    from megatile.timing.formulas import OPERATIONS

    hda, asked, rows = load(machine, settings, trust), _extents(context.args), []
    shapes = [dict(zip(asked, values, strict=True)) for values in product(*asked.values())]
    with nullcontext() if db is None else Database(db, create=False) as database:
        for shape in (OPERATIONS.find(operation).shape(s) for s in shapes):
            found = predict_kernel(
                operation, machine=hda, dtype=dtype, kv_dtype=kv_dtype, library=library, captured=graph,
                implementation=implementation, database=database, **shape,
            )  # fmt: skip
            time: dict[str, Any] = {"time_us": found.time_us, "error": found.error, "model": found.model}
            time |= found.origin._asdict()
            rows.append({"operation": operation, "machine": hda.name, "shape": shape, **time})
    if json:
        print_json("kernel", rows[0] if len(rows) == 1 else rows)
    elif len(rows) == 1:
        print(f"{_time(rows[0])}, {rows[0]['model']} ({rows[0]['kind']}: {rows[0]['source']})")
    else:
        texts = [
            [*(row["shape"][name] for name in asked), _time(row), row["kind"], row["model"]] for row in rows
        ]
        print_table([*asked, "time", "known by", "model"], texts, left=0)


def _time(row: dict[str, Any]) -> str:
    known = "" if row["error"] is None else f" ± {row['error']:.1%}"
    return f"{format_time(row['time_us'] * 1e6)}{known}"


def _extents(arguments: list[str]) -> dict[str, list[int]]:
    """``--m 64,128 --kv-heads=8`` → values of extents."""
    found: dict[str, list[int]] = {}
    waiting = [part for argument in arguments for part in argument.split("=", 1)]
    for name, value in zip(waiting[::2], [*waiting[1::2], ""], strict=False):
        numbers = value.replace("_", "").split(",")
        if name == "--bytes" and value:
            numbers = [str(size(n)) for n in numbers]
        if not name.startswith("--") or not all(n.isdecimal() and len(n) < 19 for n in numbers):
            message = f"'{name} {value}'".replace(" '", "'") + " gives no extent"
            raise MegatileError(message, advice="write --m 4096 --n 4096 --k 4096, or --bytes 64K --ranks 8")
        found[name[2:].replace("-", "_")] = [int(n) for n in numbers]
    if prod(len(values) for values in found.values()) > MAX_SHAPES:
        raise MegatileError(f"more than {MAX_SHAPES} shapes", advice="give fewer values")
    return found


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(help="CSV, Parquet, or logs of nccl-tests and rccl-tests.")],
    machine: Annotated[
        str | None, typer.Option("-m", "--machine", help="Machine it was measured on.")
    ] = None,
    operation: Annotated[str | None, typer.Option(help="The operation, if the log does not name it.")] = None,
    source: Annotated[str | None, typer.Option(help="Source; default: the file name.")] = None,
    db: Db = DEFAULT,
    json: Json = False,
) -> None:
    """Import tables of measured times; a file with a wrong row is refused."""
    from megatile.timing.database import Database
    from megatile.timing.measurements import read_measurements

    rows = []
    with shown("importing") as advance:
        read = []
        for file in files:
            read.append(read_measurements(file, machine, operation=operation, source=source))
            advance()
        with Database(db) as database:
            for file, measurements in zip(files, read, strict=True):
                new, replaced = database.add(measurements)
                rows.append({"file": str(file), "rows": len(measurements), "new": new, "replaced": replaced})
    if json:
        print_json("perfdb.import", rows)
    else:
        print_table(["file", "rows", "new", "replaced"], [tuple(row.values()) for row in rows])


@app.command("list")
def list_(db: Db = DEFAULT, json: Json = False) -> None:
    """List measured times by machine, operation, element type and kernel."""
    from megatile.timing.database import Database

    columns = ["machine", "operation", "dtype", "implementation", "rows", "shortest_us", "longest_us"]
    with Database(db, create=False) as database:
        rows = database.summary()
    if json:
        print_json("perfdb.list", [dict(zip(columns, row, strict=True)) for row in rows])
    else:
        texts = [(*row[:5], f"{row[5]:.2f}", f"{row[6]:.2f}") for row in rows]
        print_table([c.replace("_us", " (us)") for c in columns], texts, left=4)


@app.command()
def export(
    output: Annotated[Path, typer.Argument(help="A .csv or .parquet file.")],
    machine: OnlyMachine = None,
    operation: OnlyOperation = None,
    dtype: OnlyDtype = None,
    implementation: OnlyKernel = None,
    db: Db = DEFAULT,
) -> None:
    """Export the measurements to a table."""
    from megatile.timing.measurements import write_measurements

    count = write_measurements(output, _chosen(db, machine, operation, dtype, implementation))
    print(f"{count} rows written to {output}")


@app.command()
def fit(
    machine: Machine = "dgx-h100",
    operation: OnlyOperation = None,
    dtype: OnlyDtype = None,
    implementation: OnlyKernel = None,
    held_out: Annotated[float, typer.Option(help="Share of rows held out of the fit.")] = 0.2,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write a machine file (.yaml).")
    ] = None,
    db: Db = DEFAULT,
    settings: Set = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Fit a machine's kernel constants to its measurements."""
    from dataclasses import asdict

    from megatile.core.files import write_text
    from megatile.timing.fit import fit as fit_, machine_file

    if not 0 <= held_out < 1:
        raise MegatileError(f"--held-out must be at least 0 and below 1, got {held_out:g}")
    hda = load(machine, settings, trust)
    rows = _chosen(db, hda.name, operation, dtype, implementation)
    with shown("fitting"):
        fits = fit_(hda, rows, held_out=held_out)
    if output is not None:
        write_text(output, machine_file(output.stem, _base(machine, output), fits, f"fitted to {db.name}"))
    if json:
        print_json(
            "perfdb.fit", [_fit_json(f) | {"figures": [asdict(k) for k in f.figures.values()]} for f in fits]
        )
        return
    headers = [
        "operation",
        "dtype",
        "kernels",
        "fitted",
        "held out",
        "before: median",
        "p90",
        "after: median",
        "p90",
        "signed",
    ]
    print_table(
        headers,
        [
            (
                f.operation, f.dtype, " ".join(f.figures), f.fitted_rows, f.after.rows,
                *(f"{x:.1%}" for x in (f.before.median, f.before.p90, f.after.median, f.after.p90)),
                f"{f.after.bias:+.1%}",
            )
            for f in fits
        ],
        left=3,
    )  # fmt: skip
    for line in (line for f in fits for line in f.lines()):
        print(line)
    if output is not None:
        print(f"machine file written to {output}")


def _base(machine: str, output: Path) -> str:
    """Return what a file has to extend: a shipped machine by name, the user's file by the way to it."""
    from megatile.hda import machine_names

    return machine if machine in machine_names() else os.path.relpath(machine, output.parent)


def _fit_json(found: Any) -> dict[str, Any]:
    scores = {f"{when}_{name}": value for when in ("before", "after")
              for name, value in getattr(found, when)._asdict().items()}  # fmt: skip
    return {"operation": found.operation, "dtype": found.dtype, "fitted_rows": found.fitted_rows, **scores}


def _chosen(
    db: Path, machine: str | None, operation: str | None, dtype: str | None, implementation: str | None
) -> Any:
    from megatile.timing.database import Database
    from megatile.timing.schemes import scheme_name

    with Database(db, create=False) as database:
        kind = "/".join(map(scheme_name, dtype.split("/"))) if dtype else None
        keys = {"machine": machine, "operation": operation, "dtype": kind, "implementation": implementation}
        rows = list(database.rows(**keys))
    if not rows:
        said = ", ".join(f"{name} {value}" for name, value in keys.items() if value) or "anything"
        raise MegatileError(f"{db} has no measurements of {said}", advice=f"megatile perfdb list --db {db}")
    return rows
