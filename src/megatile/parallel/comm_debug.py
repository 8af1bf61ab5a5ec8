"""Counts of the collectives that a piece of host code does: number and bytes of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from megatile.core.errors import MegatileError
from megatile.core.quantities import format_bytes
from megatile.runtime.host.run_collective import WATCHERS


class CommContract(MegatileError, AssertionError):
    """Host code that communicates otherwise than its test says."""


class CommDebug:
    """``counts`` and ``nbytes`` (of one rank's buffer) by the name of the collective; ``calls`` in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, tuple[int, ...], str]] = []
        """(name, bytes, ranks, where it is called), once per collective."""

    def note(self, operation: str, nbytes: int, ranks: tuple[int, ...], where: str) -> None:
        self.calls.append((operation, nbytes, ranks, where))

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(name for name, *_ in self.calls))

    @property
    def nbytes(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for name, size, *_ in self.calls:
            found[name] += size
        return dict(found)

    def get_comm_counts(self) -> dict[str, int]:
        return self.counts

    def get_total_counts(self) -> int:
        return len(self.calls)

    def expect(self, *, nbytes: int | None = None, **counts: int) -> None:
        """Raise unless exactly these collectives were done, and (if given) moved so many bytes altogether.

        ``c.expect(all_reduce=1, nbytes=M * N * 2)``; what is not named must not have happened.
        """
        wanted = {name: count for name, count in counts.items() if count}
        if self.counts != wanted:
            raise CommContract(f"expected {_text(wanted)}, but there were {_text(self.counts)}:\n{self}")
        total = sum(self.nbytes.values())
        if nbytes is not None and total != nbytes:
            raise CommContract(f"expected {nbytes} bytes, but {total} were communicated:\n{self}")

    def __str__(self) -> str:
        lines = [
            f"  {name} of {format_bytes(size)} over ranks {', '.join(map(str, ranks))}  {where}"
            for name, size, ranks, where in self.calls
        ]
        return "\n".join(lines) or "  no communication"


@contextmanager
def comm_debug() -> Iterator[CommDebug]:
    """``with mt.comm_debug() as c:`` counts the collectives of all hosts inside."""
    seen = CommDebug()
    WATCHERS.append(seen.note)
    try:
        yield seen
    finally:
        WATCHERS.remove(seen.note)


def _text(counts: dict[str, Any]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
