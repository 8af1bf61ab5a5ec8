"""Edge-disjoint Hamiltonian cycles of tori by switching squares.

A torus of k dimensions has 2k links per unit, so k cycles would use every link. They exist for every product
of cycles; here they are found like this. Colour all links of dimension d with colour d: each colour is a set
of closed rows. Where two links of one colour and two of another form a square, exchanging the two colours
keeps both colours sets of closed walks and joins or divides them. Squares are exchanged until every colour is
one Hamiltonian cycle.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from math import prod

Square = tuple[int, int, int, int, int, int]  # p, p+x, p+y, p+x+y, and the two dimensions


def torus_cycles(dims: Sequence[int], *, attempts: int = 20, seed: int = 0) -> list[list[int]] | None:
    """k undirected Hamiltonian cycles over all links of the torus (sides of 3 or more), or None.

    Ranks count row by row, the last dimension fastest. The same arguments give the same cycles.
    """
    if len(dims) == 1:
        return [list(range(dims[0]))]
    for attempt in range(attempts):
        state = _Switching(dims, random.Random(seed + attempt))
        if state.run():
            return [state.cycle(c) for c in range(len(dims))]
    return None


def torus_neighbour(rank: int, dims: Sequence[int], dim: int) -> int:
    """Return the next rank in positive direction of ``dim``, around the end."""
    stride = prod(dims[dim + 1 :])
    at = rank // stride % dims[dim]
    return rank + ((at + 1) % dims[dim] - at) * stride


class _Switching:
    def __init__(self, dims: Sequence[int], rng: random.Random):
        self.ranks = prod(dims)
        self.colours = len(dims)
        self.rng = rng
        following = [[torus_neighbour(v, dims, d) for v in range(self.ranks)] for d in range(self.colours)]
        self.near: list[list[list[int]]] = [[[] for _ in range(self.ranks)] for _ in dims]
        for d, step in enumerate(following):
            for v, w in enumerate(step):
                self.near[d][v].append(w)
                self.near[d][w].append(v)
        self.squares = list(_squares(following))
        self.rng.shuffle(self.squares)
        self.label: list[list[int]] = [[] for _ in dims]
        self.place: list[list[int]] = [[] for _ in dims]
        self.count = [0] * self.colours
        for c in range(self.colours):
            self._relabel(c)

    def run(self) -> bool:
        """Reduce the number of closed walks until each colour is one; False when stuck."""
        limit = 4 * self.ranks
        while sum(self.count) > self.colours and limit:
            limit -= 1
            if not self._improve() and not self._shake():
                return False
        return sum(self.count) == self.colours

    def cycle(self, colour: int) -> list[int]:
        return self._walk(colour, 0)

    def _improve(self) -> bool:
        """Exchange the squares that join most, in one pass over all of them."""
        done = False
        for wanted in (-2, -1):
            for square in self.squares:
                change = self._change(square)
                if change is not None and change <= wanted:
                    self._exchange(square)
                    done = True
            if done:
                return True
        return False

    def _shake(self) -> bool:
        """Exchange some square that changes no number of walks, to find new joins."""
        candidates = [s for s in self.squares if self._change(s) == 0]
        if not candidates:
            return False
        self._exchange(self.rng.choice(candidates))
        return True

    def _change(self, square: Square) -> int | None:
        """Return how the number of closed walks would change, or None where the square cannot be
        exchanged."""
        p, q, r, s, *_ = square
        first, second = self._colour(p, q), self._colour(p, r)
        if first == second or first != self._colour(r, s) or second != self._colour(q, s):
            return None
        return self._effect(first, (p, q), (r, s)) + self._effect(second, (p, r), (q, s))

    def _effect(self, colour: int, one: tuple[int, int], two: tuple[int, int]) -> int:
        """Links a-b and c-d become a-c and b-d: joins walks (-1), turns a part (0), divides one (1)."""
        label = self.label[colour]
        if label[one[0]] != label[two[0]]:
            return -1
        return 0 if self._ascending(colour, *one) == self._ascending(colour, *two) else 1

    def _ascending(self, colour: int, a: int, b: int) -> bool:
        place = self.place[colour]
        step = place[b] - place[a]
        return step == 1 or step < -1  # the second case is the closing link of the walk

    def _colour(self, a: int, b: int) -> int:
        return next(c for c in range(self.colours) if b in self.near[c][a])

    def _exchange(self, square: Square) -> None:
        p, q, r, s, *_ = square
        first, second = self._colour(p, q), self._colour(p, r)
        for old, new, links in ((first, second, ((p, q), (r, s))), (second, first, ((p, r), (q, s)))):
            for a, b in links:
                for u, v in ((a, b), (b, a)):
                    self.near[old][u].remove(v)
                    self.near[new][u].append(v)
        self._relabel(first)
        self._relabel(second)

    def _relabel(self, colour: int) -> None:
        label, place, walks = [-1] * self.ranks, [0] * self.ranks, 0
        for start in range(self.ranks):
            if label[start] < 0:
                for k, v in enumerate(self._walk(colour, start)):
                    label[v], place[v] = walks, k
                walks += 1
        self.label[colour], self.place[colour], self.count[colour] = label, place, walks

    def _walk(self, colour: int, start: int) -> list[int]:
        near = self.near[colour]
        walk, previous, here = [start], start, near[start][0]
        while here != start:
            walk.append(here)
            one, two = near[here]
            previous, here = here, two if one == previous else one
        return walk


def _squares(following: list[list[int]]) -> Iterator[Square]:
    for x in range(len(following)):
        for y in range(x + 1, len(following)):
            for p in range(len(following[0])):
                q, r = following[x][p], following[y][p]
                yield p, q, r, following[y][q], x, y
