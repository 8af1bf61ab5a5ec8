"""The seam between the host and the simulator: what work costs, when it runs, and what it computes.

A launch is timed alone, once per plan, and begins when its devices are free; launches on different devices
overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from megatile.cost.price import lower_bound
from megatile.hda import HDA
from megatile.hda.addresses import DeviceShape
from megatile.plan.execute import execute
from megatile.plan.model import Plan
from megatile.sim.data import reads_scalars
from megatile.sim.result import Result
from megatile.sim.simulate import simulate
from megatile.timing.fabric import serialise_ps
from megatile.timing.view import Timing
from megatile.trace import Trace, TraceBuilder, join_traces


@dataclass
class Timed:
    """A plan and its time when it runs alone."""

    plan: Plan
    result: Result
    machine: HDA
    timing: Timing | None

    @cached_property
    def compute_ps(self) -> int:
        """How long the tensor and vector engines of the busiest unit work."""
        units = zip(self.result.work_ps("tensor"), self.result.work_ps("vector"), strict=True)
        return min(self.result.time_ps, max((a + b for a, b in units), default=0))

    @cached_property
    def bound_ps(self) -> int:
        """What it would take if nothing were shared."""
        return lower_bound(self.plan, self.machine, timing=self.timing)


@dataclass
class Launch:
    """One piece of work on the machine: a plan, or a copy by the host (which has no plan)."""

    name: str
    devices: tuple[int, ...]
    start_ps: int
    end_ps: int
    timed: Timed | None = None
    nbytes: int = 0
    placed: Plan | None = None
    """The plan where it ran, if it was timed at another place like it."""

    def trace(self, machine: HDA) -> Trace:
        """Its events, from its own beginning."""
        if self.timed is None:
            builder = TraceBuilder(machine.name)
            took = self.end_ps - self.start_ps
            unit = f"host/device{self.devices[0]}"
            builder.add(unit=unit, engine="dma", operation=self.name, start_ps=0, end_ps=took)
            return builder.build()
        if self.placed is None:
            return self.timed.result.trace
        return simulate(self.placed, machine=machine, data=False, installed=True, capacity=False).trace


@dataclass
class Engine:
    """One machine and the work that was done on it. ``data=False`` finds out times only."""

    machine: HDA
    data: bool = True
    launches: list[Launch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shape = DeviceShape.of(self.machine)
        self._timed: dict[tuple[int, bool], Timed] = {}
        self._free: dict[int, int] = {}

    def submit(
        self,
        plan: Plan,
        at_ps: int,
        devices: Iterable[int],
        *,
        inputs: Mapping[str, Any] | None = None,
        timing: Timing | None = None,
        installed: bool = True,
        name: str | None = None,
        placed: Plan | None = None,
    ) -> tuple[Launch, Mapping[str, Any] | None]:
        """Run a plan from ``at_ps`` on, as soon as its devices are free; when, and its outputs."""
        timed = self.timed(plan, timing, installed, inputs)
        places = tuple(devices)
        start = max([at_ps, *(self._free.get(d, 0) for d in places)])
        launch = Launch(name or plan.name, places, start, start + timed.result.time_ps, timed, placed=placed)
        self._note(launch)
        outputs = execute(plan, inputs, order=timed.result, races=False) if inputs is not None else None
        return launch, outputs

    def timed(
        self, plan: Plan, timing: Timing | None = None, installed: bool = True, inputs: Any = None
    ) -> Timed:
        """The time of a plan alone; found once, unless it depends on the data."""
        key = (id(plan), installed)
        known = self._timed.get(key)
        if known is not None:
            return known
        decided = reads_scalars(plan)
        result = simulate(
            plan,
            inputs if decided else None,
            machine=self.machine,
            data=False if not decided else None,
            installed=installed,
            timing=timing,
            capacity=False,  # the allocators keep count
        )
        timed = Timed(plan, result, self.machine, timing)
        if not decided:
            self._timed[key] = timed
        return timed

    def host_copy(self, name: str, nbytes: int, pieces: int, at_ps: int, device: int) -> Launch:
        """Bytes over the host's link: its latency, then the bytes or the starts of the DMA engine that puts
        ``pieces`` in their places, whichever takes longer."""
        return self.occupy(name, at_ps, self.host_copy_ps(nbytes, pieces), device, nbytes)

    def occupy(self, name: str, at_ps: int, took_ps: int, device: int, nbytes: int) -> Launch:
        """Work of a known time that is no plan."""
        start = max(at_ps, self._free.get(device, 0))
        launch = Launch(name, (device,), start, start + took_ps, None, nbytes)
        self._note(launch)
        return launch

    def free_ps(self, device: int) -> int:
        """When a device has done all its work."""
        return self._free.get(device, 0)

    def host_copy_ps(self, nbytes: int, pieces: int) -> int:
        control = self.machine.control
        link = control.host_link if control else None
        dma = max((e.startup_ps for e in self.machine.engines if e.kind == "dma"), default=0)
        if link is None:
            return pieces * dma
        return link.latency_ps + max(serialise_ps(nbytes, link.bandwidth), pieces * dma)

    def control_ps(self) -> int:
        """One message of the host to a PE."""
        control = self.machine.control
        if control is None:
            return 0
        link = control.host_link
        wire = link.latency_ps + serialise_ps(control.message, link.bandwidth) if link else 0
        return wire + sum(s.overhead_ps for s in control.launch)

    def _note(self, launch: Launch) -> None:
        for device in launch.devices:
            self._free[device] = max(self._free.get(device, 0), launch.end_ps)
        self.launches.append(launch)

    @property
    def end_ps(self) -> int:
        """When the last work ends."""
        return max((launch.end_ps for launch in self.launches), default=0)

    @property
    def trace(self) -> Trace:
        """Everything on one clock."""
        parts = [(launch.start_ps, launch.trace(self.machine)) for launch in self.launches]
        return join_traces(sorted(parts, key=lambda part: part[0]), self.machine.name)
