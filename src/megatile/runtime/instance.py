"""One instance of a level on its way through its stream."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from megatile.plan.code import Code, Instruction
from megatile.plan.model import Plan, PlanError
from megatile.runtime.control import Control


class Version(NamedTuple):
    """A version of a declared tile."""

    tile: str
    number: int


class Instance(Control):
    """One instance of a level on its way through its stream: its names and integers."""

    def __init__(self, plan: Plan, code: Code, number: int):
        super().__init__(code.instructions, number)
        self.plan, self.number, self.level = plan, number, code.stream.level
        handles: Any = self.cohort.handles
        self.names: dict[str, Version | Tensor] = handles
        self.names.update((tile.name, Version(tile.name, 0)) for tile in plan.tiles)

    @property
    def instruction(self) -> Instruction:
        return self.code[self.cohort.pc]

    def above(self, level: str | None) -> int:
        """Return the number of the instance of a level that this one is, or is in."""
        per = self.plan.per(self.level, level)
        if per is None:
            raise PlanError(f"level '{self.level}' is in no instance of level '{level}'")
        return self.number // per

    def renew(self, instruction: Instruction) -> None:
        if getattr(instruction.statement, "fresh", False):
            assert instruction.write is not None
            handle = self.names[instruction.write.tile]
            assert isinstance(handle, Version)
            self.names[instruction.write.tile] = Version(handle.tile, handle.number + 1)
