"""What lowering decided, and what a simulated program achieves: residency, waves, engines, rates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.core.expr import Expr, symbols
from megatile.core.quantities import format_bytes, format_time
from megatile.hda import HDA
from megatile.lowering.residency import limits
from megatile.plan import model as pm
from megatile.plan.statements import reads_of, write_of
from megatile.sim import Result
from megatile.sim.usage import Traffic
from megatile.trace import text_table

if TYPE_CHECKING:
    from megatile.lowering.lowered import Lowered

MAX_ROUNDS = 4096
"""Iterations of a loop that are evaluated one by one; of a longer loop the first counts for all."""
ALL = 1 << 62
"""More bytes than any tile has."""


def counted(number: int, noun: str) -> str:
    """Return "64 blocks", "132 SMs" (short names are abbreviations) or "1 SM"."""
    return f"{number} {spoken_unit(noun)}{'' if number == 1 else 's'}"


def spoken_unit(noun: str) -> str:
    """Return "SM" for ``sm``, and longer names as they are."""
    return noun.upper() if len(noun) <= 3 else noun


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
    """Device memory."""
    compulsory_bytes: int = 0
    """Bytes that device memory must move: the part of each tensor that is used, read once and written once,
    without what caches keep."""
    kept_bytes: int = 0
    """Of the bytes that are written, those that caches may still hold at the end."""
    busy: float = 0.0
    """The share of the time in which the engines work that do its operations."""
    sustained: float = 1.0
    """The share of their peak that lasts under load."""
    spread: tuple[str, ...] = ()
    """What is said of tensors that are spread over units."""

    @property
    def actual_bytes(self) -> int:
        """Bytes that device memory moved."""
        used = self.traffic.get(self.memory)
        return used.read_bytes + used.written_bytes if used else 0

    @property
    def intensity(self) -> float | None:
        """Operations per byte that device memory moved."""
        return None if not self.actual_bytes else self._operations / self.actual_bytes

    @property
    def least_ps(self) -> float:
        """The roofline: operations at the engines' peak, compulsory bytes at the memory's bandwidth."""
        peak = self.peaks.get(self._engine)
        compute = self._operations / peak if peak else 0.0
        moves = self.compulsory_bytes / self.bandwidth if self.bandwidth else 0.0
        return max(compute, moves) * 1e12

    @property
    def share_of_roofline(self) -> float | None:
        """The roofline's time as a share of the time taken."""
        return self.least_ps / self.time_ps if self.time_ps and self.least_ps else None

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
            "compulsory_bytes": self.compulsory_bytes, "device_memory_bytes": self.actual_bytes,
            "engines_busy": self.busy,
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
            shares = [
                f"{share:.1%} of {what}"
                for share, what in ((self.share_of_peak, "peak"), (self.share_of_roofline, "the roofline"))
                if share
            ]
            lines[0] += f": {format_time(self.time_ps)}{rate}" + (f" ({', '.join(shares)})" if shares else "")
        lines += [f"  {level}" for level in self.levels]
        work = ", ".join(f"{count:.4g} on {engine}" for engine, count in self.flops.items() if count)
        lines.append(f"  operations: {work or 'none'}; copies move {format_bytes(self.moved)}")
        if self.busy and self.share_of_peak and self.share_of_peak < self.busy:
            lasts = f"the clock under load allows {self.sustained:.1%}; " if self.sustained < 1 else ""
            lines.append(
                f"  {self._engine} engines are busy {self.busy:.1%} of the time; while busy they reach "
                f"{self.share_of_peak / self.busy:.1%} of peak ({lasts}start-ups and padding cost the rest)"
            )
        if self.actual_bytes:
            times = f"{self.actual_bytes / max(1, self.compulsory_bytes):.3g}× "
            kept = (
                f" ({format_bytes(self.kept_bytes)} of results stay in the cache)" if self.kept_bytes else ""
            )
            lines.append(
                f"  '{self.memory}' moves {format_bytes(self.actual_bytes)}, {times}the compulsory "
                f"traffic of {format_bytes(self.compulsory_bytes)}{kept}; "
                f"{self.intensity:.4g} operations per byte moved (the roofline counts compulsory bytes)"
            )
        lines += [
            f"  {line}: '{memory}' moves {factor:.3g} × the bytes needed: rows of {format_bytes(row)} fill "
            "its sectors partly"
            for line, (memory, row, factor) in self.waste.items()
        ]
        lines += [
            f"  {line}: {turns} lanes use one bank of '{memory}' at a time (pad or swizzle tile '{tile}')"
            for line, (memory, tile, turns) in self.conflicts.items()
        ]
        lines += [f"  {line}" for line in self.spread]
        if self.versions:
            lines.append(
                "  pipeline buffers: " + ", ".join(f"{name} {count}" for name, count in self.versions)
            )
        return "\n".join(lines)


def figures(lowered: Lowered, result: Result | None = None) -> Figures:
    """Return the figures of a lowered program, with those of its simulation if there is one."""
    plan, hda = lowered.plan, lowered.machine
    flops: dict[str, int] = {}
    moved = 0
    touched: dict[tuple[bool, str], int] = {}
    for stream in plan.streams:
        units = np.concatenate([np.arange(*run) for run in stream.units])
        for command, work, size in _work(stream.body, {"unit": units}, np.ones(len(units), np.int64)):
            flops[command.engine] = flops.get(command.engine, 0) + work
            moved += size if command.engine == "dma" else 0
            for region in (*command.reads, command.write):
                key = (region is command.write, region.tile)
                touched[key] = touched.get(key, 0) + (size if command.engine == "dma" else ALL)
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
        waste=lowered.state.notes.waste,
        conflicts=lowered.state.notes.conflicts,
    )
    if result is None:
        return found
    layer = hda.memory("l2")
    kind = "tensor" if flops.get("tensor") else "vector"
    lasting = min((e.sustained for e in hda.engines if e.kind == kind), default=1.0)
    bandwidth = layer.effective_bandwidth * hda.level(layer.level).total * share
    compulsory, kept = _compulsory(plan, layer.name, touched, hda, share)
    return replace(
        found, time_ps=result.time_ps, traffic=result.traffic, memory=layer.name, bandwidth=bandwidth,
        compulsory_bytes=compulsory, kept_bytes=kept, sustained=lasting,
        busy=result.use(kind) if kind in result.busy else 0.0,
    )  # fmt: skip


def _compulsory(
    plan: pm.Plan, memory: str, touched: dict[tuple[bool, str], int], hda: HDA, share: float
) -> tuple[int, int]:
    """Return bytes of a memory's tensors that commands read, and write beyond what caches may hold at the
    end, each counted once; and those that caches may hold."""
    for body in plan.bodies:
        for s in body:
            if not isinstance(s, pm.Compute):
                touched |= {(False, r.tile): ALL for r in reads_of(s)}
                touched |= {(True, w.tile): ALL for w in [write_of(s)] if w is not None}
    read = written = 0
    for tile in plan.tiles:
        if tile.role != "local" and hda.memory(tile.memory).name == memory:
            size = math.prod(tile.shape) * itemsize(tile.dtype) * plan.owners(tile)
            read += min(size, touched.get((False, tile.name), 0))
            written += min(size, touched.get((True, tile.name), 0))
    caches = [m for m in hda.memories if m.cache and m.of == memory and m.write == "write_back"]
    held = sum(m.size * hda.level(m.level).total * share for m in caches)
    kept = min(written, round(held))
    return read + written - kept, kept


def explain(lowered: Lowered) -> str:
    """Return what does every statement, its price there, and those of the others that could do it (figures of
    the machine alone: nobody else at work)."""
    rows = [
        (
            c.primitive,
            f"{c.name or 'vector'}{' (forced)' if c.forced else ''}",
            format_time(c.prices[c.name]) if c.name in c.prices else "",
            ", ".join(f"{name} {format_time(price)}" for name, price in c.prices.items() if name != c.name),
            f"{c.source.file}:{c.source.line}" if c.source is not None else "",
        )
        for c in lowered.state.notes.choices.values()
    ]
    table = text_table(("statement", "by", "estimate", "alternatives", "source"), rows)
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
    found = limits(lowered.state, lowered.state.levels[level.name])
    limit = min(found, key=lambda name: found[name])
    unit = hda.scale(level.scale).level
    return LevelFigures(level.name, count, level.slots, units, count / (units * level.slots), limit, unit)


def _work(body: Any, env: dict[str, Any], times: Any) -> Iterator[tuple[pm.Compute, int, int]]:
    """(command, operations, bytes) of commands over all units and rounds; data decide nothing here."""
    for s in body:
        if isinstance(s, pm.Compute):
            yield s, _sum(s.work.flops, env, times), _sum(s.work.bytes, env, times)
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
