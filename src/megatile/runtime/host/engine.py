"""The seam between the host and the simulator: what work costs, when it runs, and what it computes.

Kernels and copies of one device take turns, in the order in which they were submitted; collectives go on
beside them. Work that overlaps in time on the same devices is simulated together, so it shares links,
memories and engines; work that does not is timed once per plan. When something ends is found out when
somebody asks: by then everything that was submitted is taken into account, and what is submitted later does
not change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from megatile.cost.price import lower_bound
from megatile.hda import HDA
from megatile.hda.addresses import DeviceShape
from megatile.plan.execute import execute
from megatile.plan.model import Plan, ReadScalar
from megatile.runtime.host.oplog import Binding, OpLog
from megatile.sim import Launch as SessionLaunch, Result, Session, simulate
from megatile.sim.result import wants_communication_trace
from megatile.sim.simulation import MAX_RECORDS
from megatile.timing.fabric import serialise_ps
from megatile.timing.faults import current_faults
from megatile.timing.resources import Resources, control_ps
from megatile.trace import Trace, TraceBuilder, join_traces

MOST_TOGETHER = 16
"""Launches that are simulated together; of more, the last ones."""


@dataclass
class Timed:
    """A plan and its time when it runs alone."""

    plan: Plan
    result: Result
    machine: HDA
    installed: bool
    known: dict[tuple[Any, ...], Resources] = field(default_factory=dict)

    @cached_property
    def compute_ps(self) -> int:
        """How long the tensor and vector engines of the busiest unit work."""
        units = zip(self.result.work_ps("tensor"), self.result.work_ps("vector"), strict=True)
        return min(self.result.time_ps, max((a + b for a, b in units), default=0))

    @cached_property
    def bound_ps(self) -> int:
        """What it would take if nothing were shared."""
        bound = lower_bound(self.plan, self.machine)
        return bound - self.resources(self.plan).control_ps() * (self.installed and bool(self.plan.channels))

    def resources(self, plan: Plan, crowded: bool = False) -> Resources:
        """The machine as the plan sees it; ``crowded``: it shares the engines of its units with others."""
        key = id(plan), crowded, current_faults()
        if key not in self.known:
            self.known[key] = made = Resources(self.machine, plan, key[2], installed=self.installed)
            made.crowded |= crowded
        return self.known[key]


@dataclass(eq=False)
class Launch:
    """One piece of work on the machine: a plan, or (without ``timed``) something of a known time."""

    engine: Engine
    name: str
    devices: tuple[int, ...]
    start_ps: int
    timed: Timed | None = None
    end: int | None = None
    """When it ends, once that was asked."""
    nbytes: int = 0
    placed: Plan | None = None
    """The plan where it ran, if it was timed at another place like it."""
    beside: bool = False
    """Whether it goes on beside other work of its devices."""
    together: tuple[Launch, ...] = ()
    """What it was simulated with."""

    @property
    def end_ps(self) -> int:
        return self.engine.resolve(self) if self.end is None else self.end

    @property
    def expected_ps(self) -> int:
        """Its end, or what that would be if it were alone."""
        if self.end is not None:
            return self.end
        return self.start_ps + (self.timed.result.time_ps if self.timed else 0)

    @property
    def plan(self) -> Plan | None:
        return self.placed or (self.timed.plan if self.timed else None)

    def meets(self, other: Launch, until_ps: int) -> bool:
        """Whether it may share something with another that ends at some time."""
        if self.start_ps >= until_ps or other.start_ps >= self.expected_ps:
            return False
        return (self.beside and other.beside) or not set(self.devices).isdisjoint(other.devices)


@dataclass
class Engine:
    """One machine and the work that was done on it. ``data=False`` finds out times only."""

    machine: HDA
    data: bool = True
    launches: list[Launch] = field(default_factory=list)
    log: OpLog | None = None
    horizon: Callable[[], int] = lambda: 0
    """Nothing will be submitted before this time."""
    host: Any = None
    memory_store: Any = None
    """The `RuntimeContext` that this engine works for, and its memories by address."""

    def __post_init__(self) -> None:
        self.shape = DeviceShape.of(self.machine)
        self._timed: dict[tuple[int, bool], Timed] = {}
        self._last: dict[int, Launch] = {}
        self._open: list[Launch] = []
        self._joint: dict[tuple[Any, ...], list[int]] = {}
        self._idle: list[Session] = []
        self._caches = any(memory.cache for memory in self.machine.memories)
        self._end_ps = 0

    # submitting

    def submit(
        self,
        plan: Plan,
        at_ps: int,
        devices: Iterable[int],
        *,
        inputs: Mapping[str, Any] | None = None,
        installed: bool = True,
        name: str | None = None,
        placed: Plan | None = None,
        beside: bool = False,
        binding: Binding | None = None,
    ) -> tuple[Launch, Mapping[str, Any] | None]:
        """Run a plan from ``at_ps`` on, after the work before it on its devices or ``beside`` it; its
        outputs."""
        timed = self.timed(plan, installed, inputs)
        launch = self._note(
            Launch(self, name or plan.name, tuple(devices), at_ps, timed, placed=placed, beside=beside)
        )
        if inputs is None:
            return launch, None
        if self.log is not None and binding is not None:
            return launch, self.log.execute(launch, plan, inputs, binding)
        with np.errstate(all="ignore"):  # devices overflow silently, also on contents of torch.empty
            return launch, execute(plan, inputs, order=timed.result, races=False)

    def timed(self, plan: Plan, installed: bool = True, inputs: Any = None) -> Timed:
        """The time of a plan alone; found once, unless it depends on the data."""
        key = (id(plan), installed)
        known = self._timed.get(key)
        if known is not None:
            return known
        decided = ReadScalar in plan.kinds
        result = simulate(
            plan,
            inputs if decided else None,
            machine=self.machine,
            data=False if not decided else None,
            installed=installed,
            record=False,
            capacity=False,  # the allocators keep count
        )
        timed = Timed(plan, result, self.machine, installed)
        if not decided:
            self._timed[key] = timed
        return timed

    def occupy(self, name: str, at_ps: int, took_ps: int, device: int, nbytes: int) -> Launch:
        """Work of a known time that is no plan."""
        launch = self._note(Launch(self, name, (device,), at_ps, nbytes=nbytes))
        self._ends(launch, launch.start_ps + took_ps)
        return launch

    def host_copy(self, name: str, nbytes: int, pieces: int, at_ps: int, device: int) -> Launch:
        """Bytes over the host's link: its latency, then the bytes or the starts of the DMA engine that puts
        ``pieces`` in their places, whichever takes longer."""
        return self.occupy(name, at_ps, self.host_copy_ps(nbytes, pieces), device, nbytes)

    def host_copy_ps(self, nbytes: int, pieces: int) -> int:
        control = self.machine.control
        link = control.host_link if control else None
        dma = max((e.startup_ps for e in self.machine.engines if e.kind == "dma"), default=0)
        if link is None:
            return pieces * dma
        return link.latency_ps + max(serialise_ps(nbytes, link.bandwidth), pieces * dma)

    def control_ps(self) -> int:
        """One message of the host to a PE."""
        return control_ps(self.machine)

    def _note(self, launch: Launch) -> Launch:
        """Take down a launch; one that takes turns begins after the last one of its devices."""
        if not launch.beside:
            before = [self._last[d].end_ps for d in launch.devices if d in self._last]
            launch.start_ps = max([launch.start_ps, *before])
            self._last |= dict.fromkeys(launch.devices, launch)
        if len(self._open) >= 2 * MOST_TOGETHER:
            now = self.horizon()
            self._open = [w for w in self._open if w.end is None or w.end > now][-4 * MOST_TOGETHER :]
        self._open.append(launch)
        self.launches.append(launch)
        return launch

    # when it ends

    def resolve(self, launch: Launch) -> int:
        """When a launch ends, with all that was submitted so far and runs at the same time."""
        group, ends = [launch], [launch.expected_ps]
        while len(group) <= MOST_TOGETHER:
            known = list(zip(group, ends, strict=True))
            more = [w for w in self._open if w.timed and w not in group and any(w.meets(*g) for g in known)]
            if not more:
                break
            group = sorted([*group, *more], key=lambda w: w.start_ps)
            ends = self._ends_of(group)
        new = [(member, end) for member, end in zip(group, ends, strict=True) if member.end is None]
        for member, end in new:
            member.together = tuple(group) if len(group) > 1 else ()
            self._ends(member, end)
        if wants_communication_trace():
            for member, _ in new:
                self._print(member)
        assert launch.end is not None
        return launch.end

    def _print(self, launch: Launch) -> None:
        """One line per message on stderr, at the time of the machine."""
        if launch.together:
            found = dict(zip(launch.together, self._together(launch.together, MAX_RECORDS), strict=True))
            found[launch].result.print_communication(launch.start_ps)
        elif launch.timed is not None:
            launch.timed.result.print_communication(launch.start_ps)

    def _ends(self, launch: Launch, end_ps: int) -> None:
        launch.end = end_ps
        self._end_ps = max(self._end_ps, end_ps)

    def _ends_of(self, group: Sequence[Launch]) -> list[int]:
        base = group[0].start_ps
        key = tuple((id(w.plan), id(w.timed), w.start_ps - base) for w in group)
        if key not in self._joint:
            runs = zip(group, self._together(group, 0), strict=True)
            self._joint[key] = [w.start_ps - base + (run.end_ps or 0) - run.submit_ps for w, run in runs]
        return [base + end for end in self._joint[key]]

    def _together(self, group: Sequence[Launch], record: int) -> list[SessionLaunch]:
        """Run some launches beside each other, from when a session has nothing to do: in the one that groups
        have in common, unless something would be left to them or from them."""
        plans = [w.plan for w in group if w.plan]
        parts: list[Any] = [x for p in plans for x in (*p.channels, *p.flags)]
        lasting = self._caches or any(x.installed for x in parts)
        common = not record and not lasting
        session = self._idle.pop() if common and self._idle else Session(self.machine, record=record)
        begin, crowded = session.time_ps - group[0].start_ps, len({p.scale for p in plans}) == 1
        found: list[SessionLaunch] = []
        for launch, plan in zip(group, plans, strict=True):
            assert launch.timed is not None
            started = SessionLaunch(plan, self.machine, submit_ps=begin + launch.start_ps)
            started.resources = launch.timed.resources(plan, crowded)
            started.timing = started.resources.timing
            found.append(session.start(started))
        session.wait(*found)
        self._idle += [session] * common
        return found

    def free_ps(self, device: int) -> int:
        """When a device has done all its work."""
        return max((w.end_ps for w in (*self._open, *self._last.values()) if device in w.devices), default=0)

    @property
    def end_ps(self) -> int:
        """When the last work ends."""
        for launch in self._open:
            launch.end_ps  # noqa: B018  (asking finds it out)
        return self._end_ps

    # what happened

    @property
    def trace(self) -> Trace:
        """Everything on one clock."""
        done: dict[int, tuple[int, Trace]] = {}
        for launch in self.launches:
            if launch.together and id(launch) not in done:
                found = self._together(launch.together, MAX_RECORDS)
                for member, run in zip(launch.together, found, strict=True):
                    if member.together == launch.together and run.result is not None:
                        done[id(member)] = (member.start_ps, run.result.trace)
        parts = [done.get(id(w)) or (w.start_ps, self.trace_of(w)) for w in self.launches]
        return join_traces(sorted(parts, key=lambda part: part[0]), self.machine.name)

    def trace_of(self, launch: Launch) -> Trace:
        """The events of a launch that had its devices for itself."""
        if launch.timed is None:
            builder = TraceBuilder(self.machine.name)
            unit, took = f"host/device{launch.devices[0]}", launch.end_ps - launch.start_ps
            builder.add(unit=unit, engine="dma", operation=launch.name, start_ps=0, end_ps=took)
            return builder.build()
        if launch.placed is None:
            return launch.timed.result.trace
        return simulate(launch.placed, machine=self.machine, data=False, installed=True, capacity=False).trace
