"""``mt.export``: a tile program as the text of another language."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megatile.core.errors import MegatileError, did_you_mean
from megatile.hda import HDA
from megatile.ir.program import Program
from megatile.language.tile.program import ProgramFunction
from megatile.targets.common.errors import CompileError


def _c(program: Program) -> str:
    from megatile.targets.cpu.kernel import generated

    return generated(program).text


def _cuda(program: Program) -> str:
    from megatile.targets.cuda.generator import generate_cuda

    return generate_cuda(program).text


def _tilelang(program: Program) -> str:
    from megatile.targets.tilelang import generate_tilelang

    return generate_tilelang(program)


LANGUAGES: dict[str, tuple[Callable[[Program], str], str]] = {
    "tilelang": (_tilelang, "hgx-a100"),
    "cuda": (_cuda, "hgx-a100"),
    "c": (_c, "cpu"),
}
"""How each is written, and the machine for which a program is built if none is given."""


def export(
    prog: ProgramFunction | Program, to: str, *shapes: tuple[int, ...], machine: str | HDA | None = None
) -> str:
    """The text of a tile program in TileLang, CUDA C++ or C: ``mt.export(prog, "tilelang")``.

    ``shapes``: of every argument, where extents are symbolic. None of it needs a compiler or a GPU.
    """
    if to not in LANGUAGES:
        known = tuple(LANGUAGES)
        raise CompileError(
            f"programs cannot be written as '{to}'", advice=did_you_mean(to, known, what="languages")
        )
    if not isinstance(prog, (ProgramFunction, Program)):
        raise CompileError(f"{prog!r} is not a tile program", advice="decorate the function with @T.program")
    write, usual = LANGUAGES[to]
    try:
        if isinstance(prog, Program):
            return write(prog)
        symbols: dict[str, Any] = prog.bind_symbols(list(shapes)) if shapes else {}
        return write(prog.build(machine if machine is not None else usual, **symbols))
    except MegatileError as error:
        raise error.with_traceback(None) from None
