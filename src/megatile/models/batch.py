"""The tokens of one forward pass: (new, cached) of every request, grouped by equal pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from megatile.models.schemes import ModelError

MAX_REQUESTS = 1_000_000
"""Requests in one batch."""
MAX_TOKENS = 10**9
"""Tokens in one step."""


class Group(NamedTuple):
    """Requests with equally many new and cached tokens."""

    requests: int
    new: int
    cached: int


@dataclass(frozen=True)
class Batch:
    """The requests of one step: those that decode one token each, and prompts."""

    groups: tuple[Group, ...]

    @classmethod
    def of(cls, requests: Any) -> Batch:
        """Return the batch of a list of (new, cached) pairs; a batch stays what it is."""
        if isinstance(requests, Batch):
            return requests
        try:
            pairs = Counter((new, cached) for new, cached in requests)
        except (TypeError, ValueError):
            raise ModelError(
                "a batch is a list of (new, cached) tokens",
                advice="[(1, 4096)] * 64 decodes, [(2048, 0)] prefills",
            ) from None
        if not pairs:
            raise ModelError("a batch needs at least one request", advice="[(1, 4096)] * 64")
        return cls(tuple(_group(count, *pair) for pair, count in sorted(pairs.items(), key=_order)))

    @classmethod
    def equal(cls, requests: int, new: int, cached: int) -> Batch:
        """Return the batch of so many requests with equally many tokens."""
        return cls((_group(requests, new, cached),))

    @classmethod
    def from_groups(cls, groups: Iterable[tuple[int, int, int]]) -> Batch:
        """Return the batch of (count, new, cached) groups, unchecked: for loops."""
        return cls(tuple(Group(*group) for group in groups))

    @property
    def tokens(self) -> int:
        return sum(g.requests * g.new for g in self.groups)

    @property
    def requests(self) -> int:
        return sum(g.requests for g in self.groups)

    @property
    def context(self) -> int:
        """Tokens in the cache after the step."""
        return sum(g.requests * (g.new + g.cached) for g in self.groups)

    @property
    def decode_only(self) -> bool:
        return all(g.new == 1 and g.cached > 0 for g in self.groups)

    def share(self, parts: int) -> Batch:
        """Return the largest of ``parts`` parts among which requests are divided evenly."""
        if parts == 1:
            return self
        return Batch(tuple(Group(-(-g.requests // parts), g.new, g.cached) for g in self.groups))

    def __str__(self) -> str:
        decode = sum(g.requests for g in self.groups if g.new == 1 and g.cached)
        words = [f"{decode} decoding"] if decode else []
        words += [f"{g.requests} × {g.new} new tokens" for g in self.groups if not (g.new == 1 and g.cached)][
            :3
        ]
        return ", ".join(words)


def _order(item: tuple[tuple[Any, Any], int]) -> tuple[Any, Any]:
    pair = item[0]
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in pair):
        raise ModelError(f"tokens must be whole numbers, got {pair!r}")
    return pair


def _group(count: int, new: int, cached: int) -> Group:
    if new < 1 or cached < 0 or count > MAX_REQUESTS or count * (new + cached) > MAX_TOKENS:
        raise ModelError(
            f"{count} requests of ({new}, {cached}) tokens: new must be at least 1, cached at least 0, "
            f"and a step holds at most {MAX_TOKENS} tokens"
        )
    return Group(count, new, cached)
