"""``megatile export``: a tile program as the text of another language."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from megatile.cli.machine import Set, load
from megatile.cli.run import find_program, read_shapes
from megatile.core.files import write_text


def export(
    program: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py[:NAME]",
            help="A Python file with a tile program (it is imported), and its name or a call of the function "
            "that makes it: gemm.py:gemm(512, 512, 512, bK=64).",
        ),
    ],
    to: Annotated[str, typer.Option("--to", help="tilelang, cuda or c.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The file to write; without it, the text is printed."),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option("-m", "--machine", help="What it is built for (c: this computer; else hgx-a100)."),
    ] = None,
    shapes: Annotated[
        str | None, typer.Option(help="Shapes of the arguments, where extents are open: 512x64,64x32.")
    ] = None,
    settings: Set = None,
) -> None:
    """Write a tile program as TileLang, CUDA C++ or C. Nothing is compiled, and no GPU is needed.

    Example: megatile export examples/21_gemm_block.py:gemm(512,512,512) --to cuda -o gemm.cu
    """
    from megatile.targets.export import export as write

    prog = find_program(program)
    hda = load(machine, settings) if machine is not None else None
    text = write(prog, to, *read_shapes(shapes, prog), machine=hda)
    if output is None:
        print(text, end="")
    else:
        write_text(output, text)
        print(f"written to {output}")
