"""``sweep(factory, over, tune=choices)``: the fastest program on each of many machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from megatile.core.errors import MegatileError
from megatile.core.quantities import format_time
from megatile.core.rows import HasRows
from megatile.cost.cheapest import ALWAYS, Search
from megatile.hda import HDA, machine as find_machine
from megatile.tuning.executors import Workers
from megatile.tuning.search import examine_all, measure_all
from megatile.tuning.store import Store
from megatile.tuning.work import Choice, Outcome, Task, points_of

KNEE = 0.05
"""How far from the best time of all machines the knee may be: from there on more brings little."""


@dataclass(frozen=True)
class TunedSweep(HasRows):
    """The best choice on each machine, in the order of the machines' values."""

    machine: HDA
    machines: tuple[dict[str, Any], ...]
    """The values of each machine."""
    choices: tuple[dict[str, Any], ...]
    outcomes: tuple[tuple[Outcome, ...], ...]
    """By machine, of every choice."""

    def best(self, number: int) -> Outcome | None:
        """Return the winner on a machine, or None where no choice is possible."""
        found = [o for o in self.outcomes[number] if o.value is not None]
        return min(found, key=lambda o: (o.value, bool(o.note), o.index), default=None)

    @property
    def knee(self) -> int | None:
        """The first machine on which the best program takes hardly longer than on any; None where that is the
        last one: a further one might be faster still."""
        times = [o.value if (o := self.best(i)) is not None else None for i in range(len(self.machines))]
        known = [t for t in times if t is not None]
        near = [i for i, t in enumerate(times) if t is not None and t <= min(known) * (1 + KNEE)]
        return near[0] if near and near[0] < len(times) - 1 else None

    def rows(self) -> list[dict[str, Any]]:
        """Return every machine with its best choice and time, that of the first choice, and what changed."""
        found = []
        for number, values in enumerate(self.machines):
            best, fixed = self.best(number), self.outcomes[number][0]
            chosen = self.choices[best.index] if best is not None else dict.fromkeys(self.choices[0])
            found.append(
                {
                    **values, **chosen, "time_us": _us(best.value if best is not None else None),
                    "fixed_us": _us(fixed.value), "knee": number == self.knee,
                    "note": best.note if best is not None else "",
                    "why": "" if best is not None else fixed.why,
                }
            )  # fmt: skip
        return found

    @property
    def counts(self) -> dict[str, int]:
        """How many points were simulated, pruned by their bound, and refused."""
        every = [o for row in self.outcomes for o in row]
        refused, simulated = sum(bool(o.why) for o in every), sum(o.value is not None for o in every)
        return {"simulated": simulated, "pruned": len(every) - refused - simulated, "refused": refused}

    @property
    def refusals(self) -> Counter[str]:
        """Why points were refused, with the number of each reason."""
        return Counter(o.why for row in self.outcomes for o in row if o.why)

    def __repr__(self) -> str:
        times = [o.value for i in range(len(self.machines)) if (o := self.best(i)) is not None and o.value]
        spread = f"{format_time(min(times))} to {format_time(max(times))}" if times else "no times"
        many = f"{len(self.machines)} machines like {self.machine.name}, {len(self.choices)} choices"
        return f"TunedSweep({many}: {spread})"


def _us(value: float | None) -> float | None:
    return None if value is None else value / 1e6


@dataclass(frozen=True)
class MakeOnMachine:
    """Make the program of a choice on a machine with values set; ``names`` are those of the machine."""

    factory: Callable[..., Any]
    machine: HDA | str
    trust: bool
    names: frozenset[str]

    def __call__(self, choice: Choice) -> tuple[Any, HDA]:
        values = {name: value for name, value in choice.items() if name in self.names}
        hda = find_machine(self.machine, trust=self.trust, **values)
        return self.factory(**{k: v for k, v in choice.items() if k not in self.names}), hda


def task_of(
    factory: Callable[..., Any],
    machines: Sequence[Choice],
    tune: Mapping[str, Sequence[Any]] | Sequence[Choice],
    arguments: tuple[Any, ...],
    machine: HDA | str,
    trust: bool,
) -> tuple[Task, list[dict[str, Any]]]:
    """Return the points of all machines and choices, and the choices."""
    choices = points_of(tune)
    names = frozenset(machines[0])
    if names & set(choices[0]):
        name = sorted(names & set(choices[0]))[0]
        raise MegatileError(
            f"'{name}' is a parameter of both the machine and the program", advice="rename one"
        )
    points = [{**values, **choice} for values in machines for choice in choices]
    make = MakeOnMachine(factory, machine, trust, names)
    return Task(make, points, arguments=arguments), choices


def best_on_each(
    task: Task, choices: list[dict[str, Any]], crew: Workers, known: Store
) -> tuple[tuple[Outcome, ...], ...]:
    """Search machine by machine; the first choice is always timed, to compare."""
    outcomes, many = examine_all(task, crew), len(choices)
    searches = []
    for first in range(0, len(outcomes), many):
        search = Search[int]()
        for o in outcomes[first : first + many]:
            if not o.why:
                search.add(o.index, ALWAYS if o.index == first else o.bound, o.index)
        searches.append(search)

    def order() -> Iterator[int]:
        for search in searches:
            yield from (index for _, index in search)

    def timed(outcome: Outcome) -> None:
        if outcome.value is not None:
            searches[outcome.index // many].timed(outcome.index, outcome.value)

    measure_all(outcomes, order(), crew, known, timed)
    return tuple(
        tuple(replace(o, index=o.index - first) for o in outcomes[first : first + many])
        for first in range(0, len(outcomes), many)
    )
