"""``execute(plan, inputs)``: run a plan on real data with NumPy, all units, and report races.

Inputs and results map tile names to arrays (owners, *shape); units that share a stream are computed together.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from megatile.core.elementwise import ATOMICS
from megatile.core.errors import MegatileError
from megatile.core.limits import enough_memory
from megatile.core.operations import OPERATIONS, Operation
from megatile.plan.code import Instruction, RegionCode
from megatile.plan.cohort import Cohort, SlotHandle, Value, pick, spread
from megatile.plan.commands import chooser
from megatile.plan.compute import (
    GATHER_BYTES,
    axes_from_the_end,
    compute,
    deliver,
    reduce_values,
    target_bytes,
)
from megatile.plan.follow import Follower
from megatile.plan.model import Plan, PlanError, require_plan
from megatile.plan.races import RaceWatch
from megatile.plan.statements import tile_flows, write_of
from megatile.plan.storage import Access, SlotStore, alike, allocate, read_inputs, resolve
from megatile.plan.structure import check_structure

Array = Any


class OrderWarning(UserWarning):
    """A result depends on the order in which messages were received from any of several queues."""


class Results(dict[str, Array]):
    """Output arrays by tile name; ``choices`` are the members that ``ReceiveAny`` took, per unit in order."""

    def __init__(
        self, arrays: Mapping[str, Array], choices: dict[Any, list[int]], order_dependent: tuple[str, ...]
    ):
        super().__init__(arrays)
        self.choices = choices
        self.order_dependent = order_dependent


def execute(
    plan: Plan, inputs: Mapping[str, Any] | None = None, order: Any = None, *, races: bool = True
) -> Results:
    """Run the plan on data.

    ``order`` (a timed result, or anything with ``choices``: unit to list of members) decides what
    ``ReceiveAny`` takes; without it members are tried in turn, and outputs that depend on that are reported
    by an ``OrderWarning``. ``races=False`` leaves out the race check on storage that several units use.
    """
    require_plan(plan, "execute")
    check_structure(plan)
    with enough_memory(f"executing plan '{plan.name}' of {plan.units} units"):
        run = Executor(plan, inputs or {}, order=order, races=races)
        run.run()
        run.check_all_received()
        outputs = run.outputs()
        depends: tuple[str, ...] = ()
        if run.choices and order is None:
            other = Executor(plan, inputs or {}, reverse=True, races=False)
            other.run()
            again = other.outputs()
            depends = tuple(n for n in outputs if not _same(outputs[n], again[n]))
    if depends:
        warnings.warn(OrderWarning(f"{', '.join(depends)}: depends on the order of arrival"), stacklevel=2)
    return Results(outputs, run.choices, depends)


def _changed(plan: Plan) -> set[str]:
    """Return tiles that some command writes, or that go by another name."""
    every = [s for body in plan.bodies for s in body]
    written = {w.tile for s in every if (w := write_of(s)) is not None}
    return written | {name for s in every for flow in tile_flows(s) for name in (flow.name, *flow.values)}


def _same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes() or bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


class Executor(Follower):
    """The walk with data."""

    def __init__(
        self,
        plan: Plan,
        inputs: Mapping[str, Any],
        *,
        order: Any = None,
        reverse: bool = False,
        races: bool = True,
    ):
        super().__init__(plan)
        self.arrays = {
            tile.name: allocate(plan, tile, None) for tile in plan.tiles if tile.name not in inputs
        }
        changed = _changed(plan)
        for tile, given in read_inputs(plan, inputs):
            # What nobody writes need not be copied.
            only_read = tile.role == "input" and tile.versions == 1 and tile.name not in changed
            self.arrays[tile.name] = given[:, None] if only_read else allocate(plan, tile, given)
        self.slots = {
            channel.name: SlotStore(channel, plan.instances(channel.level)) for channel in plan.channels
        }
        self.order = order.choices if order is not None else None
        self.reverse = reverse
        self.watch = RaceWatch.for_plan(plan) if races else None
        self.ragged = self.watch is None
        self.final: dict[str, Any] = {
            t.name: np.zeros(plan.owners(t), dtype=np.int64)
            for t in plan.tiles
            if t.role in ("output", "inout")
        }

    def outputs(self) -> dict[str, Array]:
        """Return the last version of every output."""
        result = {}
        for name, version in self.final.items():
            array = self.arrays[name]
            result[name] = array[np.arange(len(array)), version % array.shape[1]]
        return result

    # --- commands --------------------------------------------------------------------------------

    def access(self, cohort: Cohort, instruction: Instruction, code: RegionCode, write: bool) -> Access:
        self.handle(cohort, code.tile)
        fresh = write and bool(getattr(instruction.statement, "fresh", False))
        found = resolve(self.plan, cohort, code, self.arrays, self.slots, fresh)
        if self.watch is not None and not found.ragged:
            self.watch.access(cohort, instruction, code, found, write)
        return found

    def step_compute(self, cohort: Cohort, instruction: Instruction) -> bool:
        reads = [self.access(cohort, instruction, code, False) for code in instruction.reads]
        write = self.access(cohort, instruction, self.written(cohort, instruction), True)
        ragged = write.ragged or any(read.ragged for read in reads)
        if ragged and (instruction.varying or not self.ragged):
            shapes = [f(cohort.ints) for code in instruction.regions for f in code.shape]
            return self.divide_by(cohort, shapes)
        try:
            if ragged:
                self.apply_parts(cohort, instruction, write, reads)
            else:
                self.apply(cohort, instruction, write, reads)
        except (ValueError, TypeError) as error:
            if isinstance(error, MegatileError):
                raise
            raise PlanError(f"{error}: {self.describe(instruction)}") from error
        self.renew(cohort, instruction)
        return self.issued(cohort)

    def apply_parts(
        self, cohort: Cohort, instruction: Instruction, write: Access, reads: list[Access]
    ) -> None:
        """Like ``apply``, once for every shape there is."""
        every = [write, *reads]
        for chosen, shapes in alike([access.shape for access in every], len(cohort)):
            target, *sources = (a.part(chosen, s) for a, s in zip(every, shapes, strict=True))
            self.apply(
                Cohort(cohort.stream, cohort.units[chosen], level=cohort.level), instruction, target, sources
            )

    def renew(self, cohort: Cohort, instruction: Instruction) -> None:
        super().renew(cohort, instruction)
        if instruction.write is not None and instruction.write.tile in self.final:
            handle: Any = cohort.handles[instruction.write.tile]
            tile = self.plan.tile(handle.tile)
            if not tile.shared and tile.level == cohort.level:
                self.final[handle.tile][cohort.units] = handle.version

    def apply(self, cohort: Cohort, instruction: Instruction, write: Access, reads: list[Access]) -> None:
        if write.empty and all(read.empty for read in reads):
            return
        operation = OPERATIONS[instruction.statement.operation]
        varying = {k: f(cohort.ints) for k, f in instruction.varying.items()}
        uneven = any(isinstance(v, np.ndarray) for v in varying.values())
        attributes = axes_from_the_end(instruction.attributes | varying, reads)
        if not uneven:
            self.put(len(cohort), operation, write, reads, attributes)
            return
        for at in range(len(cohort)):
            own = {k: int(v[at]) if isinstance(v, np.ndarray) else v for k, v in attributes.items()}
            compute(operation, write.one(at), [r.one(at) for r in reads], own, batched=False)

    def put(
        self,
        count: int,
        operation: Operation,
        write: Access,
        reads: list[Access],
        attributes: dict[str, Any],
    ) -> None:
        """Do one operation of all units: on views, on copies where units lie scattered, or one by one."""
        target, sources = write.batch(), [r.batch() for r in reads]
        if target is not None and all(s is not None for s in sources):
            compute(operation, target, sources, attributes, batched=True)
        elif count > 4 and target_bytes(write) < GATHER_BYTES:
            sources = [s if s is not None else r.gather(count) for s, r in zip(sources, reads, strict=True)]
            result = np.empty((count, *write.shape), dtype=write.array.dtype)
            compute(operation, result, sources, attributes, batched=True)
            write.scatter(count, result)
        else:
            for at in range(count):
                each = [r.one(at) for r in reads]
                compute(operation, write.one(at), each, attributes, batched=False)

    def step_send(self, cohort: Cohort, instruction: Instruction) -> bool:
        code = instruction.reads[0]
        if not self.ragged and not code.whole:
            shape = [f(cohort.ints) for f in code.shape]
            if any(isinstance(v, np.ndarray) and (v != v[0]).any() for v in shape):
                return self.divide_by(cohort, shape)
        return super().step_send(cohort, instruction)

    def on_send(
        self, cohort: Cohort, instruction: Instruction, to: Value, member: Value, slot: Value
    ) -> None:
        channel = instruction.statement.channel
        read = self.access(cohort, instruction, instruction.reads[0], False)
        if self.watch is not None:
            self.watch.send(cohort, channel, to, member)
        handle = cohort.handles[instruction.reads[0].tile]
        element = self.dtype_of(handle)
        store = self.slots[channel]
        if read.ragged:
            for chosen, (shape,) in alike([read.shape], len(cohort)):
                target, part = store.typed(element, shape), read.part(chosen, shape)
                deliver(target, part, to[chosen], pick(member, chosen), pick(slot, chosen), len(chosen))
            return
        target = store.typed(element, read.shape)
        if isinstance(handle, SlotHandle) and handle.channel == channel:
            # The store may just have grown for this message: look the source up again.
            read = resolve(self.plan, cohort, instruction.reads[0], self.arrays, self.slots)
        deliver(target, read, to, member, slot, len(cohort))

    def on_receive(self, cohort: Cohort, instruction: Instruction, handle: SlotHandle) -> None:
        if self.watch is not None:
            self.watch.receive(cohort, handle)
        if instruction.write is None:
            return
        write = self.access(cohort, instruction, instruction.write, True)
        if write.ragged:
            raise PlanError(f"units disagree on the shape of the destination: {self.describe(instruction)}")
        self.fits(instruction, handle, write.shape)
        store = self.slots[handle.channel]
        slot = handle.sequence % store.channel.slots
        array = store.typed(handle.dtype, handle.shape)
        read = Access(array, (self.mine(cohort, handle.channel), handle.member, slot), (), handle.shape, None)
        if cohort.level == store.channel.level:
            read.run = write.run
        self.put(len(cohort), OPERATIONS["copy"], write, [read], {})

    def on_read_scalar(self, cohort: Cohort, instruction: Instruction) -> Value:
        read = self.access(
            cohort, instruction, instruction.write or instruction.reads[0], instruction.write is not None
        )
        if read.ragged or np.prod(read.shape) != 1:
            raise PlanError(f"read_scalar reads one element: {self.describe(instruction)}")
        statement = instruction.statement
        combine: Any = ATOMICS.get(statement.combine, lambda old, new: new) if statement.combine else None
        terms, wanted = (
            np.broadcast_to(instruction.functions[name](cohort.ints), len(cohort))
            for name in ("value", "expected")
        )
        values = []
        for at in range(len(cohort)):
            element = read.one(at)
            values.append(int(element.ravel()[0]))
            if combine is not None and (statement.combine != "cas" or values[-1] == wanted[at]):
                element[...] = combine(element, element.dtype.type(terms[at]))
        return np.asarray(values, dtype=np.int64)

    def on_signal(
        self, cohort: Cohort, instruction: Instruction, to: Value, member: Value, amount: Value
    ) -> None:
        if self.watch is not None:
            self.watch.signal(cohort, instruction.statement.flag, to, member, amount)

    def on_wait(self, cohort: Cohort, instruction: Instruction, member: Value, value: Value) -> None:
        if self.watch is not None:
            mine = self.own_flag(cohort, instruction)
            self.watch.wait(cohort, instruction.statement.flag, mine, member, value)

    def tried(self, cohort: Cohort, instruction: Instruction, at: int) -> Iterable[int]:
        if self.order is None:
            members = instruction.statement.members
            return reversed(members) if self.reverse else super().tried(cohort, instruction, at)
        unit = chooser(cohort, int(cohort.units[at]))
        try:
            return (int(self.order[unit][len(self.choices.get(unit, ()))]),)
        except (KeyError, IndexError):
            raise PlanError(f"the order given has no more choices for unit {unit}") from None

    # --- groups ----------------------------------------------------------------------------------

    def on_collective(self, group: str, parts: list[tuple[Cohort, Instruction]]) -> None:
        kinds = self.collectives_of(group, parts)
        if self.watch is not None:
            level = parts[0][0].level
            self.watch.rendezvous(self.keys[group], np.concatenate([c.units for c, _ in parts]), level)
        moving = [
            (alike, instruction)
            for cohort, instruction in parts
            if instruction.statement.kind != "barrier"
            for alike in self.alike(cohort, instruction)
        ]
        values: dict[int, Array] = {}
        shapes: dict[int, tuple[int, ...]] = {}
        for cohort, instruction in moving:
            read = self.access(cohort, instruction, instruction.reads[0], False)
            write = self.access(cohort, instruction, self.written(cohort, instruction), True)
            self.agree(group, cohort, instruction, read.shape, write.shape, shapes)
            values |= {int(u): read.one(i).copy() for i, u in enumerate(cohort.units)}
        for cohort, instruction in moving:
            self.finish_collective(group, cohort, instruction, kinds, values)

    def alike(self, cohort: Cohort, instruction: Instruction) -> list[Cohort]:
        """Group the units of a cohort by the shapes of what they read and write (uneven blocks differ)."""
        shapes = [tuple(f(cohort.ints) for f in code.shape) for code in instruction.regions]
        if not any(shapes):
            return [cohort]
        return [cohort.part(chosen) for chosen, _ in alike(shapes, len(cohort))]

    def finish_collective(
        self,
        group: str,
        cohort: Cohort,
        instruction: Instruction,
        kinds: dict[int, tuple[str, str]],
        values: dict[int, Array],
    ) -> None:
        write = self.access(cohort, instruction, self.written(cohort, instruction), True)
        keys, done = self.keys[group], {}
        roots = spread(instruction.functions["root"](cohort.ints), len(cohort))
        for at, unit in enumerate(cohort.units.tolist()):
            key = (int(keys[unit]), int(roots[at]))
            if key not in done:
                kind, reduction = kinds[key[0]]
                members = np.flatnonzero(keys == keys[unit])
                done[key] = (
                    values[int(members[key[1]])]
                    if kind == "broadcast"
                    else reduce_values(reduction, [values[int(m)] for m in members])
                )
            write.one(at)[...] = done[key]
