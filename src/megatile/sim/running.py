"""Launches on one machine as time passes: they are started, waited for, and end with a result.

`Session` remembers what they leave; `simulate` is one launch that has the machine for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from functools import partial
from time import monotonic
from typing import Any

import numpy as np

from megatile.core.errors import MegatileError
from megatile.core.limits import (
    TimeBudgetExceeded,
    checked_seconds,
    deadline as time_limit_end,
    enough_memory,
)
from megatile.core.quantities import whole
from megatile.hda import HDA, machine as find_machine
from megatile.plan.model import ReadScalar, ReceiveAny
from megatile.sim.answers import QueueMisuse
from megatile.sim.contents import Contents
from megatile.sim.data import seen_values
from megatile.sim.joint import Joint, LaunchData
from megatile.sim.launches import CANCELLED, FAILED, SUBMITTED, Launch, SessionError, Worker
from megatile.sim.record import choices
from megatile.sim.simulation import NEVER, EngineLaunch, Simulation, engine_name
from megatile.sim.stuck import deadlock, explain, wait_graph
from megatile.sim.symmetry import BESIDE, choose_units
from megatile.timing.resources import Resources
from megatile.trace import WaitGraph


def leaves_nothing(resources: Resources) -> bool:
    """Return whether a launch takes the same time whenever it has an idle machine for itself."""
    plan = resources.plan
    lasting = any(c.installed for c in plan.channels) or any(f.installed for f in plan.flags)
    cached = any(memory.cache for memory in resources.hda.memories)
    return not (lasting or cached or resources.faults or ReadScalar in plan.kinds)


class RunningMachine:
    """A machine, what is under way on it, and the workers of its host."""

    def __init__(
        self, machine: HDA | str, *, engine: str | None = None, simulation: Simulation | None = None
    ) -> None:
        if not isinstance(machine, (HDA, str)):
            raise SessionError(
                f"a session takes a machine, not {type(machine).__name__}", advice='Session("ahbm")'
            )
        self.machine = find_machine(machine) if isinstance(machine, str) else machine
        self.now_ps = 0
        """How far time has come; nothing can be submitted before it."""
        self.engine = engine_name(engine)
        self._joint = Joint(self)
        self.simulation = simulation or self._new()
        self._active: dict[int, Launch] = {}
        """Launches that the engine has, by its number of them."""
        self._held_back: Launch | None = None
        """One that the engine need not have if nothing comes beside it: it was timed alone before, or a unit
        stands for all."""
        self._alone: dict[tuple[Any, ...], tuple[Launch, int]] = {}
        """Launches that had an idle machine for themselves, by how they were submitted, and how far time had
        come after their submission when they had ended."""
        self._alone_rows = 0
        """How many commands are recorded of those."""
        self._quiet_ps = 0
        """When the last link, memory and shared engine is free, if nothing is under way."""
        self._withdrawn = 0
        """Launches that were cancelled and that the engine still has."""
        self._count = 0
        self._over: str | None = None
        self.workers: list[Worker] = []
        self.host = self.worker("host")

    def worker(self, name: str | None = None) -> Worker:
        """Another thread of the host; its clock begins now."""
        self.workers.append(Worker(self, name or f"worker {len(self.workers)}"))
        return self.workers[-1]

    def _new(self) -> Simulation:
        """An engine that has done nothing yet."""
        return Simulation(engine=self.engine, everything_shared=True)

    def start(
        self, launch: Launch, *, inputs: Mapping[str, Any] | None = None, contents: Contents | None = None
    ) -> Launch:
        """Submit a prepared launch, whatever memories and queues hold; `submit` looks after those.

        With ``inputs`` it computes, in memories that are its own unless ``contents`` are given.
        """
        launch.number, launch.worker = self._count, self._worker(launch.worker)
        resources = launch.resources
        if inputs is not None:
            launch.data = LaunchData(launch, inputs, contents or Contents(lasting=False), self._joint)
            if ReadScalar in resources.plan.kinds:
                launch.scalars = partial(self._joint.scalar, launch.data)
        if self._held_back is not None:
            self._give(self._held_back)
        for other in self._active.values():
            other.key = None
        if not self._active:
            launch.units = choose_units(resources.plan, resources, self.simulation.most_records)
            if not self._withdrawn and launch.submit_ps >= self._quiet_ps:
                launch.key = id(resources), launch.turns, launch.control, launch.delay_ps
        if launch.key in self._alone or launch.units.one is not None:
            self._held_back = launch
        else:
            self._give(launch)
        self._count += 1
        launch.worker.pending.append(launch)
        launch._state = SUBMITTED
        return launch

    def release(self, launch: Launch) -> None:
        """Let go of the engine, of which nothing more is asked: its memory then goes with the last result
        that reads it, not with a garbage collection of what refers to this machine."""
        launch.worker = None
        del self.simulation

    def has_begun(self, launch: Launch) -> bool:
        """Return whether a launch that has not ended does something already."""
        if launch.rows is None:
            return launch.simulation is not None
        return self.simulation.instances[launch.rows.number].begun

    def _give(self, launch: Launch) -> None:
        """Give a launch to the engine."""
        resources, simulation, at = launch.resources, self.simulation, launch.submit_ps
        if ReceiveAny in resources.plan.kinds:
            simulation.record_all()
        if launch.units.one is not None:
            launch.units = BESIDE
        self._held_back = launch.simulation = None
        launch.rows = simulation.add(
            resources.plan,
            resources,
            launch.scalars,
            at=at if launch.turns else None,
            begin=at + resources.start_ps(0) + (launch.delay_ps or 0),
        )
        self._active[launch.rows.number] = launch
        if launch.data is not None:
            self._joint.active.append(launch.data)

    def _worker(self, worker: Worker | None) -> Worker:
        if worker is not None and (not isinstance(worker, Worker) or worker.session is not self):
            raise SessionError(
                f"{worker!r} is no worker of this session", advice="worker=session.worker(name)"
            )
        return worker or self.host

    def check_launches(self, launches: Iterable[Any]) -> None:
        for launch in launches:
            if not isinstance(launch, Launch) or launch.worker.session is not self:
                raise SessionError(
                    f"{launch!r} is no launch of this session", advice="wait for what submit() gave"
                )

    def cancel(self, launch: Launch) -> None:
        """Withdraw a launch that has not begun on any unit."""
        self.check_launches([launch])
        if launch.over:
            raise SessionError(f"{launch} cannot be cancelled: it is over")
        if launch is self._held_back:
            self._held_back = None
        else:
            if launch.rows is None or not self.simulation.withdraw(launch.rows):
                raise SessionError(f"{launch} cannot be cancelled: it has begun", advice="wait for it")
            del self._active[launch.rows.number]
            self._withdrawn += 1
            if launch.data is not None:
                self._joint.active.remove(launch.data)
        launch.data, launch.rows, launch._state = None, None, CANCELLED
        if launch in launch.worker.pending:
            launch.worker.pending.remove(launch)

    def wait(
        self,
        *launches: Launch,
        worker: Worker | None = None,
        budget_ps: int | None = None,
        seconds: float | None = None,
    ) -> Any:
        """Let time pass until these launches have ended: the `Result` of one, a list for several or (without
        arguments) for all that were submitted and not waited for.

        ``budget_ps`` of simulated time or ``seconds`` of wall-clock time that do not suffice raise
        `TimeBudgetExceeded`.
        """
        single = len(launches) == 1
        if not launches and worker is None:
            launches = tuple(p for w in self.workers for p in w.pending)
        worker = self._worker(worker)
        until = NEVER
        if budget_ps is not None:
            until = max(self.now_ps, worker.clock_ps) + whole_number("budget_ps", budget_ps)
        deadline = (
            None if seconds is None else monotonic() + checked_seconds(seconds, "seconds", SessionError)
        )
        worker.block(*launches)
        for other in {launch.worker for launch in worker.waits_for} - {worker}:
            other.pending = [p for p in other.pending if p not in launches]
        try:
            plans = [launch.plan for launch in worker.waits_for]
            with enough_memory(f"plan '{plans[0].name}' of {plans[0].units} units" if plans else "a session"):
                while worker.blocked and self._step(until, deadline):
                    pass
        except BaseException:
            worker.give_up()
            raise
        if worker.blocked:
            late = worker.give_up()
            if budget_ps is not None and deadline is None:
                self.now_ps = worker.clock_ps = max(self.now_ps, worker.clock_ps, until)
            raise self._too_late(late[0])
        results = worker.results()
        return results[0] if single else results

    def _too_late(self, launch: Launch) -> TimeBudgetExceeded:
        """Say how far a launch is that has not ended within the time given."""
        simulation = launch.simulation or self.simulation
        return TimeBudgetExceeded(
            f"plan '{launch.plan.name}' has not ended within the time given: {simulation.how_far()}",
            advice="wait for it again, give more time, or find bounds by mt.price",
        )

    def advance(self) -> list[Worker]:
        """Let time pass until the first worker can go on; those that can. All workers must be blocked."""
        while True:
            woken = [w for w in self.workers if w.waiting and not w.blocked]
            if woken or not any(w.waiting for w in self.workers):
                return woken
            for worker in self.workers:
                if not worker.waiting and (worker is not self.host or worker.pending):
                    raise SessionError(
                        f"{worker} is not blocked, so time cannot pass",
                        advice="block() it, or close() it when it has ended",
                    )
            if not self._step(NEVER, None):
                raise self._too_late(next(p for w in self.workers for p in w.waits_for if not p.over))

    def _step(self, until: int, deadline: float | None) -> bool:
        """Let the engine go on until a launch has ended; whether one has."""
        if self._over is not None:
            raise SessionError(f"this session is over: {self._over}", advice="begin a new Session")
        limits = [limit for limit in (deadline, time_limit_end()) if limit is not None]
        deadline = min(limits, default=None)
        if self._held_back is not None:
            launch = self._held_back
            if until != NEVER:
                self._give(launch)
            elif launch.key in self._alone:
                self._end_as_before(launch, *self._alone[launch.key])
                return True
            else:
                return self._time_one_unit(launch, deadline)
        simulation = self.simulation
        try:
            launched = simulation.run(until, deadline)
        except QueueMisuse as misuse:
            launch = self._active.get(misuse.launch) or next(iter(self._active.values()))
            launch._state = FAILED
            self._over = f"launch {launch.number} ('{launch.plan.name}') misused its queues"
            explain(launch.plan, launch.scalars, misuse)
        except MegatileError as error:
            active = list(self._active.values())
            for launch in active:
                launch._state = FAILED
            self._over = f"{self._names(active)} ended with an error: {error.message}"
            raise
        self.now_ps = max(self.now_ps, simulation.clock_ps)
        if launched is None:
            if until == NEVER and (deadline is None or monotonic() < deadline):
                self._stuck()
            return False
        if launched.number in self._active:
            self._ended(self._active.pop(launched.number), launched)
        else:
            simulation.release(launched)  # it was withdrawn
            self._withdrawn -= 1
        return True

    def _stuck(self) -> None:
        """Nothing can go on: say who waits for what."""
        stuck = list(self._active.values())
        for launch in stuck:
            launch._state = FAILED
        self._over = f"{self._names(stuck)} {'are' if len(stuck) > 1 else 'is'} deadlocked"
        raise deadlock(self._over, self._waits())

    def _names(self, launches: list[Launch]) -> str:
        """Return what launches are called where there is one at a time."""
        return ", ".join(f"plan '{launch.plan.name}'" for launch in launches)

    def _waits(self) -> WaitGraph | None:
        """Return who waits for what."""
        return wait_graph(self.simulation)

    def _time_one_unit(self, launch: Launch, deadline: float | None) -> bool:
        """Time a launch that has the machine for itself by the unit that stands for all; whether it has
        ended before the deadline."""
        resources, plan, one = launch.resources, launch.resources.plan, launch.units.one
        if launch.simulation is None:
            assert one is not None
            launch.simulation = Simulation(record=0, engine=self.engine, contended=False)
            begin = launch.submit_ps + resources.start_ps(0) + (launch.delay_ps or 0)
            launch.simulation.add(one, resources, launch.scalars, begin=begin)
        simulation = launch.simulation
        while simulation.run(deadline=deadline) is not None:
            pass
        if deadline is not None and monotonic() > deadline:
            return False
        graph = wait_graph(simulation)
        if graph is not None:
            raise deadlock(f"plan '{plan.name}' is deadlocked in every unit", graph)
        sent = simulation.messages(simulation.launches[0])
        launch.messages = {
            c.name: {u * c.members + m: n for m, n in sent[c.name].items() for u in range(plan.units)}
            for c in plan.channels
        }
        launch.present, launch.choices = np.arange(plan.units), {}
        self._held_back = launch.simulation = None
        self.now_ps = max(self.now_ps, simulation.last_ps)
        self._finish(launch, simulation.last_ps)
        self._keep(launch)
        return True

    def _end_as_before(self, launch: Launch, known: Launch, now_ps: int) -> None:
        """End a launch that has an idle machine for itself, as one before it did."""
        self._held_back = None
        self.now_ps = max(self.now_ps, launch.submit_ps + now_ps)
        launch.take_times(known)
        self._compute(launch)
        launch.end(known.took_ps)
        self._keep(launch)

    def _ended(self, launch: Launch, rows: EngineLaunch) -> None:
        """A launch has ended in the timed run."""
        simulation, launch.messages = self.simulation, {}
        try:
            launch.messages = simulation.messages(rows)
        except QueueMisuse as misuse:
            try:
                explain(rows.plan, rows.scalars, misuse)
            except MegatileError as error:
                launch.error = error
            self._joint.active = [d for d in self._joint.active if d is not launch.data]
        launch.present, launch.repeatable = np.flatnonzero(rows.present), False
        launch.choices = choices(simulation, rows) if ReceiveAny in rows.plan.kinds else {}
        self._finish(launch, simulation.last_of(rows))
        rows.scalars = launch.scalars
        self._record(launch)
        kept = self._keep(launch)
        if not self._active:
            self._quiet_ps = int(simulation.table("lanes").max(initial=0))
        idle = self._quiet_ps <= self.now_ps and leaves_nothing(launch.resources)
        if launch.key is not None and launch.error is None and idle:
            self._remember(launch.key, kept)
        self._clear_up(launch)

    def _remember(self, key: tuple[Any, ...], known: Launch) -> None:
        """Keep the times of a launch for those like it, within as many records as a session keeps."""
        if key in self._alone:
            return
        self._alone[key] = copy(known), self.now_ps - known.submit_ps
        self._alone_rows += known.recorded_commands
        while self._alone_rows > self.simulation.most_records and len(self._alone) > 1:
            self._alone_rows -= self._alone.pop(next(iter(self._alone)))[0].recorded_commands

    def _compute(self, launch: Launch) -> None:
        """Compute the outputs of a launch that has ended; an error is kept for who waits for it."""
        data = launch.data
        if data is None:
            return
        if launch.rows is None:
            self._joint.active.append(data)
        if launch.error is None:
            try:
                launch.outputs = self._joint.finish(data)
            except MegatileError as error:
                launch.error = error
        launch.scalars, launch.data = seen_values(data.seen), None
        del data.launch  # so that the launch goes with its last result, not with a garbage collection

    def _finish(self, launch: Launch, last_ps: int) -> None:
        """A launch has ended: its data, and its times."""
        spent = last_ps - launch.submit_ps
        late = launch.delay_ps is None
        took = launch.resources.whole_ps(spent, launch.control) if late else spent
        launch.begin_ps, launch.timed_by = max(0, took - spent), str(launch.units)
        self._compute(launch)
        launch.end(took)

    def _record(self, launch: Launch) -> None:
        """Keep what was recorded of a launch that the engine had."""

    def _keep(self, launch: Launch) -> Launch:
        """Keep what a launch leaves behind; its line in the history."""
        return launch

    def _clear_up(self, launch: Launch) -> None:
        """Forget what the engine knows of a launch that has ended."""


def whole_number(name: str, value: Any) -> int:
    """A whole number that is not negative."""
    found = whole(value)
    if found is None or found < 0:
        raise SessionError(f"{name}={value!r} is no whole number from 0 on")
    return found
