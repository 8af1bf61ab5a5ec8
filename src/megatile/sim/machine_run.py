"""Launches on one machine as time passes: they are started, waited for, and end with a result.

`Session` remembers what they leave; `simulate` is one launch that has the machine for itself (`time_alone`).

A launch that is submitted waits for those that must end first (`_line_up`), then begins in one of two ways
(`_begin`):

* *Without the engine*, while nothing runs beside it. Its times are those of a launch like it that had an idle
  machine for itself (`known_times`), or of one of its units, which represents all (`symmetry`), or they are
  found when time passes, with what caches hold then (``untimed``). It ends at its known time.
* *In the engine*, beside others there. When a launch comes beside one that began without the engine, that
  joins it there (`_give`) and is simulated from its own submission on.

`step` lets time pass up to the first end of either kind. A launch that the engine has timed on an idle
machine, and that leaves it as it was, is kept for those like it (`_ended`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

import numpy as np

from megatile.core.errors import MegatileError
from megatile.core.limits import deadline as time_limit_end
from megatile.hda import HDA, machine as find_machine
from megatile.plan.counts import command_count
from megatile.plan.model import ReadScalar, ReceiveAny
from megatile.sim.contents import Contents
from megatile.sim.data import seen_values
from megatile.sim.data_runs import DataRuns, LaunchData
from megatile.sim.deadlock import deadlock, explain, wait_graph
from megatile.sim.known_times import KnownTimes, leaves_nothing
from megatile.sim.launch_rows import LaunchRows
from megatile.sim.launches import CANCELLED, FAILED, SUBMITTED, Launch, SessionError
from megatile.sim.queue_queries import QueueMisuse
from megatile.sim.record import Record
from megatile.sim.recorded_rows import choices
from megatile.sim.simulation import MAX_RECORDS, NEVER, Simulation, engine_name
from megatile.sim.symmetry import BESIDE, choose_units, time_one_unit
from megatile.sim.workers import Host, whole_number

BETWEEN = 64
"""Launches that end between looks for records that can be dropped while others are under way."""
MAX_OPERANDS = 1 << 16
"""Commands up to which it is recorded at once what each of them touches."""
LARGE = 1 << 23
"""Numbers in the engine's memory from which on it is given back when nothing is under way."""


class MachineRun(Host):
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
        super().__init__()
        self.engine = engine_name(engine)
        self._data_runs = DataRuns(self)
        self._lent = simulation is not None
        self.simulation = simulation or self._new()
        self._after_others: set[Launch] = set()
        """Launches that come after others that have not ended."""
        self._without_engine: list[Launch] = []
        """Launches that have begun without the engine; see above."""
        self._active: dict[int, Launch] = {}
        """Launches that the engine has, by its number of them."""
        self._known_times = KnownTimes()
        self._quiet_ps = 0
        """When the last link, memory and shared engine is free after the launches that have ended."""
        self._withdrawn = 0
        """Launches that were cancelled and that the engine still has."""
        self._count = 0
        self._over: str | None = None

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
                self._after_others.add(launch)
                before.followers = (*before.followers, launch)
                return
        self._after_others.discard(launch)
        self._begin(launch)

    def _begin(self, launch: Launch) -> None:
        """Begin a launch whose turn it is: without the engine where its times are known, or one unit
        represents all, and nothing runs beside it; else in the engine, with those beside it."""
        for other in launch.after:
            launch.submit_ps = max(launch.submit_ps, other.end_ps or 0)
        launch.after = ()
        if launch.plan is None:
            self._without_engine.append(launch)
            return
        beside = [other for other in (*self._without_engine, *self._active.values()) if launch.meets(other)]
        launch.idle = not (beside or self._withdrawn or launch.submit_ps < self._quiet_ps)
        resources, found = launch.resources, None
        # Nothing that earlier launches leave decides its time but what caches hold.
        by_caches = not self._lent and resources.has_caches and leaves_nothing(resources)
        if not beside and (launch.known is None or by_caches):
            found = self._known_times.find(launch, self.simulation.paths)
        launch.known = launch.known or found
        if not beside:
            known, records = launch.known, self.simulation.most_records
            launch.units = choose_units(resources.plan, resources, records) if known is None else known.units
        if launch.idle and by_caches and launch.units.one is None:
            launch.known, launch.untimed = found or launch.known, found is None
        if launch.units.one is not None or launch.untimed or (launch.known is not None and launch.idle):
            self._without_engine.append(launch)
            return
        for other in beside:
            other.idle = False
            if other.engine_rows is None:
                self._give(other, [launch])
        self._give(launch, beside)

    def _give(self, launch: Launch, beside: Sequence[Launch] = ()) -> None:
        """Give a launch to the engine, in which others are ``beside`` it. What caches hold since launches
        ended without the engine goes there first."""
        if launch in self._without_engine:
            self._without_engine.remove(launch)
        self.simulation.paths.set_cache_states(self._known_times.caches)
        self._known_times.caches = {}
        launch.crowded |= not launch.turns and any(w.plan.scale == launch.plan.scale for w in beside)
        resources, simulation, at = launch.resources, self.simulation, launch.submit_ps
        if launch.units.one is not None:
            launch.units = BESIDE
        launch.simulation, launch.untimed = None, False
        launch.engine_rows = simulation.add(
            resources.plan,
            resources,
            launch.scalars,
            at=at if launch.turns else None,
            begin=at + resources.start_ps(0),
            addresses=launch.addresses,
        )
        self._active[launch.engine_rows.number] = launch
        if launch.data is not None:
            self._data_runs.active.append(launch.data)

    def _time_from_caches(self, launch: Launch) -> None:
        """Time a launch alone with what caches hold now."""
        states = {**self.simulation.paths.all_cache_states(), **self._known_times.caches}
        known = time_alone(launch.alone(caches=(self.simulation.tensors, states)), 0)
        if known.simulation is not None:
            used = known.simulation.paths
            known.leaves = {name: used.cache_state(name) for name in used.caches}
        known.simulation = known.engine_rows = None
        before = {name: states.get(name, b"") for name in known.leaves}
        self._known_times.keep(launch, known, before, self.simulation.most_records)
        launch.known, launch.untimed = known, False

    def has_begun(self, launch: Launch) -> bool:
        """Return whether a launch that has not ended does something already."""
        if launch.engine_rows is not None:
            return launch.engine_rows.begun
        return launch in self._without_engine and (
            launch.simulation is not None or self.now_ps > launch.submit_ps
        )

    def cancel(self, launch: Launch) -> None:
        """Withdraw a launch that has not begun on any unit."""
        self.check_launches([launch])
        if launch.over:
            raise SessionError(f"{launch} cannot be cancelled: it is over")
        begun = SessionError(f"{launch} cannot be cancelled: it has begun", advice="wait for it")
        if launch.engine_rows is None:
            if self.has_begun(launch):
                raise begun
            (self._without_engine if launch in self._without_engine else self._after_others).remove(launch)
        else:
            if not self.simulation.withdraw(launch.engine_rows):
                raise begun
            del self._active[launch.engine_rows.number]
            self._withdrawn += 1
            if launch.data is not None:
                self._data_runs.active.remove(launch.data)
        launch.data, launch.engine_rows, launch._state = None, None, CANCELLED
        if launch in launch.worker.pending:
            launch.worker.pending.remove(launch)
        self._follow(launch)

    # time

    @property
    def busy(self) -> bool:
        """Whether a launch is under way."""
        return bool(self._without_engine or self._active or self._after_others)

    def step(self, until: int = NEVER, deadline: float | None = None) -> bool:
        """Let time pass until a launch has ended; whether one has, before ``until`` (picoseconds of simulated
        time) and the deadline (seconds of `time.monotonic`; an enclosing `time_limit` may come before it)."""
        if self._over is not None:
            raise SessionError(f"this session is over: {self._over}", advice="begin a new Session")
        limit, first = time_limit_end(), None
        if limit is not None:
            deadline = limit if deadline is None else min(deadline, limit)
        for launch in tuple(self._without_engine):
            timed = launch.known is not None and not launch.untimed
            if not timed and (until != NEVER or (launch.untimed and deadline is not None)):
                self._give(launch)
                continue
            if launch.untimed:
                self._time_from_caches(launch)
            if launch.known is None and not time_one_unit(launch, self.engine, deadline):
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
            launched = simulation.run(until, deadline)
        except QueueMisuse as misuse:
            launch = self._active.get(misuse.launch) or next(iter(self._active.values()))
            self._fail("misused its queues", [launch])
            explain(launch.plan, launch.scalars, misuse)
        except MegatileError as error:
            self._fail(f"ended with an error: {error.message}")
            raise
        self.now_ps = max(self.now_ps, simulation.arena.clock)
        if launched is None:
            return False
        if launched.number in self._active:
            self._ended(self._active.pop(launched.number), launched)
        else:
            simulation.release(launched)
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

    def _fail(self, what: str, by: Iterable[Launch] | None = None) -> str:
        """Fail all launches under way; the session is over, and this is why (``by``: whose fault it is)."""
        self._over = f"{self._names(self._active.values() if by is None else by)} {what}"
        for launch in self._active.values():
            launch._state = FAILED
        return self._over

    def _names(self, launches: Iterable[Launch]) -> str:
        """Return what launches are called in messages."""
        one = "plan '{0.name}'" if self._lent else "launch {0.number} ('{0.name}')"
        return ", ".join(map(one.format, launches))

    def _end_as_known(self, launch: Launch) -> None:
        """End a launch that has the machine for itself and whose times are known."""
        known = launch.known
        assert known is not None
        self._without_engine.remove(launch)
        self.now_ps = max(self.now_ps, launch.until_ps)
        launch.take_times(known)
        self._known_times.caches.update(known.leaves)
        self._compute(launch)
        launch.end(known.took_ps)
        self._keep(launch)
        self._follow(launch)

    def _ended(self, launch: Launch, launched: LaunchRows) -> None:
        """A launch has ended in the timed run."""
        simulation, launch.messages = self.simulation, {}
        try:
            launch.messages = simulation.messages(launched)
        except QueueMisuse as misuse:
            try:
                explain(launched.plan, launched.scalars, misuse)
            except MegatileError as error:
                launch.error = error
            self._data_runs.active = [d for d in self._data_runs.active if d is not launch.data]
        launch.present, launch.repeatable = np.flatnonzero(launched.present), False
        launch.choices = choices(simulation, launched) if ReceiveAny in launched.plan.kinds else {}
        self._compute(launch)
        last = simulation.arena.launches[launched.number].last
        launch.set_times(last - launch.submit_ps, self.now_ps - launch.submit_ps)
        launched.scalars = launch.scalars
        if self.most_records:
            launch.record = Record(simulation, launched, launch.submit_ps)
        kept = self._keep(launch)
        if not self._lent:
            self._quiet_ps = int(simulation.arena.rows("lanes").max(initial=0))
            idle = self._quiet_ps <= self.now_ps and leaves_nothing(launch.resources)
            if launch.idle and launch.error is None and idle and not launch.resources.has_caches:
                self._known_times.keep(launch, kept.copied(engine_rows=None), {}, simulation.most_records)
            self._clear_up(launch)
        self._follow(launch)

    def _follow(self, launch: Launch) -> None:
        """Go on with those that have waited for a launch that is over."""
        followers, launch.followers = launch.followers, ()
        for other in followers:
            if other in self._after_others:
                self._line_up(other)

    def _compute(self, launch: Launch) -> None:
        """Compute the outputs of a launch that has ended; an error is kept for who waits for it."""
        data = launch.data
        if data is None:
            return
        if launch.engine_rows is None:
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
        simulation, launched, launch.engine_rows = self.simulation, launch.engine_rows, None
        assert launched is not None
        simulation.release(launched)
        if not self._active or launch.number % BETWEEN == 0:
            simulation.forget_records(
                [a.engine_rows for a in self._active.values() if a.engine_rows is not None]
            )
        if not self._active and simulation.arena.words > LARGE:
            self.simulation = self._new()
            self.simulation.continue_from(simulation)


def time_alone(
    launch: Launch, records: int, operands: bool = False, inputs: Mapping[str, Any] | None = None
) -> Launch:
    """Run a prepared launch on a machine of its own, recording at most so many commands; what they touch only
    if there are few, or with ``operands``. With ``inputs`` it computes its outputs too."""
    count = command_count(launch.plan)
    tensors, states = launch.caches or (None, {})
    # Only what the plan's own units share has to be waited for.
    simulation = Simulation(
        record=records if count <= records else 0, engine=launch.engine, contended=launch.contended,
        operands=operands or count <= MAX_OPERANDS, tensors=tensors,
    )  # fmt: skip
    simulation.paths.set_cache_states(states)
    machine = MachineRun(launch.hda, engine=launch.engine, simulation=simulation)
    try:
        machine.start(launch, inputs=inputs)
        machine.wait(launch)
    finally:
        # The engine's memory goes with the last result that reads it, not with a garbage collection.
        launch.worker = None
        del machine.simulation
    launch.simulation, launch.repeatable = None if launch.engine_rows is None else simulation, True
    return launch
