"""``predict``: how long attention takes on a machine by every schedule, and why one wins.

    found = predict("mi300x-8", Problem(length=50_000, causal=True))
    print(found)                        # a table; found.winner.schedule, found.why

Every schedule becomes a Plan that is simulated as it is, and with kernels that take no time, which leaves
communication.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from megatile.attention.kernel_times import AttentionKernels
from megatile.attention.plans import Divided, Problem, attention_plan
from megatile.attention.schedules import Schedule, ScheduleError, make_schedule
from megatile.collectives.decompositions import DecompositionError
from megatile.collectives.geometry import nearest_memory
from megatile.core.cached import cached
from megatile.core.progress import Listener, shown, tell
from megatile.core.quantities import format_time
from megatile.core.times import HasTime
from megatile.cost.cheapest import cheapest
from megatile.hda import HDA, machine as find_machine
from megatile.plan.memory import blocks
from megatile.plan.model import Plan
from megatile.sim import simulate
from megatile.sim.result import Result
from megatile.timing.attention_kernels import kernel_model
from megatile.trace import text_table

MAX_MESSAGES = 500_000
"""Of a schedule that is simulated: about a minute and a gigabyte."""
MAX_MESSAGES_WITHOUT_ASKING = 60_000
"""The same for schedules that were not named: some seconds each."""
EQUAL_TIME_SHARE = 0.01
"""Times within this share of the best count as equally good."""
_MAX_PAIRS = 2**63  # integers of arrays end there
SAME_LAYOUT = ("hamilton", "zigzag", "direct")
"""Schedules with the same division of sequences, so that ``schedule="auto"`` may choose among them."""


@dataclass(frozen=True, repr=False)
class Prediction(HasTime):
    """One schedule for one problem on one machine.

    ``compute_ps`` is the longest time any rank's kernels take together, ``communication_ps`` the whole time
    with kernels that take none, ``exposed_ps`` what kernels do not hide, ``busiest_link_ps`` how long the
    most loaded link carries data.
    """

    schedule: str
    problem: Problem
    ranks: int
    time_ps: int
    compute_ps: int
    communication_ps: int
    busiest_link_ps: int
    links: int
    result: Result

    def __repr__(self) -> str:
        return f"Prediction({self.schedule} on {self.ranks} ranks: {format_time(self.time_ps)})"

    @property
    def exposed_ps(self) -> int:
        return self.time_ps - self.compute_ps

    @property
    def ccr(self) -> float:
        """Computation over communication; above 1, communication can be hidden."""
        return self.compute_ps / self.communication_ps if self.communication_ps else float("inf")

    def link_bytes(self) -> Any:
        """Return bytes from rank to rank in each exchange of the simulated run: [sender, receiver,
        exchange]."""
        trace = self.result.trace
        order = np.argsort(trace.columns["start_ps"][trace.flows[:, 0]], kind="stable")
        sender, receiver = (trace.columns["unit"][trace.flows[order, side]] for side in (0, 1))
        size = trace.columns["bytes"][trace.flows[order, 0]]
        schedule = make_schedule(self.schedule, self.ranks)
        # Ranks that divide the heads exchange them before and after the exchanges of KV between their groups.
        of_heads = (sender // schedule.heads == receiver // schedule.heads) & (schedule.heads > 1)
        number = _times_before(sender * self.ranks + receiver)
        along = number[~of_heads]
        most, exchanges = int(along.max(initial=0)) + 1, schedule.routes.exchanges
        # In the doubled form every link carries two chunks per exchange.
        number[~of_heads] //= most // exchanges if exchanges and most % exchanges == 0 else 1
        _, first, which = np.unique(2 * number + of_heads, return_index=True, return_inverse=True)
        column = np.argsort(np.argsort(first))[which]
        load = np.zeros((self.ranks, self.ranks, max(1, len(first))), dtype=np.int64)
        np.add.at(load, (sender, receiver, column), size)
        return load

    def bars(self) -> list[tuple[int, str, float, float]]:
        """(rank, "compute" or "communication", start, end) in µs, for a Gantt chart."""
        trace = self.result.trace
        kinds = {"tensor": "compute", "dma": "communication"}
        return [
            (trace.units.index(e.unit), kinds[e.engine.split(".")[0]], e.start_ps / 1e6, e.end_ps / 1e6)
            for e in trace
            if e.engine.split(".")[0] in kinds
        ]

    def as_dict(self) -> dict[str, Any]:
        return {
            "schedule": self.schedule,
            "length": self.problem.length,
            "causal": self.problem.causal,
            "ranks": self.ranks,
            "time_us": self.time_ps / 1e6,
            "compute_us": self.compute_ps / 1e6,
            "communication_us": self.communication_ps / 1e6,
            "exposed_us": self.exposed_ps / 1e6,
            "busiest_link_us": self.busiest_link_ps / 1e6,
            "links": self.links,
            "ccr": self.ccr if np.isfinite(self.ccr) else None,
        }


def _times_before(values: Any) -> Any:
    """Return how often each value has occurred before."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    number = np.empty(len(values), dtype=np.int64)
    lengths = np.diff(begins, append=len(values))
    number[order] = np.arange(len(values)) - np.repeat(begins, lengths)
    return number


@dataclass(frozen=True)
class Comparison:
    """All schedules for one problem, in the order asked for; ``unfit`` do not fit, for the reason given."""

    machine: str
    problem: Problem
    predictions: tuple[Prediction, ...]
    unfit: tuple[tuple[str, str], ...] = ()
    kernel: str = ""
    """The model that times local attention: ``flash-attn 2 (kernel fa2; others: fa3)``."""

    @cached_property
    def winner(self) -> Prediction:
        """The fastest; of equally good ones that with the shortest communication, then the first named."""
        best = min(p.time_ps for p in self.predictions)
        close = [p for p in self.predictions if p.time_ps <= best * (1 + EQUAL_TIME_SHARE)]
        least = min(p.communication_ps for p in close)
        return next(p for p in close if p.communication_ps <= least * (1 + EQUAL_TIME_SHARE))

    @property
    def baseline(self) -> Prediction:
        """What speed-ups are counted from: the ring that balances the work, where there is one."""
        wanted = ("zigzag", "ring") if self.problem.causal else ("ring", "zigzag")
        named = {p.schedule: p for p in self.predictions}
        return next((named[name] for name in wanted if name in named), self.predictions[0])

    def speedup(self, prediction: Prediction) -> float:
        return self.baseline.time_ps / prediction.time_ps

    @property
    def why(self) -> str:
        """Why the winner wins, and why a schedule that is hardly faster does not."""
        best, fastest = self.winner, min(self.predictions, key=lambda p: p.time_ps)
        if fastest.time_ps == best.time_ps:
            return self._why()
        hardly = f"{fastest.schedule} is faster by less than {EQUAL_TIME_SHARE:.0%}"
        return f"{self._why()}; {hardly} but communicates longer, so it does not win"

    def _why(self) -> str:
        best, base = self.winner, self.baseline
        sending, computing = format_time(best.communication_ps), format_time(best.compute_ps)
        times = f"{sending} of communication, {computing} of compute"
        if best.ranks == 1:
            return f"one device has nothing to exchange ({computing} of compute)"
        if best is base:
            hidden = "hides its communication" if best.exposed_ps <= 0.02 * best.time_ps else "is the fastest"
            return f"{best.schedule} {hidden}: {times}"
        gain = f"{self.speedup(best):.2f}x as fast as {base.schedule}"
        if self.speedup(best) < 1 + EQUAL_TIME_SHARE:
            return (
                f"{best.schedule} is as fast as {base.schedule}: compute hides their communication ({times})"
            )
        computes_less, waits_less = base.compute_ps - best.compute_ps, base.exposed_ps - best.exposed_ps
        if computes_less > waits_less:
            other = f"{base.schedule} computes {format_time(base.compute_ps)}"
            return f"{best.schedule} is {gain}: its kernels are larger, or balanced better ({times}; {other})"
        if best.busiest_link_ps < 0.9 * base.busiest_link_ps:
            share = base.busiest_link_ps / max(1, best.busiest_link_ps)
            links = "its busiest link"
            if best.links != base.links:
                links = f"it uses {best.links} links instead of {base.links}, and the busiest one"
            return f"{best.schedule} is {gain}: {links} needs 1/{share:.3g} of the time ({times})"
        return f"{best.schedule} is {gain}: {times}, against {format_time(base.communication_ps)}"

    def __str__(self) -> str:
        problem = self.problem
        mask = "causal" if problem.causal else "full"
        ranks = self.predictions[0].ranks
        count = len(problem.packed)
        packed = f" in {count} sequence{'s' * (count > 1)}" if count else ""
        head = (
            f"{mask} attention of {problem.length} tokens{packed}, {problem.heads} heads "
            f"({problem.groups} KV) of {problem.dim}, {problem.dtype}, on {ranks} device{'s' * (ranks > 1)} "
            f"of {self.machine}"
        )
        rows = [
            (
                p.schedule + (" *" if p is self.winner else ""),
                *(format_time(t) for t in (p.time_ps, p.compute_ps, p.communication_ps, p.exposed_ps)),
                f"{p.ccr:.2f}",
                f"{self.speedup(p):.2f}",
            )
            for p in self.predictions
        ]
        names = (
            "schedule",
            "time",
            "compute",
            "communication",
            "exposed",
            "CCR",
            f"x {self.baseline.schedule}",
        )
        missing = [f"{name}: {reason}" for name, reason in self.unfit]
        local = [f"local attention: {self.kernel}"] if self.kernel else []
        return "\n".join([head, *local, text_table(names, rows), *missing, self.why])


def schedules_for(hda: HDA, ranks: int, problem: Problem, scale: str = "device") -> list[str]:
    """Return the schedules worth comparing: rings, direct mesh, Hamilton, Ulysses, and both across nodes."""
    names = ["ring", *(["zigzag", "striped"] if problem.causal else []), "hamilton", "direct"]
    inside = devices_per_node(hda, scale)
    nodes = ranks // inside if inside and ranks % inside == 0 else 1
    if nodes > 1 and inside > 1:
        names.append(f"hamilton:{inside}x{nodes}")
    if problem.heads % ranks == 0:
        names.append("ulysses")
    width = inside if nodes > 1 else 2
    if 1 < width < ranks and ranks % width == 0 and problem.heads % width == 0:
        names += [f"ulysses:{width}+{'zigzag' if problem.causal else 'ring'}", f"ulysses:{width}+hamilton"]
    return names


def devices_per_node(hda: HDA, scale: str = "device") -> int:
    """Return units of ``scale`` in one node; 0 for machines without nodes."""
    try:
        return hda.count(scale, within="node")
    except (KeyError, ValueError):
        return 0


def predict(
    machine: HDA | str,
    problem: Problem,
    *,
    schedules: Iterable[str] | None = None,
    ranks: int | None = None,
    backward: bool = False,
    scale: str = "device",
    most: int | None = None,
    kernel: str | None = None,
    progress: bool | Listener = False,
) -> Comparison:
    """Compare schedules (all that are worth it, unless named) over ``ranks`` devices (all of them).

    ``backward`` predicts a forward and a backward pass together. Schedules with more than ``most`` messages
    are left out (60 000, or 500 000 for those that are named), and said to be. ``kernel``: fa2, fa3, cudnn or
    ck, where the machine file has its figures. ``progress`` shows a bar on
    stderr that moves from schedule to schedule, or calls a function with (what, done, of).
    """
    if progress:
        with shown("predicting attention", progress):
            return predict(
                machine, problem, schedules=schedules, ranks=ranks, backward=backward, scale=scale, most=most,
                kernel=kernel,
            )  # fmt: skip
    hda = find_machine(machine) if isinstance(machine, str) else machine
    count = hda.count(scale) if ranks is None else ranks
    if count < 1:
        raise ScheduleError(f"attention needs at least one device, got ranks={count}")
    if problem.length * problem.keys >= _MAX_PAIRS:
        raise ScheduleError(
            f"the pairs of {problem.length} queries and {problem.keys} keys are too many to count"
        )
    named = schedules is not None
    most = most or (MAX_MESSAGES if named else MAX_MESSAGES_WITHOUT_ASKING)
    wanted: Sequence[str] = list(schedules or schedules_for(hda, count, problem, scale))
    found: dict[str, Prediction] = {}

    def time(name: str) -> int:
        tell(f"{name}, {problem.length} tokens", len(found), len(wanted))
        _refuse_endless(make_schedule(name, count), backward, most)
        found[name] = predict_one(hda, problem, name, count, backward, scale, kernel)
        return found[name].time_ps

    alone = named and len(wanted) == 1
    refused = cheapest(wanted, time, refuses=() if alone else (ScheduleError, DecompositionError)).refused
    if not found:
        raise ScheduleError("; ".join(f"{name}: {reason}" for name, reason in refused.items()))
    return Comparison(
        hda.name, problem, tuple(found.values()), tuple(refused.items()), kernel_model(hda, kernel)
    )


def _refuse_endless(schedule: Schedule, backward: bool, most: int) -> None:
    """KV travels once for a forward pass; for a backward pass once more, and gradients go back."""
    routes = schedule.routes
    slots = len(routes.sends(0, 0)) if routes.exchanges else 0
    messages = schedule.ranks * slots * routes.exchanges * (3 if backward else 1)
    if messages > most:
        named = f"; to wait for it, name it: schedule {schedule.name}" if messages <= MAX_MESSAGES else ""
        raise ScheduleError(
            f"{messages} messages between {schedule.ranks} ranks are too many to simulate{named}"
        )


def predict_one(
    hda: HDA,
    problem: Problem,
    name: str,
    ranks: int,
    backward: bool = False,
    scale: str = "device",
    kernel: str | None = None,
) -> Prediction:
    """Return one schedule on the first ``ranks`` devices of a machine."""
    schedule = make_schedule(name, ranks)
    plan = _placed(attention_plan(schedule, problem, backward=backward, scale=scale), hda)
    divided = Divided(schedule, problem)
    nothing = AttentionKernels.without_compute(hda, divided)
    silent = simulate(plan, machine=hda, timing=nothing, capacity=False)
    kernels = AttentionKernels.of(hda, divided, silent.time_ps / 1e12, scale, kernel)
    result = simulate(plan, machine=hda, timing=kernels, capacity=False)
    shares = result.links
    return Prediction(
        schedule.name,
        problem,
        ranks,
        result.time_ps,
        max(result.work_ps("tensor"), default=0),
        silent.time_ps,
        round(max(shares.values(), default=0.0) * result.time_ps),
        len(shares),
        result,
    )


def _placed(plan: Plan, hda: HDA) -> Plan:
    """Return the plan with everything in the memory of the machine where collectives would put it."""
    memory = nearest_memory(hda, plan.scale, sum(size for _, _, size, _ in blocks(plan))).name
    tiles = tuple(replace(tile, memory=memory) for tile in plan.tiles)
    return replace(plan, tiles=tiles, channels=tuple(replace(c, memory=memory) for c in plan.channels))


@cached(most=256)
def best_schedule(machine: HDA | str, ranks: int, problem: Problem) -> str:
    """Return the fastest schedule among those that divide sequences as ``hamilton`` does."""
    hda = find_machine(machine) if isinstance(machine, str) else machine
    names = list(SAME_LAYOUT)
    inside = devices_per_node(hda)
    if 1 < inside < ranks and ranks % inside == 0:
        names.append(f"hamilton:{inside}x{ranks // inside}")
    return predict(
        hda, problem, schedules=names, ranks=ranks, most=MAX_MESSAGES_WITHOUT_ASKING
    ).winner.schedule
