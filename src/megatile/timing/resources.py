"""What a Plan costs on an HDA: engines, memories and paths through the fabric, as resources and times.

Everything is integer picoseconds. A *resource* is whatever only one transfer or command can use at a
time (a link, a port of a switch, a memory that several units share, an engine that several units
share).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.errors import MissingDescriptionError, RouteError
from megatile.core.quantities import format_bytes, format_rate
from megatile.hda import HDA
from megatile.hda.model import Control, Engine, MemoryLayer, Unit
from megatile.plan import model as pm
from megatile.plan.cohort import spread
from megatile.plan.residency import copies, units_below
from megatile.plan.statements import engine_of, regions_of
from megatile.timing.caches import Cache, brick, chain, extents
from megatile.timing.fabric import (
    LONGEST_COMMAND_PS,
    MAX_UNITS_WITH_SHARED_CACHE,
    Alike,
    Fabric,
    Path,
    Stage,
    equal,
    serialise_ps,
)
from megatile.timing.faults import FaultError, Faults
from megatile.timing.library_commands import LIBRARY_KERNEL, command_ps
from megatile.timing.machine_timing import MachineTiming, Timing, TimingError
from megatile.timing.origins import Origin, origins
from megatile.timing.rules import Command, Operands, operands, rule_of
from megatile.timing.transports import (
    KERNELS,
    Asked,
    asked_of,
    channels_taken,
    head_cost,
    kernel_view,
    launch_floor_ps,
)

COPIES = frozenset({"copy", "pad"})
PORTS = 16
"""Links of a unit are numbered from a multiple of this on in each network."""


@dataclass(frozen=True)
class Dma:
    """The engine that moves data: its start-up, its bandwidth, and how many virtual channels it has."""

    startup_ps: int = 0
    bandwidth: float = float("inf")
    channels: int = 1
    level: str | None = None
    latency_ps: int = 0


def place_names(hda: HDA, level: str, places: Iterable[int]) -> list[str]:
    """Units of the hardware by where they are, outermost level first: ``sip0/cube3/pe5``."""
    own = hda.level(level)
    chain = [lv for lv in reversed(hda.levels) if lv.position >= own.position and lv.total > 1] or [own]
    names = []
    for place in places:
        parts, above = [], 1
        for lv in chain:
            index = place * lv.total // own.total
            parts.append(f"{lv.name}{index % (lv.total // above)}")
            above = lv.total
        names.append("/".join(parts))
    return names


def host_link_ps(control: Control) -> int:
    link = control.host_link
    return 0 if link is None else serialise_ps(control.message, link.bandwidth)


def control_ps(hda: HDA, position: int = 0) -> int:
    """One message of the host: over its link and every station down to the level at a position."""
    control = hda.control or Control()
    wire = host_link_ps(control) + (control.host_link.latency_ps if control.host_link else 0)
    return wire + sum(s.overhead_ps for s in control.launch if hda.level(s.level).position >= position)


class Resources:
    """An HDA as one plan sees it; ``timing`` says who does the work (the machine's own engines, if nothing
    is said), ``installed`` that its queues are there from an earlier launch, ``begin_ps`` what goes before
    the plan's start on every unit, ``control`` that the host launches it."""

    def __init__(
        self,
        hda: HDA,
        plan: pm.Plan,
        faults: Faults | None = None,
        *,
        installed: bool = False,
        begin_ps: int = 0,
        timing: Timing | None = None,
        level: str | None = None,
        beside: Resources | None = None,
        view: MachineTiming | None = None,
        control: bool = True,
    ) -> None:
        self.hda = hda
        self.timing = timing or Timing()
        self.scale = plan.level(level).scale
        self.view = self._own_view(plan) if view is None else view
        self.begin_ps, self.control = begin_ps, control
        self.plan = plan
        self.installed = installed
        self.faults = faults or Faults()
        for unit, _ in self.faults.straggler:
            if unit >= plan.units:
                raise FaultError(f"straggler {unit} is no unit of plan '{plan.name}', which has {plan.units}")
        self.level = hda.level(hda.scale(self.scale).level)
        self.to_begin_ps = hda.scale(self.scale).begin_ps
        self._control = hda.control or Control()
        self.places = self._places()
        self.views: dict[str, Resources] = {} if beside is None else beside.views
        self._by_transport: dict[int, Resources] = {}
        if view is None:
            self.views[plan.level(level).name] = self
        count = MAX_UNITS_WITH_SHARED_CACHE + 1 if plan.levels else plan.units
        shared = beside if beside and view is None else None
        self.fabric: Fabric = shared.fabric if shared else Fabric.between(hda, self.faults, self.view, count)
        known = self.fabric.known.setdefault((self.level.name, level, self._contended_slices), {})
        self._paths: dict[tuple[Any, ...], Path] = known.setdefault("paths", {})
        self._messages: dict[tuple[int, int, int], int] = known.setdefault("messages", {})
        self._ports: dict[tuple[int, int], int | None] = known.setdefault("ports", {})
        self._pairs: dict[tuple[Any, ...], Any] = known.setdefault("pairs", {})
        self._durations: dict[tuple[int, int, int], int] = {}
        if beside is None:
            self._check_rates()

    def _own_view(self, plan: pm.Plan) -> MachineTiming:
        """The view of commands that name no transport: the kernel's if the plan is one."""
        if plan.kernel is None or type(self.timing) is not Timing:
            return self.timing.view(self.hda, self.scale)
        largest = max((channel.slot_bytes for channel in plan.channels), default=0)
        asked = asked_of(plan, plan.kernel)
        return kernel_view(self.hda, self.scale, plan.transport(plan.kernel), largest, asked)

    def on(self, transport: str | None, nbytes: int) -> Resources:
        """The machine as messages of ``nbytes`` see it that travel on a transport of the plan."""
        if transport is None or type(self.timing) is not Timing:
            return self
        found = self.plan.transport(transport)
        if found.kind not in KERNELS:
            return self
        view = kernel_view(self.hda, self.scale, found, nbytes, self._asked(transport))
        if view is self.view:
            return self
        if id(view) not in self._by_transport:
            level = next(name for name, seen in self.views.items() if seen is self)
            made = Resources(
                self.hda, self.plan, self.faults, level=level if self.plan.levels else None, beside=self,
                view=view, **self._how,
            )  # fmt: skip
            self._by_transport[id(view)] = made
        return self._by_transport[id(view)]

    @cached_in_owner
    def _asked(self, transport: str) -> Asked:
        return asked_of(self.plan, transport)

    def on_channel(self, channel: pm.Channel) -> Resources:
        """The machine as the messages of a channel see it."""
        return self.on(channel.transport, channel.slot_bytes)

    @cached_property
    def message_queues(self) -> int:
        """How many queues for copies and messages a unit has, of its DMA engine or of kernels that send."""
        mine = [c for c in self.plan.channels if self.views.get(self.plan.level(c.level).name) is self]
        return max([self.dma.channels, *(self.on_channel(c).dma.channels for c in mine)])

    def _check_rates(self) -> None:
        """Refuse a rate so low that moving a tile takes longer than the engine can count."""
        largest = max((tile.nbytes for tile in self.plan.tiles), default=0)
        parts: tuple[Any, ...] = (*self.hda.memories, *self.hda.networks, *self.hda.engines)
        for part in parts:
            if part.bandwidth is not None and largest * 1e12 > LONGEST_COMMAND_PS // 2 * part.bandwidth:
                rate = f"{format_rate(part.bandwidth)} of '{part.name}'"
                raise TimingError(
                    f"{format_bytes(largest)} at the {rate} take over 6 days, the most for one command",
                    advice="use a faster machine or smaller tiles",
                )

    def of(self, level: str) -> Resources:
        """The machine as a level of the plan sees it."""
        if level not in self.views:
            Resources(self.hda, self.plan, self.faults, level=level, beside=self, **self._how)
        return self.views[level]

    @property
    def _how(self) -> dict[str, Any]:
        """How the plan is launched, alike for all that sees its machine."""
        return {
            "installed": self.installed, "begin_ps": self.begin_ps, "timing": self.timing,
            "control": self.control,
        }  # fmt: skip

    @cached_property
    def _resident(self) -> dict[str, tuple[Any, Any]]:
        """Of a plan with several levels: the hardware units on which instances with streams may stand, and
        how many at a time."""
        found = copies(self.plan, self.hda)
        busy = {self.plan.level(stream.level).name for stream in self.plan.streams}
        first, part = self.plan.all_levels[0].name, dict[str, tuple[int, int]]()
        for level in self.plan.levels:  # of slots, every unit takes one before any takes two
            if level.slots is not None and level.parent == first:
                crowd = int(np.max(np.bincount(found[first][0]), initial=1))
                turns = -(-level.count * crowd // units_below(self.hda, level, self.plan))
                part[level.name] = level.slots, min(level.slots, turns)
            elif level.slots is None and level.parent in part:
                part[level.name] = part[level.parent]
            if level.name in part:
                places, times = found[level.name]
                found[level.name] = places, times // part[level.name][0] * part[level.name][1]
        return {name: where for name, where in found.items() if name in busy}

    @cached_in_owner
    def _crowd(self, level: str, kind: str | None = None) -> int:
        """Of a plan with several levels: how many instances stand in one unit of a level, at most; with
        ``kind`` only those that use the engine of that kind which is there."""
        unit, crowds = self.hda.level(level), []
        for name, (places, times) in self._resident.items():
            view = self.of(name)
            there = view.level.position <= unit.position
            if kind is not None:
                there = kind in self._kinds[name] and view._engine_level(kind) == level
            if there:
                crowds.append(np.bincount(places * unit.total // view.level.total, times, unit.total))
        return int(max(np.sum(crowds, axis=0))) if crowds else 0

    def _engine_level(self, kind: str) -> str:
        """Where the engine is that a unit commands, or all of those inside it."""
        engine = self.engine(kind)
        level = self.hda.level(engine.level) if engine else self.level
        return max(level, self.level, key=lambda lv: lv.position).name

    @cached_property
    def _kinds(self) -> dict[str, set[str]]:
        """The engines that the streams of each level use."""
        found: dict[str, set[str]] = {level.name: set() for level in self.plan.all_levels}
        for stream in self.plan.streams:
            for s in pm.statements(stream.body):
                kind = engine_of(s) if isinstance(s, pm.Compute) else "dma"
                if isinstance(s, (pm.Compute, pm.Send)) or getattr(s, "into", None) is not None:
                    found[self.plan.level(stream.level).name].add(kind)
        return found

    def _places(self) -> Any:
        """The hardware unit of every unit; in a plan with several levels units are hardware units."""
        if self.plan.levels:
            copies(self.plan, self.hda)
            return range(self.level.total)
        units = np.arange(self.plan.units, dtype=np.int64)
        places = spread(self.plan.place.evaluate({"unit": units}), len(units)).tolist()
        if places and (min(places) < 0 or max(places) >= self.level.total):
            raise TimingError(
                f"plan '{self.plan.name}' needs {self.plan.units} units of '{self.plan.scale}', "
                f"machine '{self.hda.name}' has {self.level.total}",
                advice="use a larger machine, or fewer units",
            )
        return places

    @cached_property
    def crowded(self) -> bool:
        """Whether two units of the plan stand on one unit of the hardware and so share its engines."""
        if self.plan.levels:
            return False
        return len(set(self.places)) < len(self.places)

    def hardware(self, unit: int) -> Unit:
        return Unit(self.level.name, self.places[unit])

    @cached_property
    def names(self) -> list[str]:
        """Where each unit stands, outermost level first: ``sip0/cube3/pe5``."""
        names = place_names(self.hda, self.level.name, self.places)
        return [f"{name}#{unit}" for unit, name in enumerate(names)] if self.crowded else names

    # engines

    @cached_in_owner
    def engine(self, kind: str) -> Engine | None:
        """The engine of a kind nearest to the plan's scale (a vector engine also does scalar work)."""
        plain, _, name = kind.partition(".")
        named = [e for e in self.view.engines if e.name == name]
        found = named or [e for e in self.view.engines if e.kind == plain]
        if kind == "vector" and not found:
            found = [e for e in self.view.engines if e.kind in ("scalar", "tensor")]
        here = self.level.position
        return min(found, key=lambda e: abs(self.hda.level(e.level).position - here), default=None)

    def engines_per_unit(self, engine: Engine) -> int:
        """How many engines of this description one unit of the plan commands."""
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
        """How long a command keeps a compute engine; at least 1 ps."""
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
        """How long the operands of a command take in the memories they lie in."""
        found = self._operands.get(id(statement))
        longest = 0
        # Instances inside a unit copy between its memories; a copy of a whole unit runs at its engine's pace.
        moves = statement.operation in COPIES and bool(self.plan.levels)
        for name in found.bytes if found else ():
            bandwidth = self._operand_bandwidth(name, engine, moves)
            if found and bandwidth is not None:
                longest = max(longest, serialise_ps(found.scaled(name, flops), bandwidth))
            if found and found.banked and self.hda.memory(name).banks:
                banked = found.banked * (flops / found.flops if found.flops else 1)
                longest = max(longest, serialise_ps(banked, self.memory(name)[1]))
        return longest

    @cached_property
    def _operands(self) -> dict[int, Operands]:
        return operands(self.plan)

    def _operand_bandwidth(self, name: str, engine: Engine, moves: bool = False) -> float | None:
        """What a unit has of a memory for its operands: all of it, or an even part where units of the plan
        share it. None: the memory is as fast as the engine, which then does more than move (``moves``)."""
        layer, bandwidth, contended = self.memory(name)
        above = self.hda.level(layer.level).position > self.hda.level(engine.level).position
        if not (moves or above if layer.roofline is None else layer.roofline):
            return None
        return bandwidth / self._sharers(layer.level) if contended else bandwidth

    def _sharers(self, level: str) -> int:
        """How many units of the plan stand in one unit of a level, at most; the units of the first level do
        not share with the instances inside them."""
        total = self.hda.level(level).total
        if self.plan.levels and self.views[self.plan.level(None).name] is not self:
            return max(1, self._crowd(level))
        return max(Counter(place * total // self.level.total for place in self.places).values(), default=1)

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
        """The DMA engine of a name; the nearest one where the machine has none."""
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

    def virtual_channel(self, channel: str | None, unit: int | None = None, peer: int | None = None) -> int:
        """Loads and stores use virtual channel 0. Messages share the others by the link they leave through,
        so that those of one link keep their order and those of different links run side by side as far as
        there are channels; where there is no link, the plan's channels take turns.
        """
        others = self.dma.channels - 1
        if channel is None or others < 2:
            return 0 if channel is None else others
        port = None
        if unit is not None and peer is not None:
            key = self.places[unit], self.places[peer]
            if key not in self._ports:
                self._ports[key] = self.port(unit, peer)
            port = self._ports[key]
        if port is None:
            port = next(i for i, c in enumerate(self.plan.channels) if c.name == channel)
        return 1 + port % others

    def port(self, unit: int, peer: int) -> int | None:
        """Through which of its links a unit reaches a peer: a number that is alike for units placed alike."""
        try:
            legs = self.hda.route(self.hardware(unit), self.hardware(peer)).legs
        except (RouteError, MissingDescriptionError):
            return None
        if not legs:
            return None
        network, run = legs[0].network, legs[0].runs[0]
        place = next(i for i, n in enumerate(self.hda.networks) if n.name == network.name)
        if run.axis == "direct":
            side = (run.step - run.start) % network.topology.size
        elif run.axis == "path":
            first = network.topology.ends(next(iter(network.topology.links(run))))[1]
            side = [str(near) for near in network.topology.neighbors(run.start)].index(first)
        else:
            side = 2 * "xyz".find(run.axis) + (run.step > 0) if run.axis in "xyz" else 0
        return PORTS * place + side

    def origins(self) -> dict[str, Origin]:
        """By class of commands (``gemm on tensor``, ``copies``, ``messages``, ``launch``), where their times
        come from."""
        return origins(self)

    # memories

    def _several_inside(self, level: str) -> bool:
        """Whether several units, of this plan or of other launches, may stand in one unit of ``level``."""
        if self.hda.level(level).total < self.level.total:
            return True
        return bool(self.plan.levels) and self._crowd(level) > 1

    @cached_in_owner
    def memory(self, name: str) -> tuple[MemoryLayer, float, bool]:
        """A memory layer, the bandwidth one unit sees, and whether several units contend for it."""
        layer = self.hda.memory(name)
        level = self.hda.level(layer.level)
        bandwidth, contended = layer.effective_bandwidth, False
        if level.position < self.level.position:
            bandwidth *= level.total // self.level.total
        elif level.position > self.level.position:
            inside = self.level.total // level.total
            if not layer.shared or self._is_sliced(layer):
                bandwidth /= inside
            else:
                contended = self._several_inside(level.name)
        elif self.plan.levels and layer.shared and layer.slices == 1:
            contended = self._several_inside(level.name)
        return layer, bandwidth, contended

    @cached_property
    def _contended_slices(self) -> frozenset[str]:
        """Memories of which every unit has a slice that commands of other units name too."""
        if not any(map(self._is_sliced, self.hda.memories)):
            return frozenset()
        where = {tile.name: tile.memory for tile in self.plan.tiles}
        bodies = [s for stream in self.plan.streams for s in pm.statements(stream.body)]
        named = {where[r.tile] for s in bodies for r in regions_of(s) if r.at is not None and r.tile in where}
        layers = {self.hda.memory(name) for name in named}
        return frozenset(layer.name for layer in layers if self._is_sliced(layer))

    def _is_sliced(self, layer: MemoryLayer) -> bool:
        """Whether every unit has its own slice of the layer's memory."""
        return layer.slices >= self.level.total // self.hda.level(layer.level).total > 1

    def _memory_stage(self, name: str, unit: int, shared: bool = False) -> Stage:
        layer, bandwidth, contended = self.memory(name)
        key: tuple[str, str, int] | None = None
        if contended or layer.cache or shared:
            key = ("memory", layer.name, self._instance(name, unit))
        elif layer.name in self._contended_slices:
            key = ("memory", f"{layer.name} slice", self.places[unit])
        latency_ps = 0 if layer.name in self.view.counted else layer.latency_ps
        return Stage(key, latency_ps, bandwidth)

    def _memory_stages(self, name: str, unit: int) -> list[Stage]:
        """The memory itself, and what one unit alone gets of it."""
        alone, stage = self.memory(name)[0].unit_bandwidth, self._memory_stage(name, unit)
        return [stage] if alone is None else [stage, Stage(None, 0, alone)]

    def _instance(self, name: str, unit: int) -> int:
        """The number of the memory that a unit sees, among those of the layer's level."""
        return self.places[unit] * self.hda.level(self.memory(name)[0].level).total // self.level.total

    def _together(self, unit: int, peer: int, *names: str) -> bool:
        """Whether one of these memories is a single one for both units: each reaches it by itself."""
        single = [name for name in names if self._is_single(self.memory(name)[0])]
        return any(self._instance(name, unit) == self._instance(name, peer) for name in single)

    def _is_single(self, layer: MemoryLayer) -> bool:
        """Whether several units have one memory of the layer, and not a slice each."""
        inside = self.level.total // self.hda.level(layer.level).total
        return inside > 1 and layer.shared and layer.slices < inside

    # paths

    def path(
        self,
        unit: int,
        memory: str,
        peer: int,
        peer_memory: str,
        chunk: int | None = None,
        same: bool | None = None,
        caches: bool = False,
        by: str = "",
    ) -> Path:
        """The path of a transfer out of one unit's memory into another's (or its own: ``same``); ``caches``:
        through the caches in front of memories that the unit reaches by itself; ``by``: a DMA engine.

        A memory that both units share is reached by each through its own port, not through the other.
        ``chunk``: bytes after which others may go first on shared links, besides the links' own granules.
        """
        same = unit == peer if same is None else same
        apart = self.places[unit] != self.places[peer]
        caches = caches and not apart
        key = (self.places[unit], memory, self.places[peer], peer_memory, chunk, same, caches, by)
        if key not in self._paths:
            read, write = ((self.caches(name, unit) if caches else ()) for name in (memory, peer_memory))
            stages = self._memory_stages(read[0].name if read else memory, unit)
            if apart and not self._together(unit, peer, memory, peer_memory):
                stages += self.fabric.stages(self.hardware(unit), self.hardware(peer))
            if not (memory == peer_memory and same):
                # What caches take is taken at the last stage.
                stages += reversed(self._memory_stages(write[0].name if write else peer_memory, peer))
            self._paths[key] = made = self._made(tuple(stages), chunk, by)
            made.reads, made.writes, made.memories = read, write, (memory, peer_memory)
        return self._paths[key]

    def paths(
        self,
        units: Any,
        memory: str,
        peers: Any,
        peer_memory: str,
        chunk: int | None = None,
        same: bool | None = None,
        caches: bool = False,
        by: str = "",
    ) -> list[tuple[Path, Alike]]:
        """The paths of many transfers at once (arrays of units), in groups that are alike: the path of the
        first of each."""
        how = (memory, peer_memory, chunk, same, caches, by)
        found: list[tuple[Path, Alike]] = self._of_all(
            ("paths", *how), units, peers, lambda: [*self._groups(units, peers, *how)]
        )
        return found

    def _of_all(self, what: tuple[Any, ...], units: Any, peers: Any, find: Callable[[], Any]) -> Any:
        """Something about many pairs of units; of few, plans that see the machine alike find it out once."""
        if len(units) > MAX_UNITS_WITH_SHARED_CACHE:
            return find()
        ends = self.spots[units], self.spots[peers], units == peers
        key = (*what, *(each.tobytes() for each in ends))
        if key not in self._pairs:
            found = find()
            if len(self._pairs) > MAX_UNITS_WITH_SHARED_CACHE:
                self._pairs.clear()
            self._pairs[key] = found
        return self._pairs[key]

    def _groups(
        self, units: Any, peers: Any, memory: str, peer_memory: str, chunk: Any, same: Any, *how: Any
    ) -> Iterator[tuple[Path, Alike]]:
        key = np.zeros(len(units), dtype=np.int64) if same is not None else (units == peers).astype(np.int64)
        for name, ends in ((memory, units), (peer_memory, peers)):
            for total in self._told_apart(name):
                which = self.spots[ends] * total // self.level.total
                key = np.unique(key * total + which, return_inverse=True)[1]
        for group in self.fabric.alike(self.level.name, self.spots[units], self.spots[peers]):
            for part in equal(key[group.pairs]):
                pairs, shifts = group.pairs[part], group.shifts[part] - group.shifts[part[0]]
                ends = int(units[pairs[0]]), int(peers[pairs[0]])
                path = self.path(ends[0], memory, ends[1], peer_memory, chunk, same, *how)
                yield path, Alike(group.network, pairs, shifts)

    def _told_apart(self, memory: str) -> tuple[int, ...]:
        """How many there are of the layers on the path to a memory of which it matters which one it is."""
        layer, _, contended = self.memory(memory)
        between = chain(self.hda, memory, self.level.position)
        if layer.name in self._contended_slices:
            return (self.level.total,)
        apart = contended or self._is_single(layer) or layer.cache or between
        return tuple(self.hda.level(each.level).total for each in (*between, layer)) if apart else ()

    @cached_property
    def spots(self) -> Any:
        """`places` as an array."""
        return np.asarray(self.places, dtype=np.int64)

    def caches(self, memory: str, unit: int) -> tuple[Cache, ...]:
        """The caches between a unit and a memory, the nearest first."""
        layers = chain(self.hda, memory, self.level.position)
        found = []
        for layer, behind in pairwise((*layers, self.hda.memory(memory))):
            stage = self._memory_stage(behind.name, unit, shared=True)
            if layer.fill is not None:
                stage = stage._replace(bandwidth=layer.fill)
            blocks = layer.size // (layer.block or layer.size)
            write_back = layer.write == "write_back"
            where = self._instance(layer.name, unit)
            found.append(Cache(layer.name, where, behind.name, blocks, write_back, stage))
        return tuple(found)

    def private(self, memory: str) -> bool:
        """Whether units have nothing in common on the path to a memory: paths are alike for all of them."""
        layer, _, contended = self.memory(memory)
        shared = contended or layer.name in self._contended_slices
        return not shared and not chain(self.hda, memory, self.level.position)

    def bricks(self, memory: str) -> dict[str, tuple[int, ...]]:
        """The shape of the blocks in which caches hold the tiles of a memory; none where it has no caches."""
        layers = chain(self.hda, memory, self.level.position)
        size = layers[0].block if layers else None
        if size is None:
            return {}
        least = extents(self.plan)
        tiles = [t for t in self.plan.tiles if self.hda.memory(t.memory) is self.hda.memory(memory)]
        return {tile.name: brick(tile, least[tile.name], size) for tile in tiles}

    def _made(self, stages: tuple[Stage, ...], chunk: int | None, by: str = "") -> Path:
        dma = self.mover(by) if by else self.dma
        if dma.latency_ps:  # at the end: it holds up nobody else
            last = stages[-1]
            stages = (*stages[:-1], last._replace(latency_ps=last.latency_ps + dma.latency_ps))
        made = Path(stages, dma.startup_ps, dma.bandwidth)
        if chunk is not None:
            made.granule = min(chunk, made.granule or chunk)
        return made

    def credit_ps(self, receiver: int, sender: int, channel: pm.Channel) -> int:
        """How long a returned credit travels: latency of the path back and its own bytes."""
        return self.on_channel(channel).message_ps(receiver, sender, self.credit_bytes(channel))

    def credit_bytes(self, channel: pm.Channel) -> int:
        if channel.credit_bytes is not None:
            return channel.credit_bytes
        return next((q.credit for q in self.hda.channels if q.credit), self._control.credit)

    def signal_ps(self, unit: int, peer: int) -> int:
        """How long a signal travels to a flag of another unit."""
        return self.message_ps(unit, peer, self._control.signal)

    def messages_ps(self, units: Any, peers: Any, size: int | None = None) -> Any:
        """How long many control messages take at once; signals where no size is given."""
        size = self._control.signal if size is None else size
        one = partial(self.message_ps, size=size)
        return self._of_all(("messages", size), units, peers, lambda: self._each(units, peers, one, True))

    def _each(self, units: Any, peers: Any, one: Callable[[int, int], int], lengths: bool = False) -> Any:
        """A number of every pair, which is that of the first of its group."""
        found = np.empty(len(units), dtype=np.int64)
        for group in self.fabric.alike(self.level.name, self.spots[units], self.spots[peers], lengths):
            found[group.pairs] = one(int(units[group.pairs[0]]), int(peers[group.pairs[0]]))
        return found

    def virtual_channels(self, channel: str, units: Any, peers: Any) -> Any:
        """`virtual_channel` of many messages at once."""
        if self.dma.channels < 3:
            return np.full(len(units), self.virtual_channel(channel))
        one = partial(self.virtual_channel, channel)
        what = ("lanes", next(i for i, c in enumerate(self.plan.channels) if c.name == channel))
        return self._of_all(what, units, peers, lambda: self._each(units, peers, one))

    def message_ps(self, unit: int, peer: int, size: int) -> int:
        """A small control message between units; it does not contend for links. At least 1 ps."""
        key = (self.places[unit], self.places[peer], size)
        known = self._messages.get(key)
        if known is None:
            known = self._messages[key] = self._message_ps(unit, peer, size)
        return known

    def _message_ps(self, unit: int, peer: int, size: int) -> int:
        if self.places[unit] == self.places[peer]:
            return 1
        latency, slowest = self._wires(unit, peer)
        return max(1, latency + serialise_ps(size, slowest))

    def start_ps(self, unit: int) -> int:
        """When a unit starts: the launch has travelled the control path, after the install of its queues."""
        own = [c for c in self.plan.channels if c.transport is None or not self._by_kernel(c.transport)]
        return self.begin_ps + self.control_ps() * (2 if own and not self.installed else 1)

    def _by_kernel(self, transport: str) -> bool:
        """Whether a library's kernel sends, which has its queues before any launch."""
        return self.plan.transport(transport).kind in ("kernel", "switch")

    def host_link_ps(self) -> int:
        """How long a message of the host occupies its link: the next one follows."""
        return host_link_ps(self._control) if self.view.control and self.control else 0

    def control_ps(self) -> int:
        """One message of the host to a unit."""
        return control_ps(self.hda, self.level.position) if self.view.control and self.control else 0

    def whole_ps(self, messages_ps: int, launch: bool = True) -> int:
        """The time of the plan whose commands take so long. Collectives follow one another; the host's
        launch runs beside the one before, so it shows only where it is the longer of the two."""
        kernel = self.plan.kernel if launch else None
        least = 0 if kernel is None else launch_floor_ps(self.hda, self.plan.transport(kernel), self.scale)
        return max(least, messages_ps)

    def head_ps(self, statement: pm.Start, nbytes: int) -> int:
        """How long a rank is held up while the kernel of a collective starts."""
        transport = self.plan.transport(statement.transport)
        return head_cost(self.hda, transport, statement.collective, statement.ranks, nbytes, self.scale)

    def kernel_units(self, statement: pm.Start) -> int:
        """How many compute units of a device the kernel of a collective takes: one for each channel."""
        scales = {scale.name for scale in self.hda.scales}
        if "block" not in scales or not self._by_kernel(statement.transport):
            return 0
        taken = channels_taken(self.hda, self.plan.transport(statement.transport), self.scale)
        every = self.hda.level(self.hda.scale("block").level).total // self.hda.level("device").total
        return min(taken, every - 1)

    def collective_ps(self, statement: pm.Collective, members: tuple[int, ...], nbytes: int) -> int:
        """What a barrier, or a reduction or broadcast done by the network itself, adds for a group."""
        if len(members) == 1:
            return 1
        group = next(group for group in self.plan.groups if group.name == statement.group)
        away, widest = self.on(group.transport, nbytes)._reach(statement.group, members)
        if statement.kind == "barrier":
            return 2 * away
        if statement.kind == "all_reduce":
            self._check_reduction(statement, members)
        return (2 if statement.kind == "all_reduce" else 1) * away + serialise_ps(nbytes, widest)

    @cached_in_owner
    def _reach(self, group: str, members: tuple[int, ...]) -> tuple[int, float]:
        """The longest latency from a group's first member to the others, and the least bandwidth."""
        others = np.array(members[1:], dtype=np.int64)
        root = np.full(len(others), members[0])
        routes = self.fabric.alike(self.level.name, self.spots[root], self.spots[others], lengths=True)
        far = [group for group in routes if group.network is not None][-1:]
        routes = far + [group for group in routes if group.network is None]
        ends = [(members[0], int(others[group.pairs[0]])) for group in routes]
        away = max(self.message_ps(*pair, 0) for pair in ends)
        return away, min(self._wires(*pair)[1] for pair in ends)

    def _wires(self, unit: int, peer: int) -> tuple[int, float]:
        """The latency between two units, and the least bandwidth."""
        stages = self.fabric.stages(self.hardware(unit), self.hardware(peer))
        slowest = min((s.bandwidth for s in stages), default=float("inf"))
        return sum(s.latency_ps for s in stages), slowest

    def _check_reduction(self, statement: pm.Collective, members: tuple[int, ...]) -> None:
        route = self.hda.route(self.hardware(members[0]), self.hardware(members[-1]))
        for leg in route.legs:
            if statement.reduction not in leg.network.in_network_reduction:
                able = ", ".join(leg.network.in_network_reduction) or "nothing"
                raise TimingError(
                    f"network '{leg.network.name}' of machine '{self.hda.name}' does not reduce "
                    f"'{statement.reduction}' by itself (it reduces {able})",
                    place=statement.source,
                    advice="use a collective algorithm, or another machine",
                )
