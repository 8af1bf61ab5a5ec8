"""A result under study: what rules ask of it, and how remedies are timed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from math import prod
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from megatile.collectives.planner import predict
from megatile.core.dtypes import itemsize
from megatile.core.errors import MegatileError
from megatile.core.expr import ZERO, known
from megatile.core.limits import TimeBudgetExceeded
from megatile.core.operations import spoken_operation
from megatile.cost.wave_bound import first_blocks
from megatile.hda import HDA
from megatile.hda.parameters import scaled
from megatile.ir import nodes as n
from megatile.ir.program import Program, bindings
from megatile.lowering.explain import Figures, figures
from megatile.lowering.lowered import Lowered, lower
from megatile.plan import model as pm
from megatile.plan.counts import command_count
from megatile.plan.model import Plan
from megatile.sim import Result, simulate
from megatile.sim.instructions import WORK
from megatile.sim.machine_run import time_alone
from megatile.sim.state import NONE, Recorded
from megatile.trace.critical import critical_groups
from megatile.verdict.model import MIN_GAIN, Finding, Kind

MAX_COMMANDS = 8_000_000
"""Commands that all re-timed Plans of a verdict may have together: some seconds."""
MAX_SECONDS = 9.0
"""Seconds of this process that a verdict may take, whatever the commands: then no other program is timed."""
SAMPLED = 300_000
"""Plans with more commands are timed by their first blocks, if all do the same and there are enough waves."""
MIN_WAVES = 4
"""Waves of blocks in a sample."""
IDEAL = 1000.0
"""The factor by which a figure of the machine that is to cost nothing is better."""
raise_errors = False
"""Whether a defect of a remedy is raised (in tests), instead of leaving the remedy out."""
Find = Callable[["Study"], Iterator[Finding]]


class Rule(NamedTuple):
    """A rule: a generator of findings of a `Study`."""

    name: str
    find: Find
    kind: Kind
    costly: bool
    """Whether it times many programs: it is tried after the others, with half of what is left to spend."""


RULES: list[Rule] = []


def rule(name: str, kind: Kind = Kind.CAUSE, costly: bool = False) -> Callable[[Find], Find]:
    """Register a rule."""

    def register(find: Find) -> Find:
        RULES.append(Rule(name, find, kind, costly))
        return find

    return register


def collectives(plan: Plan) -> int:
    """Return how many collectives with data a stream of a Plan has at most."""
    kinds = (pm.Collective, pm.Start)
    each = (sum(isinstance(s, kinds) and s.work.bytes != ZERO for s in body) for body in plan.bodies)
    return max(each, default=0)


class OutOfBudget(Exception):
    """Re-timing more would take too long."""


class Study:
    """A result, the program that it is of (None for a Plan), and times of changed ones."""

    def __init__(self, result: Result) -> None:
        self.result, self.plan, self.hda = result, result.plan, result.machine
        self.lowered: Lowered | None = result.lowered
        self.base_ps = result.time_ps
        self.left = MAX_COMMANDS
        self.retimed = 0
        self.kind = Kind.CAUSE
        self._until = process_time() + MAX_SECONDS

    # re-timing

    def check_time(self) -> None:
        """Raise `OutOfBudget` where the verdict has taken long enough."""
        if process_time() > self._until:
            raise OutOfBudget

    @contextmanager
    def half_of_budget(self) -> Iterator[None]:
        """Let a rule have half of the commands and seconds that are left: others are tried after it."""
        kept, until, now = self.left // 2, self._until, process_time()
        self.left -= kept
        self._until = now + (until - now) / 2
        try:
            yield
        finally:
            self.left += kept
            self._until = until

    def plan_ps(self, plan: Plan, hda: HDA | None = None, **changes: Any) -> int | None:
        """Return how long a Plan takes (on another machine, launched otherwise); None: it cannot run."""
        if self._sampled_blocks(plan):
            took = self._extrapolated_ps(plan, hda, **changes)
            return None if took is None else round(took * self._calibration)
        return self._timed_ps(plan, hda, **changes)

    def _sampled_blocks(self, plan: Plan) -> int:
        """How many blocks stand for all of a large Plan: some waves of them; 0: all are timed."""
        commands = command_count(plan)
        if commands <= SAMPLED or len(plan.levels) != 1 or not plan.levels[0].slots:
            return 0
        level = plan.levels[0]
        assert level.slots is not None
        wave = self.hda.count(level.scale) // self.hda.count(plan.scale) * level.slots
        waves = max(MIN_WAVES, SAMPLED * level.count // commands // wave)
        return waves * wave if first_blocks(plan, waves * wave) is not None else 0

    def cost(self, plan: Plan) -> int:
        """How many commands it takes to time a Plan."""
        some = self._sampled_blocks(plan)
        return command_count(plan) * some // plan.levels[0].count if some else command_count(plan)

    def _extrapolated_ps(self, plan: Plan, hda: HDA | None = None, **changes: Any) -> float | None:
        count = self._sampled_blocks(plan)
        some = first_blocks(plan, count)
        assert some is not None
        took = self._timed_ps(some, hda, **changes)
        rest = plan.levels[0].count / count
        return None if took is None else self.launch_ps + (took - self.launch_ps) * rest

    @cached_property
    def _calibration(self) -> float:
        """The time of the program against what its own first blocks say."""
        return (
            self.base_ps / (self._extrapolated_ps(self.plan) or 1) if self._sampled_blocks(self.plan) else 1.0
        )

    def _timed_ps(self, plan: Plan, hda: HDA | None = None, **changes: Any) -> int | None:
        self.check_time()
        cost = max(1000, command_count(plan))
        if cost > self.left:
            raise OutOfBudget
        self.left -= cost
        self.retimed += 1
        try:
            return time_alone(self.result.launch.alone(plan=plan, hda=hda or self.hda, **changes), 0).took_ps
        except TimeBudgetExceeded:
            raise
        except MegatileError:
            return None

    def lower(self, program: Program, hda: HDA | None = None) -> Lowered | None:
        """Return a changed program lowered for the machine; None where it does not fit."""
        self.check_time()
        try:
            return lower(program, machine=hda or self.hda)
        except TimeBudgetExceeded:
            raise
        except MegatileError:  # a remedy that does not fit the machine is none
            return None
        except Exception:
            if raise_errors:
                raise
            return None  # a verdict without this remedy is better than none

    def program_ps(self, change: Callable[[Program], Program]) -> int | None:
        """Return how long the program takes with a change; None: it cannot run, or nothing changes."""
        if self.lowered is None:
            return None
        changed = change(self.lowered.source)
        low = None if changed is self.lowered.source else self.lower(changed)
        return None if low is None or low.plan == self.plan else self.plan_ps(low.plan)

    def figures_ps(self, factors: Mapping[str, float], plan: Plan | None = None) -> int | None:
        """Return how long the Plan (or another) takes with figures of the machine multiplied."""
        try:
            hda = scaled(self.hda, factors)
        except MegatileError:
            return None
        return self.plan_ps(plan or self.plan, hda)

    def collective_ps(self, operation: str, one: n.Collective, share: float = 1.0) -> int:
        """Return what a collective of the same tensor, or of a share of it, would take by itself."""
        assert self.lowered is not None
        bound = bindings(self.lowered.source)[one.to[0].source]
        elements = prod(known(e) or 1 for e in one.to[0].extents)
        ranks = self.lowered.source.launch.count(one.scale)
        predicted = predict(
            operation,
            machine=self.hda,
            nbytes=max(ranks, round(elements * share)) // ranks * ranks * itemsize(bound.dtype),
            ranks=ranks,
            dtype=bound.dtype,
        )
        return int(predicted.time_ps)

    def finding(
        self, name: str, time_ps: float | None, how: str, *, bottleneck: str, reason: str, step: str,
        source: str = "", bound: bool = False, kind: Kind | None = None,
    ) -> Iterator[Finding]:  # fmt: skip
        """Yield the finding, if its remedy was timed and saves enough; of the kind of the rule that is tried,
        unless one is given."""
        some = self._sampled_blocks(self.plan)
        how += f"; the first {some} of {self.plan.levels[0].count} blocks stand for all" if some else ""
        if time_ps is not None and time_ps < self.base_ps * (1 - MIN_GAIN):
            yield Finding(
                name,
                bottleneck,
                reason,
                source,
                step,
                self.base_ps,
                round(time_ps),
                how,
                bound,
                kind or self.kind,
            )

    # symptoms

    @cached_property
    def figures(self) -> Figures | None:
        return None if self.lowered is None else figures(self.lowered, self.result)

    @cached_property
    def groups(self) -> list[tuple[str, str, str, int, int, float]]:
        """The critical path by operation, engine and source line, the largest first; of a large grid, that of
        its first blocks."""
        count = self._sampled_blocks(self.plan)
        some = first_blocks(self.plan, count) if count else None
        result = self.result if some is None else simulate(some, machine=self.hda)
        return critical_groups(result.record.trace(result.launch.begin_ps, operands=False))

    def line(self, *engines: str) -> str:
        """The source line with most of the critical path, on one of these engines if any are named."""
        for _, engine, source, *_ in self.groups:
            if source and (not engines or engine.split(".")[0] in engines):
                return source
        return ""

    def share(self, *engines: str) -> float:
        """The share of the critical path that is on these engines."""
        return sum(row[5] for row in self.groups if row[1].split(".")[0] in engines)

    @cached_property
    def launch_ps(self) -> int:
        """What goes before the first command."""
        return int(self.result.record.start_ps + self.result.begin_ps)

    @cached_property
    def busiest(self) -> tuple[str, float]:
        """The busiest compute engine, memory or link, and the share of the time in which it works."""
        found = {f"{name} engines": self.result.use(name) for name in self.result.busy if name != "dma"}
        found |= {n.removeprefix("memory ").split("[")[0]: share for n, share in self.result.memories.items()}
        found |= self.result.links
        return max(found.items(), key=lambda item: (item[1], item[0]), default=("nothing", 0.0))

    @cached_property
    def waits(self) -> str:
        """What takes most of the critical path."""
        operation, engine, source, _, _, part = max(
            self.groups, key=lambda row: row[5], default=("the launch", "", "", 0, 0, 1.0)
        )
        where = "".join(f", {text}" for text in (engine, source) if text)
        return f"{spoken_operation(operation)} ({part:.0%} of it{where})"

    def busy(self, layer: str) -> float:
        """The share of the time in which the busiest memory of a layer works."""
        shares = [
            s for n, s in self.result.memories.items() if n.removeprefix("memory ").split("[")[0] == layer
        ]
        return max(shares, default=0.0)

    @cached_property
    def instances(self) -> tuple[Any, Any, Any, Any] | None:
        """Of every instance of the level in slots: the unit that it ran on, its end, its own work (time of
        compute engines, or bytes where it computes nothing), and how long it took."""
        levels = [level for level in self.plan.levels if level.slots is not None]
        if len(levels) != 1 or self._sampled_blocks(self.plan):  # many waves of equal blocks end together
            return None
        record = self.result.record
        at = self.plan.all_levels.index(levels[0])
        first, last = record.launched.offsets[at : at + 2]
        who = record.rows[:, Recorded.actor] - record.launched.first
        mine = (who >= first) & (who < last)
        rows, number = record.rows[mine], (who - first)[mine]
        end, spent, moved = (np.zeros(last - first, np.int64) for _ in range(3))
        start = np.full(last - first, np.iinfo(np.int64).max)
        np.minimum.at(start, number, rows[:, Recorded.start])
        np.maximum.at(end, number, rows[:, Recorded.end])
        computes = (rows[:, Recorded.kind] == WORK) & (rows[:, Recorded.path] == NONE)
        took = np.maximum(0, rows[:, Recorded.end] - rows[:, Recorded.start])
        np.add.at(spent, number[computes], took[computes])
        np.add.at(moved, number, rows[:, Recorded.nbytes])
        there = end > 0
        work = spent if spent.any() else moved
        return record.places[first:last][there], end[there], work[there], (end - start)[there]


__all__ = ["RULES", "OutOfBudget", "Rule", "Study", "rule"]
