"""Follows the streams of a plan for all units, many at once: control flow, blocking, channels, slots, flags,
groups.

What happens at a command is left to subclasses (``on_compute``, ``on_send`` ...): data in ``execute``,
counting in ``check``, time in ``cost.price``. The walk itself is untimed: a message can be received as soon
as its send was reached, a slot is free as soon as its last name has ended. Plans without ``ReceiveAny`` give
the same result in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

import numpy as np

from megatile.core.errors import MegatileError
from megatile.core.limits import TimeBudgetExceeded, deadline
from megatile.hda import HDA
from megatile.plan.code import Instruction
from megatile.plan.cohort import Cohort, Handle, Queues, TileHandle, merge, uniform
from megatile.plan.commands import Commands
from megatile.plan.deadlock import PlanDeadlock, deadlock
from megatile.plan.model import Level, Plan, PlanError
from megatile.plan.residency import Residency
from megatile.plan.statements import COMMANDS

Value = Any

__all__ = ["Follower", "PlanDeadlock", "Queues"]


class Follower(Commands):
    """See the module's text."""

    def __init__(self, plan: Plan, hda: HDA | None = None):
        super().__init__(plan)
        self.tile_names = {tile.name: tile for tile in plan.tiles}
        self.residency = Residency(plan, hda)
        self.ready: list[Cohort] = []
        self.waiting: list[Cohort] = []
        self.steps: dict[str, Callable[[Cohort, Instruction], bool]] = {
            kind: getattr(self, f"step_{kind}", self.step_command)
            for kind in (
                *COMMANDS,
                *("enter", "test", "again", "branch", "jump", "merge", "join", "end"),
            )
        }

    # --- running ---------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self.start(self.residency.begin())
            while True:
                while self.ready:
                    self.advance(self.ready.pop())
                if not self.waiting:
                    return
                if not self.resume():
                    raise deadlock(self)
        finally:
            self.forget_values()

    def forget_values(self) -> None:
        """Drop the values of expressions: the next run of the plan uses the same code."""
        for program in self.programs:
            program.values.forget()

    def check_all_received(self) -> None:
        """Refuse messages that nobody received; those of installed channels may be taken elsewhere."""
        for queues in self.queues.values():
            left = queues.sent - queues.received
            if not left.any() or queues.channel.installed:
                continue
            unit, member = (int(i) for i in np.unravel_index(int(np.argmax(left)), left.shape))
            stream, pc = divmod(int(queues.sender_at[queues.at(unit, member)]), 1 << 32)
            instruction = self.programs[stream].instructions[pc]
            source = int(uniform(queues.source({"unit": unit, "member": member})))
            sender, receiver = (self.actors.name(queues.channel.level, u) for u in (source, unit))
            count = int(left[unit, member])
            said = f"1 message from {sender} is" if count == 1 else f"{count} messages from {sender} are"
            raise PlanError(
                f"{said} never received on "
                f"{queues.channel.label(member)} of {receiver}: {self.describe(instruction)}",
                place=self.source(instruction),
            )

    def start(self, instances: Iterable[tuple[Level, Any]]) -> None:
        """Instances that come into being begin their streams, those of a level together."""
        found: dict[str, list[Any]] = {}
        for level, numbers in instances:
            found.setdefault(level.name, []).append(numbers)
        for number, stream in enumerate(self.plan.streams):
            name = self.plan.level(stream.level).name
            if name not in found:
                continue
            units = np.concatenate([np.arange(*run) for run in stream.units] or [np.arange(0)])
            new = np.concatenate(found[name])
            units = units if len(new) == self.plan.instances(name) else np.intersect1d(units, new)
            if len(units):
                handles: dict[str, Handle] = {tile: TileHandle(tile) for tile in self.tile_names}
                self.ready.append(Cohort(number, units, handles=handles, level=stream.level))

    def advance(self, cohort: Cohort) -> None:
        """Follow the cohort until it blocks, splits or ends."""
        code, limit = self.programs[cohort.stream].instructions, deadline()
        while True:
            if limit is not None and monotonic() > limit:
                self.ready.append(cohort)
                raise TimeBudgetExceeded(
                    f"plan '{self.plan.name}' was not followed to its end within the time given",
                    advice="give more time, or data=False to simulate",
                )
            instruction = code[cohort.pc]
            try:
                if not self.steps[instruction.kind](cohort, instruction):
                    return
            except MegatileError as error:
                if error.place is None:
                    error.place = self.source(instruction)
                raise

    def source(self, instruction: Instruction) -> Any:
        return instruction.statement.source if instruction.statement is not None else None

    def resume(self) -> bool:
        """Let waiting cohorts go on: whole ones first, then joins, then parts of cohorts."""
        together: dict[Any, list[Cohort]] = {}
        for cohort in self.waiting:
            together.setdefault(cohort.signature(), []).append(cohort)
        cohorts = [merge(group) for group in together.values()]
        self.waiting = []
        if self.rendezvous(cohorts):
            return True
        masks = [self.can_go(c) for c in cohorts]
        whole = [m is True or (m is not None and bool(np.all(m))) for m in masks]
        if not any(whole):
            whole = [
                m is None and self.instruction(c).kind == "join" for c, m in zip(cohorts, masks, strict=True)
            ]
        if any(whole):
            for cohort, free in zip(cohorts, whole, strict=True):
                (self.ready if free else self.waiting).append(self.released(cohort) if free else cohort)
            self.ready.reverse()
            return True
        progress = False
        for cohort, mask in zip(cohorts, masks, strict=True):
            if mask is None or mask is False or not np.any(mask):
                self.waiting.append(cohort)
                continue
            go, stay = self.divide(cohort, np.asarray(mask))
            self.ready.append(go)
            self.waiting.append(stay)
            progress = True
        return progress

    def released(self, cohort: Cohort) -> Cohort:
        if self.instruction(cohort).kind == "join":
            cohort.pc += 1
        return cohort

    # --- ends of cohorts ---------------------------------------------------------------------------

    def step_join(self, cohort: Cohort, instruction: Instruction) -> bool:
        """Units that parted may come together here: wait until nothing else can be done."""
        if len(cohort) == self.programs[cohort.stream].stream.unit_count():
            return self.issued(cohort)
        return self.block(cohort)

    def step_end(self, cohort: Cohort, instruction: Instruction) -> bool:
        for name in list(cohort.handles):
            self.unbind(cohort, name)
        self.start(self.residency.finished(self.plan.level(cohort.level), cohort.units))
        return False
