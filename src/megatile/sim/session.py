"""A machine over several launches: memory stays, queues are installed once, time goes on.

    with Session("ahbm") as s:
        s.install(first)                  # one message per unit over the control path
        r1 = s.launch(first, {"t": x})    # a Result; times within it count from the launch
        a, b = s.submit(second), s.submit(third)     # on different units they run at the same time
        s.wait()
    s.time_ns, s.summary()

Launches on the same units take turns in the order in which they were submitted: on each unit of the hardware
a launch begins when all commands of those before it there have ended, on others at once (`occupancy`). A
send has ended when its message has left.
Launches that run beside each other share links, memories and engines.

Time passes only in `wait` (of a `Session` or `Worker`), up to the end of the first launch that somebody waits
for, so that what is submitted then still comes in time. A launch may be submitted for later (``at``), never
for earlier than now. A host with several workers (`worker`) has a clock for each, which goes on to the end of
what the worker waits for; its scheduler uses `Worker.block` and `advance`.

Tensors (tiles with a role) are known by name, raw memory by its address; all other scratch begins undefined,
so that an earlier kernel cannot leak into a later one. Likewise caches keep blocks of tensors, which a later
launch finds if it means the same memory and cuts it alike (`LaunchRows._tensor_key`). No launch finds blocks
of another's scratch.
Channels and flags that a plan marks as ``installed`` belong to the machine: messages, credits and counts go
on from launch to launch. All others are each launch's own: its flags begin at 0, its queues empty.

Where to find what: `machine_run` begins launches, lets time pass and ends them; `known_times` has the times
of launches that had an idle machine for themselves, so that those like them need no engine; `simulation` runs
the engine and keeps errors of what the engine calls until it has stopped; `workers` has clocks, deadlines and
budgets; `contents` the memories; `install` the queues that are there; `data_runs` the data.

What happens on failure:

* A call that is refused (a plan that does not fit, other queues, unknown inputs) changes nothing.
* An error in the data of one launch is raised to whoever waits for it; other launches go on. (One that is
  found while the launch is timed, because a command needs an integer of the data, ends the session.)
* Too little time (``budget_ps``, ``seconds``) raises `TimeBudgetExceeded`; wait again to go on.
* Ctrl-C and other signals leave the session as it is; wait again to go on.
* A deadlock, misused queues or an error of the machine ends the session: launches that are under way are
  ``failed``, and every later call says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from megatile.core.errors import MegatileError
from megatile.core.limits import enough_memory
from megatile.core.quantities import format_time
from megatile.core.times import HasTime
from megatile.hda import HDA
from megatile.plan.memory import check_memory
from megatile.plan.model import Plan
from megatile.plan.structure import check_structure
from megatile.sim.contents import Contents, with_lasting_raw
from megatile.sim.data import Assumed
from megatile.sim.deadlock import counts
from megatile.sim.install import InstallError, Queues
from megatile.sim.launches import Launch, SessionError
from megatile.sim.machine_run import MachineRun
from megatile.sim.result import Result
from megatile.sim.simulation import engine_name
from megatile.sim.timeline import install_trace, one_timeline
from megatile.sim.workers import Worker, whole_number
from megatile.timing.faults import Faults, current_faults
from megatile.timing.machine_timing import Timing, as_timing
from megatile.timing.placement import place_names
from megatile.timing.resources import Resources
from megatile.trace import Trace, WaitGraph, critical_path, text_table, why_slow

INSTALL = "install"
NOT_IN_HISTORY: dict[str, Any] = dict.fromkeys(("outputs", "result", "error", "engine_rows", "worker"))
"""Fields that the history leaves out of a launch: neither outputs nor the engine stay alive."""
MAX_RECORDED_COMMANDS = 1 << 18
"""Commands of all launches that are kept for traces unless more are asked for."""


class Session(MachineRun, HasTime):
    """One machine and what it remembers between launches.

    ``record`` says how many commands are kept for traces; the oldest launches are forgotten first.
    """

    def __init__(
        self, machine: HDA | str, *, engine: str | None = None, record: int = MAX_RECORDED_COMMANDS
    ) -> None:
        super().__init__(machine, engine=engine, record=record)
        self.launches: list[Launch] = []
        """Every launch that has ended, without its outputs."""
        self._installs: list[Launch] = []
        self._queues = Queues()
        self._contents = Contents()
        self._prepared: dict[tuple[int, Faults, Timing, bool], Launch] = {}
        """Launches in state ``prepared``, of which `submit` submits copies: by plan, faults, timing, and
        whether its queues are installed already."""
        self._checked: dict[int, tuple[str, ...]] = {}
        """By plan, the tensors beside which it was found to fit."""
        self._host_free_ps = 0
        """When the host's link has sent all messages of installs."""
        self._recorded = self._forgotten = 0
        """How many commands of launches in the history are kept, and how many launches have none any more."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: Any) -> None:
        self._over = "it was left"

    def __repr__(self) -> str:
        return f"Session({self.machine.name}: {len(self.launches)} launches, {format_time(self.time_ps)})"

    @property
    def time_ps(self) -> int:
        """When the last launch or install ended, up to now."""
        ends = [launch.end_ps or 0 for launch in (*self.launches[-1:], *self._installs[-1:])]
        return max([self.now_ps, *ends, *(w.clock_ps for w in self.workers)])

    # installing

    def install(self, plan: Plan, units: Iterable[int] | None = None, *, worker: Worker | None = None) -> int:
        """Install the queues that a plan has at its units (or at some of them); the picoseconds that takes.

        Every unit gets a message over the control path, one after another over the host's link: the last
        arrives ``control_ps`` after it was sent, which is ``host_link_ps`` for each one before it. The worker
        waits for that. A unit takes one install only, by this or by `submit`: choose slots that serve every
        kernel (``n_slots``, ``slot_size`` of ``tl.read_kernel``).
        """
        worker = self._worker(worker)
        resources = self._prepare(plan).resources
        if not plan.channels:
            raise SessionError(f"plan '{plan.name}' has no queues to install")
        chosen = sorted(set(range(plan.units) if units is None else units))
        if chosen and not 0 <= chosen[0] <= chosen[-1] < plan.units:
            raise SessionError(f"plan '{plan.name}' has units 0 to {plan.units - 1}, not {chosen[-1]}")
        self._check_directions(plan, resources)
        self._queues.install(plan, set(chosen))  # refuses units that have queues already
        begin = max(worker.clock_ps, self.now_ps, self._host_free_ps)
        each = resources.host_link_ps()
        end = begin + resources.control_ps() + max(0, len(chosen) - 1) * each
        self._host_free_ps = begin + len(chosen) * each
        names = [resources.names[u] for u in chosen]
        ends = [end - (len(chosen) - 1 - i) * each for i in range(len(chosen))]
        install = Launch(None, self.machine, name=INSTALL, submit_ps=begin)
        install.trace = install_trace(self.machine.name, INSTALL, names, [e - begin for e in ends])
        install.present = chosen
        install.end(end - begin)
        self._installs.append(install)
        took, worker.clock_ps = end - worker.clock_ps, end
        return took

    def _check_directions(self, plan: Plan, resources: Resources) -> None:
        """Refuse a plan whose units need more queues than their hardware has directions."""
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
        (``data=True`` makes that an error). If a unit has no queues yet, their install comes first, as in
        `simulate`. ``assume``, ``engine`` and ``timing`` are those of `simulate`. Nothing runs yet: see
        `wait`. Whatever is refused is refused before anything of the session has changed.
        """
        worker = self._worker(worker)
        prepared = self._prepare(plan, timing)
        if worker.blocked:
            raise SessionError(f"{worker} waits and cannot submit anything")
        now = max(worker.clock_ps, self.now_ps)
        if at is not None and whole_number("at", at) < now:
            raise SessionError(
                f"a launch cannot be submitted at {at} ps: it is already {now} ps", advice="leave at= out"
            )
        new = self._queues.missing(plan)
        if new:  # the install is then part of the launch's own time
            self._check_directions(plan, prepared.resources)
            prepared = self._prepare(plan, timing, installed=False)
        flags = self._queues.checked_flags(plan)
        # The plan with what lasts as tensors: those with a role, and raw memory (`with_lasting_raw`).
        lasting, given = prepared.resources.plan, dict(inputs or {})
        unknown = self._contents.missing(lasting, given)
        with_data = data is not False and unknown is None
        if unknown is not None and (data or inputs):
            there = unknown in self._contents.tensors
            problem = "was written by a launch without data" if there else "is not in memory"
            raise SessionError(
                f"tensor '{unknown}' of plan '{plan.name}' {problem}",
                advice=f"launch(plan, {{'{unknown}': …}})",
            )
        if engine is not None:  # from now on, for all launches
            self.simulation.engine = engine_name(engine)
        launch = prepared.copied(submit_ps=now if at is None else at, scalars=Assumed(assume), worker=worker)
        before = {name: replace(tensor) for name, tensor in self._contents.tensors.items()}
        try:
            self._contents.declare(lasting, with_data)
            with enough_memory(f"plan '{plan.name}' of {plan.units} units"):
                self.start(launch, inputs=given if with_data else None, contents=self._contents)
        except MegatileError:
            self._contents.tensors = before
            raise
        self._queues.flags.update(flags)
        if new:
            self._queues.add(plan)
        worker.pending.append(launch)
        return launch

    def _prepare(self, plan: Plan, timing: Timing | None = None, installed: bool = True) -> Launch:
        """Return a prepared launch of this plan, of which every `submit` makes a copy; refuse a plan that is
        not sound or does not fit the machine's memories beside the tensors that are there."""
        if self._over is not None:
            raise SessionError(f"this session is over: {self._over}", advice="begin a new Session")
        if not isinstance(plan, Plan):
            raise SessionError(
                f"a session takes a Plan, not {type(plan).__name__}",
                advice="read a kernel first: tl.read_kernel(kernel, arguments, world_size=…)",
            )
        key = id(plan), current_faults(), as_timing(timing), installed
        prepared = self._prepared.get(key)
        if prepared is None:
            check_structure(plan)
            prepared = Launch(plan, self.machine, key[2], key[1], self.engine, installed)
            lasting, prepared.turns = with_lasting_raw(plan), True
            prepared.resources = Resources(
                self.machine, lasting, key[1], installed=installed, timing=prepared.timing
            )
        beside = tuple(self._contents.tensors)
        if self._checked.get(id(plan)) != beside:
            check_memory(self._beside(plan), self.machine)
            self._checked[id(plan)] = beside
        self._prepared[key] = prepared
        return prepared

    def _beside(self, plan: Plan) -> Plan:
        """Return the plan with the tensors that take room beside its own."""
        own = {tile.name for tile in plan.tiles}
        others = [t.tile for t in self._contents.tensors.values() if t.tile.name not in own]
        fitting = [t for t in others if t.owners is None or t.owners == plan.units]
        return replace(plan, tiles=(*plan.tiles, *fitting))

    def _keep(self, launch: Launch) -> Launch:
        """Keep what a launch that has ended leaves: its `Result`, counts of messages, a line of the history,
        without records of the oldest where there are too many. What one without data wrote is unknown now.
        (`MachineRun` calls this at the end of every launch.)"""
        plan, kept, launch.result = launch.resources.plan, launch.copied(**NOT_IN_HISTORY), Result(launch)
        if launch.outputs is None:
            self._contents.keep(plan, None, launch.present)
        self._queues.count(plan, launch.messages)
        self.launches.append(kept)
        self._recorded += kept.recorded_commands
        while self._recorded > self.most_records and self._forgotten < len(self.launches) - 1:
            oldest = self.launches[self._forgotten]
            self._recorded -= oldest.recorded_commands
            self.launches[self._forgotten] = oldest.times_only()
            self._forgotten += 1
        return kept

    # memory

    def read(self, name: str) -> Any:
        """Return what a tensor holds now: an array with one row per owner."""
        known = self._contents.tensors.get(name)
        if known is None or not known.valid or known.data is None:
            there = ", ".join(n for n, t in self._contents.tensors.items() if t.valid) or "none"
            raise SessionError(f"there is no tensor '{name}' with known contents; there are: {there}")
        return known.data.copy()

    def free(self, name: str) -> None:
        """Forget a tensor; its name and its room can be used for another."""
        if self._contents.tensors.pop(name, None) is None:
            raise SessionError(f"there is no tensor '{name}' to free")
        self.simulation.tensors.forget(name)

    # what happened

    def pointers(self) -> WaitGraph:
        """Return the pointers of all installed queues; ``text()`` shows them."""

        def level(place: tuple[str, int]) -> str:
            return self.machine.scale(place[0]).level

        def live(place: tuple[str, int], name: str, direction: Any) -> tuple[int, int, int] | None:
            number = self.simulation.lasting_queues.get((level(place), place[1], name, direction))
            return None if number is None else counts(self.simulation, number)

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
        """Return the critical path of the whole session by operation and source line."""
        return why_slow(self.trace, limit)

    def summary(self) -> str:
        """Return a table of installs and launches."""
        rows = sorted([*self._installs, *self.launches], key=lambda launch: launch.submit_ps)
        cells = [(w.name, w.unit_count, format_time(w.submit_ps), format_time(w.took_ps)) for w in rows]
        table = text_table(("launch", "units", "begins", "takes"), cells)
        return f"{self.machine.name}: {len(self.launches)} launches, {format_time(self.time_ps)}\n{table}"
