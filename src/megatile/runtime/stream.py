"""Follows the streams of one unit, and of the instances below it, on real tensors: what a process does with
its part of a plan."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megatile.core.elementwise import ATOMICS
from megatile.core.operations import REDUCTIONS
from megatile.plan.code import Code, Instruction, RegionCode, compile_stream
from megatile.plan.control import STRUCTURE
from megatile.plan.model import Plan, PlanError
from megatile.plan.text import statement_text
from megatile.runtime.ahead import Ahead
from megatile.runtime.control import Control, Inbox, Scout
from megatile.runtime.copies import Block, Copies, one_sided
from megatile.runtime.errors import LaunchError, NoTorchRuleError
from megatile.runtime.foresight import foreseen
from megatile.runtime.tile_memory import Memory, RankMemory
from megatile.runtime.torch_rules import DTYPES, RULES, accumulated, assign, compute
from megatile.runtime.transport import Transport


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
        """The number of the instance of a level that this one is, or is in."""
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


class UnitRun:
    """One unit with the instances below it, which take turns.

    Computations run beside the messages (``Ahead``), which are asked for before they are needed (``Inbox``).
    Commands that wait for other processes are left until no instance can go on without them.
    """

    def __init__(self, plan: Plan, unit: int, memory: Memory, transport: Transport):
        self.plan, self.unit, self.memory, self.transport = plan, unit, memory, transport
        self.tiles = memory.tiles
        self.channels = {channel.name: channel for channel in plan.channels}
        self.groups = {group.name: group for group in plan.groups}
        self.flag_levels = {flag.name: flag.level for flag in plan.flags}
        self.codes = [compile_stream(plan, stream) for stream in plan.streams]
        own = [
            code
            for code in self.codes
            if code.stream.level is None and unit in set(code.stream.unit_numbers())
        ]
        self.first = Instance(plan, own[0], unit) if own else None
        self.active = [self.first] if self.first else []
        self.to_come = deque((code, number) for code in self.codes for number in self._below(code))
        self.flags: dict[tuple[str, int, int], int] = defaultdict(int)
        self.queues: dict[tuple[str, int, int], deque[Tensor]] = defaultdict(deque)
        self.met: dict[tuple[str, int], dict[int, tuple[Instance, Instruction]]] = defaultdict(dict)
        self.choices: list[int] = []
        self.last_choice: dict[str, int] = {}
        self.ahead = Ahead()
        self.copies = Copies(memory, transport) if isinstance(memory, RankMemory) else None
        code = self.first.code if self.first else ()
        self.inbox = Inbox(Scout(code, unit, self.channels), transport.receive, self.channels)

    def _below(self, code: Code) -> Iterator[int]:
        """The instances of a stream that are below this unit."""
        if code.stream.level is not None:
            per = self.plan.per(code.stream.level, None) or 1
            yield from (n for n in code.stream.unit_numbers() if n // per == self.unit)

    def run(self) -> dict[str, Tensor]:
        """Follow the streams to their ends; the last version of every output."""
        try:
            if self.first:
                self.inbox.look_ahead()
            self._complete_copies(None)
            while self.active or self.to_come:
                self._turn()
            self.ahead.finish()
            self._complete_copies(None)
        finally:
            self.ahead.close()
        self.transport.finish()
        outputs = [tile.name for tile in self.plan.tiles if tile.role in ("output", "inout")]
        return {name: self.output(name, self.memory.owner(name, self.unit)) for name in outputs}

    def output(self, name: str, owner: int) -> Tensor:
        """The last version of an owner's copy of a tile."""
        handle = self.first.names[name] if self.first else Version(name, 0)
        assert isinstance(handle, Version)
        return self.memory.of(name, owner)[handle.number % self.tiles[name].versions]

    def _turn(self) -> None:
        """Let every instance go on as far as it can; else begin another one, or wait for other processes."""
        moved = False
        for instance in list(self.active):
            moved |= self._follow(instance)
        if moved:
            return
        if self._begin():
            return
        if self.first is None or self.first not in self.active or not self._step(self.first, wait=True):
            waiting = self.active[0].instruction.statement
            raise LaunchError(
                f"unit {self.unit} waits for ever: {statement_text(waiting)}", place=waiting.source
            )

    def _begin(self) -> bool:
        """Whether an instance that had not begun yet went on."""
        while self.to_come:
            self.active.append(Instance(self.plan, *self.to_come.popleft()))
            if self._follow(self.active[-1]):
                return True
        return False

    def _follow(self, instance: Instance) -> bool:
        """Whether an instance went on; one that has ended is left out from then on."""
        alone, moved = len(self.active) == 1 and not self.to_come, False
        while instance.instruction.kind != "end":
            if not self._step(instance, wait=alone and instance is self.first):
                return moved
            moved = True
        self.active.remove(instance)
        self.memory.release(instance.level, instance.number)
        return True

    def _step(self, instance: Instance, wait: bool) -> bool:
        """Take one instruction; False if it has to wait: for other instances, or without ``wait`` for others
        at all."""
        instruction = instance.instruction
        if instruction.kind not in (
            *STRUCTURE,
            "join",
        ):  # each instance is followed alone: none come together
            step = getattr(self, f"step_{instruction.kind}", None)
            if step is None:
                raise NoTorchRuleError(f"launch has no rule for command '{instruction.kind}'")
            if (
                instruction.kind in WAITING
                and instance is self.first
                and not wait
                and not self._ready(instruction)
            ):
                return False
            if step(instance, instruction) is False:
                return False
        if instance.instruction is instruction:
            instance.go(instruction)
        return True

    def _ready(self, instruction: Instruction) -> bool:
        """Whether a command that may wait for other processes need not."""
        return instruction.kind == "wait" and self.copies is not None

    # --- tiles -----------------------------------------------------------------------------------

    def _place(
        self, instance: Instance, code: RegionCode, fresh: bool = False
    ) -> tuple[Tensor | None, Block]:
        """The tensor a region means, None if it is on another rank, and the block that it is."""
        handle = instance.names[code.tile]
        start = () if code.whole else tuple(int(f(instance.ints)) for f in code.start)
        if not isinstance(handle, Version):
            shape = () if code.whole else tuple(int(f(instance.ints)) for f in code.shape)
            return Block(code.tile, 0, start, shape).of(handle), Block(code.tile, 0, start, shape)
        tile = self.tiles[handle.tile]
        if code.at is not None:
            owner = int(code.at(instance.ints))
        else:
            owner = self.memory.owner(tile.name, instance.above(tile.level))
        if not 0 <= owner < self.plan.owners(tile):
            source = instance.instruction.statement.source
            raise PlanError(
                f"tile '{tile.name}' has {self.plan.owners(tile)} owners, from 0; there is no owner {owner}",
                place=source,
            )
        shape = tile.shape if code.whole else tuple(int(f(instance.ints)) for f in code.shape)
        block = Block(tile.name, owner, start or (0,) * len(shape), shape)
        if not self.memory.here(tile.name, owner):
            return None, block
        number = handle.number + 1 if fresh else handle.number
        return block.of(self.memory.of(tile.name, owner)[number % tile.versions]), block

    def read(self, instance: Instance, code: RegionCode) -> Tensor:
        """The tensor a region means, a view of its tile or message, or what a barrier brought of it."""
        tensor, block = self._place(instance, code)
        if tensor is None:
            assert self.copies is not None
            return self.copies.get(block, instance.instruction.statement)
        return tensor

    def target(self, instance: Instance, code: RegionCode, fresh: bool = False) -> Tensor:
        """The tensor that a command writes; what belongs to another rank goes there at the next barrier."""
        tensor, block = self._place(instance, code, fresh)
        if tensor is None:
            assert self.copies is not None
            tensor = torch.empty(block.shape, dtype=DTYPES[self.tiles[block.tile].dtype])
            self.copies.put(block, tensor, instance.instruction.statement)
        return tensor

    def _tile_of(self, instance: Instance, code: RegionCode) -> str:
        """The declared tile behind a name, or the name of a message."""
        handle = instance.names[code.tile]
        return handle.tile if isinstance(handle, Version) else code.tile

    def _settle(self) -> None:
        """Puts and gets are done before any other unit is signalled."""
        self.ahead.untouched(*self.memory.reached)

    def _complete_copies(self, group: str | None) -> None:
        """Bring about the copies between ranks that a barrier completes, and those before the next one."""
        if self.copies is not None and self.memory.reached:
            self.ahead.finish()
            self.copies.complete(group, foreseen(self))

    # --- commands --------------------------------------------------------------------------------

    def step_compute(self, instance: Instance, instruction: Instruction) -> None:
        statement: Any = instruction.statement
        assert instruction.write is not None
        if statement.operation not in RULES:
            raise NoTorchRuleError(
                f"operation '{statement.operation}' has no torch rule", place=statement.source
            )
        reads = [self.read(instance, code) for code in instruction.reads]
        target = self.target(instance, instruction.write, statement.fresh)
        varying = {name: int(function(instance.ints)) for name, function in instruction.varying.items()}
        attributes = {**instruction.attributes, **varying}

        def work() -> None:
            compute(statement.operation, target, reads, attributes)

        touched = [self._tile_of(instance, code) for code in instruction.reads]
        self.ahead.start(work, touched, [self._tile_of(instance, instruction.write)])
        instance.renew(instruction)

    def step_send(self, instance: Instance, instruction: Instruction) -> None:
        statement: Any = instruction.statement
        channel = self.channels[statement.channel]
        to, member = instance.value(instruction, "to"), instance.value(instruction, "member")
        if int(channel.source.evaluate({"unit": to, "member": member})) != instance.above(channel.level):
            raise PlanError(
                f"unit {instance.number} does not feed this queue: {statement_text(statement)}",
                place=statement.source,
            )
        self._settle()
        self.ahead.written(self._tile_of(instance, instruction.reads[0]))
        data = self.read(instance, instruction.reads[0])
        if channel.level is not None or instance is not self.first:
            if to // (self.plan.per(channel.level, None) or 1) != self.unit:
                raise one_sided(statement, "only units of the first level send messages to other ranks")
            self.queues[channel.name, to, member].append(data.detach().clone())
            return
        if self.copies is not None and to != self.unit:
            self.copies.before_send()
        self.transport.send(channel.name, to, member, data, channel.slots)

    def step_receive(self, instance: Instance, instruction: Instruction) -> bool:
        return self._take(instance, instruction, instance.value(instruction, "member"))

    def step_receive_any(self, instance: Instance, instruction: Instruction) -> bool:
        statement: Any = instruction.statement
        if instance is not self.first or self.channels[statement.channel].level is not None:
            raise NoTorchRuleError(
                f"only units of the first level receive from any: {statement_text(statement)}",
                place=statement.source,
            )
        members, last = statement.members, self.last_choice.get(statement.channel, -1)
        first = members.index(last) + 1 if last in members else 0
        member = self.transport.choose(statement.channel, (*members[first:], *members[:first]))
        self.last_choice[statement.channel] = member
        self.choices.append(member)
        instance.ints[statement.chosen] = member
        self.inbox.learn(member)
        return self._take(instance, instruction, member)

    def _take(self, instance: Instance, instruction: Instruction, member: int) -> bool:
        statement: Any = instruction.statement
        channel = self.channels[statement.channel]
        if channel.level is not None or instance is not self.first:
            queue = self.queues[channel.name, instance.above(channel.level), member]
            if not queue:
                return False
            shape = tuple(int(function(instance.ints)) for function in instruction.shape)
            message = queue.popleft().reshape(shape)
        else:
            source = int(channel.source.evaluate({"unit": self.unit, "member": member}))
            message = self.inbox.take(channel.name, member, source)
            if self.copies is not None:
                self.copies.after_receive()
        if statement.name:
            instance.names[statement.name] = message
        elif instruction.write is not None:
            target = self.target(instance, instruction.write, statement.fresh)
            arrived = message.reshape(target.shape)
            tile = self._tile_of(instance, instruction.write)
            self.ahead.start(lambda: assign(target, arrived), (), [tile])
            instance.renew(instruction)
        return True

    def step_read_scalar(self, instance: Instance, instruction: Instruction) -> None:
        statement: Any = instruction.statement
        tile = self._tile_of(instance, instruction.reads[0])
        if statement.combine and tile in self.memory.reached:
            raise PlanError(
                "fetch-and-op atomics of tiles that other units reach are not supported by launch()",
                place=statement.source,
            )
        self.ahead.untouched(tile) if statement.combine else self.ahead.written(tile)
        element = self.read(instance, instruction.reads[0]).reshape(-1)[:1]
        value = int(element.item())
        if not 0 <= value <= statement.bound:
            raise PlanError(f"read_scalar gave {value}, outside 0..{statement.bound}", place=statement.source)
        if statement.combine and (
            statement.combine != "cas" or value == instance.value(instruction, "expected")
        ):
            combine = ATOMICS.get(statement.combine, lambda old, new: new)
            array = element.numpy()
            array[...] = combine(array, array.dtype.type(instance.value(instruction, "value")))
        instance.ints[statement.name] = value
        if instance is self.first:
            self.inbox.learn(value)

    def step_signal(self, instance: Instance, instruction: Instruction) -> None:
        flag = instruction.statement.flag
        to, member, amount = (instance.value(instruction, name) for name in ("to", "member", "amount"))
        level = self.flag_levels[flag]
        if to // (self.plan.per(level, None) or 1) == self.unit:
            self.flags[flag, to, member] += amount
        elif self.copies is not None or level is not None:
            raise one_sided(instruction.statement, "a signal needs nothing of the rank that it goes to")
        else:
            self._settle()
            self.transport.signal(flag, to, member, amount)

    def step_wait(self, instance: Instance, instruction: Instruction) -> bool:
        flag, level = instruction.statement.flag, self.flag_levels[instruction.statement.flag]
        member, value = instance.value(instruction, "member"), instance.value(instruction, "value")
        missing = value - self.flags[flag, instance.above(level), member]
        if missing > 0 and self.copies is None and level is None and instance is self.first:
            self.transport.wait(flag, member, missing)
            return True
        return missing <= 0

    def step_collective(self, instance: Instance, instruction: Instruction) -> bool:
        statement: Any = instruction.statement
        group = self.groups[statement.group]
        if group.level is not None:
            return self._meet(instance, instruction)
        self.ahead.finish()
        if statement.kind != "barrier":
            parts = self.transport.gather(group.name, self.read(instance, instruction.reads[0]))
            self._finish(instance, instruction, parts)
        elif self.copies is None or not self.memory.reached:
            self.transport.gather(group.name, torch.zeros(1))
        instance.go(instruction)
        self._complete_copies(group.name)
        return True

    def _meet(self, instance: Instance, instruction: Instruction) -> bool:
        """Instances of this process meet: the last one that comes does it for all."""
        group = self.groups[instruction.statement.group]
        key = int(group.key.evaluate({"unit": instance.number}))
        come = self.met[group.name, key]
        come[instance.number] = (instance, instruction)
        per = self.plan.per(group.level, None) or 1
        everyone = range(self.unit * per, (self.unit + 1) * per)
        members = [n for n in everyone if int(group.key.evaluate({"unit": n})) == key]
        if len(come) < len(members):
            return False
        del self.met[group.name, key]
        self.ahead.finish()
        if instruction.statement.kind != "barrier":
            given = [self.read(come[n][0], come[n][1].reads[0]).clone() for n in members]
            for number in members:
                self._finish(*come[number], given)
        for number in members:
            if number != instance.number:
                come[number][0].go(come[number][1])
        return True

    def _finish(self, instance: Instance, instruction: Instruction, parts: list[Tensor]) -> None:
        """Write the result of a collective from what its members gave."""
        statement: Any = instruction.statement
        assert instruction.write is not None
        target = self.target(instance, instruction.write)
        if statement.kind == "broadcast":
            assign(target, parts[instance.value(instruction, "root")])
            return
        total = accumulated(parts[0])
        for part in parts[1:]:
            total = RULES[REDUCTIONS[statement.reduction]](total, accumulated(part))
        assign(target, total)


WAITING = frozenset({"receive", "receive_any", "wait", "collective"})
"""Commands of the first level that may wait for other processes."""
