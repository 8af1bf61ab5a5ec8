"""Notice units that come to the collectives of two tiles in opposite order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any

from megatile.core.errors import Place

Part = tuple[str, frozenset[int], Place | None]
"""A tile, the units that name it at one meeting, and where they do."""


class Crossings:
    """Pairs of different tiles that units of one group named at one meeting.

    Two units may reduce different tiles together. They may not reduce one's first with the other's second
    tile and then the second with the first.
    """

    def __init__(self) -> None:
        self._seen: dict[Any, dict[Any, tuple[Part, Part]]] = {}

    def find(
        self, group: Any, parts: Iterable[Part], name: Callable[[int], str]
    ) -> tuple[str, Place | None] | None:
        """Record a meeting of ``group``; return who crosses whom, and the last of the four places."""
        for low, high in combinations(sorted(parts, key=lambda part: part[0]), 2):
            if low[0] == high[0]:
                continue
            meetings = self._seen.setdefault((group, low[0], high[0]), {})
            for first_low, first_high in meetings.values():
                down, up = first_low[1] & high[1], first_high[1] & low[1]
                if down and up:
                    orders = sorted(
                        [(min(down), first_low, high), (min(up), first_high, low)], key=lambda order: order[0]
                    )
                    said = [f"{name(unit)} comes to {_text(a)}, then {_text(b)}" for unit, a, b in orders]
                    return "; ".join(said), orders[1][2][2]
            meetings.setdefault((low[1], high[1]), (low, high))
        return None


def _text(part: Part) -> str:
    return f"'{part[0]}' ({part[2]})" if part[2] else f"'{part[0]}'"
