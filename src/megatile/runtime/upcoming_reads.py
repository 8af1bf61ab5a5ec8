"""Which blocks of other ranks a process is going to read before its next collective."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.plan.control import STRUCTURE
from megatile.plan.model import statements
from megatile.plan.statements import reads_of
from megatile.runtime.control import Control
from megatile.runtime.copies import MovedBlock

if TYPE_CHECKING:
    from megatile.runtime.stream import UnitRun


class Walk(Control):
    """An instance that goes ahead without data; it does not change the one that it follows."""

    def __init__(self, code: Any, number: int, level: str | None, pc: int = 0, ints: Any = None):
        super().__init__(code, number)
        self.number, self.level = number, level
        self.cohort.pc = pc
        if ints is not None:
            self.cohort.ints.update(ints)

    def handle(self, cohort: Any, name: str) -> None:
        """Tiles do not matter here."""


def foreseen(run: UnitRun) -> list[MovedBlock]:
    """Return the blocks of other ranks that are read before the unit's next collective, up to the first
    message or integer that is read from data."""
    if not _reads_remotely(run):
        return []
    walks = [Walk(i.code, i.number, i.level, i.cohort.pc, i.ints) for i in run.active]
    walks += [Walk(code.instructions, number, code.stream.level) for code, number in run.to_come]
    flags, moved = dict(run.flags), True
    found: list[MovedBlock] = []
    while moved:
        moved = False
        for walk in walks:
            while _step(run, walk, flags, found):
                moved = True
    return found


def _reads_remotely(run: UnitRun) -> bool:
    names = run.memory.reached
    every = (s for stream in run.plan.streams for s in statements(stream.body))
    return any(region.tile in names for s in every for region in reads_of(s))


def _step(run: UnitRun, walk: Walk, flags: dict[Any, int], found: list[MovedBlock]) -> bool:
    """Return whether an instance goes on past its instruction."""
    instruction = walk.code[walk.cohort.pc]
    kind, statement = instruction.kind, instruction.statement
    if kind in ("end", "collective", "receive", "receive_any", "read_scalar"):
        return False
    if kind == "wait":
        number = walk.number // (run.plan.per(walk.level, run.flag_levels[statement.flag]) or 1)
        key = statement.flag, number, walk.value(instruction, "member")
        if flags.get(key, 0) < walk.value(instruction, "value"):
            return False
    elif kind == "signal":
        key = statement.flag, walk.value(instruction, "to"), walk.value(instruction, "member")
        flags[key] = flags.get(key, 0) + walk.value(instruction, "amount")
    elif kind not in (*STRUCTURE, "join"):
        found.extend(_blocks(run, walk, instruction))
    walk.go(instruction)
    return True


def _blocks(run: UnitRun, walk: Walk, instruction: Any) -> Iterator[MovedBlock]:
    for code in instruction.reads:
        tile = run.tiles.get(code.tile)
        if tile is None or tile.name not in run.memory.reached:
            continue
        if code.at is not None:
            owner = int(np.asarray(code.at(walk.ints)).reshape(-1)[0])
        else:
            per = run.plan.per(walk.level, tile.level) or 1
            owner = run.memory.owner(tile.name, walk.number // per)
        if 0 <= owner < run.plan.owners(tile) and not run.memory.here(tile.name, owner):
            start = tuple(int(f(walk.ints)) for f in code.start) or (0,) * len(tile.shape)
            shape = tile.shape if code.whole else tuple(int(f(walk.ints)) for f in code.shape)
            yield MovedBlock(tile.name, owner, start, shape)
