"""What the commands of a process do to its tensors, and whom they wait for."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from megatile.core.elementwise import ATOMICS
from megatile.core.operations import REDUCTIONS
from megatile.plan.code import Instruction, RegionCode
from megatile.plan.model import Channel, Group, Plan, PlanError, Tile
from megatile.plan.text import statement_text
from megatile.runtime.control import Inbox
from megatile.runtime.copies import Copies, MovedBlock, one_sided
from megatile.runtime.errors import NoTorchRuleError
from megatile.runtime.instance import Instance, Version
from megatile.runtime.overlapped_compute import OverlappedCompute
from megatile.runtime.tile_memory import Memory
from megatile.runtime.torch_rules import DTYPES, RULES, accumulated, assign, compute
from megatile.runtime.transport import Transport


class Commands:
    """The commands of one unit and of the instances below it. A step returns False if it has to wait for
    another instance; ``UnitRun`` lets them take turns."""

    plan: Plan
    unit: int
    memory: Memory
    transport: Transport
    first: Instance | None
    tiles: dict[str, Tile]
    channels: dict[str, Channel]
    groups: dict[str, Group]
    flag_levels: dict[str, str | None]
    flags: dict[tuple[str, int, int], int]
    queues: dict[tuple[str, int, int], deque[Tensor]]
    met: dict[tuple[str, int], dict[int, tuple[Instance, Instruction]]]
    choices: list[int]
    last_choice: dict[str, int]
    ahead: OverlappedCompute
    copies: Copies | None
    inbox: Inbox

    def complete_copies(self, group: str | None) -> None:
        """Bring about the copies between ranks that a barrier completes, and those before the next one."""
        raise NotImplementedError

    # --- tiles -----------------------------------------------------------------------------------

    def _place(
        self, instance: Instance, code: RegionCode, fresh: bool = False
    ) -> tuple[Tensor | None, MovedBlock]:
        """Return the tensor a region means, None if it is on another rank, and the block that it is."""
        handle = instance.names[code.tile]
        start = () if code.whole else tuple(int(f(instance.ints)) for f in code.start)
        if not isinstance(handle, Version):
            shape = () if code.whole else tuple(int(f(instance.ints)) for f in code.shape)
            return MovedBlock(code.tile, 0, start, shape).of(handle), MovedBlock(code.tile, 0, start, shape)
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
        block = MovedBlock(tile.name, owner, start or (0,) * len(shape), shape)
        if not self.memory.here(tile.name, owner):
            return None, block
        number = handle.number + 1 if fresh else handle.number
        return block.of(self.memory.of(tile.name, owner)[number % tile.versions]), block

    def read(self, instance: Instance, code: RegionCode) -> Tensor:
        """Return the tensor a region means, a view of its tile or message, or what a barrier brought of
        it."""
        tensor, block = self._place(instance, code)
        if tensor is None:
            assert self.copies is not None
            return self.copies.get(block, instance.instruction.statement)
        return tensor

    def target(self, instance: Instance, code: RegionCode, fresh: bool = False) -> Tensor:
        """Return the tensor that a command writes; what belongs to another rank goes there at the next
        barrier."""
        tensor, block = self._place(instance, code, fresh)
        if tensor is None:
            assert self.copies is not None
            tensor = torch.empty(block.shape, dtype=DTYPES[self.tiles[block.tile].dtype])
            self.copies.put(block, tensor, instance.instruction.statement)
        return tensor

    def _tile_of(self, instance: Instance, code: RegionCode) -> str:
        """Return the declared tile behind a name, or the name of a message."""
        handle = instance.names[code.tile]
        return handle.tile if isinstance(handle, Version) else code.tile

    def _settle(self) -> None:
        """Puts and gets are done before any other unit is signalled."""
        self.ahead.untouched(*self.memory.reached)

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
        if missing > 0 and self.copies is None and level is None:
            missing -= self.transport.signals(flag, member)
        return missing <= 0

    def step_start(self, instance: Instance, instruction: Instruction) -> None:
        """Nothing: processes have started."""

    def step_collective(self, instance: Instance, instruction: Instruction) -> bool:
        statement: Any = instruction.statement
        group = self.groups[statement.group]
        if group.level is not None:
            return self._rendezvous(instance, instruction)
        self.ahead.finish()
        if statement.kind != "barrier":
            parts = self.transport.gather(group.name, self.read(instance, instruction.reads[0]))
            self._finish(instance, instruction, parts)
        elif self.copies is None or not self.memory.reached:
            self.transport.gather(group.name, torch.zeros(1))
        instance.go(instruction)
        self.complete_copies(group.name)
        return True

    def _rendezvous(self, instance: Instance, instruction: Instruction) -> bool:
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
