"""What the generators return: plain lists of ranks that can check themselves.

Both families are ``list`` subclasses, so they compare, print and index like the nested lists of other
implementations; ``verify()`` raises :class:`DecompositionError` when a stated property does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from megatile.core.errors import MegatileError


class DecompositionError(MegatileError, ValueError):
    """A decomposition that does not exist, or rings that are not what they claim to be."""


class CycleFamily(list[list[int]]):
    """Directed Hamiltonian cycles over ``ranks``; no arc is used more than ``multiplicity`` times.

    ``complete`` states that every ordered pair of ranks is used exactly ``multiplicity`` times
    (a decomposition of the complete directed graph); otherwise the family is a partial set of rings.
    """

    def __init__(
        self, cycles: Iterable[Iterable[int]], *, ranks: int, multiplicity: int = 1, complete: bool = True
    ):
        super().__init__(list(cycle) for cycle in cycles)
        self.ranks = ranks
        self.multiplicity = multiplicity
        self.complete = complete

    def verify(self) -> CycleFamily:
        """Raise unless every cycle is Hamiltonian and arcs are used as stated; return ``self``."""
        _check_permutations(self, self.ranks, "cycle")
        counts = arc_counts(self, self.ranks, closed=True)
        _check_counts(counts, self.ranks, self.multiplicity, self.complete)
        return self


class PathFamily(list[list[int]]):
    """Directed Hamiltonian paths over ``ranks`` that use every arc ``multiplicity`` times.

    Every rank starts ``multiplicity`` paths and ends as many: that is what closes them through one NIC per
    rank.
    """

    def __init__(self, paths: Iterable[Iterable[int]], *, ranks: int, multiplicity: int = 1):
        super().__init__(list(path) for path in paths)
        self.ranks = ranks
        self.multiplicity = multiplicity

    def verify(self) -> PathFamily:
        """Raise unless the paths are Hamiltonian, cover every arc, start and end evenly; return ``self``."""
        _check_permutations(self, self.ranks, "path")
        _check_counts(
            arc_counts(self, self.ranks, closed=False), self.ranks, self.multiplicity, complete=True
        )
        for what, ends in (("starts", [p[0] for p in self]), ("ends", [p[-1] for p in self])):
            if sorted(ends) != sorted(list(range(self.ranks)) * self.multiplicity):
                raise DecompositionError(
                    f"not every rank {what} {self.multiplicity} of the paths: {sorted(ends)}"
                )
        return self


def closed_arcs(cycle: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Return the steps of a cycle, the closing one included."""
    return pairwise([*cycle, *cycle[:1]])


def arc_counts(routes: Sequence[Sequence[int]], ranks: int, *, closed: bool) -> np.ndarray:
    """Return how often each ordered pair ``(a, b)`` appears as a step of a route: an array ``[ranks,
    ranks]``."""
    counts = np.zeros(ranks * ranks, dtype=np.int64)
    for route in routes:
        stops = np.asarray(route, dtype=np.int64)
        codes = stops * ranks + np.roll(stops, -1)
        counts[codes if closed else codes[:-1]] += 1  # within one route every arc is different
    return counts.reshape(ranks, ranks)


def verify_cycles(cycles: Sequence[Sequence[int]], *, multiplicity: int | None = None) -> None:
    """Raise unless ``cycles`` use every arc between their ranks ``multiplicity`` times.

    Without ``multiplicity`` it follows from the number of cycles.
    """
    ranks = len(cycles[0]) if cycles else 1
    if multiplicity is None:
        multiplicity = max(1, len(cycles) // max(1, ranks - 1))
    CycleFamily(cycles, ranks=ranks, multiplicity=multiplicity).verify()


def _check_permutations(routes: Sequence[Sequence[int]], ranks: int, what: str) -> None:
    expected = list(range(ranks))
    for index, route in enumerate(routes):
        if sorted(route) != expected:
            raise DecompositionError(
                f"{what} {index} does not visit each of the {ranks} ranks exactly once: {route}"
            )


def _check_counts(counts: np.ndarray, ranks: int, multiplicity: int, complete: bool) -> None:
    off_diagonal = ~np.eye(ranks, dtype=bool)
    wrong = (counts != multiplicity) if complete else (counts > multiplicity)
    wrong &= off_diagonal
    if wrong.any():
        a, b = (int(x) for x in np.argwhere(wrong)[0])
        limit = "exactly" if complete else "at most"
        raise DecompositionError(
            f"arc {a}→{b} is used {int(counts[a, b])} times, expected {limit} {multiplicity}"
        )
