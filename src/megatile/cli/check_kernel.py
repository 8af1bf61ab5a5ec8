"""``megatile check-kernel``: kernels in TileLang's spelling, built, checked and run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from megatile.cli.machine import Json
from megatile.cli.output import print_json, print_table
from megatile.core.errors import MegatileError


def check_kernel(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A Python file with TileLang kernels; it is run as a script.")],
    machine: Annotated[
        str, typer.Option("-m", "--machine", help="A shipped machine or a YAML file.")
    ] = "dgx-h100",
    at: Annotated[
        str, typer.Option(help="Extents and arguments to predict at, e.g. M=4096,N=4096,K=4096.")
    ] = "",
    as_is: Annotated[bool, typer.Option("--as-is", help="Run it with its own sizes, however large.")] = False,
    json: Json = False,
) -> None:
    """Run a file of TileLang kernels with its sizes made small: each is built for the machine, checked for
    races, bounds and capacity, run, and predicted at the file's own sizes or ``--at`` others. Further
    arguments are the file's.

    Example: megatile check-kernel example_gemm.py -m dgx-h100
    """
    from megatile.compat.tilelang.check import check_file, grids

    found, changed = check_file(file, context.args, machine, _extents(at), as_is)
    if json:
        print_json("check-kernel", {"kernels": [one.as_dict() for one in found], "made_small": changed})
        return
    rows = []
    for one in found:
        predicted = "by data" if one.predicted_us is None else f"{one.predicted_us:.4g}"
        ran, timed = (" then ".join(map(str, grids(programs))) for programs in (one.programs, one.timed))
        ms = f"{one.seconds * 1e3:.1f}" if one.runs else "-"
        rows.append((one.name, ran, str(one.runs), ms, timed, predicted, f"{one.least_us:.3g}"))
    head = ("kernel", "grid", "runs", "ms on this CPU", "predicted grid", f"us on {machine}", "us at least")
    print_table(head, rows, left=2)
    if changed:
        sizes = ", ".join(f"{name} (there {size})" for name, size in changed.items())
        print(f"Sizes of the file that were made small to run it: {sizes}; --as-is leaves them.")
    for one in found:
        for text in one.warnings:
            print(f"warning: {text}")
    print("No races, no access out of bounds, no missing data: every kernel ran with all checks on.")
    print("'At least' is a bound (matrix products at peak, tensors moved once), not a prediction.")


def _extents(text: str) -> dict[str, int]:
    """``M=4096,N=64`` as numbers by name."""
    found = {}
    for part in filter(None, text.replace(" ", "").split(",")):
        name, sign, number = part.partition("=")
        if not name.isidentifier() or not sign or not number.isdecimal() or int(number) < 1:
            raise MegatileError(f"--at {text}: '{part}' is no extent", advice="--at M=4096,N=4096")
        found[name] = int(number)
    return found
