"""How the endpoints of one network are wired: rings, grids, switches, meshes, trees, edge lists.

A topology numbers its endpoints ``0 … size-1`` and its directed links ``0 … link_count-1`` by arithmetic;
nothing is enumerated, so a grid of a million cores costs as much as a pair. A route is a few runs
(:class:`Run`: straight stretches); :meth:`Topology.links` expands a run to link numbers on demand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

from megatile.core.errors import RouteError
from megatile.core.quantities import whole


class Run(NamedTuple):
    """``hops`` links in a row along one axis, from endpoint ``start``, in direction ``step``.

    On grids ``axis`` is x, y, z, …; elsewhere it is ``up``, ``down``, ``direct`` or ``path``, and ``step`` is
    what that axis needs to know (the other end).
    """

    axis: str
    start: int
    step: int
    hops: int


def coords_of(index: int, extents: Iterable[int]) -> tuple[int, ...]:
    """Return the grid coordinates of a number; the first coordinate varies fastest."""
    out = []
    for extent in extents:
        index, place = divmod(index, extent)
        out.append(place)
    return tuple(out)


def index_of(coords: Sequence[Any], extents: Sequence[int]) -> int | None:
    """Return the number of the place with these coordinates; None outside the grid."""
    places = [place for c in coords if (place := whole(c)) is not None]
    inside = len(coords) == len(places) == len(extents)
    if not inside or any(not 0 <= at < extent for at, extent in zip(places, extents, strict=True)):
        return None
    return reduce(lambda index, at: index * at[1] + at[0], zip(places[::-1], extents[::-1], strict=True), 0)


@dataclass(frozen=True)
class Topology(ABC):
    """The shape of one network. Subclasses give the arithmetic."""

    size: int
    kind: str

    link_count: int = field(default=0, init=False, compare=False)
    dims: tuple[int, ...] = field(default=(), init=False)

    @abstractmethod
    def route(self, a: int, b: int) -> tuple[Run, ...]:
        """Return the runs from endpoint ``a`` to endpoint ``b``; none if they are the same."""

    @abstractmethod
    def links(self, run: Run) -> Iterator[int]:
        """Return the directed links of one run, in order."""

    @abstractmethod
    def neighbors(self, a: int) -> Sequence[int]:
        """Return endpoints one link away, or behind the same switch; a lazy sequence where they are many."""

    @abstractmethod
    def bisection_links(self) -> float:
        """Return links (in one direction) that cross a cut into two halves."""

    @abstractmethod
    def ends(self, link: int) -> tuple[str, str]:
        """Return names of the two ends of a link, for pictures and messages."""

    def width(self, link: int) -> int:
        """Return how many cables this link bundles."""
        return 1

    def hops(self, a: int, b: int) -> list[int]:
        """Return all directed links from ``a`` to ``b``."""
        return [link for run in self.route(a, b) for link in self.links(run)]

    def hop_count(self, a: int, b: int) -> int:
        """Return the number of links from ``a`` to ``b``."""
        return sum(run.hops for run in self.route(a, b))

    def coords(self, index: int) -> tuple[int, ...]:
        """Return grid coordinates, x first; a 1-tuple where there is no grid."""
        return coords_of(index, self.dims or (self.size,))

    def index(self, coords: Sequence[int]) -> int:
        """Return the endpoint at these coordinates."""
        dims = self.dims or (self.size,)
        index = index_of(coords, dims)
        if index is None:
            shown = "×".join(map(str, dims))
            raise RouteError(f"coordinates {tuple(coords)} are outside the {shown} {self.kind}")
        return index

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


class Others(Sequence[int]):
    """A range without one member, mapped by a function, without storing anything."""

    def __init__(self, members: range, without: int, of: Callable[[int], int] = lambda i: i):
        self._members, self._of = members, of
        self._hole = members.index(without)

    def shifted(self, base: int) -> Others:
        """Return the same, with ``base`` added to every member."""
        of = self._of
        return Others(self._members, self._members[self._hole], lambda i: of(i) + base)

    def __len__(self) -> int:
        return len(self._members) - 1

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        i = range(len(self))[i]
        return self._of(self._members[i + (i >= self._hole)])
