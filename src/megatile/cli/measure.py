"""``megatile measure``: the machine file of this computer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from megatile.cli.machine import Json
from megatile.cli.output import print_json


def measure(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the machine file (.yaml); it extends 'cpu'.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Half the time, larger errors.")] = False,
    db: Annotated[
        Path | None,
        typer.Option("--db", envvar="MEGATILE_PERFDB", help="Also keep times of products in this database."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure this computer: rates of vectors, products, special functions and copies, latencies, launches.

    Example: megatile measure -o host.yaml
    """
    from megatile.runtime.measure import measure as measured

    found = measured(output, quick=quick, database=db)
    if json:
        print_json("measure", found.json())
    else:
        print(found)
    if output is not None:
        print(
            f"machine file written to {output}; use it as machine='{output}' or -m {output}", file=sys.stderr
        )
