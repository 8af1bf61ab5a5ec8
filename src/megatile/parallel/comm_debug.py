"""Counts of what a piece of host code communicates: number and bytes of each collective, at every scale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from megatile.core.errors import MegatileError
from megatile.runtime.host.run_collective import WATCHERS, Communicated, communicated


class CommContract(MegatileError, AssertionError):
    """Host code that communicates otherwise than its test says."""


class CommDebug:
    """What was communicated, by scale: collectives of the host's ranks at ``device``; of kernels the messages
    (``send``) of all their units, and the collectives of one unit, at the units' own scale."""

    def __init__(self) -> None:
        self.calls: list[Communicated] = []
        """In order."""

    def add(self, result: Any) -> None:
        """Count what a result of ``simulate`` communicated, at the scales of its units."""
        self.calls += communicated(result)

    def at(self, scale: str = "device") -> list[Communicated]:
        """Return the calls at a scale, by its name in programs or in the machine (``device``, ``sip``, ``pe``
        …)."""
        return [call for call in self.calls if scale in call.scales]

    @property
    def counts(self) -> dict[str, int]:
        """How many of each collective there were at ``device``."""
        return _totals(self.at())

    @property
    def nbytes(self) -> dict[str, int]:
        """The bytes of one rank's buffers, for each collective at ``device``."""
        return _totals(self.at(), "nbytes")

    def get_comm_counts(self) -> dict[str, int]:
        return self.counts

    def get_total_counts(self) -> int:
        return len(self.at())

    def expect(self, *, nbytes: int | None = None, scale: str = "device", **counts: int) -> None:
        """Raise unless exactly this was communicated at a scale, and (if given) so many bytes altogether.

        ``c.expect(all_reduce=1, nbytes=M * N * 2)``, ``c.expect(send=6, scale="pe")``; what is not named must
        not have happened.
        """
        wanted = {name: count for name, count in counts.items() if count}
        calls = self.at(scale)
        found, total = _totals(calls), sum(call.nbytes for call in calls)
        if found != wanted:
            raise CommContract(
                f"expected {_text(wanted)} at scale '{scale}', but there were {_text(found)}:\n{self}"
            )
        if nbytes is not None and total != nbytes:
            raise CommContract(
                f"expected {nbytes} bytes at scale '{scale}', but {total} were communicated:\n{self}"
            )

    def __str__(self) -> str:
        return "\n".join(f"  {call}" for call in self.calls) or "  no communication"


@contextmanager
def comm_debug() -> Iterator[CommDebug]:
    """``with mt.comm_debug() as c:`` counts what all hosts communicate inside."""
    seen = CommDebug()
    WATCHERS.append(seen.calls.append)
    try:
        yield seen
    finally:
        WATCHERS.pop()


def _totals(calls: Iterable[Communicated], of: str = "count") -> dict[str, int]:
    found: Counter[str] = Counter()
    for call in calls:
        found[call.operation] += getattr(call, of)
    return dict(found)


def _text(counts: dict[str, Any]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
