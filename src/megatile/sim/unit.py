"""What an evaluator knows of one unit while it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any


class UnitState:
    """One unit on its own clock."""

    __slots__ = (
        "done", "end", "free", "more", "now", "operations", "pc", "readers", "start", "touched", "unit",
        "writers",
    )  # fmt: skip

    def __init__(self, unit: int, now: int, engines: int, operations: list[Any]) -> None:
        self.unit = unit
        self.now = now
        self.free: list[Any] = [0] * engines
        self.writers: Any = defaultdict(int)
        self.readers: Any = defaultdict(int)
        """When each block was last written, and read: a list where the blocks are known and few."""
        self.operations = operations
        self.pc = 0
        self.touched: Any = 0
        """When the unit's accesses to shared storage have finished."""
        self.start: list[Any] = []
        self.end: list[Any] = []
        self.more: Iterator[tuple[Any, ...]] | None = None
        """Where further operations come from, for units that are followed while they run."""
        self.done = False
