"""Whoever wants to know what is communicated: collectives of ranks, and what kernels send at their scales."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from megatile.core.quantities import format_bytes

COLLECTIVES = ("all_reduce", "broadcast", "barrier")
"""What networks do by themselves, as commands of a Plan."""


@dataclass(frozen=True)
class Communicated:
    """A collective of some ranks, or the messages of a kernel: how many bytes, where it was called."""

    operation: str
    nbytes: int
    ranks: tuple[int, ...]
    where: str
    scales: tuple[str, ...] = ("device",)
    """Names of the scale: in programs, and in the machine."""
    count: int = 1

    def __str__(self) -> str:
        many = f"{self.count} {self.operation}" if self.count > 1 else self.operation
        ranks = f" over ranks {', '.join(map(str, self.ranks))}" if self.ranks else ""
        return f"{many} of {format_bytes(self.nbytes)} at {self.scales[-1]}{ranks}  {self.where}"


WATCHERS: list[Callable[[Communicated], None]] = []
"""Called with everything that is communicated."""


def tell(call: Communicated) -> None:
    for watch in WATCHERS:
        watch(call)


def tell_kernel(name: str, result: Any) -> None:
    """What a kernel communicates, if somebody wants to know."""
    for call in communicated(result, name) if WATCHERS else ():
        tell(call)


def communicated(result: Any, name: str = "") -> list[Communicated]:
    """The messages of a simulated plan, and the collectives of each unit, by the scale of the units."""
    sent: Counter[str] = Counter()
    each: Counter[tuple[str, str, str]] = Counter()
    size: Counter[tuple[str, str]] = Counter()
    for event in result.trace:
        scale = event.unit.rpartition("/")[2].rstrip("0123456789")
        if event.operation == "send":
            sent[scale] += 1
            size[scale, "send"] += event.bytes
        elif event.operation in COLLECTIVES:
            each[scale, event.operation, event.unit] += 1
            size[scale, event.operation] = max(size[scale, event.operation], event.bytes)
    found = [Communicated("send", size[s, "send"], (), name, (s,), count) for s, count in sent.items()]
    for scale, operation in dict.fromkeys((s, o) for s, o, _ in each):
        count = max(n for (s, o, _), n in each.items() if (s, o) == (scale, operation))
        nbytes = count * size[scale, operation]
        found.append(Communicated(operation, nbytes, (), name, (scale,), count))
    return found
