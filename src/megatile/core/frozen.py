"""A mapping that cannot be changed, and so can be hashed and shared.

>>> Frozen({"f16": 4})["f16"]
4
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Frozen(Mapping[K, V]):
    """Equal to every mapping with the same members. Unlike a mapping proxy, it can be hashed and pickled."""

    __slots__ = ("_members",)

    def __init__(self, members: Mapping[K, V] | None = None):
        self._members = dict(members or {})

    def __getitem__(self, key: K) -> V:
        return self._members[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __hash__(self) -> int:
        return hash(frozenset(self._members.items()))

    def __repr__(self) -> str:
        return repr(self._members)
