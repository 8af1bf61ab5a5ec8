"""``megatile check-kernel``: kernels in TileLang's spelling, built, checked and run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from megatile.cli.machine import Json
from megatile.cli.output import print_json, print_table


def check_kernel(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="A Python file with TileLang kernels; it is run as a script.")],
    machine: Annotated[
        str, typer.Option("-m", "--machine", help="A shipped machine or a YAML file.")
    ] = "dgx-h100",
    json: Json = False,
) -> None:
    """Run a file of TileLang kernels: each is built for the machine, checked for races, bounds and capacity,
    and run on the file's own data. Further arguments are the file's.

    Example: megatile check-kernel example_gemm.py -m dgx-h100
    """
    from megatile.compat.tilelang.check import check_file

    found = check_file(file, context.args, machine)
    if json:
        print_json("check-kernel", {"kernels": [one.as_dict() for one in found]})
        return
    rows = []
    for one in found:
        grids = " then ".join(str(p.launch.extents(p.launch.dispatch)) for p in one.programs)
        rows.append((one.name, grids, one.runs, f"{one.seconds * 1e3:.1f}", f"{one.least_us:.3g}"))
    head = ("kernel", "grid", "runs", "ms on this CPU", f"us at least on {machine}")
    print_table(head, rows, left=2)
    for one in found:
        for text in one.warnings:
            print(f"warning: {text}")
    print("No races, no access out of bounds, no missing data: every kernel ran with all checks on.")
    print("'At least' is a bound (matrix products at peak, tensors moved once), not a prediction.")
