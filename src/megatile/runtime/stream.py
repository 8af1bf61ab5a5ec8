"""Follows the stream of one unit on real tensors: what a worker process does with its part of a plan."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from megatile.core.operations import REDUCTIONS
from megatile.plan.code import Instruction, RegionCode, compile_stream
from megatile.plan.control import STRUCTURE
from megatile.plan.model import Plan, PlanError, Tile, statements
from megatile.plan.statements import regions_of
from megatile.plan.text import statement_text
from megatile.runtime.control import Control, Inbox, Scout
from megatile.runtime.errors import NoTorchRuleError
from megatile.runtime.torch_rules import DTYPES, RULES, accumulated, assign
from megatile.runtime.transport import Transport

MOST_AHEAD = 32
"""Computations that may wait their turn: what they hold must fit in memory."""


class Ahead:
    """Compute beside communication: commands of one unit that run in order on a thread of their own.

    The thread that follows the stream hands computations over and goes on to its messages. Before it sends a
    tile, or overwrites one, it waits for the computations that wrote it, or that still read it.
    """

    def __init__(self) -> None:
        threads = torch.get_num_threads()
        self._thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,))
        self._running: deque[Future[None]] = deque()
        self._wrote: dict[str, Future[None]] = {}
        self._touched: dict[str, Future[None]] = {}

    def start(self, work: Callable[[], None], reads: Iterable[str], writes: Iterable[str]) -> None:
        """Let ``work`` follow all that was started before."""
        if len(self._running) >= MOST_AHEAD:
            self._running.popleft().result()
        future = self._thread.submit(work)
        self._running.append(future)
        for tile in writes:
            self._wrote[tile] = self._touched[tile] = future
        for tile in reads:
            self._touched[tile] = future

    def written(self, tile: str) -> None:
        """Wait until nothing writes the tile any more."""
        if tile in self._wrote:
            self._wrote.pop(tile).result()

    def untouched(self, *tiles: str) -> None:
        """Wait until nothing reads or writes the tiles any more."""
        for tile in tiles:
            if tile in self._touched:
                self._touched.pop(tile).result()

    def finish(self) -> None:
        """Wait for everything; an error of a computation is raised here, or earlier."""
        while self._running:
            self._running.popleft().result()

    def close(self) -> None:
        self._thread.shutdown(wait=True)


class Memory:
    """The tiles of one unit as tensors, with a leading axis of versions; those that other units reach lie in
    files of ``folder``, which is the same for all processes of a run and which all map.

    All processes of a launch run on one machine, so that a put or a get is a copy into or out of such a file;
    ``Signal`` and ``Wait`` order them, as everywhere in a plan.
    """

    def __init__(self, plan: Plan, unit: int, inputs: Mapping[str, Tensor], folder: Path):
        self.unit, self._folder = unit, folder
        self.tiles = {tile.name: tile for tile in plan.tiles}
        bodies = [statement for stream in plan.streams for statement in statements(stream.body)]
        remote = {region.tile for s in bodies for region in regions_of(s) if region.at is not None}
        self.reached = {tile.name for tile in plan.tiles if tile.shared or tile.name in remote}
        self._owner = {tile.name: int(tile.owner.evaluate({"unit": unit})) for tile in plan.tiles}
        self._mapped: dict[tuple[str, int], Tensor] = {}
        self._own = {tile.name: self._new(tile) for tile in plan.tiles}
        for name, data in inputs.items():
            self._own[name][0] = data

    def _new(self, tile: Tile) -> Tensor:
        if tile.name in self.reached:
            return self.of(tile.name, self._owner[tile.name])
        return torch.zeros((tile.versions, *tile.shape), dtype=DTYPES[tile.dtype])

    def of(self, name: str, owner: int | None = None) -> Tensor:
        """All versions of a tile, of this unit or of another owner."""
        if owner is None or name not in self.reached:
            return self._own[name]
        if (name, owner) not in self._mapped:
            self._mapped[name, owner] = self._map(self.tiles[name], owner)
        return self._mapped[name, owner]

    def _map(self, tile: Tile, owner: int) -> Tensor:
        shape, dtype = (tile.versions, *tile.shape), DTYPES[tile.dtype]
        if not prod(shape):
            return torch.zeros(shape, dtype=dtype)
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"tile_{list(self.tiles).index(tile.name)}_{owner}"
        # The file is made with zeros by whoever comes first.
        return torch.from_file(str(path), shared=True, size=prod(shape), dtype=dtype).reshape(shape)


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
        self.inbox = Inbox(Scout(self.code, unit, self.channels), transport.receive, self.channels)

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
