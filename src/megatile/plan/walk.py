"""Follows the streams of a plan for all units, many at once: control flow, blocking, channels, slots, flags,
groups.

What happens at a command is left to subclasses (``on_compute``, ``on_send`` ...): data in ``execute``,
counting in ``check``, time in ``cost.price``. The walk itself is untimed: a message can be received as soon
as its send was reached, a slot is free as soon as its last name has ended. Plans without ``ReceiveAny`` give
the same result in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from megatile.core.errors import MegatileError
from megatile.plan.cohort import Cohort, Handle, SlotHandle, TileHandle, merge, spread, uniform
from megatile.plan.model import Channel, Plan, PlanError, Statement
from megatile.plan.program import KINDS, Instruction, Program, compile_stream
from megatile.plan.text import statement_text

Value = Any
REPORTED = 8


class PlanDeadlock(MegatileError, RuntimeError):
    """Nothing can proceed and something waits. ``waits`` lists (unit, statement, what it waits for)."""

    def __init__(self, message: str, waits: list[tuple[int, Statement, str]], **options: Any):
        super().__init__(message, **options)
        self.waits = waits


class Queues:
    """The queues of one channel family: messages sent and received, and who still holds which slot."""

    def __init__(self, channel: Channel, units: int):
        self.channel = channel
        self.source = channel.source.compile()
        shape = (units, channel.members)
        self.sent = np.zeros(shape, dtype=np.int64)
        self.received = np.zeros(shape, dtype=np.int64)
        # A slot in flight counts 1; each name bound to it counts 1 as well.
        self.holds = np.zeros((*shape, channel.slots), dtype=np.int16)
        self.nbytes = np.zeros((*shape, channel.slots), dtype=np.int64)


class Walker:
    """See the module's text. ``uneven`` lets units in different iterations of a loop walk together."""

    uneven = True

    def __init__(self, plan: Plan):
        self.plan = plan
        self.programs: list[Program] = [compile_stream(plan, stream) for stream in plan.streams]
        self.queues = {channel.name: Queues(channel, plan.units) for channel in plan.channels}
        self.flags = {f.name: np.zeros((plan.units, f.members), dtype=np.int64) for f in plan.flags}
        self.tile_names = {tile.name: tile for tile in plan.tiles}
        everyone = np.arange(plan.units)
        self.keys = {g.name: spread(g.key.evaluate({"unit": everyone}), plan.units) for g in plan.groups}
        self.ready: list[Cohort] = []
        self.waiting: list[Cohort] = []
        self.choices: dict[int, list[int]] = {}
        self.last_choice: dict[tuple[str, int], int] = {}
        self.steps: dict[str, Callable[[Cohort, Instruction], bool]] = {
            kind: getattr(self, f"step_{kind}")
            for kind in (
                *KINDS.values(),
                *("enter", "test", "again", "branch", "jump", "merge", "join", "end"),
            )
        }

    # --- what subclasses do ----------------------------------------------------------------------

    def on_compute(self, cohort: Cohort, instruction: Instruction) -> None:
        """A ``Compute`` is issued (``fresh`` has not been applied yet)."""

    def on_send(
        self, cohort: Cohort, instruction: Instruction, to: Value, member: Value, slot: Value
    ) -> None:
        """A message enters slot ``slot`` of queue (``to``, ``member``)."""

    def on_receive(self, cohort: Cohort, instruction: Instruction, handle: SlotHandle) -> None:
        """A message is taken; with ``into`` it is copied out."""

    def on_free(self, channel: str, units: Any, member: Any, slot: Any) -> None:
        """Slots that nobody holds any more."""

    def on_read_scalar(self, cohort: Cohort, instruction: Instruction) -> Value:
        """The integers read."""
        raise PlanError(
            "the plan depends on data", place=self.place(instruction), advice="give inputs, or assume="
        )

    def on_signal(
        self, cohort: Cohort, instruction: Instruction, to: Value, member: Value, amount: Value
    ) -> None: ...

    def on_wait(self, cohort: Cohort, instruction: Instruction, member: Value, value: Value) -> None: ...

    def on_collective(self, group: str, parts: list[tuple[Cohort, Instruction]]) -> None:
        """All units of one or more whole groups meet."""

    # --- running ---------------------------------------------------------------------------------

    def run(self) -> None:
        for number, stream in enumerate(self.plan.streams):
            units = np.concatenate([np.arange(*run) for run in stream.units] or [np.arange(0)])
            if len(units):
                handles: dict[str, Handle] = {name: TileHandle(name) for name in self.tile_names}
                self.ready.append(Cohort(number, units, handles=handles))
        while True:
            while self.ready:
                self.advance(self.ready.pop())
            if not self.waiting:
                return
            if not self.resume():
                raise self.deadlock()

    def advance(self, cohort: Cohort) -> None:
        """Follow the cohort until it blocks, splits or ends."""
        code = self.programs[cohort.stream].instructions
        while True:
            instruction = code[cohort.pc]
            try:
                if not self.steps[instruction.kind](cohort, instruction):
                    return
            except MegatileError as error:
                if error.place is None:
                    error.place = self.place(instruction)
                raise

    def place(self, instruction: Instruction) -> Any:
        return instruction.statement.place if instruction.statement is not None else None

    def describe(self, instruction: Instruction) -> str:
        return (
            statement_text(instruction.statement) if instruction.statement is not None else instruction.kind
        )

    def block(self, cohort: Cohort) -> bool:
        self.waiting.append(cohort)
        return False

    def divide(self, cohort: Cohort, mask: Any) -> tuple[Cohort, Cohort]:
        """Two cohorts; the first of the units where ``mask``."""
        return cohort.split(mask)

    def resume(self) -> bool:
        """Let waiting cohorts go on: whole ones first, then joins, then parts of cohorts."""
        together: dict[Any, list[Cohort]] = {}
        for cohort in self.waiting:
            together.setdefault(self.signature(cohort), []).append(cohort)
        cohorts = [merge(group) for group in together.values()]
        self.waiting = []
        if self.meet(cohorts):
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

    def signature(self, cohort: Cohort) -> Any:
        if self.uneven:
            return cohort.signature()
        equal = tuple((k, v) for k, v in sorted(cohort.ints.items()) if isinstance(v, int) and k != "unit")
        return cohort.signature(), equal

    def instruction(self, cohort: Cohort) -> Instruction:
        return self.programs[cohort.stream].instructions[cohort.pc]

    def can_go(self, cohort: Cohort) -> Any:
        """Which units need not wait any longer: a mask, True or False; None if that is not the question."""
        instruction = self.instruction(cohort)
        if instruction.kind == "send":
            return self.can_send(cohort, *self.peer(cohort, instruction))
        if instruction.kind == "receive":
            return self.has_message(cohort, instruction, instruction.functions["member"](cohort.ints))
        if instruction.kind == "receive_any":
            return np.asarray([self.choose(cohort, instruction, i) is not None for i in range(len(cohort))])
        if instruction.kind == "wait":
            member, value = (instruction.functions[k](cohort.ints) for k in ("member", "value"))
            return self.flags[instruction.statement.flag][cohort.units, member] >= value  # type: ignore[union-attr]
        return None

    # --- names and slots -------------------------------------------------------------------------

    def bind(self, cohort: Cohort, name: str, handle: Handle) -> None:
        """Let a name mean a handle; it holds the slot, and lets go of the one it held before."""
        if isinstance(handle, SlotHandle):
            self.hold(cohort, handle, 1)
        self.unbind(cohort, name)
        cohort.handles[name] = handle

    def unbind(self, cohort: Cohort, name: str) -> None:
        handle = cohort.handles.pop(name, None)
        if isinstance(handle, SlotHandle):
            self.hold(cohort, handle, -1)

    def hold(self, cohort: Cohort, handle: SlotHandle, change: int) -> None:
        queues = self.queues[handle.channel]
        slot = handle.sequence % queues.channel.slots
        at = (cohort.units, handle.member, slot)
        queues.holds[at] += np.int16(change)
        if change < 0:
            left = queues.holds[at]
            if not left.any():
                self.on_free(handle.channel, cohort.units, handle.member, slot)
            elif not left.all():
                gone = left == 0
                count = len(cohort)
                parts = cohort.units[gone], spread(handle.member, count)[gone], spread(slot, count)[gone]
                self.on_free(handle.channel, *parts)

    # --- steps: structure ------------------------------------------------------------------------

    def step_enter(self, cohort: Cohort, instruction: Instruction) -> bool:
        loop: Any = instruction.statement
        for name, source in instruction.tiles:
            self.bind(cohort, name, cohort.handles[source])
        values = [(name, function(cohort.ints)) for name, function in instruction.ints]
        cohort.ints.update(values)
        for key in ("start", "stop", "step"):
            name = loop.index if key == "start" else f"{loop.index}.{key}"
            cohort.ints[name] = uniform(instruction.functions[key](cohort.ints))
        for name in instruction.names:
            self.unbind(cohort, name)
        cohort.pc += 1
        return True

    def step_test(self, cohort: Cohort, instruction: Instruction) -> bool:
        index = instruction.statement.index  # type: ignore[union-attr]
        at, stop, step = (cohort.ints[f"{index}{suffix}"] for suffix in ("", ".stop", ".step"))
        if isinstance(at, int) and isinstance(stop, int) and isinstance(step, int):
            if (at < stop) if step > 0 else (at > stop):
                cohort.pc += 1
            else:
                self.leave_loop(cohort, instruction, index)
            return True
        more = np.where(np.asarray(step) > 0, np.asarray(at) < stop, np.asarray(at) > stop)
        if more.all():
            cohort.pc += 1
            return True
        if not more.any():
            self.leave_loop(cohort, instruction, index)
            return True
        stay, go = self.divide(cohort, np.broadcast_to(more, len(cohort)))
        stay.pc += 1
        self.leave_loop(go, instruction, index)
        self.waiting.append(go)
        self.ready.append(stay)
        return False

    def leave_loop(self, cohort: Cohort, instruction: Instruction, index: str) -> None:
        for suffix in ("", ".stop", ".step"):
            cohort.ints.pop(f"{index}{suffix}", None)
        cohort.pc = instruction.target

    def step_again(self, cohort: Cohort, instruction: Instruction) -> bool:
        loop: Any = instruction.statement
        handles = [(name, cohort.handles[source]) for name, source in instruction.tiles]
        values = [(name, function(cohort.ints)) for name, function in instruction.ints]
        for name, handle in handles:
            self.bind(cohort, name, handle)
        cohort.ints.update(values)
        self.end_names(cohort, instruction)
        cohort.ints[loop.index] = cohort.ints[loop.index] + cohort.ints[f"{loop.index}.step"]
        cohort.pc = instruction.target
        return True

    def end_names(self, cohort: Cohort, instruction: Instruction) -> None:
        for name in instruction.ended:
            self.unbind(cohort, name)
            cohort.ints.pop(name, None)

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
        handles = [(name, cohort.handles[source]) for name, source in instruction.tiles]
        values = [(name, function(cohort.ints)) for name, function in instruction.ints]
        for name, handle in handles:
            self.bind(cohort, name, handle)
        self.end_names(cohort, instruction)
        cohort.ints.update(values)
        cohort.pc += 1
        return True

    def step_join(self, cohort: Cohort, instruction: Instruction) -> bool:
        """Units that parted may come together here: wait until nothing else can be done."""
        if len(cohort) == self.programs[cohort.stream].stream.unit_count():
            cohort.pc += 1
            return True
        return self.block(cohort)

    def step_end(self, cohort: Cohort, instruction: Instruction) -> bool:
        for name in list(cohort.handles):
            self.unbind(cohort, name)
        return False

    def step_free(self, cohort: Cohort, instruction: Instruction) -> bool:
        for name in instruction.names:
            self.unbind(cohort, name)
        cohort.pc += 1
        return True

    # --- steps: commands -------------------------------------------------------------------------

    def step_compute(self, cohort: Cohort, instruction: Instruction) -> bool:
        self.on_compute(cohort, instruction)
        self.renew(cohort, instruction)
        cohort.pc += 1
        return True

    def renew(self, cohort: Cohort, instruction: Instruction) -> None:
        """Apply ``fresh``: the written tile's name means its next version."""
        if instruction.statement.fresh:  # type: ignore[union-attr]
            assert instruction.write is not None
            handle = cohort.handles[instruction.write.tile]
            if not isinstance(handle, TileHandle):
                raise PlanError(f"'{instruction.write.tile}' is no declared tile and cannot be begun anew")
            cohort.handles[instruction.write.tile] = TileHandle(handle.tile, handle.version + 1)

    def peer(self, cohort: Cohort, instruction: Instruction) -> tuple[Queues, Value, Value]:
        queues = self.queues[instruction.statement.channel]  # type: ignore[union-attr]
        to, member = (instruction.functions[key](cohort.ints) for key in ("to", "member"))
        outside = (np.asarray(to) < 0) | (np.asarray(to) >= self.plan.units)
        outside = outside | (np.asarray(member) < 0) | (np.asarray(member) >= queues.channel.members)
        feeder = queues.source({"unit": to, "member": member})
        wrong = np.broadcast_to(outside | (feeder != cohort.units), len(cohort))
        if wrong.any():
            at = int(np.argmax(wrong))
            unit, where = int(cohort.units[at]), (int(spread(v, len(cohort))[at]) for v in (to, member))
            raise PlanError(
                f"unit {unit} sends to queue {tuple(where)} of channel '{queues.channel.name}', "
                f"which it does not feed: {self.describe(instruction)}",
                advice="the channel's source must name the sender",
            )
        return queues, to, member

    def can_send(self, cohort: Cohort, queues: Queues, to: Value, member: Value) -> Any:
        slot = queues.sent[to, member] % queues.channel.slots
        return queues.holds[to, member, slot] == 0

    def step_send(self, cohort: Cohort, instruction: Instruction) -> bool:
        queues, to, member = self.peer(cohort, instruction)
        if not np.all(self.can_send(cohort, queues, to, member)):
            return self.block(cohort)
        nbytes = instruction.functions["bytes"](cohort.ints)
        if np.any(np.asarray(nbytes) > queues.channel.slot_bytes):
            most = queues.channel.slot_bytes
            raise PlanError(
                f"a message of {int(np.max(nbytes))} bytes does not fit a slot of {most} bytes "
                f"of channel '{queues.channel.name}': {self.describe(instruction)}"
            )
        if isinstance(to, int):  # all units of a cohort feed different queues, so this is one unit
            to = np.full(len(cohort), to)
        slot = uniform(queues.sent[to, member] % queues.channel.slots)
        queues.nbytes[to, member, slot] = nbytes
        self.on_send(cohort, instruction, to, member, slot)
        queues.holds[to, member, slot] = 1
        queues.sent[to, member] += 1
        cohort.pc += 1
        return True

    def has_message(self, cohort: Cohort, instruction: Instruction, member: Value) -> Any:
        queues = self.queues[instruction.statement.channel]  # type: ignore[union-attr]
        if np.any(np.asarray(member) < 0) or np.any(np.asarray(member) >= queues.channel.members):
            raise PlanError(
                f"channel '{queues.channel.name}' has no such member: {self.describe(instruction)}"
            )
        return queues.sent[cohort.units, member] > queues.received[cohort.units, member]

    def step_receive(self, cohort: Cohort, instruction: Instruction) -> bool:
        member = instruction.functions["member"](cohort.ints)
        if not np.all(self.has_message(cohort, instruction, member)):
            return self.block(cohort)
        return self.take(cohort, instruction, member)

    def take(self, cohort: Cohort, instruction: Instruction, member: Value) -> bool:
        statement: Any = instruction.statement
        shape = [uniform(function(cohort.ints)) for function in instruction.shape]
        if any(isinstance(extent, np.ndarray) for extent in shape):
            return self.divide_by(cohort, shape)
        queues = self.queues[statement.channel]
        sequence = uniform(queues.received[cohort.units, member])
        slot = sequence % queues.channel.slots
        sent = queues.nbytes[cohort.units, member, slot]
        asked = instruction.functions["bytes"](cohort.ints)
        if np.any(sent != asked):
            at = int(np.argmax(np.broadcast_to(sent != asked, len(cohort))))
            raise PlanError(
                f"unit {int(cohort.units[at])} expects {int(spread(asked, len(cohort))[at])} bytes, "
                f"the message has {int(sent[at])}: {self.describe(instruction)}"
            )
        handle = SlotHandle(statement.channel, uniform(member), sequence, tuple(shape), statement.dtype)
        queues.received[cohort.units, member] += 1
        self.on_receive(cohort, instruction, handle)
        if statement.name:
            self.bind(cohort, statement.name, handle)
        elif instruction.write is not None:
            self.renew(cohort, instruction)
        self.hold(cohort, handle, -1)
        cohort.pc += 1
        return True

    def divide_by(self, cohort: Cohort, values: list[Value]) -> bool:
        """Go on separately with the units that agree on ``values``."""
        rows = np.stack([spread(v, len(cohort)) for v in values], axis=1)
        _, kinds = np.unique(rows, axis=0, return_inverse=True)
        kinds = kinds.reshape(-1)
        self.ready += [cohort.part(kinds == k) for k in range(int(kinds.max()), -1, -1)]
        return False

    def choose(self, cohort: Cohort, instruction: Instruction, at: int) -> int | None:
        """The member from which one unit would take a message now: in turn, after the one taken last."""
        statement: Any = instruction.statement
        queues, unit = self.queues[statement.channel], int(cohort.units[at])
        members = statement.members
        last = self.last_choice.get((statement.channel, unit), -1)
        start = members.index(last) + 1 if last in members else 0
        for member in (*members[start:], *members[:start]):
            if queues.sent[unit, member] > queues.received[unit, member]:
                return int(member)
        return None

    def step_receive_any(self, cohort: Cohort, instruction: Instruction) -> bool:
        statement: Any = instruction.statement
        chosen = [self.choose(cohort, instruction, i) for i in range(len(cohort))]
        if any(c is None for c in chosen):
            return self.block(cohort)
        members = uniform(np.asarray(chosen, dtype=np.int64))
        if isinstance(members, np.ndarray):
            return self.divide_by(cohort, [members])
        for unit in cohort.units.tolist():
            self.last_choice[statement.channel, unit] = members
            self.choices.setdefault(unit, []).append(members)
        cohort.ints[statement.chosen] = members
        return self.take(cohort, instruction, members)

    def step_read_scalar(self, cohort: Cohort, instruction: Instruction) -> bool:
        statement: Any = instruction.statement
        values = uniform(self.on_read_scalar(cohort, instruction))
        if np.any(np.asarray(values) < 0) or np.any(np.asarray(values) > statement.bound):
            raise PlanError(
                f"read_scalar gave {int(np.max(values))}, outside 0..{statement.bound}: "
                + self.describe(instruction),
                advice="raise the bound",
            )
        cohort.ints[statement.name] = values
        cohort.pc += 1
        return True

    def step_signal(self, cohort: Cohort, instruction: Instruction) -> bool:
        flags = self.flags[instruction.statement.flag]  # type: ignore[union-attr]
        to, member, amount = (instruction.functions[k](cohort.ints) for k in ("to", "member", "amount"))
        if np.any(np.asarray(to) < 0) or np.any(np.asarray(to) >= self.plan.units):
            raise PlanError(f"there is no unit {int(np.max(to))}: {self.describe(instruction)}")
        self.on_signal(cohort, instruction, to, member, amount)
        np.add.at(flags, (spread(to, len(cohort)), spread(member, len(cohort))), amount)
        cohort.pc += 1
        return True

    def step_wait(self, cohort: Cohort, instruction: Instruction) -> bool:
        if not np.all(self.can_go(cohort)):
            return self.block(cohort)
        member, value = (instruction.functions[k](cohort.ints) for k in ("member", "value"))
        self.on_wait(cohort, instruction, member, value)
        cohort.pc += 1
        return True

    def step_collective(self, cohort: Cohort, instruction: Instruction) -> bool:
        statement: Any = instruction.statement
        keys = self.keys[statement.group]
        if np.any(keys[cohort.units] < 0):
            raise PlanError(
                f"a unit that is in no group of '{statement.group}' meets: {self.describe(instruction)}"
            )
        if len(cohort) == int((keys >= 0).sum()):
            self.on_collective(statement.group, [(cohort, instruction)])
            cohort.pc += 1
            return True
        return self.block(cohort)

    def meet(self, cohorts: list[Cohort]) -> bool:
        """Release the groups of which every unit waits at a collective; the rest goes on waiting."""
        arrived: dict[str, list[Cohort]] = {}
        for cohort in cohorts:
            instruction = self.instruction(cohort)
            if instruction.kind == "collective":
                arrived.setdefault(instruction.statement.group, []).append(cohort)  # type: ignore[union-attr]
        progress = False
        for group, members in arrived.items():
            keys = self.keys[group]
            here = np.concatenate([keys[c.units] for c in members])
            sizes = np.bincount(keys[keys >= 0])
            whole = np.bincount(here, minlength=len(sizes)) == sizes
            parts: list[tuple[Cohort, Instruction]] = []
            for cohort in members:
                go = whole[keys[cohort.units]]
                if not go.any():
                    continue
                cohorts.remove(cohort)
                if not go.all():
                    cohort, stay = self.divide(cohort, go)
                    cohorts.append(stay)
                parts.append((cohort, self.instruction(cohort)))
            if parts:
                self.on_collective(group, parts)
                for cohort, _ in parts:
                    cohort.pc += 1
                    self.ready.append(cohort)
                progress = True
        if progress:
            self.waiting = cohorts
        return progress

    # --- deadlock --------------------------------------------------------------------------------

    def deadlock(self) -> PlanDeadlock:
        """Who waits for whom, on what, and where that is written."""
        waits: list[tuple[int, Statement, str]] = []
        for cohort in self.waiting:
            instruction = self.instruction(cohort)
            if instruction.statement is not None:
                for at in range(min(len(cohort), REPORTED)):
                    reason = self.reason(cohort.part(np.asarray([at])), instruction)
                    waits.append((int(cohort.units[at]), instruction.statement, reason))
        waits.sort(key=lambda wait: wait[0])
        lines = [f"  unit {u} {why} at {s.place or statement_text(s)}" for u, s, why in waits[:REPORTED]]
        total = sum(len(c) for c in self.waiting)
        more = [f"  ... and {total - REPORTED} more units"] if total > REPORTED else []
        cycle = self.cycle()
        lines += [f"  each waits for the next: {' -> '.join(map(str, cycle))}"] if cycle else []
        text = "\n".join(["deadlock: nothing can proceed", *lines, *more])
        return PlanDeadlock(text, waits, place=waits[0][1].place if waits else None)

    def waited_for(self, cohort: Cohort) -> Any:
        """The unit each unit of a blocked cohort waits for (-1: not a single one)."""
        instruction, env = self.instruction(cohort), cohort.ints
        if instruction.kind == "send":
            return spread(instruction.functions["to"](env), len(cohort))
        if instruction.kind == "receive":
            queues = self.queues[instruction.statement.channel]  # type: ignore[union-attr]
            return queues.source({"unit": cohort.units, "member": instruction.functions["member"](env)})
        return np.full(len(cohort), -1)

    def cycle(self) -> list[int]:
        """Units that wait for each other in a circle, if there are some; the first is repeated at the end."""
        following = np.full(self.plan.units, -1, dtype=np.int64)
        for cohort in self.waiting:
            following[cohort.units] = self.waited_for(cohort)
        seen = np.full(self.plan.units, -1, dtype=np.int64)
        for start in range(self.plan.units):
            path, at = [], start
            while at >= 0 and seen[at] < 0:
                seen[at] = start
                path.append(at)
                at = int(following[at])
            if at >= 0 and seen[at] == start:
                return [*path[path.index(at) :], at]
        return []

    def reason(self, cohort: Cohort, instruction: Instruction) -> str:
        statement: Any = instruction.statement
        env, unit = cohort.ints, int(cohort.units[0])
        if instruction.kind == "send":
            channel = self.queues[statement.channel].channel
            to, member = (int(uniform(instruction.functions[k](env))) for k in ("to", "member"))
            return f"waits for a free slot of {channel.label(member)} of unit {to}"
        if instruction.kind == "receive":
            queues = self.queues[statement.channel]
            member = int(uniform(instruction.functions["member"](env)))
            source = int(uniform(queues.source({"unit": unit, "member": member})))
            return f"waits for a message on {queues.channel.label(member)} from unit {source}"
        if instruction.kind == "receive_any":
            return f"waits for a message on any of {len(statement.members)} queues of '{statement.channel}'"
        if instruction.kind == "wait":
            member, value = (int(uniform(instruction.functions[k](env))) for k in ("member", "value"))
            now = self.flags[statement.flag][unit, member]
            return f"waits for flag '{statement.flag}' to reach {value} (it is {now})"
        keys = self.keys[statement.group]
        there = {int(u) for c in self.waiting if self.instruction(c).statement is not None for u in c.units}
        missing = [int(u) for u in np.flatnonzero(keys == keys[unit]) if int(u) not in there]
        who = f"; missing: {missing[:REPORTED]}" if missing else ""
        return f"waits for its group of '{statement.group}' at the {statement.kind}{who}"
