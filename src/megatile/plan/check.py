"""``check(plan, hda)``: find out before running whether a plan can be right. Errors name the command and its
line.

Without a machine: every unit has one stream, every send its receive (of the same size), slots are large
enough, queues are fed by whom they say, regions lie inside their tiles and shapes fit, collectives are
reached by all, nothing waits forever (with the slots there are), receive ranges do not overlap. With a
machine also: units, memories and engines exist, and what is placed in a memory fits it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.core.operations import OPERATIONS, OperationError
from megatile.hda import HDA, machine
from megatile.plan.code import Instruction, RegionCode
from megatile.plan.cohort import Cohort, SlotHandle, Value, lowest, spread
from megatile.plan.follow import Follower
from megatile.plan.memory import check_memory, check_ranges
from megatile.plan.model import Loop, Plan, PlanError, require_plan
from megatile.plan.residency import copies
from megatile.plan.statements import Compute
from megatile.plan.steady import Snapshot, repeats, same_state, skip, snapshot, works_only
from megatile.plan.storage import alike, owner_of, region_span
from megatile.plan.structure import check_structure


@dataclass(frozen=True)
class Checked:
    """What the check saw: messages and their bytes, over all units and iterations."""

    units: int
    streams: int
    statements: int
    messages: int


def check(plan: Plan, hda: HDA | str | None = None, *, assume: Mapping[str, int] | None = None) -> Checked:
    """Raise a ``PlanError`` (or ``PlanDeadlock``) that names the command and its line, or say what was seen.

    ``hda`` is a machine or the name of one.
    Values read by ``ReadScalar`` are taken to be ``assume[name]``, or their bound.
    """
    require_plan(plan, "check")
    check_structure(plan)
    check_ranges(plan)
    if hda is not None:
        hda = machine(hda)
        check_machine(plan, hda)
        check_memory(plan, hda)
    walk = CountingWalk(plan, assume or {}, hda)
    walk.run()
    walk.check_all_received()
    count = sum(map(len, plan.bodies))
    messages = sum(int(q.received.sum()) for q in walk.queues.values())
    return Checked(plan.units, len(plan.streams), count, messages)


def check_machine(plan: Plan, hda: HDA) -> None:
    """Check that the machine has the units, and the engines that the commands name."""
    copies(plan, hda)
    kinds = {engine.kind for engine in hda.engines} | {"channel", "control", "dma"}
    if "tensor" in kinds or "scalar" in kinds:
        kinds.add("vector")
    for statement in (s for body in plan.bodies for s in body if isinstance(s, Compute)):
        if statement.engine not in kinds:
            raise PlanError(
                f"machine '{hda.name}' has no {statement.engine} engine for {statement.operation}",
                place=statement.source,
            )


class CountingWalk(Follower):
    """The walk without data: counts messages, follows slots, looks at regions and shapes."""

    ragged = True

    def __init__(self, plan: Plan, assume: Mapping[str, int], hda: HDA | None = None):
        super().__init__(plan, hda)
        for queues in self.queues.values():
            queues.open = queues.channel.installed
        self.open_flags = frozenset(flag.name for flag in plan.flags if flag.installed)
        self.assume = assume
        self.repeating = {id(s): repeats(s) for body in plan.bodies for s in body if isinstance(s, Loop)}
        self.before: dict[tuple[int, int], Snapshot] = {}

    def on_read_scalar(self, cohort: Cohort, instruction: Instruction) -> Value:
        return self.assume.get(instruction.statement.name, instruction.statement.bound)

    def on_compute(self, cohort: Cohort, instruction: Instruction) -> None:
        self.written(cohort, instruction)
        shapes = [self.shape_of(cohort, instruction, code) for code in instruction.regions]
        if instruction.varying:
            return
        if any(isinstance(extent, np.ndarray) for shape in shapes for extent in shape):
            for _, different in alike(shapes, len(cohort)):
                self.check_shapes(instruction, different)
        else:
            self.check_shapes(instruction, shapes)

    def on_command(self, cohort: Cohort, instruction: Instruction) -> None:
        for code in instruction.regions:
            self.shape_of(cohort, instruction, code)

    def check_shapes(self, instruction: Instruction, shapes: list[tuple[int, ...]]) -> None:
        """Check that the result of what is read fits where it is written (the last of the shapes)."""
        *shapes, target = shapes
        try:
            result = OPERATIONS[instruction.statement.operation].shape(*shapes, **instruction.attributes)
        except (OperationError, TypeError) as error:
            text = error.message if isinstance(error, OperationError) else str(error)
            raise PlanError(f"{text}: {self.describe(instruction)}") from error
        if not _fits(instruction.statement.operation, tuple(result), target):
            raise PlanError(
                f"the result has shape {tuple(result)}, not {target}: {self.describe(instruction)}"
            )

    def shape_of(self, cohort: Cohort, instruction: Instruction, code: RegionCode) -> tuple[Value, ...]:
        handle = self.handle(cohort, code.tile)
        try:
            if isinstance(handle, SlotHandle):
                found = region_span(cohort, code, handle.shape)
            else:
                tile = self.plan.tile(handle.tile)
                found = region_span(cohort, code, tile.shape)
                if code.at is not None or tile.shared or tile.level != cohort.level:
                    owner_of(self.plan, cohort, code, tile)
        except PlanError as error:
            raise PlanError(f"{error.message}: {self.describe(instruction)}") from error
        return found[1]

    def on_send(
        self, cohort: Cohort, instruction: Instruction, to: Value, member: Value, slot: Value
    ) -> None:
        shape = self.shape_of(cohort, instruction, instruction.reads[0])
        self.check_bytes(cohort, instruction, shape, self.dtype_of(cohort.handles[instruction.reads[0].tile]))

    def on_receive(self, cohort: Cohort, instruction: Instruction, handle: SlotHandle) -> None:
        self.check_bytes(cohort, instruction, handle.shape, handle.dtype)
        if instruction.write is not None:
            self.fits(instruction, handle, self.shape_of(cohort, instruction, instruction.write))

    def on_collective(self, group: str, parts: list[tuple[Cohort, Instruction]]) -> None:
        seen: dict[int, tuple[int, ...]] = {}
        for cohort, instruction in parts:
            shapes = [self.shape_of(cohort, instruction, code) for code in instruction.regions]
            if instruction.statement.kind != "barrier":
                read, write = shapes
                self.agree(group, cohort, instruction, read, write, seen)

    def check_bytes(
        self, cohort: Cohort, instruction: Instruction, shape: tuple[Value, ...], dtype: str
    ) -> None:
        """A message says how many bytes it has; they must be those of its block."""
        said = instruction.functions["bytes"](cohort.ints)
        there = prod(shape) * itemsize(dtype)
        wrong = said != there
        if np.any(wrong) if isinstance(wrong, np.ndarray) else wrong:
            at, count = int(np.argmax(wrong)), len(cohort)
            extents, right, found = (
                [int(spread(v, count)[at]) for v in values] for values in (shape, (there,), (said,))
            )
            raise PlanError(
                f"a message of {dtype}{extents} has {right[0]} bytes, not {found[0]}: "
                + self.describe(instruction)
            )

    def step_again(self, cohort: Cohort, instruction: Instruction) -> bool:
        super().step_again(cohort, instruction)
        loop: Any = instruction.statement
        alone = works_only(loop) if self.ready or self.waiting else True
        if not self.repeating[id(loop)] or not alone:
            return True
        at, stop, step = (cohort.ints[f"{loop.index}{s}"] for s in ("", ".stop", ".step"))
        queues = {} if works_only(loop) else self.queues
        key, remaining = (id(loop), int(cohort.units[0])), lowest(-((at - stop) // step))
        before = self.before.get(key)
        if before is not None and remaining > 2 and same_state(before, queues, cohort):
            cohort.ints[loop.index] = at + step * skip(loop, before, queues, cohort, remaining)
            del self.before[key]
        elif remaining > 2:
            self.before[key] = snapshot(queues, cohort)
        return True

    def step_enter(self, cohort: Cohort, instruction: Instruction) -> bool:
        for key in [k for k in self.before if k[0] == id(instruction.statement)]:
            del self.before[key]
        return super().step_enter(cohort, instruction)


def _fits(operation: str, result: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Return whether a result can be put in the target: equal but for extents of 1, broadcast, or (for
    copies) as many elements."""
    if operation in ("copy", "cast"):
        return int(np.prod(result)) == int(np.prod(target))
    if [e for e in result if e != 1] == [e for e in target if e != 1]:
        return True
    if len(result) > len(target):
        return False
    padded = (1,) * (len(target) - len(result)) + result
    return all(r in (1, t) for r, t in zip(padded, target, strict=True))
