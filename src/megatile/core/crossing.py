"""Notice units that come to the collectives of tiles in opposite order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from megatile.core.errors import Place

Part = tuple[str, frozenset[int], Place | None]
"""A tile, the units that name it at one meeting, and where they do."""


@dataclass(frozen=True)
class Mismatch:
    """A meeting at which some units named one tile and others another."""

    meeting: int
    mine: Part
    other: Part


class Crossings:
    """Different tiles that units of one group named at one meeting.

    Two units may reduce different tiles together. They may not come to the same tiles in different orders:
    ``a`` then ``b`` and ``b`` then ``a``, or ``a``, ``b``, ``c`` and ``b``, ``c``, ``a``.
    """

    def __init__(self) -> None:
        self._mismatches: dict[Any, dict[str, dict[Any, Mismatch]]] = {}
        self._meetings = 0

    def find(
        self, group: Any, parts: Iterable[Part], name: Callable[[int], str]
    ) -> tuple[str, Place | None] | None:
        """Record a meeting of ``group``; return who crosses whom, and the last of the places."""
        self._meetings += 1
        from_tile = self._mismatches.setdefault(group, {})
        for mine, other in permutations(parts, 2):
            key, known = (mine[1], other[0], other[1]), from_tile.setdefault(mine[0], {})
            if mine[0] == other[0] or key in known:
                continue
            known[key] = Mismatch(self._meetings, mine, other)
            if cycle := _cycle(from_tile, known[key]):
                cycle.sort(key=lambda mismatch: mismatch.meeting)
                orders = sorted(([m.mine for m in cycle], [m.other for m in cycle]), key=_unit)
                return "; ".join(_text(order, name) for order in orders), orders[1][-1][2]
        return None


def _cycle(from_tile: dict[str, dict[Any, Mismatch]], last: Mismatch) -> list[Mismatch] | None:
    """Return mismatches of two units from the other's last tile back to the one's, with the last."""
    tried = set()
    ways = [[last]]
    while ways:
        way = ways.pop()
        mine = frozenset.intersection(*(m.mine[1] for m in way))
        others = frozenset.intersection(*(m.other[1] for m in way))
        state = way[-1].other[0], mine, others
        if not mine or not others or state in tried:
            continue
        if state[0] == last.mine[0]:
            return way
        tried.add(state)
        ways += [[*way, following] for following in from_tile.get(state[0], {}).values()]
    return None


def _unit(order: list[Part]) -> int:
    return min(frozenset.intersection(*(units for _, units, _ in order)))


def _text(order: list[Part], name: Callable[[int], str]) -> str:
    tiles = [f"'{tile}' ({place})" if place else f"'{tile}'" for tile, _, place in order]
    return f"{name(_unit(order))} comes to {', then '.join(tiles)}"
