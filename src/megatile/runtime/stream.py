"""Follows the streams of one unit, and of the instances below it, on real tensors: what a process does with
its part of a plan."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator

from torch import Tensor

from megatile.plan.code import Code, Instruction, compile_plan
from megatile.plan.control import STRUCTURE
from megatile.plan.model import Plan
from megatile.plan.text import statement_text
from megatile.runtime.commands import Commands
from megatile.runtime.control import Inbox, Scout
from megatile.runtime.copies import Copies
from megatile.runtime.errors import LaunchError, NoTorchRuleError
from megatile.runtime.instance import Instance, Version
from megatile.runtime.overlapped_compute import OverlappedCompute
from megatile.runtime.tile_memory import Memory, RankMemory
from megatile.runtime.transport import POLL_SECONDS, Transport
from megatile.runtime.upcoming_reads import foreseen


class UnitRun(Commands):
    """One unit with the instances below it, which take turns.

    Computations run beside the messages (``OverlappedCompute``), which are asked for before they are needed
    (``Inbox``). Commands that wait for other processes are left until no instance can go on without them.
    """

    def __init__(self, plan: Plan, unit: int, memory: Memory, transport: Transport):
        self.plan, self.unit, self.memory, self.transport = plan, unit, memory, transport
        self.tiles = memory.tiles
        self.channels = {channel.name: channel for channel in plan.channels}
        self.groups = {group.name: group for group in plan.groups}
        self.flag_levels = {flag.name: flag.level for flag in plan.flags}
        self.codes = compile_plan(plan)
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
        self.end = time.monotonic() + transport.timeout
        self.ahead = OverlappedCompute()
        self.copies = Copies(memory, transport) if isinstance(memory, RankMemory) else None
        code = self.first.code if self.first else ()
        self.inbox = Inbox(Scout(code, unit, self.channels), transport.receive, self.channels)

    def _below(self, code: Code) -> Iterator[int]:
        """Yield the instances of a stream that are below this unit."""
        if code.stream.level is not None:
            per = self.plan.per(code.stream.level, None) or 1
            yield from (n for n in code.stream.unit_numbers() if n // per == self.unit)

    def run(self) -> dict[str, Tensor]:
        """Follow the streams to their ends; the last version of every output."""
        try:
            if self.first:
                self.inbox.look_ahead()
            self.complete_copies(None)
            while self.active or self.to_come:
                self._turn()
            self.ahead.finish()
            self.complete_copies(None)
        finally:
            self.ahead.close()
        self.transport.finish()
        outputs = [tile.name for tile in self.plan.tiles if tile.role in ("output", "inout")]
        return {name: self.output(name, self.memory.owner(name, self.unit)) for name in outputs}

    def output(self, name: str, owner: int) -> Tensor:
        """Return the last version of an owner's copy of a tile."""
        handle = self.first.names[name] if self.first else Version(name, 0)
        assert isinstance(handle, Version)
        return self.memory.of(name, owner)[handle.number % self.tiles[name].versions]

    def _turn(self) -> None:
        """Advance every instance until it waits; else start another one, or wait for other processes."""
        moved = False
        for instance in list(self.active):
            moved |= self._follow(instance)
        if moved or self._begin():
            return
        if self.first in self.active and self._step(self.first, wait=True):
            return
        waiting = next((i for i in self.active if self._may_be_signalled(i)), None)
        if waiting is None or time.monotonic() > self.end:
            statement = (waiting or self.active[0]).instruction.statement
            how = "waits forever" if waiting is None else f"still waits after {self.transport.timeout:g} s"
            raise LaunchError(f"unit {self.unit} {how}: {statement_text(statement)}", place=statement.source)
        time.sleep(POLL_SECONDS)

    def _may_be_signalled(self, instance: Instance) -> bool:
        """Return whether an instance waits for a flag that other processes reach."""
        instruction = instance.instruction
        shared = self.copies is None and instruction.kind == "wait"
        return shared and self.flag_levels[instruction.statement.flag] is None

    def _begin(self) -> bool:
        """Return whether an instance that had not begun yet went on."""
        while self.to_come:
            self.active.append(Instance(self.plan, *self.to_come.popleft()))
            if self._follow(self.active[-1]):
                return True
        return False

    def _follow(self, instance: Instance) -> bool:
        """Return whether an instance went on; one that has ended is left out from then on."""
        alone, moved = len(self.active) == 1 and not self.to_come, False
        while instance.instruction.kind != "end":
            if not self._step(instance, wait=alone and instance is self.first):
                return moved
            moved = True
        self.active.remove(instance)
        self.memory.release(instance.level, instance.number)
        return True

    def _step(self, instance: Instance, wait: bool) -> bool:
        """Take one instruction; False if it has to wait: for other instances, or without ``wait`` for other
        processes."""
        instruction = instance.instruction
        if instruction.kind not in FLOW:
            if instruction.kind in WAITING and instance is self.first and not wait:
                return False
            step = getattr(self, f"step_{instruction.kind}", None)
            if step is None:
                raise NoTorchRuleError(f"launch has no rule for command '{instruction.kind}'")
            if step(instance, instruction) is False:
                return False
        if instance.instruction is instruction:  # a collective has gone on by itself
            instance.go(instruction)
        return True

    def complete_copies(self, group: str | None) -> None:
        """Bring about the copies between ranks that a barrier completes, and those before the next one."""
        if self.copies is not None and self.memory.reached:
            self.ahead.finish()
            self.copies.complete(group, foreseen(self))


FLOW = frozenset((*STRUCTURE, "join"))
"""What is not a command. Each instance is followed alone, so that none come together at a join."""
WAITING = frozenset({"receive", "receive_any", "collective"})
"""Commands of the first level that hold the process up until others have come."""
