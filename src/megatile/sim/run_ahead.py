"""How far instances run ahead of time: what has to wait for others anyway need not be issued yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from megatile.core.expr import constant
from megatile.plan import model as pm
from megatile.plan.code import Instruction
from megatile.plan.statements import COMMANDS, engine_of, regions_of

if TYPE_CHECKING:
    from megatile.sim.table import CommandTable


def engines_to_wait_for(table: CommandTable, code: list[Instruction], again: Instruction) -> list[str]:
    """Return engines of a loop such that all that may follow one of its rounds comes after the last command
    on one of them: it is on one of them, or touches what that command writes, or waits for what others see of
    it. None where something else may follow."""
    last: dict[str, Any] = {}
    depth = 0
    for i in code[again.target + 1 : again.number]:
        depth += (i.kind in ("enter", "branch")) - (i.kind == "join")
        if i.kind == "compute":
            last[engine_of(i.statement)] = i.statement if depth == 0 else None  # else it may be another one
    certain = [s for s in last.values() if s is not None]
    tiles = {t.name for t in table.plan.tiles if t.versions == 1}
    written = {s.write.tile for s in certain if not s.write.start and s.write.at is None} & tiles
    seen = any(r.at is not None or r.tile in table.visible for s in certain for r in regions_of(s))
    for s in _following(code, again):
        if isinstance(s, pm.Compute):
            touched = [r for r in regions_of(s) if r.tile in written and r.at is None]
            if engine_of(s) in last or any(all(constant(e) for e in r.shape) for r in touched):
                continue
        if not (isinstance(s, pm.Free) or (isinstance(s, pm.Signal) and seen)):
            return []
    return list(last)


def _following(code: list[Instruction], start: Instruction) -> Iterator[Any]:
    """The commands that may follow an instruction."""
    found, todo = set[int](), [start.target]
    while todo:
        number = todo.pop()
        if number in found:
            continue
        found.add(number)
        i = code[number]
        if i.kind in COMMANDS:
            yield i.statement
        if i.target >= 0:
            todo.append(i.target)
        if i.kind not in ("again", "jump", "end"):
            todo.append(number + 1)
