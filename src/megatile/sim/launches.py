"""What a session is made of: workers of the host, launches, and the lines of its history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from megatile.core.errors import MegatileError
from megatile.core.quantities import format_time
from megatile.hda import HDA
from megatile.plan.model import Plan
from megatile.sim.contents import with_raw_kept
from megatile.sim.data import Assumed, Scalars
from megatile.sim.joint import LaunchData
from megatile.sim.record import Record
from megatile.sim.result import Result, Run
from megatile.sim.simulation import EngineLaunch, Simulation
from megatile.sim.symmetry import BESIDE
from megatile.timing.faults import Faults
from megatile.timing.resources import Resources
from megatile.timing.view import Timing
from megatile.trace import Trace

PREPARED, SUBMITTED, RUNNING = "prepared", "submitted", "running"
DONE, FAILED, CANCELLED = "done", "failed", "cancelled"
"""The states of a launch, in the order in which it goes through them; it ends in one of the last three."""


class SessionError(MegatileError, ValueError):
    """A session that cannot go on, or is asked for something it does not have."""


@dataclass(eq=False)
class Entry:
    """One line of a session's history."""

    name: str
    units: int
    begin_ps: int
    end_ps: int
    trace: Trace | None = None
    run: Run | None = None
    """Of a launch: its times, as long as they are kept."""

    @property
    def rows(self) -> int:
        """How many commands of it are kept."""
        return 0 if self.run is None else self.run.rows

    def timeline(self) -> tuple[Record | None, Trace] | None:
        """Its events, and the records they are made of."""
        run = self.run
        if run is None or (run.record is None and not run.repeatable):
            return None if self.trace is None else (None, self.trace)
        record = run.recorded()
        return record, record.trace(run.begin_ps)


class Prepared:
    """A plan as the session's machine sees it, for all its launches."""

    def __init__(self, plan: Plan, hda: HDA, faults: Faults, timing: Timing, delay_ps: int | None) -> None:
        self.plan, self.delay_ps = plan, delay_ps
        self.lasting = with_raw_kept(plan)
        self.checked: tuple[str, ...] | None = None
        """The tensors beside which it was found to fit."""
        self._make = partial(Resources, hda, self.lasting, faults, timing=timing)
        self.installed: Resources = self._make(installed=True)

    @cached_property
    def first(self) -> Resources:
        """The same for a launch that brings its queues."""
        return self._make()


class Launch:
    """A plan that was submitted; `Session.wait` gives its `Result`."""

    def __init__(
        self,
        number: int,
        plan: Plan,
        worker: Worker,
        submit_ps: int,
        resources: Resources,
        *,
        turns: bool = True,
        control: bool = True,
        delay: int | None = None,
    ) -> None:
        self.number = number
        self.plan = plan
        self.worker = worker
        self.submit_ps = submit_ps
        self.end_ps: int | None = None
        """When it ended, as far as time has come."""
        self.result: Result | None = None
        self._state = PREPARED
        self._resources, self._turns, self._control, self._delay = resources, turns, control, delay
        self._scalars: Scalars = Assumed(None)
        self._launched: EngineLaunch | None = None
        self._data: LaunchData | None = None
        self._key: tuple[Any, ...] | None = None
        """How it was submitted, as long as it has the machine for itself."""
        self._units = BESIDE
        """Which units are timed."""
        self._one: tuple[Simulation, EngineLaunch] | None = None
        """The run of the unit that stands for all, while it is under way."""
        self._error: MegatileError | None = None

    def __repr__(self) -> str:
        return f"Launch({self.number}: {self.plan.name}, {self.state})"

    @property
    def state(self) -> str:
        """``prepared``, ``submitted``, ``running``, ``done``, ``failed`` or ``cancelled``."""
        return RUNNING if self._state == SUBMITTED and self.worker.session.has_begun(self) else self._state

    @property
    def over(self) -> bool:
        """Whether nothing more happens to it that could be waited for."""
        return self.end_ps is not None or self._state == CANCELLED

    def ended(self, run: Run, outputs: Mapping[str, Any] | None) -> None:
        """Take down what came out."""
        self.end_ps, self.result = self.submit_ps + run.end_ps, Result(run, outputs)
        self._state = DONE if self._error is None else FAILED


class Worker:
    """One thread of the host with a clock of its own."""

    def __init__(self, session: Any, name: str) -> None:
        self.session = session
        self.name = name
        self.clock_ps = session.now_ps
        self.pending: list[Launch] = []
        """Launches that it has submitted and not yet waited for."""
        self.waits_for: list[Launch] = []
        self.waiting = False
        self._ended = 0
        """The first of those it waits for have ended."""

    def __repr__(self) -> str:
        return f"Worker({self.name}, {format_time(self.clock_ps)})"

    @property
    def blocked(self) -> bool:
        """Whether it waits for something that has not ended."""
        while self._ended < len(self.waits_for) and self.waits_for[self._ended].over:
            self._ended += 1
        return self._ended < len(self.waits_for)

    def submit(self, plan: Plan, inputs: Mapping[str, Any] | None = None, **options: Any) -> Launch:
        """As `Session.submit`, at this worker's clock."""
        return self.session.submit(plan, inputs, worker=self, **options)

    def launch(self, plan: Plan, inputs: Mapping[str, Any] | None = None, **options: Any) -> Result:
        return self.session.launch(plan, inputs, worker=self, **options)

    def install(self, plan: Plan, units: Iterable[int] | None = None) -> int:
        return self.session.install(plan, units, worker=self)

    def wait(self, *launches: Launch, **budget: Any) -> Any:
        return self.session.wait(*launches, worker=self, **budget)

    def block(self, *launches: Launch) -> None:
        """Wait for these (or for all that it has submitted) without letting time pass; see `advance`."""
        self.session.check_launches(launches)
        self.waits_for, self.waiting, self._ended = list(launches) or list(self.pending), True, 0

    def give_up(self) -> list[Launch]:
        """Wait no longer; what has not ended can be waited for again."""
        late = [launch for launch in self.waits_for if not launch.over]
        self.pending += [launch for launch in late if launch not in self.pending]
        self.waits_for, self.waiting, self._ended = [], False, 0
        return late

    def close(self) -> None:
        """It does nothing more: time need not wait for it."""
        if self in self.session.workers:
            self.session.workers.remove(self)

    def results(self) -> list[Result]:
        """What it has waited for; its clock is then at the end of the last of them."""
        waited = self.waits_for
        self.waits_for, self.waiting, self._ended = [], False, 0
        over = {id(launch) for launch in waited}
        self.pending = [p for p in self.pending if id(p) not in over]
        self.clock_ps = max([self.clock_ps, *(w.end_ps for w in waited if w.end_ps is not None)])
        for launch in waited:
            if launch._error is not None:
                raise launch._error
            if launch.state == CANCELLED:
                raise SessionError(f"launch {launch.number} ('{launch.plan.name}') was cancelled")
        return [w.result for w in waited if w.result is not None]
