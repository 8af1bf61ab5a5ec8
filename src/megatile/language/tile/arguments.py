"""Arguments of a tile program that are given by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from megatile.core.errors import MegatileError, did_you_mean
from megatile.ir.program import Program
from megatile.language.tile.program import ProgramFunction


def in_order(
    prog: ProgramFunction | Program,
    given: Sequence[Any],
    named: Mapping[str, Any],
    error: type[MegatileError],
) -> tuple[Any, ...]:
    """Return the arguments in the order of the program's, those given by name after the others."""
    if not named or not isinstance(prog, (ProgramFunction, Program)):
        return tuple(given)
    wanted = [p.name for p in prog.params] if isinstance(prog, Program) else list(prog.tensors)
    name = prog.name if isinstance(prog, Program) else prog.__name__
    for one in named:
        if one not in wanted:
            raise error(f"'{name}' has no argument '{one}'", advice=did_you_mean(one, wanted))
        if one in wanted[: len(given)]:
            raise error(f"'{one}' of '{name}' is given twice", advice="give it once, by place or name")
    left = wanted[len(given) :]
    missing = [n for n in left if n not in named]
    if missing:
        raise error(
            f"'{name}' is called without {', '.join(missing)}",
            advice="outputs are arguments too: give arrays to be filled",
        )
    return (*given, *(named[n] for n in left))
