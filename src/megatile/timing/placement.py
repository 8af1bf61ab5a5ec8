"""A plan on the units of a machine: which unit stands where, beside whom, and as what it sees the machine."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.quantities import format_bytes, format_rate
from megatile.hda import HDA
from megatile.hda.model import Control, Engine, MemoryLayer, Unit
from megatile.plan import model as pm
from megatile.plan.cohort import spread
from megatile.plan.residency import copies, units_below
from megatile.plan.statements import engine_of, regions_of
from megatile.timing.fabric import (
    LONGEST_COMMAND_PS,
    MAX_UNITS_WITH_SHARED_CACHE,
    Fabric,
    Path,
)
from megatile.timing.faults import FaultError, Faults
from megatile.timing.machine_timing import MachineTiming, Timing, TimingError
from megatile.timing.transports import (
    KERNELS,
    Asked,
    asked_of,
    kernel_view,
)

if TYPE_CHECKING:
    from megatile.timing.resources import Resources


def place_names(hda: HDA, level: str, places: Iterable[int]) -> list[str]:
    """Return units of the hardware by where they are, outermost level first: ``sip0/cube3/pe5``."""
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


@cached_in_owner
def _parts_by_rate(hda: HDA) -> list[Any]:
    """The memories, networks and engines of a machine that have a bandwidth, slowest first."""
    parts: tuple[Any, ...] = (*hda.memories, *hda.networks, *hda.engines)
    return sorted((p for p in parts if p.bandwidth is not None), key=lambda p: p.bandwidth)


class PlacedPlan:
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
                raise FaultError(
                    f"straggler {unit} is not a unit of plan '{plan.name}', which has {plan.units}"
                )
        self.level = hda.level(hda.scale(self.scale).level)
        self.to_begin_ps = hda.scale(self.scale).begin_ps
        self._control = hda.control or Control()
        self.places = self._places()
        self.views: dict[str, Resources] = {} if beside is None else beside.views
        self._by_transport: dict[int, Resources] = {}
        if view is None:
            self.views[plan.level(level).name] = self._whole
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

    @property
    def _whole(self) -> Resources:
        """This object, with all that the other modules add."""
        return cast("Resources", self)

    def _own_view(self, plan: pm.Plan) -> MachineTiming:
        """Return the view of commands that name no transport: the kernel's if the plan is one."""
        if plan.kernel is None or type(self.timing) is not Timing:
            return self.timing.view(self.hda, self.scale)
        largest = max((channel.slot_bytes for channel in plan.channels), default=0)
        asked = asked_of(plan, plan.kernel)
        return kernel_view(self.hda, self.scale, plan.transport(plan.kernel), largest, asked)

    def on(self, transport: str | None, nbytes: int) -> Resources:
        """Return the machine as messages of ``nbytes`` see it that travel on a transport of the plan."""
        if transport is None or type(self.timing) is not Timing:
            return self._whole
        found = self.plan.transport(transport)
        if found.kind not in KERNELS:
            return self._whole
        view = kernel_view(self.hda, self.scale, found, nbytes, self._asked(transport))
        if view is self.view:
            return self._whole
        if id(view) not in self._by_transport:
            level = next(name for name, seen in self.views.items() if seen is self)
            within = level if self.plan.levels else None
            self._by_transport[id(view)] = type(self._whole)(
                self.hda, self.plan, self.faults, level=within, beside=self._whole, view=view, **self._how
            )
        return self._by_transport[id(view)]

    @cached_in_owner
    def _asked(self, transport: str) -> Asked:
        return asked_of(self.plan, transport)

    def on_channel(self, channel: pm.Channel) -> Resources:
        """Return the machine as the messages of a channel see it."""
        return self.on(channel.transport, channel.slot_bytes)

    def _by_kernel(self, transport: str) -> bool:
        """Return whether a library's kernel sends, which has its queues before any launch."""
        return self.plan.transport(transport).kind in ("kernel", "switch")

    def _check_rates(self) -> None:
        """Refuse a rate so low that moving a tile takes longer than the engine can count."""
        largest = max((tile.nbytes for tile in self.plan.tiles), default=0)
        for part in _parts_by_rate(self.hda)[:1]:  # the slowest
            if largest * 1e12 > LONGEST_COMMAND_PS // 2 * part.bandwidth:
                rate = f"{format_rate(part.bandwidth)} of '{part.name}'"
                raise TimingError(
                    f"{format_bytes(largest)} at the {rate} take over 6 days, the limit for one command",
                    advice="use a faster machine or smaller tiles",
                )

    def of(self, level: str) -> Resources:
        """Return the machine as a level of the plan sees it."""
        if level not in self.views:
            type(self._whole)(self.hda, self.plan, self.faults, level=level, beside=self._whole, **self._how)
        return self.views[level]

    @property
    def _how(self) -> dict[str, Any]:
        """Return the launch settings, the same for the views of all levels."""
        return {
            "installed": self.installed, "begin_ps": self.begin_ps, "timing": self.timing,
            "control": self.control,
        }  # fmt: skip

    @cached_property
    def _resident(self) -> dict[str, tuple[Any, Any]]:
        """Of a plan with several levels: the hardware units on which instances with streams may stand, and
        how many at a time."""
        found = dict(copies(self.plan, self.hda))
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

    @cached_in_owner
    def engine(self, kind: str) -> Engine | None:
        """Return the engine of a kind nearest to the plan's scale (a vector engine also does scalar work)."""
        plain, _, name = kind.partition(".")
        named = [e for e in self.view.engines if e.name == name]
        found = named or [e for e in self.view.engines if e.kind == plain]
        if kind == "vector" and not found:
            found = [e for e in self.view.engines if e.kind in ("scalar", "tensor")]
        here = self.level.position
        return min(found, key=lambda e: abs(self.hda.level(e.level).position - here), default=None)

    def _engine_level(self, kind: str) -> str:
        """Return where the engine is that a unit commands, or all of those inside it."""
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
        """Return the hardware unit of every unit; in a plan with several levels units are hardware units."""
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
    def spots(self) -> Any:
        """`places` as an array."""
        return np.asarray(self.places, dtype=np.int64)

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

    def _several_inside(self, level: str) -> bool:
        """Return whether several units, of this plan or of other launches, may stand in one unit of
        ``level``."""
        if self.hda.level(level).total < self.level.total:
            return True
        return bool(self.plan.levels) and self._crowd(level) > 1

    @cached_property
    def _contended_slices(self) -> frozenset[str]:
        """Return the memories with one slice per unit that other units' commands access too."""
        if not any(map(self._is_sliced, self.hda.memories)):
            return frozenset()
        where = {tile.name: tile.memory for tile in self.plan.tiles}
        bodies = [s for stream in self.plan.streams for s in pm.statements(stream.body)]
        named = {where[r.tile] for s in bodies for r in regions_of(s) if r.at is not None and r.tile in where}
        layers = {self.hda.memory(name) for name in named}
        return frozenset(layer.name for layer in layers if self._is_sliced(layer))

    def _is_sliced(self, layer: MemoryLayer) -> bool:
        """Return whether every unit has its own slice of the layer's memory."""
        return layer.slices >= self.level.total // self.hda.level(layer.level).total > 1
