"""Launches on one machine as time passes: they are started, waited for, and end with a result.

`Session` remembers what they leave; `simulate` is one launch that has the machine for itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
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
from megatile.sim.contents import Contents
from megatile.sim.data import seen_values
from megatile.sim.data_runs import DataRuns, LaunchData
from megatile.sim.deadlock import deadlock, explain, wait_graph
from megatile.sim.launch_rows import LaunchRows
from megatile.sim.launches import CANCELLED, FAILED, SUBMITTED, Launch, SessionError, Worker
from megatile.sim.paths import CacheKey
from megatile.sim.queue_queries import QueueMisuse
from megatile.sim.record import Record, choices
from megatile.sim.simulation import MAX_RECORDS, NEVER, Simulation, engine_name
from megatile.sim.symmetry import BESIDE, choose_units
from megatile.timing.resources import Resources

MAX_STATES = 128
"""Launches of which it is kept what caches held before and after: up to about 50 MB of each."""
BETWEEN = 64
"""Launches that end between looks for records that can be dropped while others are under way."""
LARGE = 1 << 23
"""Numbers in the engine's memory from which on it is given back when nothing is under way."""


def leaves_nothing(resources: Resources) -> bool:
    """Return whether a launch takes the same time whenever it has an idle machine for itself, with the same
    in its caches."""
    plan = resources.plan
    lasting = any(c.installed for c in plan.channels) or any(f.installed for f in plan.flags)
    return not (lasting or resources.faults or ReadScalar in plan.kinds)


class MachineRun:
    """A machine, what is under way on it, and the workers of its host."""

    def __init__(
        self,
        machine: HDA | str,
        *,
        engine: str | None = None,
        record: int = 0,
        simulation: Simulation | None = None,
    ) -> None:
        """``record`` says how many commands are kept for traces. What happens in an engine that is given
        (``simulation``) stays there when launches have ended."""
        if not isinstance(machine, (HDA, str)):
            raise SessionError(
                f"a session takes a machine, not {type(machine).__name__}", advice='Session("ahbm")'
            )
        self.machine = find_machine(machine) if isinstance(machine, str) else machine
        self.most_records = whole_number("record", record)
        self.now_ps = 0
        """How far time has come."""
        self.engine = engine_name(engine)
        self._data_runs = DataRuns(self)
        self._lent = simulation is not None
        self.simulation = simulation or self._new()
        self._waiting: set[Launch] = set()
        """Launches that come after others that have not ended."""
        self._held: list[Launch] = []
        """Launches that the engine need not have as long as nothing comes beside them: their times are known,
        or a unit stands for all."""
        self._active: dict[int, Launch] = {}
        """Launches that the engine has, by its number of them."""
        self._alone: dict[tuple[Any, ...], Launch] = {}
        """Launches that had an idle machine for themselves, by how they were submitted."""
        self._alone_rows = 0
        """How many commands are recorded of those."""
        self._quiet_ps = 0
        """When the last link, memory and shared engine is free, as far as launches have ended."""
        self._withdrawn = 0
        """Launches that were cancelled and that the engine still has."""
        self._from_caches: deque[tuple[Any, Mapping[CacheKey, bytes], Launch]] = deque(maxlen=MAX_STATES)
        """Launches that were timed alone: how they were submitted, and what caches held before."""
        self._caches: dict[CacheKey, bytes] = {}
        """What caches hold since launches have ended that the engine did not have."""
        self._count = 0
        self._over: str | None = None
        self.workers: list[Worker] = []
        self.host = self.worker("host")

    def worker(self, name: str | None = None) -> Worker:
        """Another thread of the host; its clock begins now."""
        self.workers.append(Worker(self, name or f"worker {len(self.workers)}"))
        return self.workers[-1]

    def _new(self) -> Simulation:
        """Return an engine that has done nothing yet."""
        most = max(MAX_RECORDS, self.most_records) if self.most_records else 0
        return Simulation(record=most, engine=self.engine, everything_shared=True)

    # beginning

    def start(
        self, launch: Launch, *, inputs: Mapping[str, Any] | None = None, contents: Contents | None = None
    ) -> Launch:
        """Submit a prepared launch, whatever memories and queues hold; `Session.submit` looks after those.

        With ``inputs`` it computes, in memories that are its own unless ``contents`` are given.
        """
        launch.number, launch.worker = self._count, self._worker(launch.worker)
        if inputs is not None:
            launch.data = LaunchData(launch, inputs, contents or Contents(lasting=False), self._data_runs)
            if ReadScalar in launch.resources.plan.kinds:
                launch.scalars = partial(self._data_runs.scalar, launch.data)
        self._line_up(launch)
        self._count += 1
        launch._state = SUBMITTED
        return launch

    def _line_up(self, launch: Launch) -> None:
        """Begin a launch if those before it have ended; if not, look again when the first of them has."""
        for before in launch.after:
            if not before.over:
                self._waiting.add(launch)
                before.followers = (*before.followers, launch)
                return
        self._waiting.discard(launch)
        self._begin(launch)

    def _begin(self, launch: Launch) -> None:
        """Begin a launch whose turn it is: without the engine where its times are known, or one unit stands
        for all, and nothing is beside it."""
        for other in launch.after:
            launch.submit_ps = max(launch.submit_ps, other.end_ps or 0)
        launch.after = ()
        if launch.plan is None:
            self._held.append(launch)
            return
        launch.key = id(launch.resources), launch.turns, launch.control
        launch.known = launch.known or self._alone.get(launch.key)
        beside = [other for other in (*self._held, *self._active.values()) if launch.meets(other)]
        if not beside and launch.known is not None:
            launch.units = launch.known.units
        elif not beside:
            records = self.simulation.most_records
            launch.units = choose_units(launch.resources.plan, launch.resources, records)
        if beside or self._withdrawn or launch.submit_ps < self._quiet_ps:
            launch.key = None
        if launch.key is not None and launch.units.one is None and self._depends_on_caches(launch.resources):
            found = self._timed_from_caches(launch)
            launch.known, launch.untimed = found or launch.known, found is None
        if (
            launch.units.one is not None
            or launch.untimed
            or (launch.known is not None and launch.key is not None)
        ):
            self._held.append(launch)
            return
        for other in beside:
            other.key = None
            if other.rows is None:
                self._give(other, [launch])
        self._give(launch, beside)

    def _give(self, launch: Launch, beside: Sequence[Launch] = ()) -> None:
        """Give a launch to the engine, in which others are ``beside`` it."""
        if launch in self._held:
            self._held.remove(launch)
        if self._caches:
            self.simulation.paths.set_cache_states(self._caches)
            self._caches = {}
        launch.crowded |= not launch.turns and any(w.plan.scale == launch.plan.scale for w in beside)
        resources, simulation, at = launch.resources, self.simulation, launch.submit_ps
        if ReceiveAny in resources.plan.kinds:
            simulation.record_all()
        if launch.units.one is not None:
            launch.units = BESIDE
        launch.simulation, launch.untimed = None, False
        launch.rows = simulation.add(
            resources.plan,
            resources,
            launch.scalars,
            at=at if launch.turns else None,
            begin=at + resources.start_ps(0),
            addresses=launch.addresses,
        )
        self._active[launch.rows.number] = launch
        if launch.data is not None:
            self._data_runs.active.append(launch.data)

    def _depends_on_caches(self, resources: Resources) -> bool:
        """Return whether a launch takes the same time alone whenever caches hold the same, and not else."""
        return not self._lent and resources.has_caches and leaves_nothing(resources)

    def _timed_from_caches(self, launch: Launch) -> Launch | None:
        """Return a launch like this that was timed alone with what caches hold now."""
        for key, before, known in self._from_caches:
            if key == launch.alone_key and all(self._cache_state(n) == s for n, s in before.items()):
                return known
        return None

    def _time_from_caches(self, launch: Launch) -> None:
        """Time a launch alone with what caches hold now."""
        states = {**self.simulation.paths.all_cache_states(), **self._caches}
        known = launch.alone(caches=(self.simulation.tensors, states))
        run_alone(known, Simulation(record=0, engine=launch.engine, tensors=self.simulation.tensors))
        if known.simulation is not None:
            used = known.simulation.paths
            known.leaves = {name: used.cache_state(name) for name in used.caches}
        known.simulation = known.rows = None
        before = {name: states.get(name, b"") for name in known.leaves}
        self._from_caches.append((launch.alone_key, before, known))
        launch.known, launch.untimed = known, False

    def _cache_state(self, name: CacheKey) -> bytes:
        """Return what a cache holds now."""
        found = self._caches.get(name)
        return self.simulation.paths.cache_state(name) if found is None else found

    def has_begun(self, launch: Launch) -> bool:
        """Return whether a launch that has not ended does something already."""
        if launch.rows is not None:
            return launch.rows.begun
        return launch in self._held and (launch.simulation is not None or self.now_ps > launch.submit_ps)

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
        begun = SessionError(f"{launch} cannot be cancelled: it has begun", advice="wait for it")
        if launch.rows is None:
            if self.has_begun(launch):
                raise begun
            (self._held if launch in self._held else self._waiting).remove(launch)
        else:
            if not self.simulation.withdraw(launch.rows):
                raise begun
            del self._active[launch.rows.number]
            self._withdrawn += 1
            if launch.data is not None:
                self._data_runs.active.remove(launch.data)
        launch.data, launch.rows, launch._state = None, None, CANCELLED
        if launch in launch.worker.pending:
            launch.worker.pending.remove(launch)
        self._follow(launch)

    # time

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
        try:
            plans = [launch.plan for launch in worker.waits_for]
            with enough_memory(f"plan '{plans[0].name}' of {plans[0].units} units" if plans else "a session"):
                while worker.blocked and self.step(until, deadline):
                    pass
        except BaseException:
            worker.give_up()
            raise
        if worker.blocked:
            late = worker.give_up()
            if budget_ps is not None and deadline is None:
                worker.clock_ps = max(self.now_ps, worker.clock_ps)
            raise self.too_late(late[0])
        results = worker.results()
        return results[0] if single else results

    def too_late(self, launch: Launch) -> TimeBudgetExceeded:
        """Say how far a launch is that has not ended within the time given."""
        simulation = launch.simulation or self.simulation
        return TimeBudgetExceeded(
            f"plan '{launch.name}' has not ended within the time given: {simulation.how_far()}",
            advice="wait for it again, give more time, or find bounds by mt.price",
        )

    def advance(self) -> list[Worker]:
        """Let time pass until the first worker can go on; those that can. All workers must be blocked."""
        while True:
            woken = [w for w in self.workers if w.waiting and not w.blocked]
            if woken or not any(w.waiting for w in self.workers):
                return woken
            for worker in self._not_waiting():
                raise SessionError(
                    f"{worker} is not blocked, so time cannot pass",
                    advice="block() it, or close() it when it has ended",
                )
            if not self.step():
                raise self.too_late(next(p for w in self.workers for p in w.waits_for if not p.over))

    @property
    def busy(self) -> bool:
        """Whether a launch is under way."""
        return bool(self._held or self._active or self._waiting)

    def step(self, until: int = NEVER, deadline: float | None = None) -> bool:
        """Let time pass until a launch has ended; whether one has, before ``until`` and the deadline."""
        if self._over is not None:
            raise SessionError(f"this session is over: {self._over}", advice="begin a new Session")
        limit, first = time_limit_end(), None
        if limit is not None:
            deadline = limit if deadline is None else min(deadline, limit)
        for launch in tuple(self._held):
            timed = launch.known is not None and not launch.untimed
            if not timed and (until != NEVER or (launch.untimed and deadline is not None)):
                self._give(launch)
                continue
            if launch.untimed:
                self._time_from_caches(launch)
            if launch.known is None and not self._time_one_unit(launch, deadline):
                return False
            if first is None or launch.until_ps < first.until_ps:
                first = launch
        if self._active or self._withdrawn:
            if self._run(until if first is None else min(until, first.until_ps), deadline):
                return True
            if deadline is not None and monotonic() >= deadline:
                return False
        if first is not None and first.until_ps <= until:
            self._end_as_known(first)
            return True
        if first is None and until == NEVER:
            self._raise_deadlock()
        if until != NEVER:
            self.now_ps = max(self.now_ps, until)
        return False

    def _run(self, until: int, deadline: float | None) -> bool:
        """Let the engine go on until a launch has ended; whether one has."""
        simulation = self.simulation
        try:
            rows = simulation.run(until, deadline)
        except QueueMisuse as misuse:
            launch = self._active.get(misuse.launch) or next(iter(self._active.values()))
            launch._state = FAILED
            self._over = f"{self._names([launch])} misused its queues"
            explain(launch.plan, launch.scalars, misuse)
        except MegatileError as error:
            self._fail(f"ended with an error: {error.message}")
            raise
        self.now_ps = max(self.now_ps, simulation.clock_ps)
        if rows is None:
            return False
        if rows.number in self._active:
            self._ended(self._active.pop(rows.number), rows)
        else:
            simulation.release(rows)
            self._withdrawn -= 1
        return True

    def _raise_deadlock(self) -> None:
        """Nothing can go on: say who waits for what, unless another worker may still submit it."""
        others = self._not_waiting()
        if others:
            raise SessionError(
                f"{self._names(self._active.values())} cannot go on unless {others[0]} submits something",
                advice="submit it before you wait, or close() a worker that has ended",
            )
        said = self._fail(f"{'are' if len(self._active) > 1 else 'is'} deadlocked")
        names = {n: f"launch {w.number} '{w.name}'" for n, w in self._active.items() if not self._lent}
        raise deadlock(said, wait_graph(self.simulation, names))

    def _fail(self, what: str) -> str:
        """Let everything that is under way fail; the session is over, and this is why."""
        self._over = f"{self._names(self._active.values())} {what}"
        for launch in self._active.values():
            launch._state = FAILED
        return self._over

    def _not_waiting(self) -> list[Worker]:
        """Return the workers that may still submit something."""
        return [w for w in self.workers if not w.waiting and (w is not self.host or w.pending)]

    def _names(self, launches: Iterable[Launch]) -> str:
        """Return what launches are called in messages."""
        one = "plan '{0.name}'" if self._lent else "launch {0.number} ('{0.name}')"
        return ", ".join(map(one.format, launches))

    def _time_one_unit(self, launch: Launch, deadline: float | None) -> bool:
        """Find the times of a launch that has the machine for itself by the unit that stands for all; whether
        the deadline allowed it."""
        resources, plan, one = launch.resources, launch.resources.plan, launch.units.one
        if launch.simulation is None:
            assert one is not None
            launch.simulation = Simulation(record=0, engine=self.engine, contended=False)
            begin = resources.start_ps(0)
            launch.simulation.add(one, resources, launch.scalars, begin=begin)
        simulation = launch.simulation
        while simulation.run(deadline=deadline) is not None:
            pass
        if deadline is not None and monotonic() > deadline:
            return False
        graph = wait_graph(simulation)
        if graph is not None:
            raise deadlock(f"plan '{plan.name}' is deadlocked in every unit", graph)
        launch.simulation = None
        launch.known = known = launch.alone()
        known.present, known.units = np.arange(plan.units), launch.units
        sent = simulation.messages(simulation.launches[0])
        known.messages = {
            c.name: {u * c.members + m: n for m, n in sent[c.name].items() for u in range(plan.units)}
            for c in plan.channels
        }
        known.set_times(simulation.last_ps, simulation.last_ps)
        return True

    def _end_as_known(self, launch: Launch) -> None:
        """End a launch that has the machine for itself and whose times are known."""
        known = launch.known
        assert known is not None
        self._held.remove(launch)
        self.now_ps = max(self.now_ps, launch.until_ps)
        launch.take_times(known)
        self._caches.update(known.leaves)
        self._compute(launch)
        launch.end(known.took_ps)
        self._keep(launch)
        self._follow(launch)

    def _ended(self, launch: Launch, rows: LaunchRows) -> None:
        """A launch has ended in the timed run."""
        simulation, launch.messages = self.simulation, {}
        try:
            launch.messages = simulation.messages(rows)
        except QueueMisuse as misuse:
            try:
                explain(rows.plan, rows.scalars, misuse)
            except MegatileError as error:
                launch.error = error
            self._data_runs.active = [d for d in self._data_runs.active if d is not launch.data]
        launch.present, launch.repeatable = np.flatnonzero(rows.present), False
        launch.choices = choices(simulation, rows) if ReceiveAny in rows.plan.kinds else {}
        self._compute(launch)
        launch.set_times(simulation.last_of(rows) - launch.submit_ps, self.now_ps - launch.submit_ps)
        rows.scalars = launch.scalars
        if self.most_records:
            launch.record = Record(simulation, rows, launch.submit_ps)
        kept = self._keep(launch)
        if not self._lent:
            self._quiet_ps = int(simulation.table("lanes").max(initial=0))
            idle = self._quiet_ps <= self.now_ps and leaves_nothing(launch.resources)
            if launch.key is not None and launch.error is None and idle and not launch.resources.has_caches:
                self._cache_times(launch.key, kept)
            self._clear_up(launch)
        self._follow(launch)

    def _follow(self, launch: Launch) -> None:
        """Go on with those that have waited for a launch that is over."""
        followers, launch.followers = launch.followers, ()
        for other in followers:
            if other in self._waiting:
                self._line_up(other)

    def _cache_times(self, key: tuple[Any, ...], known: Launch) -> None:
        """Keep the times of a launch for those like it, within as many records as a session keeps."""
        if key in self._alone:
            return
        self._alone[key] = known.copied(rows=None)
        self._alone_rows += known.recorded_commands
        while self._alone_rows > self.simulation.most_records and len(self._alone) > 1:
            self._alone_rows -= self._alone.pop(next(iter(self._alone))).recorded_commands

    def _compute(self, launch: Launch) -> None:
        """Compute the outputs of a launch that has ended; an error is kept for who waits for it."""
        data = launch.data
        if data is None:
            return
        if launch.rows is None:
            self._data_runs.active.append(data)
        if launch.error is None:
            try:
                launch.outputs = self._data_runs.finish(data)
            except MegatileError as error:
                launch.error = error
        launch.scalars, launch.data = seen_values(data.seen), None
        del data.launch  # so that the launch goes with its last result, not with a garbage collection

    def _keep(self, launch: Launch) -> Launch:
        """Keep what a launch leaves behind; its line in the history."""
        return launch

    def _clear_up(self, launch: Launch) -> None:
        """Use the engine's memory of a launch again; when nothing is under way, free much of it."""
        simulation, rows, launch.rows = self.simulation, launch.rows, None
        assert rows is not None
        simulation.release(rows)
        if not self._active or launch.number % BETWEEN == 0:
            simulation.forget_records([a.rows for a in self._active.values() if a.rows is not None])
        if not self._active and simulation.arena.words > LARGE:
            self.simulation = self._new()
            self.simulation.continue_from(simulation)


def run_alone(launch: Launch, simulation: Simulation, inputs: Mapping[str, Any] | None = None) -> None:
    """Run a prepared launch on a machine of its own, in an engine that has done nothing yet."""
    if launch.caches is not None:
        simulation.paths.set_cache_states(launch.caches[1])
    machine = MachineRun(launch.hda, engine=launch.engine, simulation=simulation)
    try:
        machine.start(launch, inputs=inputs)
        machine.wait(launch)
    finally:
        # The engine's memory goes with the last result that reads it, not with a garbage collection.
        launch.worker = None
        del machine.simulation
    launch.simulation, launch.repeatable = None if launch.rows is None else simulation, True


def whole_number(name: str, value: Any) -> int:
    """A whole number that is not negative."""
    found = whole(value)
    if found is None or found < 0:
        raise SessionError(f"{name}={value!r} is no whole number from 0 on")
    return found
