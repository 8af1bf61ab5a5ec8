"""How chunks of KV travel: who holds what at each step, and what every exchange moves.

A run has ``exchanges + 1`` steps. At step 0 a rank works on its own KV; exchange e brings what it works on at
step e+1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from megatile.collectives.decompositions import CycleFamily

Array = Any


class Held(NamedTuple):
    """A chunk, named by the rank where it began and its number there."""

    source: int
    chunk: int


class Transfer(NamedTuple):
    """One chunk that goes to or comes from ``peer``."""

    peer: int
    held: Held


@dataclass(frozen=True)
class Routes(ABC):
    """What every routing answers. ``relays``: ranks pass on what they received."""

    ranks: int
    relays: ClassVar[bool]

    @property
    def exchanges(self) -> int:
        return self.ranks - 1

    @property
    @abstractmethod
    def chunks(self) -> int:
        """Into how many a rank's KV is cut."""

    @abstractmethod
    def held(self, step: int, rank: int) -> tuple[Held, ...]:
        """Return the chunks that ``rank`` works on at ``step``."""

    @abstractmethod
    def sends(self, exchange: int, rank: int) -> tuple[Transfer, ...]:
        """Return what ``rank`` sends in an exchange."""

    @abstractmethod
    def receives(self, exchange: int, rank: int) -> tuple[Transfer, ...]:
        """Return what ``rank`` receives in an exchange: what it holds at the next step."""

    @abstractmethod
    def all_held(self, step: int) -> tuple[Array, Array]:
        """Return ``held`` of all ranks: sources and numbers of chunks, [ranks, slots]."""

    @abstractmethod
    def all_sends(self, exchange: int) -> tuple[Array, Array, Array]:
        """Return ``sends`` of all ranks: receivers, sources and numbers of chunks, [ranks, slots]."""


@dataclass(frozen=True)
class CycleRoutes(Routes):
    """Send chunk c around cycle c, one rank per exchange, for rings, Hamilton K_n and (m-K_m-m)^u."""

    relays = True
    cycles: tuple[tuple[int, ...], ...]
    _stops: Array = field(init=False, repr=False, compare=False)
    _places: Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        CycleFamily(self.cycles, ranks=self.ranks, multiplicity=self.ranks**2, complete=False).verify()
        # [cycle, place] is a rank, [cycle, rank] its place. Where a chunk is at a step follows from both.
        stops = np.array(self.cycles or [[0]], dtype=np.int64)
        object.__setattr__(self, "_stops", stops)
        object.__setattr__(self, "_places", np.argsort(stops, axis=1))

    @classmethod
    def along(cls, cycles: Sequence[Sequence[int]], ranks: int) -> CycleRoutes:
        return cls(ranks, tuple(tuple(cycle) for cycle in cycles))

    @property
    def chunks(self) -> int:
        return max(1, len(self.cycles))

    def held(self, step: int, rank: int) -> tuple[Held, ...]:
        return tuple(Held(source, c) for c, source in enumerate(self._along(rank, -step)))

    def sends(self, exchange: int, rank: int) -> tuple[Transfer, ...]:
        return tuple(map(Transfer, self._along(rank, 1), self.held(exchange, rank)))

    def receives(self, exchange: int, rank: int) -> tuple[Transfer, ...]:
        return tuple(map(Transfer, self._along(rank, -1), self.held(exchange + 1, rank)))

    def all_held(self, step: int) -> tuple[Array, Array]:
        sources = self._all_along(-step)
        return sources, np.broadcast_to(np.arange(self.chunks), sources.shape)

    def all_sends(self, exchange: int) -> tuple[Array, Array, Array]:
        return self._all_along(1), *self.all_held(exchange)

    def _along(self, rank: int, distance: int) -> list[int]:
        """Per cycle, the rank that stands so far from ``rank``."""
        at = (self._places[:, rank] + distance) % self.ranks
        found: list[int] = self._stops[np.arange(len(at)), at].tolist()
        return found

    def _all_along(self, distance: int) -> Array:
        return np.take_along_axis(self._stops, (self._places + distance) % self.ranks, axis=1).T


@dataclass(frozen=True)
class DirectRoutes(Routes):
    """No relaying: in exchange e rank r sends rank p its own chunk ((p-r) mod n - 1 + e) mod (n-1)."""

    relays = False

    @property
    def chunks(self) -> int:
        return max(1, self.ranks - 1)

    def held(self, step: int, rank: int) -> tuple[Held, ...]:
        if step == 0:
            return tuple(Held(rank, c) for c in range(self.chunks))
        return tuple(transfer.held for transfer in self.receives(step - 1, rank))

    def sends(self, exchange: int, rank: int) -> tuple[Transfer, ...]:
        return tuple(Transfer(p, Held(rank, self._chunk(exchange, rank, p))) for p in self._others(rank))

    def receives(self, exchange: int, rank: int) -> tuple[Transfer, ...]:
        return tuple(Transfer(p, Held(p, self._chunk(exchange, p, rank))) for p in self._others(rank))

    def all_held(self, step: int) -> tuple[Array, Array]:
        if step == 0:
            shape = self.ranks, self.chunks
            return np.indices(shape)[0], np.indices(shape)[1]
        ranks, away = np.ogrid[: self.ranks, 1 : self.ranks]
        # A rank stands n - away from the one that is ``away`` from it.
        return (ranks + away) % self.ranks, (self.ranks - away - 1 + step - 1 + 0 * ranks) % (self.ranks - 1)

    def all_sends(self, exchange: int) -> tuple[Array, Array, Array]:
        ranks, away = np.ogrid[: self.ranks, 1 : self.ranks]
        receivers = (ranks + away) % self.ranks
        return receivers, ranks + 0 * away, (away - 1 + exchange + 0 * ranks) % (self.ranks - 1)

    def _others(self, rank: int) -> list[int]:
        return [(rank + d) % self.ranks for d in range(1, self.ranks)]

    def _chunk(self, exchange: int, sender: int, receiver: int) -> int:
        return ((receiver - sender) % self.ranks - 1 + exchange) % (self.ranks - 1)


@dataclass(frozen=True)
class GatherRoutes(Routes):
    """Every rank sends its whole KV to all others in one exchange: for short sequences."""

    relays = False

    @property
    def exchanges(self) -> int:
        return min(1, self.ranks - 1)

    @property
    def chunks(self) -> int:
        return 1

    def held(self, step: int, rank: int) -> tuple[Held, ...]:
        return tuple(Held(source, 0) for source in (self._others(rank) if step else [rank]))

    def sends(self, exchange: int, rank: int) -> tuple[Transfer, ...]:
        return tuple(Transfer(peer, Held(rank, 0)) for peer in self._others(rank))

    def receives(self, exchange: int, rank: int) -> tuple[Transfer, ...]:
        return tuple(Transfer(peer, Held(peer, 0)) for peer in self._others(rank))

    def all_held(self, step: int) -> tuple[Array, Array]:
        sources = np.array([[h.source for h in self.held(step, rank)] for rank in range(self.ranks)])
        return sources, np.zeros_like(sources)

    def all_sends(self, exchange: int) -> tuple[Array, Array, Array]:
        receivers, chunks = self.all_held(1)
        return receivers, np.broadcast_to(np.arange(self.ranks)[:, None], receivers.shape), chunks

    def _others(self, rank: int) -> list[int]:
        return [peer for peer in range(self.ranks) if peer != rank]
