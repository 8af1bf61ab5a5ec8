"""What would help most: the same plan timed again with figures of the machine changed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatile.core.errors import MegatileError
from megatile.core.limits import TimeBudgetExceeded
from megatile.core.quantities import format_time
from megatile.hda.parameters import RATES, figures, scaled
from megatile.sim.machine_run import time_alone
from megatile.trace import text_table
from megatile.trace.exposure import engine_kind

if TYPE_CHECKING:
    from megatile.sim.result import Result

LEAST_CHANGE = 5e-5
"""Of the time: less is shown as no effect."""


@dataclass(frozen=True)
class Sensitivity:
    """The time if one figure of the machine were ``factor`` times as large."""

    figure: str
    value: str
    factor: float
    time_ps: int
    base_ps: int

    @property
    def change(self) -> float:
        """Relative change of the time: -0.1 is 10 % faster."""
        return self.time_ps / max(1, self.base_ps) - 1

    @property
    def anomalous(self) -> bool:
        """Whether a better figure makes the time longer: work is then done in another order."""
        return (self.factor > 1) == self.figure.endswith(RATES) and self.time_ps > self.base_ps

    @property
    def elasticity(self) -> float:
        """d log(time) / d log(figure): -1 for what bounds the time alone, 0 for what does not matter."""
        return math.log(max(1, self.time_ps) / max(1, self.base_ps)) / math.log(self.factor)


def retime(result: Result, factors: Mapping[str, float]) -> int:
    """Return picoseconds that the plan of a result takes with figures of the machine multiplied."""
    if set(factors.values()) == {1.0}:
        return result.time_ps
    for name, factor in factors.items():
        if not (math.isfinite(factor) and factor > 0):
            raise MegatileError(
                f"figure '{name}' cannot be multiplied by {factor!r}", advice="give a factor > 0"
            )
    return time_alone(result.launch.alone(hda=scaled(result.machine, factors)), 0).took_ps


def used_figures(result: Result) -> list[str]:
    """Return the figures of networks, memories and engines that the plan uses."""
    hda, plan = result.machine, result.plan
    names = [t.memory for t in plan.tiles] + [c.memory for c in plan.channels]
    memories = {hda.memory(name).name for name in names}
    for layer in reversed(hda.memories):
        if layer.cache and layer.of in memories:
            memories.add(layer.name)
    kinds = {engine_kind(name) for name in result.record.engines()}
    engines = {e.name for e in hda.engines if e.kind in kinds or (e.kind == "scalar" and "vector" in kinds)}
    networks = {name.split(" ")[0].split("[")[0] for name in result.links}
    wanted = {"memory": memories, "engines": engines, "networks": networks}
    return [name for name in figures(hda) if name.split(".")[1] in wanted[name.split(".")[0]]]


def sensitivities(
    result: Result, names: Sequence[str] | None = None, *, factor: float | None = None, seconds: float = 60.0
) -> list[Sensitivity]:
    """Return how the time changes with every figure that the plan uses, the largest effect first.

    Every figure is improved by a tenth, rates upwards and latencies downwards, or multiplied by ``factor``;
    the plan is simulated once for each, and no more begin after ``seconds``.
    """
    found = [
        Sensitivity(name, value, by, result.time_ps if took is None else took, result.time_ps)
        for name, value, by, took in retimed(result, names, [factor] if factor else None, seconds)
        if took is not None
    ]
    return sorted(found, key=lambda s: (-abs(s.change), s.figure))


def retimed(
    result: Result,
    names: Sequence[str] | None = None,
    factors: Sequence[float] | None = None,
    seconds: float = 60.0,
) -> Iterator[tuple[str, str, float, int | None]]:
    """(figure, value, factor, time); the time is None where there was no time left."""
    known, begun = figures(result.machine), time.monotonic()
    for name in used_figures(result) if names is None else names:
        for factor in factors or ((1.1,) if name.endswith(RATES) else (1 / 1.1,)):
            late = time.monotonic() - begun > seconds
            try:
                took = None if late else retime(result, {name: factor})
            except TimeBudgetExceeded:
                raise
            except MegatileError:
                # Half of a memory may be too small for the plan.
                took = None
            yield name, known.get(name, ""), factor, took


def table(found: Sequence[Sensitivity], limit: int = 12) -> str:
    """Return the sensitivities as text; figures without effect are counted only."""
    shown = [s for s in found if abs(s.change) >= LEAST_CHANGE]
    rows = [
        (
            s.figure,
            s.value,
            f"× {s.factor:.3g}",
            format_time(s.time_ps),
            f"{s.change:+.2%}{'*' * s.anomalous}",
            f"{s.elasticity:+.2f}",
        )
        for s in shown[:limit]
    ]
    text = text_table(("parameter", "value", "changed", "time", "change", "elasticity"), rows)
    if any(s.anomalous for s in shown[:limit]):
        text += "\n* a scheduling anomaly: the better figure changes the order of work, not a bottleneck"
    idle = len(found) - len(shown)
    return text + (f"\n{idle} other parameters have no effect" if idle else "")
