"""A machine over several launches: memory stays, queues are installed once, time goes on.

    with Session("ahbm") as s:
        s.install(first)                  # one message per unit over the control path
        r1 = s.launch(first, {"t": x})    # a Result; times within it count from the launch
        a, b = s.submit(second), s.submit(third)     # on different units they run at the same time
        s.wait()
    s.time_ns, s.summary()

Launches on the same units take turns in the order in which they were submitted. Time passes only in `wait`,
up to the first launch that somebody waits for; so a launch that is submitted then comes in time. A host with
several workers (`worker`) has a clock for each: `Worker.block` and `advance` are for its scheduler. Tensors
(tiles with a role) are known by name, raw memory by its address; all other scratch begins undefined, so that
an earlier kernel cannot leak into a later one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Any

import numpy as np

from megatile.core.errors import MegatileError
from megatile.core.quantities import format_time
from megatile.hda import HDA, machine as find_machine
from megatile.plan.memory import check_memory
from megatile.plan.model import Plan, ReadScalar
from megatile.plan.structure import check_structure
from megatile.sim import state as st
from megatile.sim.answers import QueueMisuse
from megatile.sim.contents import Contents
from megatile.sim.data import Scalars, assumed, reads_scalars
from megatile.sim.install import InstallError, Queues
from megatile.sim.joint import Joint, LaunchData
from megatile.sim.launches import Entry, Launch, Prepared, SessionError, TimeBudgetExceeded, Worker
from megatile.sim.record import Record, choices, has_any
from megatile.sim.result import Outcome, Result
from megatile.sim.simulate import deadlock, engine_name, explain, simulate, symmetric
from megatile.sim.simulation import MOST_RECORDS, NEVER, Launched, Simulation
from megatile.sim.stuck import counts, wait_graph
from megatile.sim.timeline import install_trace, one_timeline
from megatile.timing.faults import Faults, current_faults
from megatile.timing.resources import Resources, place_names
from megatile.timing.view import Timing, as_timing
from megatile.trace import Trace, WaitGraph, critical_path, text_table, why_slow

INSTALL = "install"
KEPT = 1 << 18
"""Commands of all launches that are kept for traces unless more are asked for."""
LARGE = 1 << 22
"""Numbers in the engine's memory from which on it is given back when nothing is under way."""


class Session:
    """One machine and what it remembers between launches.

    ``record`` says how many commands are kept for traces; the oldest launches are forgotten first.
    """

    def __init__(self, machine: HDA | str, *, engine: str | None = None, record: int = KEPT) -> None:
        if not isinstance(machine, (HDA, str)):
            raise SessionError(
                f"a session takes a machine, not {type(machine).__name__}", advice='Session("ahbm")'
            )
        self.machine = find_machine(machine) if isinstance(machine, str) else machine
        self.launches: list[Entry] = []
        """Every launch that has ended: name, units, when it was submitted and when it ended."""
        self.now_ps = 0
        """How far time has come; nothing can be submitted before it."""
        self.engine = engine_name(engine)
        self.most_records = record
        self._installs: list[Entry] = []
        self._queues = Queues()
        self._contents = Contents()
        self._joint = Joint()
        self._prepared: dict[tuple[int, Faults], Prepared] = {}
        self._simulation = self._new()
        self._active: dict[int, Launch] = {}
        self._host_free_ps = 0
        self._kept = self._forgotten = 0
        self._count = 0
        self._over: str | None = None
        self.workers: list[Worker] = []
        self.host = self.worker("host")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: Any) -> None:
        self._over = "it was left"

    def __repr__(self) -> str:
        return f"Session({self.machine.name}: {len(self.launches)} launches, {format_time(self.time_ps)})"

    @property
    def time_ps(self) -> int:
        """When the last launch or install ended, as far as time has come."""
        ends = [entry.end_ps for entry in (*self.launches[-1:], *self._installs[-1:])]
        return max([self.now_ps, *ends, *(w.clock_ps for w in self.workers)])

    @property
    def time_ns(self) -> float:
        return self.time_ps / 1000

    def worker(self, name: str | None = None) -> Worker:
        """Another thread of the host; its clock begins now."""
        self.workers.append(Worker(self, name or f"worker {len(self.workers)}"))
        return self.workers[-1]

    def _new(self) -> Simulation:
        most = max(MOST_RECORDS, self.most_records) if self.most_records else 0
        return Simulation(record=most, engine=self.engine, everything_shared=True)

    # installing

    def install(self, plan: Plan, units: Iterable[int] | None = None, *, worker: Worker | None = None) -> int:
        """Install the queues that a plan has at its units (or at some of them); the picoseconds that takes.

        Every unit gets a message over the control path, one after another over the host's link. A unit takes
        one install only: choose slots that serve every kernel (``n_slots``, ``slot_size`` of
        ``tl.read_kernel``).
        """
        worker = worker or self.host
        resources = self._prepare(plan).resources
        if not plan.channels:
            raise SessionError(f"plan '{plan.name}' has no queues to install")
        chosen = sorted(set(range(plan.units) if units is None else units))
        if chosen and not 0 <= chosen[0] <= chosen[-1] < plan.units:
            raise SessionError(f"plan '{plan.name}' has units 0 to {plan.units - 1}, not {chosen[-1]}")
        self._check_directions(plan, resources)
        self._queues.install(plan, set(chosen))
        begin = max(worker.clock_ps, self.now_ps, self._host_free_ps)
        each = resources.host_link_ps()
        end = begin + resources.control_ps() + max(0, len(chosen) - 1) * each
        self._host_free_ps = begin + len(chosen) * each
        names = [resources.names[u] for u in chosen]
        ends = [end - (len(chosen) - 1 - i) * each for i in range(len(chosen))]
        trace = install_trace(self.machine.name, INSTALL, names, [e - begin for e in ends])
        self._installs.append(Entry(INSTALL, len(chosen), begin, end, trace=trace))
        took, worker.clock_ps = end - worker.clock_ps, end
        return took

    def _check_directions(self, plan: Plan, resources: Resources) -> None:
        """A unit has as many queues as its hardware has directions."""
        limit = self.machine.queues_of(resources.level.name)
        if limit is None:
            return
        units, count = np.arange(plan.units), np.zeros(plan.units, dtype=np.int64)
        for channel in (c for c in plan.channels if c.level is None):
            for member in range(channel.members):
                sources = channel.source.evaluate({"unit": units, "member": member})
                count += np.broadcast_to(sources >= 0, count.shape)
        if (count > limit.directions).any():
            at = int(np.argmax(count))
            raise InstallError(
                f"{resources.names[at]} needs {int(count[at])} queues for plan '{plan.name}', "
                f"'{limit.name}' of machine '{self.machine.name}' has {limit.directions} directions",
                advice="use a topology with fewer neighbours",
            )

    # launching

    def launch(self, plan: Plan, inputs: Mapping[str, Any] | None = None, **options: Any) -> Result:
        """Submit a plan and wait for it; see `submit`. A `Result` counts times from when it was submitted."""
        worker = options.get("worker") or self.host
        return worker.wait(self.submit(plan, inputs, **options))

    def submit(
        self,
        plan: Plan,
        inputs: Mapping[str, Any] | None = None,
        *,
        at: int | None = None,
        data: bool | None = None,
        assume: Mapping[str, Any] | None = None,
        timing: Timing | None = None,
        engine: str | None = None,
        worker: Worker | None = None,
    ) -> Launch:
        """Run a plan on the machine as the launches before leave it, from the worker's clock (or ``at``) on.

        Inputs that are not given are those in memory. Where some are unknown, times alone are found out
        (``data=True`` makes that an error). Queues that nobody installed are installed first, as `simulate`
        does. ``assume``, ``engine`` and ``timing`` are those of `simulate`; a library's ``timing`` needs the
        machine for itself.
        """
        worker, prepared = worker or self.host, self._prepare(plan)
        if worker.blocked:
            raise SessionError(f"{worker} waits and cannot submit anything")
        now = max(worker.clock_ps, self.now_ps)
        if at is not None and at < now:
            raise SessionError(
                f"a launch cannot be submitted at {at} ps: it is {now} ps already", advice="leave at= out"
            )
        new = self._queues.missing(plan)
        self._queues.check_flags(plan)
        lasting, given = prepared.lasting, dict(inputs or {})
        unknown = self._contents.missing(lasting, given)
        with_data = data is not False and unknown is None
        if unknown is not None and (data or inputs):
            self._say_missing(plan, unknown)
        launch = Launch(self._count, plan, worker, now if at is None else at)
        if engine is not None:
            self._simulation.engine = engine_name(engine)
        if type(as_timing(timing)) is not Timing or self._by_symmetry(lasting):
            self._alone(launch, prepared, given if with_data else None, not new, assume, timing)
        else:
            before = {name: replace(tensor) for name, tensor in self._contents.tensors.items()}
            try:
                self._contents.declare(lasting, with_data)
                self._begin(launch, prepared, given if with_data else None, bool(new), assume)
            except MegatileError:
                self._contents.tensors = before
                raise
        if new:
            self._queues.add(plan)
        self._count += 1
        worker.pending.append(launch)
        return launch

    def _begin(
        self,
        launch: Launch,
        prepared: Prepared,
        given: Mapping[str, Any] | None,
        install: bool,
        assume: Mapping[str, Any] | None,
    ) -> None:
        """Give a launch to the engine."""
        simulation, resources, plan = self._simulation, prepared.resources, prepared.lasting
        scalars: Scalars = assumed(assume)
        if given is not None:
            launch._data = self._data(launch, plan, given, prepared)
            if reads_scalars(plan):
                scalars = lambda statement, unit, count: self._scalar(launch, statement, unit, count)  # noqa: E731
        begin = launch.submit_ps + resources.control_ps() * (2 if install else 1)
        launch._prepared = prepared
        launch._launched = simulation.add(plan, resources, scalars, at=launch.submit_ps, begin=begin)
        self._active[launch._launched.number] = launch
        if launch._data is not None:
            self._joint.active.append(launch._data)

    def _data(self, launch: Launch, plan: Plan, given: Mapping[str, Any], prepared: Prepared) -> LaunchData:
        def begun() -> Any:
            launched = launch._launched
            assert launched is not None
            first, count = self._simulation.table("launch")[launched.number, [st.FIRST, st.ROWS]].tolist()
            free = self._simulation.table("unit")[first : first + count, st.STATE] != st.PENDING
            return np.full(plan.units, bool(free.all())) if plan.levels else free

        def chosen() -> dict[int, list[int]]:
            assert launch._launched is not None
            return choices(self._simulation, launch._launched)

        code = prepared.code.pop() if prepared.code else None
        data = LaunchData(plan, self.machine, given, self._contents, self._joint.mail, begun, chosen, code)
        for flag in plan.flags:
            if flag.installed:
                key = (data.level[0], flag.name)
                data.flags[flag.name] = self._joint.flags.setdefault(key, data.flags[flag.name])
        return data

    def _scalar(self, launch: Launch, statement: ReadScalar, unit: int, count: int) -> int:
        assert launch._data is not None
        return self._joint.scalar(launch._data, statement, unit, count)

    def _by_symmetry(self, plan: Plan) -> bool:
        return not self._active and symmetric(plan, 0) and not any(c.installed for c in plan.channels)

    def _alone(
        self,
        launch: Launch,
        prepared: Prepared,
        given: Mapping[str, Any] | None,
        installed: bool,
        assume: Mapping[str, Any] | None,
        timing: Timing | None,
    ) -> None:
        """A launch that has the machine for itself: `simulate` tells its time."""
        if self._active:
            raise SessionError(
                f"plan '{launch.plan.name}' with the timing of a library needs the machine for itself",
                advice="wait() for the other launches first",
            )
        plan = prepared.lasting
        found = None if given is None else self._contents.inputs(plan, given)
        result = simulate(
            plan, found, machine=self.machine, data=found is not None, engine=self.engine, assume=assume,
            installed=installed, timing=timing,
        )  # fmt: skip
        self._contents.declare(plan, found is not None)
        for name, array in (result.outputs or {}).items() if found is not None else ():
            if name in self._contents.tensors:
                self._contents.tensors[name].data = array
        self._contents.keep(plan, result.outputs, np.arange(plan.units))
        self._queues.count(plan, result.messages)
        launch.result, launch.end_ps = result, launch.submit_ps + result.time_ps
        self.now_ps = launch.end_ps
        alone = Result(result._run, None)
        self.launches.append(Entry(plan.name, plan.units, launch.submit_ps, launch.end_ps, alone=alone))

    def _prepare(self, plan: Plan) -> Prepared:
        """The machine as this plan sees it, if the session can go on and the plan fits it."""
        if self._over is not None:
            raise SessionError(f"this session is over: {self._over}", advice="begin a new Session")
        if not isinstance(plan, Plan):
            raise SessionError(
                f"a session takes a Plan, not {type(plan).__name__}",
                advice="read a kernel first: tl.read_kernel(kernel, arguments, world_size=…)",
            )
        key = id(plan), current_faults()
        prepared = self._prepared.get(key)
        if prepared is None:
            check_structure(plan)
            prepared = Prepared(plan, self.machine, key[1])
        beside = tuple(self._contents.tensors)
        if prepared.checked != beside:
            check_memory(self._beside(plan), self.machine)
            prepared.checked = beside
        self._prepared[key] = prepared
        return prepared

    def _beside(self, plan: Plan) -> Plan:
        """The plan with the tensors that take room beside its own."""
        own = {tile.name for tile in plan.tiles}
        others = [t.tile for t in self._contents.tensors.values() if t.tile.name not in own]
        fitting = [t for t in others if t.owners is None or t.owners == plan.units]
        return replace(plan, tiles=(*plan.tiles, *fitting))

    def _say_missing(self, plan: Plan, name: str) -> None:
        known = name in self._contents.tensors
        problem = "was written by a launch without data" if known else "is not in memory"
        raise SessionError(
            f"tensor '{name}' of plan '{plan.name}' {problem}", advice=f"launch(plan, {{'{name}': …}})"
        )

    def cancel(self, launch: Launch) -> None:
        """Withdraw a launch that has not begun on any unit."""
        if (
            launch.over
            or launch._launched is None
            or launch.number not in {a.number for a in self._active.values()}
        ):
            raise SessionError(f"{launch} cannot be cancelled: it is over")
        if not self._simulation.withdraw(launch._launched):
            raise SessionError(f"{launch} cannot be cancelled: it has begun", advice="wait for it")
        del self._active[launch._launched.number]
        if launch._data is not None:
            self._joint.active.remove(launch._data)
            launch._data = None
        launch._launched, launch.cancelled = None, True
        if launch in launch.worker.pending:
            launch.worker.pending.remove(launch)

    # waiting

    def wait(
        self,
        *launches: Launch,
        worker: Worker | None = None,
        budget_ps: int | None = None,
        seconds: float | None = None,
    ) -> Any:
        """Let time pass until these launches have ended: the `Result` of one, a list for several or (without
        arguments) for all that were submitted and not waited for.

        ``budget_ps`` of simulated time or ``seconds`` on the wall that do not suffice raise
        `TimeBudgetExceeded`.
        """
        single = len(launches) == 1
        if not launches and worker is None:
            launches = tuple(p for w in self.workers for p in w.pending)
        worker = worker or self.host
        worker.block(*launches)
        for launch in worker.waits_for:
            if launch.worker is not worker and launch in launch.worker.pending:
                launch.worker.pending.remove(launch)
        until = NEVER if budget_ps is None else max(self.now_ps, worker.clock_ps) + budget_ps
        deadline = None if seconds is None else monotonic() + seconds
        while worker.blocked:
            if not self._step(until, deadline):
                worker.pending += [w for w in worker.waits_for if w not in worker.pending]
                late = [w for w in worker.waits_for if not w.over]
                worker.waits_for, worker.waiting = [], False
                if budget_ps is not None and deadline is None:
                    self.now_ps = max(self.now_ps, until)
                    worker.clock_ps = max(worker.clock_ps, until)
                raise TimeBudgetExceeded(
                    f"{late[0]} has not ended within the time given", advice="wait for it again"
                )
        results = worker.results()
        return results[0] if single else results

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
            self._step(NEVER, None)

    def _step(self, until: int, deadline: float | None) -> bool:
        """Let the engine go on until a launch has ended; whether one has."""
        if self._over is not None:
            raise SessionError(f"this session is over: {self._over}", advice="begin a new Session")
        simulation = self._simulation
        try:
            launched = simulation.run(until, deadline)
        except QueueMisuse as misuse:
            launch = next(iter(self._active.values()))
            self._over = f"launch {launch.number} ('{launch.plan.name}') misused its queues"
            explain(launch.plan, assumed(None), misuse)
        self.now_ps = max(self.now_ps, simulation.clock_ps)
        if launched is None:
            if until == NEVER and (deadline is None or monotonic() < deadline):
                self._stuck()
            return False
        if launched.number in self._active:
            self._ended(self._active.pop(launched.number), launched)
        else:
            simulation.release(launched)  # it was withdrawn
        return True

    def _stuck(self) -> None:
        graph = wait_graph(
            self._simulation, {n: f"launch {x.number} '{x.plan.name}'" for n, x in self._active.items()}
        )
        assert graph is not None
        names = ", ".join(f"launch {x.number} ('{x.plan.name}')" for x in self._active.values())
        verb = "are" if len(self._active) > 1 else "is"
        self._over = f"{names} {verb} deadlocked"
        raise deadlock(self._over, graph)

    def _ended(self, launch: Launch, launched: Launched) -> None:
        """A launch has ended: what it leaves."""
        simulation = self._simulation
        launch.end_ps = simulation.last_of(launched)
        plan = launched.plan
        outputs, messages, present = None, {}, np.flatnonzero(launched.present)
        try:
            messages = simulation.messages(launched)
            if launch._data is not None:
                outputs = self._joint.finish(launch._data)
            else:
                self._contents.keep(plan, None, present)
        except MegatileError as error:
            launch._error = error
            self._contents.keep(plan, None, present)
        except QueueMisuse as misuse:
            try:
                explain(plan, launched.scalars, misuse)
            except MegatileError as error:
                launch._error = error
            self._joint.active = [d for d in self._joint.active if d is not launch._data]
        self._queues.count(plan, messages)
        record = Record(simulation, launched, launch.submit_ps) if self.most_records else None
        entry = Entry(
            plan.name, plan.units if plan.levels else len(present), launch.submit_ps, launch.end_ps, record
        )
        self.launches.append(entry)
        taken = choices(simulation, launched) if has_any(plan) else {}
        took = launch.end_ps - launch.submit_ps
        outcome = Outcome(
            launch.plan, self.machine, took, 0, taken, messages, faults=launched.resources.faults,
            engine=self.engine, installed=True, scalars=launched.scalars, record=record,
        )  # fmt: skip
        launch.result = Result(outcome, outputs)
        if launch._data is not None and launch._prepared is not None:
            launch._prepared.code.append(launch._data.programs)
        launch._data = launch._prepared = launch._launched = None
        simulation.release(launched)
        active = [a._launched for a in self._active.values() if a._launched is not None]
        simulation.forget_records(active)
        self._keep_at_most()
        if not active and simulation.arena.words > LARGE:
            self._simulation = self._new()
            self._simulation.continue_from(simulation)
            self._prepared.clear()

    def _keep_at_most(self) -> None:
        """Forget the records of the oldest launches when there are too many in all."""
        record = self.launches[-1].record
        self._kept += 0 if record is None else len(record.rows)
        while self._kept > self.most_records and self._forgotten < len(self.launches) - 1:
            entry = self.launches[self._forgotten]
            self._kept -= 0 if entry.record is None else len(entry.record.rows)
            self._forgotten, entry.record = self._forgotten + 1, None

    # memory

    def read(self, name: str) -> Any:
        """What a tensor holds now: an array with one row per owner."""
        known = self._contents.tensors.get(name)
        if known is None or not known.valid or known.data is None:
            there = ", ".join(n for n, t in self._contents.tensors.items() if t.valid) or "none"
            raise SessionError(f"there is no tensor '{name}' with known contents; there are: {there}")
        return known.data.copy()

    def free(self, name: str) -> None:
        """Forget a tensor; its name and its room can be used for another."""
        if self._contents.tensors.pop(name, None) is None:
            raise SessionError(f"there is no tensor '{name}' to free")
        self._simulation.forget_tensor(name)

    # what happened

    def pointers(self) -> WaitGraph:
        """The pointers of all installed queues; ``text()`` shows them."""

        def level(place: tuple[str, int]) -> str:
            return self.machine.scale(place[0]).level

        def live(place: tuple[str, int], name: str, direction: Any) -> tuple[int, int, int] | None:
            number = self._simulation.installed.get((level(place), place[1], name, direction))
            return None if number is None else counts(self._simulation, number)

        def unit(place: tuple[str, int]) -> str:
            return place_names(self.machine, level(place), [place[1]])[0]

        return WaitGraph((), tuple(self._queues.pointers(unit, live)))

    @property
    def trace(self) -> Trace:
        """Everything since the beginning (or as far back as ``record`` reaches), on one clock."""
        return one_timeline([*self._installs, *self.launches], self.machine.name)

    @property
    def critical_path(self) -> Any:
        return critical_path(self.trace)

    def why_slow(self, limit: int = 10) -> str:
        """The critical path of the whole session by operation and source line."""
        return why_slow(self.trace, limit)

    def summary(self) -> str:
        """A table of installs and launches."""
        rows = sorted([*self._installs, *self.launches], key=lambda entry: entry.begin_ps)
        cells = [(e.name, e.units, format_time(e.begin_ps), format_time(e.end_ps - e.begin_ps)) for e in rows]
        table = text_table(("launch", "units", "begins", "takes"), cells)
        return f"{self.machine.name}: {len(self.launches)} launches, {format_time(self.time_ps)}\n{table}"
