"""The step from an odd to an even number of ranks: a Hamiltonian path that takes one arc from each cycle.

Let N be even. On the vertices Z_N and ∞ (written as the number N) the N cycles ``(∞, z+i)`` of the odd
construction use every arc once; the *colour* of an arc is the cycle that holds it. A Hamiltonian path with
one arc of each colour turns those N cycles into N+1 cycles on one vertex more (see :mod:`.cycles`).

The path starts as the closed walk t → t+d, d odd and coprime to N, which has every colour once. A *recipe*
replaces 3 to 5 of its arcs by others of the same colours, one of them through ∞. The recipes below were found
by computer search; each holds for a whole class of N, and :func:`rainbow_path` only returns what it has
checked. Together they answer every even N >= 6 up to 1258 (and most beyond).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import gcd
from typing import NamedTuple

INFINITY = -1  # stands for ∞ in recipes, whatever N is


class Recipe(NamedTuple):
    """Walk t → t+step from ``start``, with some arcs replaced."""

    step: int
    start: int
    replaced: tuple[tuple[int, int], ...]


def colour(a: int, b: int, n: int) -> int:
    """Return the cycle of the odd construction over Z_n and ∞ (= n) that holds the arc a → b."""
    if a == n:
        return b
    if b == n:
        return (a - n // 2) % n
    distance = (b - a) % n
    shift = (distance - 1) // 2 if distance % 2 else distance // 2 - n // 2
    return (a + shift) % n


def rainbow_path(n: int) -> list[int] | None:
    """Return a Hamiltonian path over Z_n and ∞ (= n) with every colour once, or None where no recipe
    holds."""
    for recipe in _recipes(n):
        path = _walk(recipe, n)
        if path is not None and _is_rainbow(path, n):
            return path
    return None


def _is_rainbow(path: list[int], n: int) -> bool:
    return sorted(path) == list(range(n + 1)) and len({colour(a, b, n) for a, b in pairwise(path)}) == n


def _walk(recipe: Recipe, n: int) -> list[int] | None:
    if gcd(recipe.step, n) != 1:
        return None
    arcs = {_vertex(a, n): _vertex(b, n) for a, b in recipe.replaced}
    heads = {recipe.start % n, *arcs.values()} - {n}
    removed = {(head - recipe.step) % n for head in heads}
    path = [recipe.start % n]
    while len(path) <= n + 1:
        last = path[-1]
        if last in arcs:
            path.append(arcs[last])
        elif last == n or last in removed:
            break
        else:
            path.append((last + recipe.step) % n)
    return path


def _vertex(v: int, n: int) -> int:
    return n if v == INFINITY else v % n


_SINGLE: dict[int, Recipe] = {
    196: Recipe(71, 75, ((63, 7), (4, 134), (0, INFINITY), (INFINITY, 39), (132, 71))),
    700: Recipe(337, 694, ((531, 519), (0, INFINITY), (INFINITY, 168), (182, 516), (357, 337))),
}


def _recipes(n: int) -> Iterator[Recipe]:
    h, t, q, oo = n // 2, n // 3, n // 4, INFINITY
    if n in _SINGLE:
        yield _SINGLE[n]
    if n % 4:
        arcs = ((0, 1), ((3 * h - 1) // 2, (3 * h + 3) // 2), (h - 1, h + 2), ((h - 1) // 2, oo))
        yield Recipe(h + 2, (h + 3) // 2, arcs)
        return
    yield from (
        Recipe(2 * q - 3, q - 2, ((0, oo), (oo, 2 * q - 3), (q - 1, 3 * q - 1), (3 * q + 1, 3 * q - 4))),
        Recipe(5, 5, ((h - 2, h + 6), (0, oo), (oo, h + 3))),
        Recipe(t + 3, 3, ((t - 1, t + 3), (2 * t, 2 * t + 2), (0, oo))),
        Recipe(2 * q - 5, 3 * q - 2, ((q - 2, q - 4), (q + 3, 3 * q - 7), (0, oo), (oo, 2 * q - 5))),
        Recipe(7, 7, ((h - 3, h + 8), (0, oo), (oo, h + 4), (h - 1, h + 7), (h + 1, h + 6))),
        Recipe(7, 7, ((h - 3, h + 9), (0, oo), (oo, h + 13), (h + 2, h + 17), (h + 6, h + 4))),
        Recipe(11, 11, ((h - 2, h + 15), (h - 5, h + 12), (0, oo), (oo, h + 9), (h + 4, h + 6))),
        Recipe(17, 17, ((h - 2, h + 18), (0, oo), (oo, h + 9), (h + 1, h + 12), (h - 8, h + 15))),
    )
