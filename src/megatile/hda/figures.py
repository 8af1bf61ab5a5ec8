"""Levels of a description and its quantities in plain units: bytes, picoseconds, rates per second."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from megatile.core.errors import QuantityError, did_you_mean
from megatile.core.frozen import Frozen
from megatile.core.quantities import BY_CYCLE, Quantity, within_limits
from megatile.hda import schema
from megatile.hda.document import Document, KeyPath
from megatile.hda.model import Level

T = TypeVar("T")
MAX_SMALLEST_UNITS = 10**15
"""Units of the smallest level in a whole machine."""


@dataclass
class Figures:
    """A description with its levels; its quantities become plain numbers, or errors with their place."""

    spec: Any
    document: Document
    levels: dict[str, Level] = field(default_factory=dict)

    def fail(self, message: str, key_path: KeyPath, advice: str | None = None) -> Any:
        raise self.document.error(message, key_path, advice)

    # levels and clocks

    @property
    def top(self) -> Level:
        return next(reversed(self.levels.values()))

    def build_levels(self) -> tuple[Level, ...]:
        hw = self.spec.hw_spec
        entries = [(u, ("hw_spec", "pe", i)) for i, u in enumerate(hw.pe)]
        entries += [(u, ("hw_spec", "pe_groups", i)) for i, u in enumerate(hw.pe_groups)]
        if not entries:
            self.fail("a machine needs at least one level", ("hw_spec", "pe"))
        self.unique((u.name for u, _ in entries), lambda i: (*entries[i][1], "name"), "level")
        smallest, key_path = entries[0]
        if smallest.num_units != 1:
            self.fail(
                f"'{smallest.name}' is the smallest level: num_units must be 1, not {smallest.num_units}",
                (*key_path, "num_units"),
                f"add a smaller level before it, or count {smallest.name}s in the level above",
            )
        whole = math.prod(u.num_units for u, _ in entries)
        if whole > MAX_SMALLEST_UNITS:
            self.fail(f"{whole} of the smallest units are too many", ("hw_spec",))
        total = whole
        for position, (unit, _) in enumerate(entries):
            total //= unit.num_units
            self.levels[unit.name] = Level(unit.name, unit.num_units, total, position)
        for name in self.spec.clocks:
            self.level(name, ("clocks", name))
        clock = None
        for name in reversed(list(self.levels)):
            clock = self.spec.clocks[name].value if name in self.spec.clocks else clock
            level = self.levels[name]
            self.levels[name] = Level(name, level.num_units, level.total, level.position, clock)
        return tuple(self.levels.values())

    def level(self, name: str, key_path: KeyPath) -> Level:
        if name not in self.levels:
            self.fail(f"there is no level '{name}'", key_path, did_you_mean(name, self.levels, what="levels"))
        return self.levels[name]

    def unique(self, names: Iterable[str], key_path: Callable[[int], KeyPath], what: str) -> None:
        seen: set[str] = set()
        for i, name in enumerate(names):
            if name in seen:
                self.fail(f"{what} '{name}' appears twice", key_path(i), "give each its own name")
            seen.add(name)

    # quantities

    def resolved(self, part: type[T], spec: Any, level: Level, key_path: KeyPath, /, **given: Any) -> T:
        """Return a part of the machine whose fields have the names of its description's keys, with numbers
        in plain units (``latency_ps`` and ``start_us`` are the keys ``latency`` and ``start``). What is
        not written there is as the part declares it; ``given`` are fields that mean something else than
        they say."""
        for f in fields(part):  # type: ignore[arg-type]
            key = schema.key_of(f.name)
            value = getattr(spec, key, None)
            if f.name not in given and value is not None:
                number = self.plain(value, level, (*key_path, key))
                given[f.name] = number / 1e6 if f.name.endswith("_us") else number
        return part(**given)

    def plain(self, value: Any, level: Level, key_path: KeyPath) -> Any:
        """Return a quantity in plain units; anything else as it is, but frozen."""
        if isinstance(value, dict):
            return Frozen({str(k): self.plain(v, level, (*key_path, k)) for k, v in value.items()})
        if not isinstance(value, Quantity):
            return value
        if value.dimension in ("time", "cycles"):
            return self.picoseconds(value, level, key_path)
        if value.dimension == "share":
            return self.share(value, key_path)
        if value.dimension == "bytes":
            return self.bytes(value, key_path)
        return self.per_second(value, level, key_path)

    def per_second(self, q: Quantity, level: Level, key_path: KeyPath) -> float:
        value = q.value
        if not q.dimension.endswith("/s"):
            value *= self.clock(q, level, key_path)
        if value <= 0:
            self.fail(f"'{q}' must be more than zero", key_path)
        return self.limited(q, value, key_path)

    def picoseconds(self, q: Quantity, level: Level, key_path: KeyPath) -> int:
        value = q.value
        if q.dimension == "cycles":
            value *= 1e12 / self.clock(q, level, key_path)
        return round(self.limited(q, value, key_path))

    def limited(self, q: Quantity, value: float, key_path: KeyPath) -> float:
        """Return the value of a quantity per second, which the clock may have made too small or large."""
        per_second = {cycles: dimension for dimension, cycles in BY_CYCLE.items()}
        try:
            return within_limits(value, per_second.get(q.dimension, q.dimension), str(q))
        except QuantityError as problem:
            self.fail(f"{problem.message} at its clock", key_path, problem.advice)
            raise

    def clock(self, q: Quantity, level: Level, key_path: KeyPath) -> float:
        if level.clock_hz is None:
            self.fail(f"'{q}' needs a clock", key_path, f"add clocks: {{{level.name}: 1.8 GHz}}")
        assert level.clock_hz is not None
        if level.clock_hz <= 0:
            self.fail("a clock must be above 0", ("clocks",))
        return level.clock_hz

    def share(self, q: Quantity, key_path: KeyPath) -> float:
        if not 0 < q.value <= 1:
            self.fail(f"an efficiency must be above 0 and at most 1, got {q}", key_path)
        return q.value

    def bytes(self, q: Quantity, key_path: KeyPath) -> int:
        if q.value < 1:
            self.fail(f"'{q}' is less than a byte", key_path)
        return round(q.value)
