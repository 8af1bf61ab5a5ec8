"""How far instances run ahead of time: what has to wait for others anyway need not be issued yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from megatile.core.expr import constant
from megatile.plan import model as pm
from megatile.plan.code import Instruction
from megatile.plan.statements import COMMANDS, engine_of, regions_of
from megatile.sim.instructions import PAUSE_ALL_BUSY, PAUSE_BUSY, PAUSE_NEVER

if TYPE_CHECKING:
    from megatile.sim.table import CommandTable


class RunAhead(NamedTuple):
    """What may follow a round of a loop, compared with the last commands of the round on each engine."""

    engines: list[str]
    """The engines that commands of the loop are on."""
    pause: int
    """PAUSE_NEVER: something may go on at once. PAUSE_BUSY: all is on these engines. PAUSE_ALL_BUSY: or it
    comes after the last command on one of them, because it touches what that writes or is a signal."""
    floor: bool
    """Whether all that accesses tiles is on these engines: then nothing does before one of them is free."""


def after_round(table: CommandTable, code: list[Instruction], again: Instruction) -> RunAhead:
    """Return what may follow a round of the loop that an instruction closes."""
    last: dict[str, Any] = {}
    depth = 0
    for i in code[again.target + 1 : again.number]:
        depth += (i.kind in ("enter", "branch")) - (i.kind == "join")
        if i.kind == "compute":
            last[engine_of(i.statement)] = i.statement if depth == 0 else None  # else it may be another one
    others = list[Any]()
    for s in _following(code, again) if last else ():
        if isinstance(s, pm.Compute):
            others += [s] if engine_of(s) not in last else []
        elif regions_of(s):
            return RunAhead([], PAUSE_NEVER, False)
        elif not isinstance(s, pm.Free):
            others.append(s)
    if not others:
        return RunAhead(list(last), PAUSE_BUSY, True)
    certain = [s for s in last.values() if s is not None]
    tiles = {t.name for t in table.plan.tiles if t.versions == 1}
    written = {s.write.tile for s in certain if not s.write.start and s.write.at is None} & tiles
    seen = any(r.at is not None or r.tile in table.visible for s in certain for r in regions_of(s))

    def comes_after(s: Any) -> bool:
        touched = [r for r in regions_of(s) if r.tile in written and r.at is None]
        return (isinstance(s, pm.Signal) and seen) or any(all(map(constant, r.shape)) for r in touched)

    pause = PAUSE_ALL_BUSY if all(map(comes_after, others)) else PAUSE_NEVER
    floor = not any(map(regions_of, others))
    return RunAhead(list(last) if floor or pause != PAUSE_NEVER else [], pause, floor)


def _following(code: list[Instruction], start: Instruction) -> Iterator[Any]:
    """Yield the commands that may follow an instruction."""
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
