"""``tune(factory, choices, machine=…)``: the fastest of many plans, found exactly.

Every choice is made into a plan; what does not fit the machine is refused, and the others are simulated in
the order of their lower bounds until no bound is below the best time: the winner is the one that simulating
all would have found, the earliest of equals.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from megatile.core.errors import did_you_mean
from megatile.core.progress import Listener, shown, tell
from megatile.core.quantities import format_time
from megatile.core.rows import HasRows
from megatile.core.times import HasTime
from megatile.cost.cheapest import ALWAYS, Search
from megatile.hda import HDA
from megatile.plan.model import Plan
from megatile.tuning.executors import Workers, workers_for
from megatile.tuning.store import Store
from megatile.tuning.verify import verify_outputs
from megatile.tuning.work import Choice, Objective, Outcome, Task, TuneError, machine_of, points_of

PIECE = 4
"""Points that are examined at once: making a plan is short beside sending work."""


@dataclass(frozen=True)
class Tuned(HasTime, HasRows):
    """What a search found. ``best`` is the winner's choice, ``made`` what the factory makes of it."""

    best: dict[str, Any]
    value: float
    made: Any
    plan: Plan
    machine: HDA
    points: tuple[dict[str, Any], ...]
    outcomes: tuple[Outcome, ...]
    verified: str
    """How the winner's data were verified, or why they were not."""

    @property
    def time_ps(self) -> int:
        """The winner's time; with an objective of your own, its value."""
        return round(self.value)

    @property
    def default(self) -> float | None:
        """The value of the first choice, where that is possible."""
        return self.outcomes[0].value

    @property
    def speedup(self) -> float | None:
        """How much less time the winner takes than the first choice."""
        return self.default / self.value if self.default and self.value else None

    @property
    def counts(self) -> dict[str, int]:
        """How many points were simulated, pruned by their bound, and refused."""
        kinds = Counter(_kind(o) for o in self.outcomes)
        return {kind: kinds[kind] for kind in ("simulated", "pruned", "refused")}

    def rows(self) -> list[dict[str, Any]]:
        """Return every point with what is known of it, the fastest first."""
        order = sorted(
            self.outcomes,
            key=lambda o: (bool(o.why), o.value is None, o.value or o.bound, bool(o.note), o.index),
        )
        return [
            {**self.points[o.index], "result": _kind(o), "time_us": o.value and o.value / 1e6,
             "bound_us": None if o.why else o.bound / 1e6, "note": o.note, "why": o.why}
            for o in order
        ]  # fmt: skip

    @property
    def note(self) -> str:
        """What lowering changed in the winner, as ``stages 4 -> 2: shared`` where only two buffers fit."""
        return self.outcomes[self.points.index(self.best)].note

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in self.counts.items())
        note = f" ({self.note})" if self.note else ""
        return (
            f"Tuned({self.best}{note} on {self.machine.name}: {format_time(self.value)}; {counts}; "
            f"{self.verified})"
        )


def _kind(outcome: Outcome) -> str:
    return "refused" if outcome.why else "pruned" if outcome.value is None else "simulated"


def _make(factory: Callable[..., Any], hda: HDA, choice: Choice) -> tuple[Any, HDA]:
    return factory(**choice), hda


def tune(
    factory: Callable[..., Any],
    choices: Mapping[str, Sequence[Any]] | Sequence[Choice],
    *arguments: Any,
    machine: HDA | str,
    objective: str | Objective = "time",
    store: str | Path | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    inputs: Any = None,
    verify: bool = True,
    progress: bool | Listener = True,
) -> Tuned:
    """Find the fastest of ``factory(**choice)`` (Plans or ``T`` programs) on a machine.

    ``choices`` are values by name, of which all combinations are meant, or a list of configurations; the
    first is the default that the winner is compared with. A factory refuses a choice with a `MegatileError`
    or ``ValueError``. ``arguments`` are arrays or shapes for programs without fixed ones. ``objective`` may
    be a function of the simulation's result, of which the least is sought, without pruning.

    ``store`` is a file that keeps results: a search that was stopped goes on where it was. ``executor`` is
    any ``concurrent.futures.Executor``; without it, ``workers`` processes of one's own. The winner is the
    same with any of them. Its data are verified on ``inputs`` or random ones: a program against the
    interpreter, a plan against the first choice.
    """
    points = points_of(choices)
    check_factory(factory, points)
    hda = machine_of(machine)
    if objective != "time" and not callable(objective):
        raise TuneError(f"unknown objective {objective!r}", advice='give "time" or a function')
    task = Task(partial(_make, factory, hda), points, None if objective == "time" else objective, arguments)  # type: ignore[arg-type]
    what = f"tuning {getattr(factory, '__name__', 'plans')}"
    with Store(store) as known, workers_for(task, executor, workers) as crew, shown(what, progress):
        outcomes = _search(task, crew, known)
    found = [o for o in outcomes if o.value is not None]
    if not found:
        raise TuneError(_nothing(outcomes), advice="give other values")
    winner = min(found, key=lambda o: (o.value, bool(o.note), o.index))
    reference = min(found, key=lambda o: o.index)
    said = (
        verify_outputs(task, winner.index, reference.index, inputs)
        if verify
        else "data not verified: verify=False"
    )
    made, _ = task.make(points[winner.index])
    plan, _ = task.plan(winner.index)
    assert winner.value is not None
    return Tuned(points[winner.index], winner.value, made, plan, hda, tuple(points), tuple(outcomes), said)


def check_factory(factory: Any, points: list[dict[str, Any]]) -> None:
    """Raise an error where a factory cannot be called with the names of the points."""
    if not callable(factory):
        raise TuneError(
            f"{factory!r} does not make Plans", advice="give a function that returns a Plan or T program"
        )
    try:
        known = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return
    for name in points[0]:
        if name not in known:
            advice = did_you_mean(str(name), known, what="parameters")
            raise TuneError(f"the factory has no parameter '{name}'", advice=advice)
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        n for n, p in known.items() if p.default is p.empty and p.kind not in rest and n not in points[0]
    ]
    if needed:
        said = ", ".join(f"{name}=512" for name in needed)
        raise TuneError(
            f"the factory needs {', '.join(needed)} too",
            advice=f"FILE.py:NAME({said}), or functools.partial(factory, {said}) in Python",
        )


def _nothing(outcomes: Sequence[Outcome]) -> str:
    reasons = Counter(o.why for o in outcomes).most_common(3)
    said = "; ".join(f"{count}: {why}" for why, count in reasons)
    return f"none of {len(outcomes)} choices is possible ({said})"


def _search(task: Task, crew: Workers, known: Store) -> list[Outcome]:
    """Simulate what may be the best; the first choice always, as the winner is compared with it."""
    outcomes = examine_all(task, crew)
    possible = [o for o in outcomes if not o.why]
    search = Search[int]()
    for o in possible:
        bounded = task.objective is None and o is not possible[0]
        search.add(o.index, o.bound if bounded else ALWAYS, o.index)

    def better(outcome: Outcome) -> None:
        if outcome.value is not None:
            search.timed(outcome.index, outcome.value)

    return measure_all(outcomes, (index for _, index in search), crew, known, better)


def examine_all(task: Task, crew: Workers) -> list[Outcome]:
    """Return whether each point is possible, and its bound. Points that reach less of their arguments than
    others do not do the same work, and those whose tiles leave threads no registers would spill: where there
    are others, they are refused."""
    total = len(task.points)
    outcomes, done = [Outcome(i) for i in range(total)], count(1)

    def take(index: int, found: Outcome) -> None:
        outcomes[index] = found
        tell("examined", next(done), total)

    pieces = (list(range(i, min(i + PIECE, total))) for i in range(0, total, PIECE))
    crew.run("examine", pieces, take)
    if all(o.why or o.unfit for o in outcomes):
        return outcomes
    return [replace(o, why=o.why or o.unfit) for o in outcomes]


def measure_all(
    outcomes: list[Outcome],
    order: Iterable[int],
    crew: Workers,
    known: Store,
    found: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Simulate the points that an order gives, each asked for when there is a worker for it.

    What is kept, and what another point with the same plan was found to take, is not simulated again.
    """
    same: dict[str, list[int]] = {}
    for o in outcomes:
        if not o.why:
            same.setdefault(o.key, []).append(o.index)

    def put(index: int, value: Any) -> None:
        change = {"why": value.why} if isinstance(value, Outcome) else {"value": value}
        for i in same[outcomes[index].key]:
            outcomes[i] = replace(outcomes[i], **change)
            found(outcomes[i])

    for key, indices in same.items():
        value = known.get(key)
        if value is not None:
            put(indices[0], value)
    started, done = set[str](), count(1)

    def pieces() -> Iterator[list[int]]:
        for index in order:
            now = outcomes[index]
            if not (now.why or now.value is not None or now.key in started):
                started.add(now.key)
                yield [index]

    def take(index: int, value: Any) -> None:
        tell("simulated", next(done), len(same))
        if not isinstance(value, Outcome):
            known.put(outcomes[index].key, value)
        put(index, value)

    crew.run("measure", pieces(), take)
    return outcomes
