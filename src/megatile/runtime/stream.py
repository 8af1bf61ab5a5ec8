"""Follows the stream of one unit on real tensors: what a worker process does with its part of a plan."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from megatile.core.operations import REDUCTIONS
from megatile.plan.code import Instruction, RegionCode, compile_stream
from megatile.plan.control import STRUCTURE
from megatile.plan.model import Plan, PlanError
from megatile.plan.text import statement_text
from megatile.runtime.ahead import Ahead
from megatile.runtime.control import Control, Scout
from megatile.runtime.errors import NoTorchRuleError
from megatile.runtime.inbox import Inbox
from megatile.runtime.memory import Memory
from megatile.runtime.torch_rules import RULES, accumulated, assign
from megatile.runtime.transport import Transport


class Version(NamedTuple):
    """A version of a declared tile."""

    tile: str
    number: int


class UnitRun(Control):
    """One unit: its tiles, names and integers.

    Computations run beside the messages (``Ahead``), which are asked for before they are needed (``Inbox``).
    """

    def __init__(self, plan: Plan, unit: int, memory: Memory, transport: Transport):
        stream = next(s for s in plan.streams if unit in set(s.unit_numbers()))
        super().__init__(compile_stream(plan, stream).instructions, unit)
        self.plan, self.unit, self.memory, self.transport = plan, unit, memory, transport
        self.tiles = memory.tiles
        self.channels = {channel.name: channel for channel in plan.channels}
        handles: Any = self.cohort.handles
        self.names: dict[str, Version | Tensor] = handles
        self.names.update((name, Version(name, 0)) for name in self.tiles)
        self.choices: list[int] = []
        self.last_choice: dict[str, int] = {}
        self.ahead = Ahead()
        self.inbox = Inbox(Scout(self.code, unit, self.channels), transport, self.channels)

    def run(self) -> dict[str, Tensor]:
        """Follow the stream to its end; the last version of every output."""
        self.inbox.look_ahead()
        while (instruction := self.code[self.cohort.pc]).kind != "end":
            if instruction.kind not in (*STRUCTURE, "join"):  # each unit has a process: none come together
                step = getattr(self, f"step_{instruction.kind}", None)
                if step is None:
                    raise NoTorchRuleError(f"launch has no rule for command '{instruction.kind}'")
                step(instruction)
            self.go(instruction)
        self.ahead.finish()
        self.ahead.close()
        self.transport.finish()
        outputs = [tile for tile in self.plan.tiles if tile.role in ("output", "inout")]
        return {tile.name: self._tensor(Version(tile.name, self._current(tile.name))) for tile in outputs}

    def _current(self, tile: str) -> int:
        found = self.names[tile]
        assert isinstance(found, Version)
        return found.number

    def _tensor(self, handle: Version | Tensor, owner: int | None = None) -> Tensor:
        if isinstance(handle, Version):
            versions = self.memory.of(handle.tile, owner)
            return versions[handle.number % self.tiles[handle.tile].versions]
        return handle

    def _tile_of(self, code: RegionCode) -> str:
        """The declared tile behind a name, or the name of a message."""
        handle = self.names[code.tile]
        return handle.tile if isinstance(handle, Version) else code.tile

    def _settle(self) -> None:
        """Puts and gets are done before any other unit is signalled."""
        self.ahead.untouched(*self.memory.reached)

    def region(self, code: RegionCode, fresh: bool = False) -> Tensor:
        """The tensor a region means, a view of its tile or message, or of another unit's tile."""
        handle = self.names[code.tile]
        if fresh and isinstance(handle, Version):
            handle = Version(handle.tile, handle.number + 1)
        tensor = self._tensor(handle, None if code.at is None else int(code.at(self.ints)))
        if code.whole:
            return tensor
        for axis, (start, extent) in enumerate(zip(code.start, code.shape, strict=True)):
            tensor = tensor.narrow(axis, int(start(self.ints)), int(extent(self.ints)))
        return tensor

    def _renew(self, instruction: Instruction) -> None:
        if getattr(instruction.statement, "fresh", False):
            assert instruction.write is not None
            handle = self.names[instruction.write.tile]
            assert isinstance(handle, Version)
            self.names[instruction.write.tile] = Version(handle.tile, handle.number + 1)

    # --- commands --------------------------------------------------------------------------------

    def step_compute(self, instruction: Instruction) -> None:
        statement: Any = instruction.statement
        assert instruction.write is not None
        if statement.operation not in RULES:
            raise NoTorchRuleError(
                f"operation '{statement.operation}' has no torch rule", place=statement.source
            )
        reads = [self.region(code) for code in instruction.reads]
        target = self.region(instruction.write, statement.fresh)
        varying = {name: int(function(self.ints)) for name, function in instruction.varying.items()}
        rule, attributes = RULES[statement.operation], {**instruction.attributes, **varying}

        def work() -> None:
            result = rule(*reads, **attributes)
            if statement.operation in ("copy", "cast") and result.shape != target.shape:
                result = result.reshape(target.shape)
            assign(target, result)

        touched = [self._tile_of(code) for code in instruction.reads]
        self.ahead.start(work, touched, [self._tile_of(instruction.write)])
        self._renew(instruction)

    def step_send(self, instruction: Instruction) -> None:
        statement: Any = instruction.statement
        channel = self.channels[statement.channel]
        to, member = self.value(instruction, "to"), self.value(instruction, "member")
        if int(channel.source.evaluate({"unit": to, "member": member})) != self.unit:
            raise PlanError(f"unit {self.unit} does not feed this queue: {statement_text(statement)}")
        self._settle()
        self.ahead.written(self._tile_of(instruction.reads[0]))
        self.transport.send(channel.name, to, member, self.region(instruction.reads[0]), channel.slots)

    def step_receive(self, instruction: Instruction) -> None:
        self._take(instruction, self.value(instruction, "member"))

    def step_receive_any(self, instruction: Instruction) -> None:
        statement: Any = instruction.statement
        members, last = statement.members, self.last_choice.get(statement.channel, -1)
        first = members.index(last) + 1 if last in members else 0
        member = self.transport.choose(statement.channel, (*members[first:], *members[:first]))
        self.last_choice[statement.channel] = member
        self.choices.append(member)
        self.ints[statement.chosen] = member
        self.inbox.learn(member)
        self._take(instruction, member)

    def _take(self, instruction: Instruction, member: int) -> None:
        statement: Any = instruction.statement
        channel = self.channels[statement.channel]
        source = int(channel.source.evaluate({"unit": self.unit, "member": member}))
        message = self.inbox.take(channel.name, member, source)
        if statement.name:
            self.names[statement.name] = message
        elif instruction.write is not None:
            target = self.region(instruction.write, statement.fresh)
            arrived = message.reshape(target.shape)
            self.ahead.start(lambda: assign(target, arrived), (), [self._tile_of(instruction.write)])
            self._renew(instruction)

    def step_read_scalar(self, instruction: Instruction) -> None:
        statement: Any = instruction.statement
        if statement.combine:
            raise PlanError("an atomic that is read cannot run on processes yet", place=statement.source)
        self.ahead.written(self._tile_of(instruction.reads[0]))
        value = int(self.region(instruction.reads[0]).reshape(-1)[0].item())
        if not 0 <= value <= statement.bound:
            raise PlanError(f"read_scalar gave {value}, outside 0..{statement.bound}", place=statement.source)
        self.ints[statement.name] = value
        self.inbox.learn(value)

    def step_signal(self, instruction: Instruction) -> None:
        flag = instruction.statement.flag
        to, member, amount = (self.value(instruction, name) for name in ("to", "member", "amount"))
        self._settle()
        self.transport.signal(flag, to, member, amount)

    def step_wait(self, instruction: Instruction) -> None:
        flag = instruction.statement.flag
        self.transport.wait(flag, self.value(instruction, "member"), self.value(instruction, "value"))

    def step_collective(self, instruction: Instruction) -> None:
        statement: Any = instruction.statement
        self.ahead.finish()
        if statement.kind == "barrier":
            self.transport.gather(statement.group, torch.zeros(1))
            return
        assert instruction.write is not None
        parts = self.transport.gather(statement.group, self.region(instruction.reads[0]))
        if statement.kind == "broadcast":
            assign(self.region(instruction.write), parts[self.value(instruction, "root")])
            return
        total = accumulated(parts[0])
        for part in parts[1:]:
            total = RULES[REDUCTIONS[statement.reduction]](total, accumulated(part))
        assign(self.region(instruction.write), total)
