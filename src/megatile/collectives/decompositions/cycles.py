"""Hamiltonian cycles that decompose the complete directed graph: one chunk per cycle, equal links.

>>> gen_hamilton_circle(3)
[[0, 1, 2], [0, 2, 1]]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from megatile.collectives.decompositions.families import CycleFamily, DecompositionError, closed_arcs
from megatile.collectives.decompositions.rainbow import colour, rainbow_path


def gen_hamilton_circle(n: int) -> CycleFamily:
    """Return cycles over ranks 0..n-1 in which every ordered pair is one step exactly once: n-1 cycles.

    For n = 4 and 6 no such cycles exist; the answer is the doubled form, 2(n-1) cycles with every pair
    exactly twice (``multiplicity`` is 2, chunks are half as large, links carry the same bytes). The doubled
    form also answers the few even n above 1024 for which no direct construction is known here. n = 1 has no
    cycles.
    """
    _check_ranks(n)
    if n == 1:
        return CycleFamily([], ranks=1)
    if n == 2:
        return CycleFamily([[0, 1]], ranks=2)
    if n % 2:
        return CycleFamily(map(_from_zero, _odd_cycles(n)), ranks=n)
    path = rainbow_path(n - 2) if n >= 8 else None
    if path is None:
        return doubled_cycles(n)
    return CycleFamily(map(_from_zero, _even_cycles(n, path)), ranks=n)


def doubled_cycles(n: int) -> CycleFamily:
    """2(n-1) cycles over an even number of ranks that use every ordered pair exactly twice."""
    _check_ranks(n)
    if n % 2:
        raise DecompositionError(f"the doubled form is for even numbers of ranks, got {n}")
    forward = [[n - 1, *((z + i) % (n - 1) for z in zigzag(n - 1))] for i in range(n - 1)]
    backward = [cycle[::-1] for cycle in forward]
    return CycleFamily(map(_from_zero, forward + backward), ranks=n, multiplicity=2)


def most_rings(n: int) -> int:
    """Return how many arc-disjoint Hamiltonian cycles over n ranks there are."""
    return 2 * len(_DISJOINT_RINGS[n]) if n in _DISJOINT_RINGS else n - 1


def partial_rings(n: int, count: int) -> CycleFamily:
    """Return ``count`` arc-disjoint Hamiltonian cycles over n ranks, for multi-ring collectives.

    At most n-1 exist (n-2 for n = 4 and 6).
    """
    cycles: Sequence[Sequence[int]] = gen_hamilton_circle(n)
    if n in _DISJOINT_RINGS:
        cycles = [ring[::direction] for ring in _DISJOINT_RINGS[n] for direction in (1, -1)]
    elif n > 2 and len(cycles) > n - 1:
        cycles = _first_disjoint(cycles)
    if not 0 <= count <= len(cycles):
        raise DecompositionError(
            f"{count} arc-disjoint rings over {n} ranks asked for, {len(cycles)} are known",
            advice=f"ask for at most {len(cycles)}",
        )
    return CycleFamily(map(_from_zero, cycles[:count]), ranks=n, complete=count == n - 1)


# The most arc-disjoint rings of the two sizes that have no decomposition: each with its reverse.
_DISJOINT_RINGS: dict[int, list[list[int]]] = {4: [[0, 1, 2, 3]], 6: [[0, 1, 2, 3, 4, 5], [0, 2, 4, 1, 5, 3]]}


def zigzag(n: int) -> list[int]:
    """0, 1, -1, 2, -2, … modulo n: a Hamiltonian path of Z_n whose steps have all different lengths."""
    return [((k + 1) // 2 if k % 2 else -(k // 2)) % n for k in range(n)]


def _odd_cycles(n: int) -> list[list[int]]:
    base = zigzag(n - 1)
    numbers = [*range(n - 1)] * 2  # one object for each: 16 million for 4096 ranks would take 500 MB
    return [[n - 1, *(numbers[z + i] for z in base)] for i in range(n - 1)]


def _even_cycles(n: int, path: list[int]) -> list[list[int]]:
    """Put the new rank n-1 into one arc of each odd cycle, and close the path of those arcs through it."""
    cycles = _odd_cycles(n - 1)
    place = {z: k + 1 for k, z in enumerate(zigzag(n - 2))}
    for a, b in pairwise(path):
        i = colour(a, b, n - 2)
        after = 0 if a == n - 2 else place[(a - i) % (n - 2)]
        cycles[i].insert(after + 1, n - 1)
    return [*cycles, [*path, n - 1]]


def _first_disjoint(cycles: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    used: set[tuple[int, int]] = set()
    chosen = []
    for cycle in cycles:
        arcs = set(closed_arcs(cycle))
        if not arcs & used:
            chosen.append(cycle)
            used |= arcs
    return chosen


def _from_zero(cycle: Sequence[int]) -> list[int]:
    at = list(cycle).index(0)
    return [*cycle[at:], *cycle[:at]]


def _check_ranks(n: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise DecompositionError(f"the number of ranks must be a positive integer, got {n!r}")
