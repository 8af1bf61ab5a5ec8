"""A machine over several launches: memory stays, queues are installed once, time goes on.

    with Session("ahbm") as s:
        s.install(first)                  # one message per unit over the control path
        r1 = s.launch(first, {"t": x})    # a Result; times within it count from the launch
        r2 = s.launch(second)             # finds tensor "t" as the first one left it
    s.time_ns, s.summary()

A launch begins when the one before has ended: the host waits for it, and credits are back by then. Tensors
(tiles with a role) are known by name, raw memory by its address; all other scratch begins undefined, so
that an earlier kernel cannot leak into a later one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from megatile.core.errors import MegatileError
from megatile.core.quantities import format_time
from megatile.hda import HDA
from megatile.hda import machine as find_machine
from megatile.plan.memory import check_memory
from megatile.plan.model import Plan
from megatile.plan.structure import check_structure
from megatile.sim.contents import Contents, is_raw, with_raw_kept
from megatile.sim.install import Queues
from megatile.sim.result import Result
from megatile.sim.simulate import Deadlock, simulate
from megatile.timing.faults import current_faults
from megatile.timing.resources import Resources
from megatile.timing.view import Timing
from megatile.trace import (
    Trace,
    TraceBuilder,
    WaitGraph,
    critical_path,
    join_traces,
    text_table,
    why_slow,
)

INSTALL = "install"


class SessionError(MegatileError, ValueError):
    """A session that cannot go on, or is asked for something it does not have."""


class Session:
    """One machine and what it remembers between launches."""

    def __init__(self, machine: HDA | str) -> None:
        if not isinstance(machine, (HDA, str)):
            raise SessionError(
                f"a session takes a machine, not {type(machine).__name__}", advice='Session("ahbm")'
            )
        self.machine = find_machine(machine) if isinstance(machine, str) else machine
        self.time_ps = 0
        """When the last launch or install ended."""
        self.launches: list[tuple[int, Result]] = []
        """Every launch: when it began, and its result."""
        self._installs: list[tuple[int, Resources]] = []
        self._queues = Queues()
        self._contents = Contents()
        self._over: str | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: Any) -> None:
        self._over = "it was left"

    def __repr__(self) -> str:
        return f"Session({self.machine.name}: {len(self.launches)} launches, {format_time(self.time_ps)})"

    @property
    def time_ns(self) -> float:
        return self.time_ps / 1000

    def install(self, plan: Plan) -> int:
        """Install the queues that a plan has, at all its units; the picoseconds that takes.

        The message travels the control path to all units at once. A unit takes one install only: choose slots
        that serve every kernel (``n_slots``, ``slot_size`` of ``tl.read_kernel``).
        """
        machine = self._ready(plan)
        if not plan.channels:
            raise SessionError(f"plan '{plan.name}' has no queues to install")
        self._queues.install(plan)
        took = machine.control_ps()
        self._installs.append((self.time_ps, machine))
        self.time_ps += took
        return took

    def launch(
        self,
        plan: Plan,
        inputs: Mapping[str, Any] | None = None,
        *,
        data: bool | None = None,
        engine: str | None = None,
        assume: Mapping[str, Any] | None = None,
        timing: Timing | None = None,
    ) -> Result:
        """Run a plan on the machine as the launches before left it; arguments are those of `simulate`.

        Inputs that are not given are those in memory. Where some are unknown, times alone are found out
        (``data=True`` makes that an error). Queues that nobody installed are installed first, as `simulate`
        does.
        """
        self._ready(plan)
        new = self._queues.missing(plan)
        lasting = with_raw_kept(plan)
        found = None if data is False else self._contents.inputs(lasting, inputs or {})
        if found is None and (data or inputs):
            self._say_missing(plan, inputs or {})
        try:
            result = simulate(
                lasting,
                found,
                machine=self.machine,
                data=found is not None,
                engine=engine,
                assume=assume,
                installed=not new,
                timing=timing,
            )
        except Deadlock:
            self._over = f"launch {len(self.launches)} ('{plan.name}') is deadlocked"
            raise
        if new:
            self._queues.add(plan)
        self._queues.count(plan, result.messages)
        self._contents.keep(lasting, found, result.outputs)
        self.launches.append((self.time_ps, result))
        self.time_ps += result.time_ps
        return result

    def _ready(self, plan: Plan) -> Resources:
        """The machine as this plan sees it, if the session can go on and the plan fits it."""
        if self._over is not None:
            raise SessionError(f"this session is over: {self._over}", advice="begin a new Session")
        if not isinstance(plan, Plan):
            raise SessionError(
                f"a session takes a Plan, not {type(plan).__name__}",
                advice="read a kernel first: tl.read_kernel(kernel, arguments, world_size=…)",
            )
        check_structure(plan)
        check_memory(self._beside(plan), self.machine)
        return Resources(self.machine, plan, current_faults())

    def _beside(self, plan: Plan) -> Plan:
        """The plan with the tensors that take room beside its own."""
        own = {tile.name for tile in plan.tiles}
        others = [t.tile for t in self._contents.tensors.values() if t.tile.name not in own]
        fitting = [t for t in others if t.owners is None or t.owners == plan.units]
        return replace(plan, tiles=(*plan.tiles, *fitting))

    def _say_missing(self, plan: Plan, given: Mapping[str, Any]) -> None:
        for tile in plan.tiles:
            known = self._contents.tensors.get(tile.name)
            if tile.role in ("input", "inout") and tile.name not in given and not is_raw(tile):
                if known is None:
                    problem = "is not in memory"
                elif known.data is None:
                    problem = "was written by a launch without data"
                else:
                    continue
                raise SessionError(
                    f"tensor '{tile.name}' of plan '{plan.name}' {problem}",
                    advice=f"launch(plan, {{'{tile.name}': …}})",
                )

    # memory

    def read(self, name: str) -> Any:
        """What a tensor holds now: an array with one row per owner."""
        known = self._contents.tensors.get(name)
        if known is None or known.data is None:
            there = ", ".join(n for n, t in self._contents.tensors.items() if t.data is not None) or "none"
            raise SessionError(f"there is no tensor '{name}' with known contents; there are: {there}")
        return known.data.copy()

    def free(self, name: str) -> None:
        """Forget a tensor; its name and its room can be used for another."""
        if self._contents.tensors.pop(name, None) is None:
            raise SessionError(f"there is no tensor '{name}' to free")

    # what happened

    def pointers(self) -> WaitGraph:
        """The pointers of all installed queues between launches; ``text()`` shows them."""
        level = {m.level.name for _, m in self._installs} | {r.plan.scale for _, r in self.launches}
        scale = min(level, default="unit")
        return WaitGraph((), tuple(self._queues.pointers(lambda place: f"{scale}{place}")))

    @property
    def trace(self) -> Trace:
        """Everything since the beginning, on one clock."""
        parts = [(start, _install_trace(machine)) for start, machine in self._installs]
        parts += [(start, result.trace) for start, result in self.launches]
        return join_traces(sorted(parts, key=lambda part: part[0]), self.machine.name)

    @property
    def critical_path(self) -> Any:
        return critical_path(self.trace)

    def why_slow(self, limit: int = 10) -> str:
        """The critical path of the whole session by operation and source line."""
        return why_slow(self.trace, limit)

    def summary(self) -> str:
        """A table of installs and launches."""
        rows = [
            (start, INSTALL, machine.plan.units, machine.control_ps()) for start, machine in self._installs
        ]
        rows += [(start, r.plan.name, r.plan.units, r.time_ps) for start, r in self.launches]
        cells = [
            (name, units, format_time(start), format_time(took))
            for start, name, units, took in sorted(rows, key=lambda row: row[0])
        ]
        table = text_table(("launch", "units", "begins", "takes"), cells)
        return f"{self.machine.name}: {len(self.launches)} launches, {format_time(self.time_ps)}\n{table}"


def _install_trace(machine: Resources) -> Trace:
    """The install messages on their way."""
    builder = TraceBuilder(machine.hda.name)
    for name in machine.names:
        builder.add(unit=name, engine="control", operation=INSTALL, start_ps=0, end_ps=machine.control_ps())
    return builder.build()
