"""The search for the cheapest of several candidates: implementations, algorithms, choices of a tuner, paths.

    found = cheapest(plans, lambda p: simulate(p, machine=hda).time_ps, lambda p: lower_bound(p, hda))
    found.winner, found.times, found.pruned, found.refused

A bound never exceeds the time of its candidate, so candidates are timed in the order of their bounds until
none can be better than the best time: the winner is the one that timing all would have found, the first of
equals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any, Generic, TypeVar

C = TypeVar("C")
ALWAYS = float("-inf")
"""The bound of a candidate that is timed whatever the others take."""


class Search(Generic[C]):
    """Candidates that wait in the order of their bounds; iterating gives those that may still win, each with
    its bound. More may be added, and times reported, while it goes on. With ``ties``, those that can only be
    as fast as the best are given too."""

    def __init__(self, ties: bool = False) -> None:
        self.ties = ties
        self.best: tuple[float, float] = (float("inf"), float("inf"))
        self._waiting: list[tuple[float, int, C]] = []
        self._number = count()

    def add(self, candidate: C, bound: float = ALWAYS, number: int | None = None) -> None:
        """Let a candidate wait; of equals, the one with the lower number (else added first) wins."""
        heappush(self._waiting, (bound, next(self._number) if number is None else number, candidate))

    def timed(self, number: int, time: float) -> None:
        self.best = min(self.best, (time, number))

    def __iter__(self) -> Iterator[tuple[float, C]]:
        while self._waiting and self._waiting[0][: 1 if self.ties else 2] <= self.best:
            bound, _, candidate = heappop(self._waiting)
            yield bound, candidate


@dataclass(frozen=True)
class Found(Generic[C]):
    """What is known of every candidate after a search."""

    times: dict[C, int] = field(default_factory=dict)
    """The fastest first."""
    pruned: dict[C, float] = field(default_factory=dict)
    """Bounds of those that were not timed, as they cannot be faster; the least first."""
    refused: dict[C, str] = field(default_factory=dict)
    """Why those that cannot do it cannot."""

    @property
    def winner(self) -> C | None:
        return next(iter(self.times), None)


def cheapest(
    candidates: Iterable[C],
    time: Callable[[C], int | None],
    bound: Callable[[C], int | None] | None = None,
    *,
    refuses: type[Exception] | tuple[type[Exception], ...] = (),
    known: Mapping[C, int] | None = None,
    ties: bool = False,
) -> Found[C]:
    """Return the times of candidates that may be the cheapest; of equals, the first one given wins.

    ``bound`` is at most the time; without it, all are timed. None in place of either, or an error of
    ``refuses``, says that a candidate cannot do it. ``known`` has times that need not be asked for. With
    ``ties``, candidates that can only be as fast as the winner are timed too.
    """
    every = list(candidates)
    search, times, bounds, refused = Search[int](ties), dict(known or {}), dict[C, float](), dict[C, str]()

    def asked(question: Callable[[C], Any], one: C) -> Any:
        try:
            found = question(one)
        except refuses as problem:
            refused[one] = getattr(problem, "message", str(problem))
            return None
        if found is None:
            refused[one] = ""
        return found

    for number, one in enumerate(every):
        if one in times:
            search.timed(number, times[one])
        elif (least := ALWAYS if bound is None else asked(bound, one)) is not None:
            bounds[one] = least
            search.add(number, least, number)
    for _, number in search:
        took = asked(time, every[number])
        if took is not None:
            times[every[number]] = took
            search.timed(number, took)
    left = [one for one in bounds if one not in times and one not in refused]
    return Found(
        {one: times[one] for one in sorted((o for o in every if o in times), key=times.__getitem__)},
        {one: bounds[one] for one in sorted(left, key=bounds.__getitem__)},
        refused,
    )
