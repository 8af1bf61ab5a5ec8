"""The structure of a stream: loops, branches, and the names they bind and end. For one unit as for many: all
that follow streams go this way (``Follower``, and what launches plans on real processes).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.plan.code import Instruction
from megatile.plan.cohort import Cohort, uniform
from megatile.plan.model import PlanError

STRUCTURE = ("enter", "test", "again", "branch", "jump", "merge", "free")


class ControlFlow:
    """Steps that give or end names and jump. Each returns whether the cohort goes on at once; units that part
    go on in ``ready``, or in ``waiting`` where the others may come back to them.
    """

    ready: list[Cohort]
    waiting: list[Cohort]

    def handle(self, cohort: Cohort, name: str) -> Any:
        """Return what the name of a tile means; a name that has ended is an error."""
        return cohort.handles[name]

    def bind(self, cohort: Cohort, name: str, handle: Any) -> None:
        cohort.handles[name] = handle

    def unbind(self, cohort: Cohort, name: str) -> None:
        cohort.handles.pop(name, None)

    def divide(self, cohort: Cohort, mask: Any) -> tuple[Cohort, Cohort]:
        """Return two cohorts; the first of the units where ``mask``."""
        return cohort.split(mask)

    def issued(self, cohort: Cohort) -> bool:
        """The cohort goes on to the next instruction."""
        cohort.pc += 1
        return True

    def step_enter(self, cohort: Cohort, instruction: Instruction) -> bool:
        loop: Any = instruction.statement
        for name, source in instruction.tiles:
            self.bind(cohort, name, self.handle(cohort, source))
        values = [(name, function(cohort.ints)) for name, function in instruction.ints]
        cohort.ints.update(values)
        for key in ("start", "stop", "step"):
            name = loop.index if key == "start" else f"{loop.index}.{key}"
            cohort.ints[name] = uniform(instruction.functions[key](cohort.ints))
        if np.any(cohort.ints[f"{loop.index}.step"] == 0):
            raise PlanError("a loop with step 0 never ends", place=loop.source)
        for name in instruction.ended:
            self.unbind(cohort, name)
        return self.issued(cohort)

    def step_test(self, cohort: Cohort, instruction: Instruction) -> bool:
        index = instruction.statement.index
        at, stop, step = (cohort.ints[f"{index}{suffix}"] for suffix in ("", ".stop", ".step"))
        if isinstance(at, int) and isinstance(stop, int) and isinstance(step, int):
            if (at < stop) if step > 0 else (at > stop):
                return self.issued(cohort)
            return self.leave_loop(cohort, instruction, index)
        more = np.where(np.asarray(step) > 0, np.asarray(at) < stop, np.asarray(at) > stop)
        if more.all():
            return self.issued(cohort)
        if not more.any():
            return self.leave_loop(cohort, instruction, index)
        stay, go = self.divide(cohort, np.broadcast_to(more, len(cohort)))
        stay.pc += 1
        self.leave_loop(go, instruction, index)
        self.waiting.append(go)
        self.ready.append(stay)
        return False

    def leave_loop(self, cohort: Cohort, instruction: Instruction, index: str) -> bool:
        for suffix in ("", ".stop", ".step"):
            cohort.ints.pop(f"{index}{suffix}", None)
        return self.step_jump(cohort, instruction)

    def step_again(self, cohort: Cohort, instruction: Instruction) -> bool:
        self.step_merge(cohort, instruction)
        index = instruction.statement.index
        cohort.ints[index] = cohort.ints[index] + cohort.ints[f"{index}.step"]
        return self.step_jump(cohort, instruction)

    def step_branch(self, cohort: Cohort, instruction: Instruction) -> bool:
        condition = uniform(instruction.functions["condition"](cohort.ints))
        if not isinstance(condition, np.ndarray):
            cohort.pc = cohort.pc + 1 if condition else instruction.target
            return True
        then, orelse = self.divide(cohort, condition != 0)
        then.pc, orelse.pc = cohort.pc + 1, instruction.target
        self.ready += [orelse, then]
        return False

    def step_jump(self, cohort: Cohort, instruction: Instruction) -> bool:
        cohort.pc = instruction.target
        return True

    def step_merge(self, cohort: Cohort, instruction: Instruction) -> bool:
        handles = [(name, self.handle(cohort, source)) for name, source in instruction.tiles]
        values = [(name, function(cohort.ints)) for name, function in instruction.ints]
        for name, handle in handles:
            self.bind(cohort, name, handle)
        for name in instruction.ended:
            self.unbind(cohort, name)
            cohort.ints.pop(name, None)
        cohort.ints.update(values)
        return self.issued(cohort)

    def step_free(self, cohort: Cohort, instruction: Instruction) -> bool:
        for name in instruction.ended:
            self.unbind(cohort, name)
        return self.issued(cohort)
