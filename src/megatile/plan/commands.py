"""What the walk does at each command: queues, slots, flags, groups. Control flow is in ``follow.py``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from megatile.core.crossing import Crossings
from megatile.plan.cached_values import MAX_CACHED_NUMBERS
from megatile.plan.code import Instruction, RegionCode, compile_plan
from megatile.plan.cohort import (
    Actors,
    Cohort,
    Handle,
    Queues,
    Route,
    SlotHandle,
    TileHandle,
    highest,
    lowest,
    nobody_there,
    numbers,
    spread,
    uniform,
)
from megatile.plan.control import ControlFlow
from megatile.plan.model import Plan, PlanError
from megatile.plan.text import statement_text

Value = Any


class Commands(ControlFlow):
    """The commands of the walk and its state; ``Follower`` lets it run."""

    open_flags: frozenset[str] = frozenset()  # whose signals may come from elsewhere, and always do
    ragged = False  # whether units go on together whose messages differ in size

    def __init__(self, plan: Plan) -> None:
        self.plan, self.actors = plan, Actors(plan)
        self.programs = compile_plan(plan)
        self.routes: dict[Instruction, dict[Any, Route]] = {}
        self.queues = {c.name: Queues(c, plan.instances(c.level)) for c in plan.channels}
        self.flags = {
            f.name: np.zeros((plan.instances(f.level), f.members), dtype=np.int64) for f in plan.flags
        }
        self.flag_levels = {f.name: f.level for f in plan.flags}
        self.keys: dict[str, Any] = {}
        for group in plan.groups:
            count = plan.instances(group.level)
            given = spread(group.key.evaluate({"unit": np.arange(count)}), count)
            numbers = np.unique(given, return_inverse=True)[1]  # 0, 1, … whatever was given
            self.keys[group.name] = np.where(given < 0, -1, numbers)
        self.crossings = Crossings()
        self.choices: dict[Any, list[int]] = {}
        self.last_choice: dict[tuple[str, int], int] = {}

    def mine(self, cohort: Cohort, name: str) -> Any:
        """Return whose queues of a channel the units of a cohort mean: their own, or those of their
        parents."""
        return numbers(self.plan, cohort, self.queues[name].channel.level)

    def own_flag(self, cohort: Cohort, instruction: Instruction) -> Any:
        return numbers(self.plan, cohort, self.flag_levels[instruction.statement.flag])

    def block(self, cohort: Cohort) -> bool:
        """The cohort waits; it has not moved."""
        self.waiting.append(cohort)
        return False

    def describe(self, instruction: Instruction) -> str:
        return (
            statement_text(instruction.statement) if instruction.statement is not None else instruction.kind
        )

    def instruction(self, cohort: Cohort) -> Instruction:
        """Return where the cohort stands."""
        return self.programs[cohort.stream].instructions[cohort.pc]

    # --- what subclasses do ----------------------------------------------------------------------

    def on_compute(self, cohort: Cohort, instruction: Instruction) -> None:
        """A ``Compute`` is issued (``fresh`` has not been applied yet)."""

    def on_command(self, cohort: Cohort, instruction: Instruction) -> None:
        """A command with no step of its own is issued."""

    def on_send(
        self, cohort: Cohort, instruction: Instruction, to: Value, member: Value, slot: Value
    ) -> None:
        """A message enters slot ``slot`` of queue (``to``, ``member``)."""

    def on_receive(self, cohort: Cohort, instruction: Instruction, handle: SlotHandle) -> None:
        """A message is taken; with ``into`` it is copied out."""

    def on_free(self, channel: str, units: Any, member: Any, slot: Any) -> None:
        """Slots that nobody holds any more."""

    def on_read_scalar(self, cohort: Cohort, instruction: Instruction) -> Value:
        """Return the integers read."""
        raise PlanError("the plan depends on data", advice="give inputs, or assume=")

    def on_signal(
        self, cohort: Cohort, instruction: Instruction, to: Value, member: Value, amount: Value
    ) -> None: ...

    def on_wait(self, cohort: Cohort, instruction: Instruction, member: Value, value: Value) -> None: ...

    def on_collective(self, group: str, parts: list[tuple[Cohort, Instruction]]) -> None:
        """All units of one or more whole groups meet."""

    # --- names and slots -------------------------------------------------------------------------

    def bind(self, cohort: Cohort, name: str, handle: Handle) -> None:
        """Let a name mean a handle; it holds the slot, and lets go of the one it held before."""
        if isinstance(handle, SlotHandle):
            self.hold(cohort, handle, 1)
        self.unbind(cohort, name)
        cohort.handles[name] = handle

    def handle(self, cohort: Cohort, name: str) -> Handle:
        """Return what a name means; a name that has ended is an error."""
        found = cohort.handles.get(name)
        if found is None:
            raise PlanError(f"'{name}' has ended before: {self.describe(self.instruction(cohort))}")
        return found

    def unbind(self, cohort: Cohort, name: str) -> None:
        handle = cohort.handles.pop(name, None)
        if isinstance(handle, SlotHandle):
            self.hold(cohort, handle, -1)

    def hold(self, cohort: Cohort, handle: SlotHandle, change: int) -> None:
        queues = self.queues[handle.channel]
        if queues.open:
            return
        slot = handle.sequence % queues.channel.slots
        place = queues.place(queues.at(self.mine(cohort, handle.channel), handle.member), slot)
        left = queues.holds_of[place] + np.int16(change)
        queues.holds_of[place] = left
        if change > 0 or left.all():
            return
        if not left.any():
            self.on_free(handle.channel, self.mine(cohort, handle.channel), handle.member, slot)
        else:
            gone = left == 0
            count = len(cohort)
            parts = (
                self.mine(cohort, handle.channel)[gone],
                spread(handle.member, count)[gone],
                spread(slot, count)[gone],
            )
            self.on_free(handle.channel, *parts)

    def can_go(self, cohort: Cohort) -> Any:
        """Return which units need not wait any longer: a mask, True or False; None if that is not the
        question."""
        instruction = self.instruction(cohort)
        if instruction.kind == "send":
            return self.can_send(self.route(cohort, instruction))
        if instruction.kind == "receive":
            return self.has_message(cohort, instruction, instruction.functions["member"](cohort.ints))
        if instruction.kind == "receive_any":
            return np.asarray([self.choose(cohort, instruction, i) is not None for i in range(len(cohort))])
        if instruction.kind == "wait":
            member, value = (instruction.functions[k](cohort.ints) for k in ("member", "value"))
            flags = self.flags[instruction.statement.flag]
            self.check_flag(instruction, flags, member)
            if instruction.statement.flag in self.open_flags:
                return np.full(len(cohort), True)
            return flags[self.own_flag(cohort, instruction), member] >= value
        return None

    # --- commands --------------------------------------------------------------------------------

    def step_command(self, cohort: Cohort, instruction: Instruction) -> bool:
        """A command with no step of its own holds nothing up."""
        self.on_command(cohort, instruction)
        return self.issued(cohort)

    def step_compute(self, cohort: Cohort, instruction: Instruction) -> bool:
        self.on_compute(cohort, instruction)
        self.renew(cohort, instruction)
        return self.issued(cohort)

    def written(self, cohort: Cohort, instruction: Instruction) -> RegionCode:
        """Return the region that a command writes, which is none of a received message."""
        assert instruction.write is not None
        if isinstance(self.handle(cohort, instruction.write.tile), SlotHandle):
            raise PlanError(f"a received message cannot be written: {self.describe(instruction)}")
        return instruction.write

    def dtype_of(self, handle: Handle) -> str:
        return handle.dtype if isinstance(handle, SlotHandle) else self.plan.tile(handle.tile).dtype

    def renew(self, cohort: Cohort, instruction: Instruction) -> None:
        """Apply ``fresh``: the written tile's name means its next version."""
        if instruction.statement.fresh:
            assert instruction.write is not None
            handle = cohort.handles[instruction.write.tile]
            if not isinstance(handle, TileHandle):
                raise PlanError(
                    f"'{instruction.write.tile}' is not a declared tile and cannot start a new version"
                )
            cohort.handles[instruction.write.tile] = TileHandle(handle.tile, handle.version + 1)

    def route(self, cohort: Cohort, instruction: Instruction) -> Route:
        """Return where a send goes; refused if the units do not feed the queues it names."""
        to, member = (instruction.functions[key](cohort.ints) for key in ("to", "member"))
        known_by = (cohort.units, to, member)
        key = tuple([v if v.__class__ is int else (id(v),) for v in known_by])
        routes = self.routes.setdefault(instruction, {})
        route = routes.get(key)
        if route is None:
            queues = self.fed(cohort, instruction, to, member)
            # All units of a cohort feed different queues, so one number means one unit.
            targets = np.full(len(cohort), to) if isinstance(to, int) else to
            route = Route(queues, targets, member, queues.at(targets, member), known_by)
            if len(routes) >= max(1, MAX_CACHED_NUMBERS // len(cohort)):
                routes.clear()
            routes[key] = route
        return route

    def fed(self, cohort: Cohort, instruction: Instruction, to: Value, member: Value) -> Queues:
        """Return the queues of a send, if they exist and each is fed by the unit that sends."""
        queues = self.queues[instruction.statement.channel]
        there = len(queues.sent)
        outside = (np.asarray(to) < 0) | (np.asarray(to) >= there)
        outside = outside | (np.asarray(member) < 0) | (np.asarray(member) >= queues.channel.members)
        feeder = queues.source({"unit": to, "member": member})
        wrong = np.broadcast_to(outside | (feeder != self.mine(cohort, queues.channel.name)), len(cohort))
        if wrong.any():
            at = int(np.argmax(wrong))
            unit, where = int(cohort.units[at]), [int(spread(v, len(cohort))[at]) for v in (to, member)]
            if where[0] == -1:
                raise nobody_there(unit, queues.channel, where[1], sending=True)
            if not 0 <= where[0] < there:
                raise PlanError(
                    f"unit {unit} sends to unit {where[0]}, which does not exist: "
                    + self.describe(instruction),
                    advice="send only where there is a neighbour",
                )
            raise PlanError(
                f"unit {unit} sends to queue {tuple(where)} of channel '{queues.channel.name}', "
                f"which it does not feed: {self.describe(instruction)}",
                advice="the channel's source must name the sender",
            )
        return queues

    def can_send(self, route: Route) -> Any:
        queues = route.queues
        slot = queues.sent_at[route.at] % queues.channel.slots
        return queues.open | (queues.holds_of[queues.place(route.at, slot)] == 0)

    def step_send(self, cohort: Cohort, instruction: Instruction) -> bool:
        route = self.route(cohort, instruction)
        queues = route.queues
        slot = uniform(queues.sent_at[route.at] % queues.channel.slots)
        place = queues.place(route.at, slot)
        if queues.holds_of[place].any():
            return self.block(cohort)
        nbytes = instruction.functions["bytes"](cohort.ints)
        if highest(nbytes) > queues.channel.slot_bytes:
            most = queues.channel.slot_bytes
            raise PlanError(
                f"a message of {int(np.max(nbytes))} bytes does not fit a slot of {most} bytes "
                f"of channel '{queues.channel.name}': {self.describe(instruction)}"
            )
        queues.nbytes_of[place] = nbytes
        self.on_send(cohort, instruction, route.to, route.member, slot)
        queues.holds_of[place] = not queues.open
        queues.sent_at[route.at] += 1
        queues.sender_at[route.at] = cohort.stream << 32 | cohort.pc
        return self.issued(cohort)

    def has_message(self, cohort: Cohort, instruction: Instruction, member: Value) -> Any:
        queues = self.queues[instruction.statement.channel]
        if lowest(member) < 0 or highest(member) >= queues.channel.members:
            raise PlanError(
                f"channel '{queues.channel.name}' has no such member: {self.describe(instruction)}"
            )
        if queues.open:
            return np.full(len(cohort), True)
        at = queues.at(self.mine(cohort, queues.channel.name), member)
        return queues.sent_at[at] > queues.received_at[at]

    def step_receive(self, cohort: Cohort, instruction: Instruction) -> bool:
        member = instruction.functions["member"](cohort.ints)
        if not self.has_message(cohort, instruction, member).all():
            return self.block(cohort)
        return self.take(cohort, instruction, member)

    def take(self, cohort: Cohort, instruction: Instruction, member: Value) -> bool:
        statement = instruction.statement
        shape = [uniform(function(cohort.ints)) for function in instruction.shape]
        ragged = any(isinstance(extent, np.ndarray) for extent in shape)
        if ragged and not (self.ragged and instruction.ragged):
            return self.divide_by(cohort, shape)
        queues = self.queues[statement.channel]
        places = queues.at(self.mine(cohort, statement.channel), member)
        sequence = uniform(queues.received_at[places])
        sent = queues.nbytes_of[queues.place(places, sequence % queues.channel.slots)]
        asked = instruction.functions["bytes"](cohort.ints)
        if (sent != asked).any() and not queues.open:
            at = int(np.argmax(np.broadcast_to(sent != asked, len(cohort))))
            raise PlanError(
                f"unit {int(cohort.units[at])} expects {int(spread(asked, len(cohort))[at])} bytes, "
                f"the message has {int(sent[at])}: {self.describe(instruction)}"
            )
        handle = SlotHandle(statement.channel, uniform(member), sequence, tuple(shape), statement.dtype)
        queues.received_at[places] += 1
        self.on_receive(cohort, instruction, handle)
        if statement.name:  # The name holds the slot from now on, as the message in flight did before.
            self.unbind(cohort, statement.name)
            cohort.handles[statement.name] = handle
        else:
            if instruction.write is not None:
                self.renew(cohort, instruction)
            self.hold(cohort, handle, -1)
        return self.issued(cohort)

    def fits(self, instruction: Instruction, handle: SlotHandle, shape: tuple[Value, ...]) -> None:
        """A message that is copied out has as many elements as the region it goes to."""
        if np.any(prod(shape) != prod(handle.shape)):
            raise PlanError(
                f"a message of {int(np.max(prod(handle.shape)))} elements does not fit a region of "
                f"{int(np.max(prod(shape)))}: {self.describe(instruction)}"
            )

    def divide_by(self, cohort: Cohort, values: list[Value]) -> bool:
        """Go on separately with the units that agree on ``values``."""
        rows = np.stack([spread(v, len(cohort)) for v in values], axis=1)
        _, kinds = np.unique(rows, axis=0, return_inverse=True)
        kinds = kinds.ravel()
        self.ready += [cohort.part(kinds == k) for k in range(int(np.max(kinds)), -1, -1)]
        return False

    def choose(self, cohort: Cohort, instruction: Instruction, at: int) -> int | None:
        """Return the member from which one unit would take a message now."""
        channel = instruction.statement.channel
        queues, unit = self.queues[channel], int(self.mine(cohort, channel)[at])
        for member in self.tried(cohort, instruction, at):
            if queues.open or queues.sent[unit, member] > queues.received[unit, member]:
                return int(member)
        return None

    def tried(self, cohort: Cohort, instruction: Instruction, at: int) -> Iterable[int]:
        """Return the members from which a unit may take a message, the first one first: in turn, after the
        one taken last."""
        channel, members = instruction.statement.channel, instruction.statement.members
        last = self.last_choice.get((channel, int(self.mine(cohort, channel)[at])), -1)
        start = members.index(last) + 1 if last in members else 0
        return (*members[start:], *members[:start])

    def step_receive_any(self, cohort: Cohort, instruction: Instruction) -> bool:
        statement = instruction.statement
        shape = [uniform(function(cohort.ints)) for function in instruction.shape]
        if any(isinstance(extent, np.ndarray) for extent in shape):
            return self.divide_by(cohort, shape)
        chosen = [self.choose(cohort, instruction, i) for i in range(len(cohort))]
        if any(c is None for c in chosen):
            return self.block(cohort)
        members = uniform(np.asarray(chosen, dtype=np.int64))
        if isinstance(members, np.ndarray):
            return self.divide_by(cohort, [members])
        for unit in self.mine(cohort, statement.channel).tolist():
            self.last_choice[statement.channel, unit] = members
        for unit in cohort.units.tolist():
            self.choices.setdefault(chooser(cohort, unit), []).append(members)
        cohort.ints[statement.chosen] = members
        return self.take(cohort, instruction, members)

    def step_read_scalar(self, cohort: Cohort, instruction: Instruction) -> bool:
        statement = instruction.statement
        values = uniform(self.on_read_scalar(cohort, instruction))
        if np.any(np.asarray(values) < 0) or np.any(np.asarray(values) > statement.bound):
            raise PlanError(
                f"read_scalar gave {int(np.max(values))}, outside 0..{statement.bound}: "
                + self.describe(instruction),
                advice="raise the bound",
            )
        cohort.ints[statement.name] = values
        return self.issued(cohort)

    def step_signal(self, cohort: Cohort, instruction: Instruction) -> bool:
        flags = self.flags[instruction.statement.flag]
        to, member, amount = (instruction.functions[k](cohort.ints) for k in ("to", "member", "amount"))
        if np.any(np.asarray(to) < 0) or np.any(np.asarray(to) >= len(flags)):
            raise PlanError(f"there is no unit {int(np.max(to))}: {self.describe(instruction)}")
        self.check_flag(instruction, flags, member)
        self.on_signal(cohort, instruction, to, member, amount)
        np.add.at(flags, (spread(to, len(cohort)), spread(member, len(cohort))), amount)
        return self.issued(cohort)

    def check_flag(self, instruction: Instruction, flags: Any, member: Value) -> None:
        low, high = int(np.min(member)), int(np.max(member))
        if low < 0 or high >= flags.shape[1]:
            raise PlanError(
                f"flag '{instruction.statement.flag}' has {flags.shape[1]} members, not member "
                f"{low if low < 0 else high}: {self.describe(instruction)}"
            )

    def step_wait(self, cohort: Cohort, instruction: Instruction) -> bool:
        if not np.all(self.can_go(cohort)):
            return self.block(cohort)
        member, value = (instruction.functions[k](cohort.ints) for k in ("member", "value"))
        self.on_wait(cohort, instruction, member, value)
        return self.issued(cohort)

    def step_collective(self, cohort: Cohort, instruction: Instruction) -> bool:
        statement = instruction.statement
        keys = self.keys[statement.group]
        if np.any(keys[cohort.units] < 0):
            raise PlanError(
                f"a unit that is in no group of '{statement.group}' meets: {self.describe(instruction)}"
            )
        if statement.kind == "broadcast":
            self.check_root(cohort, instruction, np.bincount(keys[keys >= 0])[keys[cohort.units]])
        if len(cohort) == int((keys >= 0).sum()):
            self.collectives_of(statement.group, [(cohort, instruction)])
            self.on_collective(statement.group, [(cohort, instruction)])
            return self.issued(cohort)
        return self.block(cohort)

    def collectives_of(
        self, group: str, parts: list[tuple[Cohort, Instruction]]
    ) -> dict[int, tuple[str, str]]:
        """Return what each group that meets is doing; all its units must do the same."""
        kinds: dict[int, tuple[str, str]] = {}
        for cohort, instruction in parts:
            statement = instruction.statement
            kind = (statement.kind, statement.reduction)
            for key in np.unique(self.keys[group][cohort.units]).tolist():
                if kinds.setdefault(key, kind) != kind:
                    words = sorted(
                        {kinds[key][0], kind[0]} if kinds[key][0] != kind[0] else {kinds[key][1], kind[1]}
                    )
                    raise PlanError(
                        f"units of group '{group}' meet at different collectives ({', '.join(words)}): "
                        + self.describe(instruction),
                        place=statement.source,
                    )
        return kinds

    def check_order(self, group: str, parts: list[tuple[Cohort, Instruction]]) -> None:
        """Refuse units of a group that come to the collectives of two tiles in opposite order."""
        named = [(self.tile_of(cohort, i), cohort, i) for cohort, i in parts if i.reads]
        if len({tile for tile, *_ in named}) < 2:
            return
        groups: dict[int, dict[int, set[int]]] = {}
        for at, (_, cohort, _) in enumerate(named):
            for unit, key in zip(cohort.units.tolist(), self.keys[group][cohort.units].tolist(), strict=True):
                groups.setdefault(key, {}).setdefault(at, set()).add(unit)
        for key, units in groups.items():
            met = [(named[i][0], frozenset(u), named[i][2].statement.source) for i, u in units.items()]
            found = self.crossings.find((group, key), met, partial(self.actors.name, named[0][1].level))
            if found:
                raise PlanError(
                    f"units of group '{group}' call collectives in opposite order: {found[0]}",
                    place=found[1],
                    advice="call them in the same order on all units",
                )

    def tile_of(self, cohort: Cohort, instruction: Instruction) -> str:
        """Return the tile, or the channel of the message, that a command reads first."""
        handle = self.handle(cohort, instruction.reads[0].tile)
        return handle.channel if isinstance(handle, SlotHandle) else handle.tile

    def agree(
        self,
        group: str,
        cohort: Cohort,
        instruction: Instruction,
        read: tuple[Value, ...],
        write: tuple[Value, ...],
        seen: dict[int, tuple[int, ...]],
    ) -> None:
        """Check that what the units of a group give and take at a collective has one shape; ``seen``: by
        group."""
        self.written(cohort, instruction)
        count = len(cohort)
        rows = [np.stack([spread(e, count) for e in shape], axis=1).tolist() if shape else [[]] * count
                for shape in (read, write)]  # fmt: skip
        for key, given, taken in zip(self.keys[group][cohort.units].tolist(), *rows, strict=True):
            for found in (given, taken):
                if seen.setdefault(key, tuple(found)) != tuple(found):
                    raise PlanError(
                        f"units of group '{group}' give and take shapes {seen[key]} and {tuple(found)}: "
                        + self.describe(instruction)
                    )

    def check_root(self, cohort: Cohort, instruction: Instruction, sizes: Any) -> None:
        """Check that the root of a broadcast is a number within its group."""
        root = spread(instruction.functions["root"](cohort.ints), len(cohort))
        wrong = (root < 0) | (root >= sizes)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise PlanError(
                f"unit {int(cohort.units[at])} takes root {int(root[at])} of a group of {int(sizes[at])}: "
                + self.describe(instruction),
                advice="the root counts the members of the group, from 0",
            )

    def rendezvous(self, cohorts: list[Cohort]) -> bool:
        """Release the groups whose units have all arrived at a collective; the others wait on."""
        arrived: dict[str, list[Cohort]] = {}
        for cohort in cohorts:
            instruction = self.instruction(cohort)
            if instruction.kind == "collective":
                arrived.setdefault(instruction.statement.group, []).append(cohort)
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
                self.collectives_of(group, parts)
                self.check_order(group, parts)
                self.on_collective(group, parts)
                for cohort, _ in parts:
                    cohort.pc += 1
                    self.ready.append(cohort)
                progress = True
        if progress:
            self.waiting = cohorts
        return progress


def chooser(cohort: Cohort, unit: int) -> Any:
    """Return a unit in ``choices``: its number, with its level where that is not the first."""
    return unit if cohort.level is None else (cohort.level, unit)
