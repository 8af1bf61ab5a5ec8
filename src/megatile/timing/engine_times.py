"""How long commands keep the engines of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from megatile.core.errors import MissingDescriptionError
from megatile.hda.model import Engine
from megatile.timing.fabric import (
    serialise_ps,
)
from megatile.timing.library_commands import LIBRARY_KERNEL, command_ps
from megatile.timing.memory_layers import MemoryLayers
from megatile.timing.rules import Command, Operands, meeting, operands, rule_of

COPIES = frozenset({"copy", "pad"})

MOVING = ("copy", "fill")
"""Commands that compute nothing."""


@dataclass(frozen=True)
class Dma:
    """The engine that moves data: its start-up, its bandwidth, and how many virtual channels it has."""

    startup_ps: int = 0
    bandwidth: float = float("inf")
    channels: int = 1
    level: str | None = None
    latency_ps: int = 0


class EngineTimes(MemoryLayers):
    """Adds engines: how long a command keeps one, and which are shared."""

    def engines_per_unit(self, engine: Engine) -> int:
        """Return how many engines of this description one unit of the plan commands."""
        level = self.hda.level(engine.level)
        if level.position >= self.level.position:
            return engine.count
        return engine.count * (level.total // self.level.total)

    def reads_extents(self, statement: Any) -> bool:
        """Return whether the rule of a command wants to know the extents of its operands."""
        return statement.operation in self.view.rules

    def compute_ps(
        self,
        statement: Any,
        flops: int,
        unit: int,
        nbytes: int = 0,
        operands: tuple[tuple[int, ...], ...] = (),
    ) -> int:
        """Return how long a command keeps a compute engine; at least 1 ps."""
        if statement.by and (kernel := self.on(statement.by, 0)) is not self:  # its transport's
            return kernel.compute_ps(statement, flops, unit)
        engine = self.engine(statement.engine)
        if engine is None:
            raise MissingDescriptionError(
                f"machine '{self.hda.name}' describes no {statement.engine} engine",
                place=statement.source,
                advice="add one under 'engines' in the machine's file",
            )
        key = id(statement), flops, nbytes if operands else 0
        known = self._durations.get(key)
        if known is None:
            known = self._compute_ps(engine, statement, flops, nbytes, operands)
            self._durations[key] = known
        return self.faults.slower(unit, known) if self.faults.straggler else known

    def _compute_ps(
        self, engine: Engine, statement: Any, flops: int, nbytes: int, operands: tuple[tuple[int, ...], ...]
    ) -> int:
        if statement.operation == LIBRARY_KERNEL:
            return command_ps(self.hda, statement.attributes, statement.source)
        rate = engine.rate(statement.work.dtype)
        if rate is None and engine.kind == "tensor" and statement.work.dtype in ("f32", "f64", "i32", "i64"):
            # Products of wide types that the matrix engine lacks are vector work.
            engine = self.engine("vector") or engine
            rate = engine.rate(statement.work.dtype)
        if rate is None and statement.operation in MOVING:
            rate = float("inf")  # any engine moves any type, as fast as the memories
        if rate is None:
            raise MissingDescriptionError(
                f"engine '{engine.name}' of machine '{self.hda.name}' has no throughput for "
                f"{statement.work.dtype}",
                place=statement.source,
                advice=f"it has {', '.join(sorted(engine.throughput)) or 'none'}",
            )
        rate *= self.engines_per_unit(engine)
        if engine.kind in ("vector", "scalar"):
            rate *= self._clock_under_load
        memory_ps = self._memory_ps(engine, statement, flops) if self.view.roofline else 0
        found = self._operands.get(id(statement))
        extents = found.extents if found else ()
        command = Command(
            statement.operation,
            flops,
            statement.work.dtype,
            engine,
            rate,
            memory_ps,
            extents,
            nbytes,
            operands,
        )
        own = self.view.rules.get(statement.operation)
        return max(1, (own or rule_of(statement.operation))(command))

    @cached_property
    def _clock_under_load(self) -> float:
        """The share of its clock that a unit keeps while the plan's products load the tensor engine: one
        clock drives all engines of a unit."""
        engine = self.engine("tensor")
        if engine is None or engine.kind != "tensor" or not any("tensor" in k for k in self._kinds.values()):
            return 1.0
        return engine.sustained

    def _memory_ps(self, engine: Engine, statement: Any, flops: int) -> int:
        """Return how long the operands of a command take in the memories they lie in."""
        found = self._operands.get(id(statement))
        longest = 0
        # Instances inside a unit copy between its memories; a copy of a whole unit runs at its engine's pace.
        moves = statement.operation in COPIES and bool(self.plan.levels)
        for name in found.bytes if found else ():
            bandwidth = self._operand_bandwidth(name, engine, moves)
            memory = self.hda.memory(name)
            if found and bandwidth is not None:
                moved = found.part(found.fetched, flops) if found.fetched and not memory.banks else 0
                longest = max(longest, serialise_ps(moved or found.scaled(name, flops), bandwidth))
            if found and found.banked and memory.banks:
                longest = max(longest, serialise_ps(found.part(found.banked, flops), self.memory(name)[1]))
            if found and found.atomics and name == found.target and memory.atomic_ps:
                together = self._at_once(memory.level, engine)
                turns = found.part(found.atomics, flops) * meeting(found.addresses, together)
                longest = max(longest, serialise_ps(turns, 1e12 / memory.atomic_ps))
                # Atomics are done where the memory is seen: in the cache in front of it.
                where = next((cache.name for cache in self.caches(name, 0)), name)
                changed = found.part(found.changed, flops) * together
                longest = max(longest, serialise_ps(changed, self.memory(where)[1]))
        return longest

    def keeps_memory(self, statement: Any, flops: int) -> tuple[str, int]:
        """Return the memory that the operands of a command keep longest, of those for which instances
        contend, and how long. Work of a library's kernel takes its transport's time; units of plans without
        levels run beside each other, so that loops of any length need no room."""
        found, engine = self._operands.get(id(statement)), self.engine(statement.engine)
        longest = "", 0
        if found is None or engine is None or not self.view.roofline or statement.by or not self.plan.levels:
            return longest
        for name in found.bytes:
            above = self._operand_bandwidth(name, engine) is not None
            if above and self.memory(name)[2] and not self.hda.memory(name).banks:
                moved = found.part(found.fetched, flops) or found.scaled(name, flops)
                longest = max(longest, (name, serialise_ps(moved, self.memory(name)[1])), key=lambda x: x[1])
        return longest

    @cached_property
    def _operands(self) -> dict[int, Operands]:
        return operands(self.plan)

    def engine_resource(self, kind: str, unit: int, channel: int = 0) -> tuple[str, str, int] | None:
        """Return the shared engine behind a unit's engine, None where the unit has its own; of a DMA engine,
        its virtual ``channel``."""
        one, level = self.engine(kind), self.hda.level(self._engine_level(kind))
        if "." in kind and (one is None or one.name != kind.partition(".")[2]):
            kind = "dma"  # the machine has no engine of that name
        where = self.places[unit] * level.total // self.level.total
        if one is not None and one.shares:
            return ("engine", f"{level.name} {one.shares}", where)
        if level is self.level:
            together = self._crowd(level.name, kind) > 1 if self.plan.levels else self.crowded
            shared = together and kind.partition(".")[0] in ("dma", "tensor", "vector")
        else:
            shared = self._several_inside(level.name)
        name = f"{level.name} {kind} {channel}" if channel else f"{level.name} {kind}"
        return ("engine", name, where) if shared else None

    @cached_property
    def dma(self) -> Dma:
        return self.mover("")

    def mover(self, name: str) -> Dma:
        """Return the DMA engine of a name; the nearest one where the machine has none."""
        engine = next((e for e in self.view.engines if e.name == name), self.engine("dma"))
        if engine is None:
            return Dma()
        bandwidth = engine.bandwidth or float("inf")
        return Dma(
            engine.startup_ps,
            bandwidth * engine.efficiency * self.engines_per_unit(engine),
            max(1, engine.channels),
            engine.level,
            engine.latency_ps,
        )
