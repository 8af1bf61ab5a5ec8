"""How chunks of KV travel: who holds what at each step, and what every exchange moves.

A run has ``exchanges + 1`` steps. At step 0 a rank works on its own KV; exchange e brings what it works on at
step e+1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from megatile.collectives.decompositions import CycleFamily, source_ranks


class Held(NamedTuple):
    """A chunk, named by the rank where it began and its number there."""

    source: int
    chunk: int


class Transfer(NamedTuple):
    """One chunk that goes to or comes from ``peer``."""

    peer: int
    held: Held


class Routes(Protocol):
    """What every routing answers. ``relays``: ranks pass on what they received."""

    @property
    def ranks(self) -> int: ...
    @property
    def chunks(self) -> int: ...
    @property
    def exchanges(self) -> int: ...
    @property
    def relays(self) -> bool: ...

    def held(self, step: int, rank: int) -> tuple[Held, ...]:
        """The chunks that ``rank`` works on at ``step``."""

    def sends(self, exchange: int, rank: int) -> tuple[Transfer, ...]:
        """What ``rank`` sends in an exchange."""

    def receives(self, exchange: int, rank: int) -> tuple[Transfer, ...]:
        """What ``rank`` receives in an exchange: what it holds at the next step."""


@dataclass(frozen=True)
class CycleRoutes:
    """Chunk c goes around cycle c, one rank per exchange: rings, Hamilton K_n and (m-K_m-m)^u alike."""

    cycles: tuple[tuple[int, ...], ...]
    ranks: int
    relays: bool = True
    _sources: list[list[list[int]]] = field(init=False, repr=False, compare=False)
    _next: list[list[int]] = field(init=False, repr=False, compare=False)
    _previous: list[list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        CycleFamily(self.cycles, ranks=self.ranks, multiplicity=self.ranks**2, complete=False).verify()
        following = [_neighbours(cycle, 1) for cycle in self.cycles]
        preceding = [_neighbours(cycle, -1) for cycle in self.cycles]
        object.__setattr__(self, "_sources", source_ranks(self.cycles).tolist() if self.cycles else [[[0]]])
        object.__setattr__(self, "_next", following)
        object.__setattr__(self, "_previous", preceding)

    @classmethod
    def along(cls, cycles: Sequence[Sequence[int]], ranks: int) -> CycleRoutes:
        return cls(tuple(tuple(cycle) for cycle in cycles), ranks)

    @property
    def chunks(self) -> int:
        return max(1, len(self.cycles))

    @property
    def exchanges(self) -> int:
        return self.ranks - 1

    def held(self, step: int, rank: int) -> tuple[Held, ...]:
        return tuple(Held(source, c) for c, source in enumerate(self._sources[rank][step]))

    def sends(self, exchange: int, rank: int) -> tuple[Transfer, ...]:
        sources = self._sources[rank][exchange]
        return tuple(Transfer(self._next[c][rank], Held(sources[c], c)) for c in range(self.chunks))

    def receives(self, exchange: int, rank: int) -> tuple[Transfer, ...]:
        sources = self._sources[rank][exchange + 1]
        return tuple(Transfer(self._previous[c][rank], Held(sources[c], c)) for c in range(self.chunks))


@dataclass(frozen=True)
class DirectRoutes:
    """No relaying: in exchange e rank r sends rank p its own chunk ((p-r) mod n - 1 + e) mod (n-1)."""

    ranks: int
    relays: bool = False

    @property
    def chunks(self) -> int:
        return max(1, self.ranks - 1)

    @property
    def exchanges(self) -> int:
        return self.ranks - 1

    def held(self, step: int, rank: int) -> tuple[Held, ...]:
        if step == 0:
            return tuple(Held(rank, c) for c in range(self.chunks))
        return tuple(transfer.held for transfer in self.receives(step - 1, rank))

    def sends(self, exchange: int, rank: int) -> tuple[Transfer, ...]:
        return tuple(Transfer(p, Held(rank, self._chunk(exchange, rank, p))) for p in self._others(rank))

    def receives(self, exchange: int, rank: int) -> tuple[Transfer, ...]:
        return tuple(Transfer(p, Held(p, self._chunk(exchange, p, rank))) for p in self._others(rank))

    def _others(self, rank: int) -> list[int]:
        return [(rank + d) % self.ranks for d in range(1, self.ranks)]

    def _chunk(self, exchange: int, sender: int, receiver: int) -> int:
        return ((receiver - sender) % self.ranks - 1 + exchange) % (self.ranks - 1)


def _neighbours(cycle: Sequence[int], distance: int) -> list[int]:
    result = [0] * len(cycle)
    for k, rank in enumerate(cycle):
        result[rank] = cycle[(k + distance) % len(cycle)]
    return result
