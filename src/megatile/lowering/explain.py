"""What lowering decided, and what a simulated program achieves: residency, waves, engines, rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.expr import Expr, symbols
from megatile.core.quantities import format_bytes, format_time
from megatile.lowering.residency import limits
from megatile.plan import model as pm
from megatile.sim import Result
from megatile.sim.record import Traffic
from megatile.trace import text_table

if TYPE_CHECKING:
    from megatile.lowering.lowered import Lowered

MAX_ROUNDS = 4096


def counted(number: int, noun: str) -> str:
    """Return "64 blocks", "132 SMs" (short names are abbreviations) or "1 SM"."""
    return f"{number} {noun.upper() if len(noun) <= 3 else noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class LevelFigures:
    """A level of instances: how many, how many at a time, in how many waves, and what limits that."""

    name: str
    instances: int
    slots: int | None
    units: int
    waves: float
    limit: str
    unit: str = "unit"
    """The hardware that they are resident on."""

    def __str__(self) -> str:
        if self.slots is None:
            return f"{counted(self.instances, self.name)}, all resident"
        waves = f"{self.waves:.2f}" if self.waves >= 0.01 else "less than 0.01"
        return (
            f"{counted(self.instances, self.name)}; {self.slots} resident on each of "
            f"{counted(self.units, self.unit)}, {waves} waves (limited by {self.limit})"
        )


@dataclass(frozen=True)
class Figures:
    """What a program has to do, and how it is divided; with a result also what it achieves."""

    name: str
    machine: str
    levels: tuple[LevelFigures, ...]
    flops: dict[str, int]
    """Operations of all units, by engine."""
    moved: int
    """Bytes that copies move."""
    peaks: dict[str, float]
    """Operations per second of the units of the launch, by engine."""
    time_ps: int | None = None
    versions: tuple[tuple[str, int], ...] = ()
    traffic: dict[str, Traffic] = field(default_factory=dict)
    """What went through each memory layer, with hits and misses of caches."""
    waste: dict[str, tuple[str, int, float]] = field(default_factory=dict)
    """By source line: the memory, the bytes of a row, and how many times those its sectors are."""
    conflicts: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """By source line: the memory, the tile, and the turns that lanes take in its banks."""
    bandwidth: float = 0.0
    """Of device memory, for the units of the launch."""
    memory: str = ""
    spread: tuple[str, ...] = ()
    """What is said of tensors that are spread over units."""

    @property
    def intensity(self) -> float | None:
        """Operations per byte of device memory."""
        used = self.traffic.get(self.memory)
        nbytes = used.read_bytes + used.written_bytes if used else 0
        return None if not nbytes else self._operations / nbytes

    @property
    def share_of_roofline(self) -> float | None:
        """Of what engines and device memory allow at this intensity."""
        peak, intensity = self.peaks.get(self._engine), self.intensity
        if self.tflops is None or not peak or intensity is None or not self.bandwidth:
            return None
        return self.tflops * 1e12 / min(peak, intensity * self.bandwidth)

    @property
    def _engine(self) -> str:
        return "tensor" if self.flops.get("tensor") else "vector"

    @property
    def _operations(self) -> int:
        return self.flops.get(self._engine, 0)

    @property
    def tflops(self) -> float | None:
        """Operations of tensor engines (or of vector engines, without any) per second."""
        if not self.time_ps:
            return None
        return self._operations / self.time_ps

    @property
    def share_of_peak(self) -> float | None:
        peak = self.peaks.get(self._engine)
        return None if self.tflops is None or not peak else self.tflops * 1e12 / peak

    def as_dict(self) -> dict[str, Any]:
        return {
            "program": self.name, "machine": self.machine, "time_us": (self.time_ps or 0) / 1e6,
            "tflops": self.tflops, "share_of_peak": self.share_of_peak,
            "share_of_roofline": self.share_of_roofline, "intensity": self.intensity, "flops": self.flops,
            "traffic": {name: {**t._asdict(), "hit_rate": t.hit_rate} for name, t in self.traffic.items()},
            "moved_bytes": self.moved,
            "sector_waste": [
                {"source": line, "memory": memory, "row_bytes": row, "factor": factor}
                for line, (memory, row, factor) in self.waste.items()
            ],
            "bank_conflicts": [
                {"source": line, "memory": memory, "tile": tile, "turns": turns}
                for line, (memory, tile, turns) in self.conflicts.items()
            ],
            "levels": [
                {"name": v.name, "instances": v.instances, "slots": v.slots, "waves": v.waves,
                 "limit": v.limit}
                for v in self.levels
            ],
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{self.name} on {self.machine}"]
        if self.time_ps:
            rate = f", {self.tflops:.4g} TFLOP/s" if self.tflops else ""
            roof = f", {self.share_of_roofline:.1%} of the roofline" if self.share_of_roofline else ""
            share = f" ({self.share_of_peak:.1%} of peak{roof})" if self.share_of_peak else ""
            lines[0] += f": {format_time(self.time_ps)}{rate}{share}"
        lines += [f"  {level}" for level in self.levels]
        work = ", ".join(f"{count:.4g} on {engine}" for engine, count in self.flops.items() if count)
        lines.append(f"  operations: {work or 'none'}; copies move {format_bytes(self.moved)}")
        if self.intensity is not None:
            lines.append(f"  {self.intensity:.4g} operations for each byte of '{self.memory}'")
        lines += [
            f"  {factor:.3g} × the bytes: rows of {format_bytes(row)} in sectors of '{memory}' ({line})"
            for line, (memory, row, factor) in self.waste.items()
        ]
        lines += [
            f"  {turns} lanes meet in one bank of '{memory}': '{tile}' (pad or swizzle it) ({line})"
            for line, (memory, tile, turns) in self.conflicts.items()
        ]
        lines += [f"  {line}" for line in self.spread]
        if self.versions:
            lines.append(
                "  pipeline buffers: " + ", ".join(f"{name} {count}" for name, count in self.versions)
            )
        return "\n".join(lines)


def figures(lowered: Lowered, result: Result | None = None) -> Figures:
    """The figures of a lowered program, with those of its simulation if there is one."""
    plan, hda = lowered.plan, lowered.machine
    flops: dict[str, int] = {}
    moved = 0
    for stream in plan.streams:
        units = np.concatenate([np.arange(*run) for run in stream.units])
        for engine, work, size in _work(stream.body, {"unit": units}, np.ones(len(units), np.int64)):
            flops[engine] = flops.get(engine, 0) + work
            moved += size if engine == "dma" else 0
    flops.pop("dma", None)
    share = plan.units / hda.count(plan.scale)
    peaks: dict[str, float] = {}
    for one in hda.engines:
        if one.kind in flops:
            rate = (one.rate(_dtype(plan, one.kind)) or 0) * one.count * hda.level(one.level).total * share
            peaks[one.kind] = max(peaks.get(one.kind, 0.0), rate)
    levels = tuple(_level(lowered, level) for level in plan.levels)
    versions = tuple((t.name, t.versions) for t in plan.tiles if t.versions > 1)
    found = Figures(plan.name, hda.name, levels, flops, moved, peaks, None, versions)
    found = replace(
        found,
        spread=tuple(plan.spread_lines()),
        waste=lowered.draft.notes.waste,
        conflicts=lowered.draft.notes.conflicts,
    )
    if result is None:
        return found
    layer = hda.memory("l2")
    bandwidth = layer.effective_bandwidth * hda.level(layer.level).total * share
    return replace(
        found, time_ps=result.time_ps, traffic=result.traffic, memory=layer.name, bandwidth=bandwidth
    )


def explain(lowered: Lowered) -> str:
    """What does every statement, its price there, and those of the others that could do it (figures of the
    machine alone: nobody else at work)."""
    rows = [
        (
            c.primitive,
            f"{c.name or 'vector'}{' (forced)' if c.forced else ''}",
            format_time(c.prices[c.name]) if c.name in c.prices else "",
            ", ".join(f"{name} {format_time(price)}" for name, price in c.prices.items() if name != c.name),
            f"{c.source.file}:{c.source.line}" if c.source is not None else "",
        )
        for c in lowered.draft.notes.choices.values()
    ]
    table = text_table(("statement", "by", "price", "others", "source"), rows)
    return f"{figures(lowered)}\n{table}"


def _dtype(plan: pm.Plan, engine: str) -> str:
    for stream in plan.streams:
        for s in pm.statements(stream.body):
            if isinstance(s, pm.Compute) and s.engine == engine:
                return s.work.dtype
    return "f32"


def _level(lowered: Lowered, level: pm.Level) -> LevelFigures:
    hda, plan = lowered.machine, lowered.plan
    count = plan.instances(level.name)
    if level.slots is None:
        return LevelFigures(level.name, count, None, hda.count(level.scale), 1.0, "")
    units = hda.count(level.scale) // hda.count(plan.scale) * plan.units
    found = limits(lowered.draft, lowered.draft.levels[level.name])
    limit = min(found, key=lambda name: found[name])
    unit = hda.scale(level.scale).level
    return LevelFigures(level.name, count, level.slots, units, count / (units * level.slots), limit, unit)


def _work(body: Any, env: dict[str, Any], times: Any) -> Iterator[tuple[str, int, int]]:
    """(engine, operations, bytes) of commands over all units and rounds; data decide nothing here."""
    for s in body:
        if isinstance(s, pm.Compute):
            yield s.engine, _sum(s.work.flops, env, times), _sum(s.work.bytes, env, times)
        elif isinstance(s, pm.Loop):
            start, stop, step = (_value(e, env) for e in (s.start, s.stop, s.step))
            trips = np.maximum(0, -((start - stop) // step)) + 0 * times
            used = {v for inner in pm.statements(s.body) for v in _symbols(inner)}
            if s.index not in used or int(trips.max(initial=0)) > MAX_ROUNDS:
                yield from _work(s.body, env | {s.index: start}, times * trips)
                continue
            for turn in range(int(trips.max(initial=0))):
                yield from _work(s.body, env | {s.index: start + turn * step}, times * (trips > turn))
        elif isinstance(s, pm.If):
            wanted = (_value(s.condition, env) != 0) + 0 * times
            yield from _work(s.body, env, times * wanted)
            yield from _work(s.orelse, env, times * (1 - wanted))


def _symbols(statement: Any) -> frozenset[str]:
    if isinstance(statement, pm.Compute):
        return symbols(statement.work.flops) | symbols(statement.work.bytes)
    if isinstance(statement, pm.Loop):
        return symbols(statement.start) | symbols(statement.stop)
    return symbols(statement.condition) if isinstance(statement, pm.If) else frozenset()


class _Known(dict[str, Any]):
    def __missing__(self, name: str) -> int:
        return 0  # read from data


def _value(expr: Expr, env: dict[str, Any]) -> Any:
    return np.asarray(expr.evaluate(_Known(env)))


def _sum(expr: Expr, env: dict[str, Any], times: Any) -> int:
    return int((np.maximum(_value(expr, env), 0) * times).sum())
