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
from megatile.core.quantities import format_time, whole
from megatile.hda import HDA, machine as find_machine
from megatile.plan.code import Code
from megatile.plan.memory import check_memory
from megatile.plan.model import Plan
from megatile.plan.structure import check_structure
from megatile.sim import state as st
from megatile.sim.answers import QueueMisuse
from megatile.sim.contents import Contents
from megatile.sim.data import Scalars, assumed, reads_scalars, seen_values
from megatile.sim.install import InstallError, Queues
from megatile.sim.joint import Joint, LaunchData
from megatile.sim.launches import Entry, Launch, Prepared, SessionError, TimeBudgetExceeded, Worker
from megatile.sim.record import Record, choices, has_any
from megatile.sim.result import Result, Run
from megatile.sim.simulation import MOST_RECORDS, NEVER, Launched, Simulation, engine_name
from megatile.sim.stuck import counts, deadlock, explain, wait_graph
from megatile.sim.symmetry import representative, symmetric
from megatile.sim.timeline import install_trace, one_timeline
from megatile.timing.faults import Faults, current_faults
from megatile.timing.resources import Resources, place_names
from megatile.timing.view import Timing, as_timing
from megatile.trace import Trace, WaitGraph, critical_path, text_table, why_slow

INSTALL = "install"
BETWEEN = 64
"""Launches that end between looks for records that can be dropped while others are under way."""
KEPT = 1 << 18
"""Commands of all launches that are kept for traces unless more are asked for."""
LARGE = 1 << 23
"""Numbers in the engine's memory from which on it is given back when nothing is under way."""


class Session:
    """One machine and what it remembers between launches.

    ``record`` says how many commands are kept for traces; the oldest launches are forgotten first.
    """

    alone = False
    """Whether there is only one launch, which leaves nothing behind (`simulate`)."""

    def __init__(self, machine: HDA | str, *, engine: str | None = None, record: int = KEPT) -> None:
        if not isinstance(machine, (HDA, str)):
            raise SessionError(
                f"a session takes a machine, not {type(machine).__name__}", advice='Session("ahbm")'
            )
        _number("record", record)
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
        self._prepared: dict[tuple[int, Faults, Timing], Prepared] = {}
        self._simulation = self._new()
        self._active: dict[int, Launch] = {}
        """Launches that the engine has, by its number of them."""
        self._held_back: Launch | None = None
        """One that the engine need not have if nothing comes beside it: a unit may stand for all."""
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
        worker = self._worker(worker)
        resources = self._prepare(plan).installed
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
        worker = self._worker(options.get("worker"))
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
        does. ``assume``, ``engine`` and ``timing`` are those of `simulate`.
        """
        worker = self._worker(worker)
        prepared = self._prepare(plan, timing)
        if worker.blocked:
            raise SessionError(f"{worker} waits and cannot submit anything")
        now = max(worker.clock_ps, self.now_ps)
        if at is not None and _number("at", at) < now:
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
        if engine is not None:
            self._simulation.engine = engine_name(engine)
        before = {name: replace(tensor) for name, tensor in self._contents.tensors.items()}
        try:
            self._contents.declare(lasting, with_data)
            launch = self.start(
                prepared.first if new else prepared.installed,
                plan,
                at=now if at is None else at,
                inputs=given if with_data else None,
                scalars=assumed(assume),
                contents=self._contents,
                worker=worker,
                code=prepared.code,
                delay=prepared.delay_ps,
            )
        except MegatileError:
            self._contents.tensors = before
            raise
        if new:
            self._queues.add(plan)
        return launch

    def start(
        self,
        resources: Resources,
        plan: Plan | None = None,
        *,
        at: int = 0,
        inputs: Mapping[str, Any] | None = None,
        scalars: Scalars | None = None,
        contents: Contents | None = None,
        turns: bool = True,
        control: bool = True,
        worker: Worker | None = None,
        code: list[list[Code]] | None = None,
        delay: int | None = None,
    ) -> Launch:
        """Begin a plan as these resources see the machine, whatever memories and queues hold; `submit` looks
        after those.

        With ``inputs`` it computes, in memories that are its own unless ``contents`` are given. Without
        ``turns`` it goes on beside the launches on its units instead of after them. ``control=False`` leaves
        out the host's part of a library's time; what that adds comes on top at the end, unless ``delay`` says
        what goes before the first message.
        """
        worker = self._worker(worker)
        launch = Launch(
            self._count,
            plan or resources.plan,
            worker,
            at,
            resources,
            turns=turns,
            control=control,
            delay=delay,
        )
        launch._scalars = scalars or assumed(None)
        if inputs is not None:
            kept = Contents(lasting=False) if contents is None else contents
            launch._code = code
            launch._data = self._data(launch, inputs, kept)
            if reads_scalars(resources.plan):
                launch._scalars = lambda *asked: self._joint.scalar(launch._data, *asked)  # type: ignore[arg-type]
        if self._held_back is not None:
            self._give(self._held_back)
        if not self._active and symmetric(resources.plan, self._simulation.most_records):
            self._held_back = launch
        else:
            self._give(launch)
        self._count += 1
        worker.pending.append(launch)
        return launch

    def _give(self, launch: Launch) -> None:
        """Give a launch to the engine."""
        resources, simulation, at = launch._resources, self._simulation, launch.submit_ps
        if has_any(resources.plan):
            simulation.record_all()
        self._held_back = None
        launch._launched = simulation.add(
            resources.plan,
            resources,
            launch._scalars,
            at=at if launch._turns else None,
            begin=at + resources.start_ps(0) + (launch._delay or 0),
        )
        self._active[launch._launched.number] = launch
        if launch._data is not None:
            self._joint.active.append(launch._data)

    def _data(self, launch: Launch, given: Mapping[str, Any], contents: Contents) -> LaunchData:
        plan = launch._resources.plan
        known: tuple[int, dict[Any, list[int]]] = (-1, {})

        def begun() -> Any:
            launched, simulation = launch._launched, self._simulation
            if launched is None:
                return np.ones(plan.units, dtype=bool)
            first, count = simulation.table("launch")[launched.number, [st.FIRST, st.ROWS]].tolist()
            free = simulation.table("unit")[first : first + count, st.STATE] != st.PENDING
            return np.full(plan.units, bool(free.all())) if plan.levels else free

        def chosen() -> dict[Any, list[int]]:
            nonlocal known
            now = int(self._simulation.arena.memory[st.RECORDED])
            if known[0] != now and launch._launched is not None:
                known = now, choices(self._simulation, launch._launched)
            return known[1]

        code = launch._code.pop() if launch._code else None
        data = LaunchData(plan, self.machine, given, contents, self._joint.mail, begun, chosen, code)
        for flag in plan.flags:
            if flag.installed:
                key = (data.level[0], flag.name)
                data.flags[flag.name] = self._joint.flags.setdefault(key, data.flags[flag.name])
        return data

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

    def _prepare(self, plan: Plan, timing: Timing | None = None) -> Prepared:
        """The machine as this plan sees it, if the session can go on and the plan fits it."""
        if self._over is not None:
            raise SessionError(f"this session is over: {self._over}", advice="begin a new Session")
        if not isinstance(plan, Plan):
            raise SessionError(
                f"a session takes a Plan, not {type(plan).__name__}",
                advice="read a kernel first: tl.read_kernel(kernel, arguments, world_size=…)",
            )
        key = id(plan), current_faults(), as_timing(timing)
        prepared = self._prepared.get(key)
        if prepared is None:
            check_structure(plan)
            prepared = Prepared(plan, self.machine, *self._fastest(plan, *key[1:]))
        beside = tuple(self._contents.tensors)
        if prepared.checked != beside:
            check_memory(self._beside(plan), self.machine)
            prepared.checked = beside
        self._prepared[key] = prepared
        return prepared

    def _fastest(self, plan: Plan, faults: Faults, timing: Timing) -> tuple[Faults, Timing, int | None]:
        """Of several ways of a library, the one that is the fastest on an idle machine, with what its kernels
        spend before the first message."""
        if type(timing) is Timing:
            return faults, timing, None
        runs = [
            Run(plan, self.machine, option, faults, self.engine, installed=True)
            for option in timing.options(self.machine, plan.scale)
        ]
        for run in runs:
            run.run(0)
        best = min(runs, key=lambda run: run.end_ps)
        return faults, best.timing, best.begin_ps or None

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
        self.check_launches([launch])
        if launch.over:
            raise SessionError(f"{launch} cannot be cancelled: it is over")
        if launch is self._held_back:
            self._held_back = None
        else:
            launched = launch._launched
            if launched is None or not self._simulation.withdraw(launched):
                why = "it has begun" if not launch.plan.levels else "plans with levels cannot be withdrawn"
                raise SessionError(f"{launch} cannot be cancelled: {why}", advice="wait for it")
            del self._active[launched.number]
            if launch._data is not None:
                self._joint.active.remove(launch._data)
        launch._data, launch._launched, launch.cancelled = None, None, True
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
        worker = self._worker(worker)
        until = NEVER
        if budget_ps is not None:
            until = max(self.now_ps, worker.clock_ps) + _number("budget_ps", budget_ps)
        deadline = None if seconds is None else monotonic() + _seconds(seconds)
        worker.block(*launches)
        for other in {launch.worker for launch in worker.waits_for} - {worker}:
            other.pending = [p for p in other.pending if p not in launches]
        try:
            while worker.blocked and self._step(until, deadline):
                pass
        except BaseException:
            worker.give_up()
            raise
        if worker.blocked:
            late = worker.give_up()
            if budget_ps is not None and deadline is None:
                self.now_ps = worker.clock_ps = max(self.now_ps, worker.clock_ps, until)
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
        if self._held_back is not None:
            launch = self._held_back
            if until == NEVER and self._one_for_all(launch):
                self._held_back = None
                return True
            self._give(launch)
        simulation = self._simulation
        try:
            launched = simulation.run(until, deadline)
        except QueueMisuse as misuse:
            launch = self._active.get(misuse.launch) or next(iter(self._active.values()))
            self._over = f"launch {launch.number} ('{launch.plan.name}') misused its queues"
            explain(launch.plan, launch._scalars, misuse)
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
        active = {} if self.alone else self._active
        graph = wait_graph(
            self._simulation, {n: f"launch {x.number} '{x.plan.name}'" for n, x in active.items()}
        )
        assert graph is not None
        names = ", ".join(f"launch {x.number} ('{x.plan.name}')" for x in active.values())
        names = names or f"plan '{next(iter(self._active.values())).plan.name}'"
        self._over = f"{names} {'are' if len(active) > 1 else 'is'} deadlocked"
        raise deadlock(self._over, graph)

    def _one_for_all(self, launch: Launch) -> bool:
        """Find the time of a launch, which has the machine for itself, by the unit that stands for all; False
        where none does."""
        resources, plan = launch._resources, launch._resources.plan
        one = representative(plan, resources)
        if one is None:
            return False
        simulation = Simulation(record=0, engine=self.engine, contended=False)
        begin = launch.submit_ps + resources.start_ps(0) + (launch._delay or 0)
        launched = simulation.add(one, resources, launch._scalars, begin=begin)
        while simulation.run() is not None:
            pass
        graph = wait_graph(simulation)
        if graph is not None:
            raise deadlock(f"plan '{plan.name}' is deadlocked in every unit", graph)
        sent = simulation.messages(launched)
        messages = {
            c.name: {u * c.members + m: n for m, n in sent[c.name].items() for u in range(plan.units)}
            for c in plan.channels
        }
        if launch._data is not None:
            self._joint.active.append(launch._data)
        self.now_ps = max(self.now_ps, simulation.last_ps)
        self._finish(launch, simulation.last_ps, messages, np.arange(plan.units))
        return True

    def _ended(self, launch: Launch, launched: Launched) -> None:
        """A launch has ended in the timed run."""
        simulation, messages = self._simulation, {}
        try:
            messages = simulation.messages(launched)
        except QueueMisuse as misuse:
            try:
                explain(launched.plan, launched.scalars, misuse)
            except MegatileError as error:
                launch._error = error
            self._joint.active = [d for d in self._joint.active if d is not launch._data]
        self._finish(launch, simulation.last_of(launched), messages, np.flatnonzero(launched.present))
        if not self.alone:
            launch._launched = None
            self._clear_up(launched)

    def _finish(
        self, launch: Launch, last_ps: int, messages: dict[str, dict[int, int]], present: Any
    ) -> None:
        """What a launch leaves: data, counts of messages, a line of the history, a result."""
        resources, launched, data = launch._resources, launch._launched, launch._data
        plan, outputs, spent = resources.plan, None, last_ps - launch.submit_ps
        took = spent if launch._delay is not None else resources.whole_ps(spent, launch._control)
        launch.end_ps, delay = launch.submit_ps + took, max(0, took - spent)
        if launch._error is None and data is not None:
            try:
                outputs = self._joint.finish(data)
            except MegatileError as error:
                launch._error = error
        contents = self._contents if data is None else data.contents
        if outputs is None and not self.alone:
            contents.keep(plan, None, present)
        if data is not None:
            launch._scalars = seen_values(data.seen)
            if launch._code is not None:
                launch._code.append(data.programs)
        run = Run(
            launch.plan, self.machine, resources.timing, resources.faults, self.engine, resources.installed,
            launch._control, scalars=launch._scalars, repeatable=self.alone or launched is None, end_ps=took,
            begin_ps=delay, messages=messages,
        )  # fmt: skip
        if launched is not None:
            run.choices = choices(self._simulation, launched) if has_any(plan) else {}
        launch.result, launch._data = Result(run, outputs), None
        if self.alone:
            return
        self._queues.count(plan, messages)
        units = plan.units if plan.levels else len(present)
        entry = Entry(plan.name, units, launch.submit_ps, launch.end_ps, delay_ps=delay)
        if launched is None:
            entry.again = Result(run, None)
        elif self.most_records:
            entry.record = run.record = Record(self._simulation, launched, launch.submit_ps)
        self.launches.append(entry)
        self._keep_at_most()

    def _clear_up(self, launched: Launched) -> None:
        """The engine's memory of a launch is used again; when nothing is under way, much of it is freed."""
        simulation = self._simulation
        simulation.release(launched)
        if not self._active or len(self.launches) % BETWEEN == 0:
            simulation.forget_records([a._launched for a in self._active.values() if a._launched is not None])
        if not self._active and simulation.arena.words > LARGE:
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


def _number(name: str, value: Any) -> int:
    """A whole number that is not negative."""
    found = whole(value)
    if found is None or found < 0:
        raise SessionError(f"{name}={value!r} is no whole number from 0 on")
    return found


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise SessionError(f"seconds={value!r} is no time from 0 on")
    return value
