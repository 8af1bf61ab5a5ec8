"""The seam between the host and the simulator: what work costs, when it runs, and what it computes.

All work goes to one machine (`MachineRun`). Kernels and copies of one device take turns, in the order in
which they were submitted; collectives go on beside them, and what overlaps shares links, memories and
engines. Time passes when somebody waits, so what is submitted before that is taken into account.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from megatile.hda import HDA
from megatile.hda.addresses import DeviceShape
from megatile.plan.execute import execute
from megatile.plan.model import Plan, ReadScalar
from megatile.runtime.host.oplog import Binding, OpLog
from megatile.sim import Launch, Result, simulate
from megatile.sim.machine_run import MachineRun
from megatile.sim.result import wants_communication_trace
from megatile.sim.simulation import MAX_RECORDS, NEVER
from megatile.timing.fabric import serialise_ps
from megatile.timing.resources import control_ps
from megatile.trace import Trace, TraceBuilder, join_traces

NETWORK = "network"
"""What collectives have in common, beside their devices."""


@dataclass
class Engine:
    """One machine and the work that was done on it. ``data=False`` finds out times only."""

    machine: HDA
    data: bool = True
    launches: list[Launch] = field(default_factory=list)
    log: OpLog | None = None
    wait: Callable[[Callable[[], bool], int | None], None] | None = None
    """How to wait until something has ended, or until some time; without it, time just passes."""
    submit_held: Callable[[], None] = lambda: None
    """Submits launches that wait for others of their kernel."""
    host: Any = None
    memory_store: Any = None
    """The `RuntimeContext` that this engine works for, and its memories by address."""

    def __post_init__(self) -> None:
        self.shape = DeviceShape.of(self.machine)
        self._tells = wants_communication_trace()
        self.run = MachineRun(self.machine, record=MAX_RECORDS if self._tells else 0)
        self._timed: dict[tuple[int, bool], Launch] = {}
        self._prepared: dict[tuple[Any, ...], Launch] = {}
        """Launches to be copied, by the launch alone, the plan where it runs, devices and whether beside."""
        self._last: dict[int, Launch] = {}
        self._open: list[Launch] = []
        self._ended: dict[int, Launch] = {}
        """By device, the launch that ended last."""
        self.caches = any(memory.cache for memory in self.machine.memories)

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
        after: Iterable[Launch] = (),
        addresses: Mapping[str, Any] | None = None,
    ) -> tuple[Launch, Mapping[str, Any] | None]:
        """Run a plan from ``at_ps`` on, ``after`` some launches, and after the work before it on its devices
        or ``beside`` that; its outputs. ``placed`` is the plan where it runs, if it is timed elsewhere;
        ``addresses`` say by tile where tensors lie that caches may hold after it."""
        known, devices, where = self.timed(plan, installed, inputs), tuple(devices), placed or plan
        key = id(known), id(where), devices, beside
        prepared = self._prepared.get(key)
        if prepared is None:
            uses = frozenset((*devices, NETWORK) if beside else devices)
            prepared = replace(known, plan=where, known=known, devices=devices, uses=uses)
            prepared.resources  # noqa: B018  (found once for all copies)
            if ReadScalar not in plan.kinds:
                self._prepared[key] = prepared
        launch = prepared.copied(name=name or plan.name, submit_ps=at_ps, addresses=addresses or {})
        logged = self.log is not None and binding is not None and inputs is not None
        self._start(launch, after, not beside, logged)
        if inputs is None:
            return launch, None
        if self.log is not None and binding is not None:
            return launch, self.log.execute(launch, plan, inputs, binding, self.trace_of(launch))
        with np.errstate(all="ignore"):  # devices overflow silently, also on contents of torch.empty
            return launch, execute(plan, inputs, order=known, races=False)

    def timed(self, plan: Plan, installed: bool = True, inputs: Any = None) -> Launch:
        """Return a launch of a plan alone; simulated once, unless its time depends on the data."""
        key = (id(plan), installed)
        known = self._timed.get(key)
        if known is not None:
            return known
        decided = ReadScalar in plan.kinds
        launch = simulate(
            plan,
            inputs if decided else None,
            machine=self.machine,
            data=False if not decided else None,
            installed=installed,
            record=False,
            capacity=False,  # the allocators keep count
        ).launch
        launch.outputs = None
        if not decided:
            self._timed[key] = launch
        return launch

    def occupy(
        self, name: str, at_ps: int, took_ps: int, devices: Sequence[int], after: Iterable[Launch] = ()
    ) -> Launch:
        """Work of a known time that is not a plan; without devices it takes no turns."""
        launch = Launch(None, self.machine, name=name, submit_ps=at_ps, uses=frozenset())
        launch.devices, launch.known = tuple(devices), replace(launch)
        launch.known.passed_ps = took_ps
        launch.known.end(took_ps)
        return self._start(launch, after, turns=True)

    def host_copy(
        self, name: str, nbytes: int, pieces: int, at_ps: int, device: int, after: Iterable[Launch] = ()
    ) -> Launch:
        """Return bytes over the host's link: its latency, then the bytes or the starts of the DMA engine that
        puts ``pieces`` in their places, whichever takes longer."""
        return self.occupy(name, at_ps, self.host_copy_ps(nbytes, pieces), (device,), after)

    def host_copy_ps(self, nbytes: int, pieces: int) -> int:
        control = self.machine.control
        link = control.host_link if control else None
        dma = max((e.startup_ps for e in self.machine.engines if e.kind == "dma"), default=0)
        if link is None:
            return pieces * dma
        return link.latency_ps + max(serialise_ps(nbytes, link.bandwidth), pieces * dma)

    def control_ps(self) -> int:
        """Return one message of the host to a PE."""
        return control_ps(self.machine)

    def _start(self, launch: Launch, after: Iterable[Launch], turns: bool, at_once: bool = False) -> Launch:
        """Submit a launch, which takes turns with others of its devices or not; ``at_once`` waits until it
        may begin."""
        before = [self._last[d] for d in launch.devices if d in self._last] if turns else []
        launch.after = tuple(dict.fromkeys((*before, *after)))
        if at_once:
            self.settle(*launch.after)
        if turns:
            self._last |= dict.fromkeys(launch.devices, launch)
        if launch.devices:
            self._open.append(launch)
            self.launches.append(launch)
        return self.run.start(launch)

    # when it ends

    def settle(self, *launches: Launch, until_ps: int | None = None) -> None:
        """Let time pass until some launches have ended, or to some time."""

        def settled() -> bool:
            if until_ps is not None:
                return self.run.now_ps >= until_ps
            for launch in launches:  # noqa: SIM110 (quicker, and asked often)
                if not launch.over:
                    return False
            return True

        if settled():
            return
        if self.wait is not None:
            self.wait(settled, until_ps)
        while not settled():
            self.pass_time(until_ps)
        self._close()

    def pass_time(self, until_ps: int | None = None) -> bool:
        """Let time pass until something ends, at most until some time; whether there was anything to do."""
        busy, until = self.run.busy, NEVER if until_ps is None else until_ps
        if (busy or until_ps is not None) and not self.run.step(until) and self.run.now_ps < until:
            raise self.run.too_late(next(w for w in self._open if not w.over))
        return busy

    def _close(self) -> None:
        """Forget launches that have ended; observers get their messages at machine time."""
        ended = [w for w in self._open if w.over]
        if ended:
            self._open = [w for w in self._open if not w.over]
        for launch in ended:
            for device in launch.devices:
                if device not in self._ended or _end(self._ended[device]) <= _end(launch):
                    self._ended[device] = launch
            if launch.plan is not None and self._tells:
                Result(launch).print_communication(launch.submit_ps)

    def of_device(self, device: int) -> list[Launch]:
        """Return the last work of a device: what has not ended, and what ended last."""
        self.submit_held()
        ended = [self._ended[device]] if device in self._ended else []
        return ended + [w for w in self._open if device in w.devices]

    @property
    def end_ps(self) -> int:
        """When the last work ends."""
        self.submit_held()
        self.settle(*self._open)
        self._close()
        return max(map(_end, self._ended.values()), default=0)

    # what happened

    def groups(self) -> list[list[Launch]]:
        """Return the launches of plans, each with those that it ran together with."""
        self.settle(*self._open)
        alone = [[w] for w in self.launches if w.like is not None and w.plan is not None]
        found: list[list[Launch]] = []
        for launch in (w for w in self.launches if w.like is None):
            mine = [group for group in found if any(overlap(w, launch) for w in group)]
            found = [group for group in found if group not in mine]
            found.append([w for group in mine for w in group] + [launch])
        return alone + found

    @property
    def trace(self) -> Trace:
        """Everything on one clock."""
        self.submit_held()
        self.settle(*self._open)
        parts = [(w.submit_ps, self.trace_of(w)) for w in self.launches if w.like is not None]
        for group in self.groups():
            again = MachineRun(self.machine, record=MAX_RECORDS)
            same = [replace(w, known=None, worker=None) for w in group if w.like is None]
            for launch in same:
                again.start(launch)
            for launch in same:
                again.wait(launch)
                parts.append((launch.submit_ps, Result(launch).trace))
        return join_traces(sorted(parts, key=lambda part: part[0]), self.machine.name)

    def trace_of(self, launch: Launch) -> Trace:
        """Return the events of a launch that had its devices for itself."""
        known = launch.known
        assert known is not None
        if launch.plan is None:
            builder = TraceBuilder(self.machine.name)
            unit = f"host/device{launch.devices[0]}"
            builder.add(unit=unit, engine="dma", operation=launch.name, start_ps=0, end_ps=known.took_ps)
            return builder.build()
        return Result(known).trace if launch.plan is known.plan else self._trace_placed(launch.plan)

    def _trace_placed(self, plan: Plan) -> Trace:
        return simulate(plan, machine=self.machine, data=False, installed=True, capacity=False).trace


def _end(launch: Launch) -> int:
    return launch.end_ps or 0


def overlap(launch: Launch, other: Launch) -> bool:
    """Return whether two launches that have ended used the same parts of a machine at the same time."""
    apart = _end(launch) <= other.submit_ps or _end(other) <= launch.submit_ps
    return not apart and not (launch.uses or frozenset()).isdisjoint(other.uses or ())
