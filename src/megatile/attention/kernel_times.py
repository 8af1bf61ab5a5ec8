"""How long the local kernels of a schedule take on a machine: ``kernels.yaml`` and what follows from it.

A kernel of the forward pass works on some query rows and key columns. Its work-groups take ``rows`` query
rows each and pass in waves over the compute units; each also spends a time that does not grow with the
columns (loading queries, filling the pipeline, writing results), counted in columns as ``ramp``. After the
first kernel of a rank, results are merged in memory. Every kernel, also one that merges, is launched. While
data travel, the kernels that move them hold compute units: ``channels`` of them for each peer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any

from megatile.attention.plans import Divided, Problem
from megatile.attention.schedules.division import KernelCall
from megatile.core.dtypes import itemsize
from megatile.core.errors import MissingDescriptionError
from megatile.hda import HDA
from megatile.hda.model import Engine

FLOPS = 4
"""Per visible pair and dimension, forward."""
LOOKED_AT = 3
"""Ranks whose kernels stand for those of all: the first, the last and one between."""


@dataclass(frozen=True)
class Kernels:
    """One entry of ``kernels.yaml``."""

    share: float
    rows: int
    ramp: float
    channels: tuple[int, int]  # for each peer, and at most
    source: dict[str, str]


@lru_cache(maxsize=1)
def _entries() -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = yaml.safe_load(
        Path(__file__).with_name("kernels.yaml").read_text(encoding="utf-8")
    )
    return found


def kernels_of(hda: HDA) -> Kernels:
    """The figures for a machine, by its name."""
    document = _entries()
    entry = next((e for e in document["machines"] if hda.name in e["names"]), document["default"])
    channels = entry["channels"]
    return Kernels(
        entry["share"], entry["rows"], entry["ramp"], (channels["peer"], channels["most"]), entry["source"]
    )


def tensor_engine(hda: HDA) -> Engine:
    engines = [e for e in hda.engines if e.kind == "tensor"]
    if not engines:
        raise MissingDescriptionError(
            f"machine '{hda.name}' describes no tensor engine", advice="add one under 'engines'"
        )
    return engines[0]


@dataclass(frozen=True)
class KernelTimes:
    """The kernels of one machine: seconds, from rows, columns and heads."""

    kernels: Kernels
    units: int
    peak: float  # flops per second of a device, all units
    merge_bandwidth: float  # bytes per second
    launch: float  # seconds

    @classmethod
    def of(cls, hda: HDA, dtype: str, scale: str = "device") -> KernelTimes:
        engine = tensor_engine(hda)
        level = hda.level(hda.scale(scale).level)
        units = max(1, hda.level(engine.level).total // level.total)
        rate = engine.rate(dtype) or max(engine.throughput.values(), default=0.0) * engine.efficiency
        memories = [m for m in hda.memories if m.level == level.name and not m.cache]
        bandwidth = max((m.effective_bandwidth for m in memories), default=float("inf"))
        stations = hda.control.launch if hda.control else ()
        launch = sum(s.overhead_ps for s in stations) / 1e12
        return cls(kernels_of(hda), units, rate * engine.count * units, bandwidth, launch)

    def attention(self, rows: int, columns: float, heads: int, dim: int, taken: int = 0) -> float:
        """One kernel over ``heads`` (times batch), launched, while others hold some units."""
        waves = ceil(ceil(rows / self.kernels.rows) * heads / max(1, self.units - taken))
        flops = FLOPS * dim * self.kernels.rows * (columns + self.kernels.ramp)
        return self.launch + waves * flops * self.units / (self.peak * self.kernels.share)

    def merge(self, rows: int, heads: int, dim: int, size: int) -> float:
        """A block of results taken in: it is read, what is there is read and written in f32."""
        return self.launch + rows * heads * dim * (size + 8) / self.merge_bandwidth

    def calls(self, calls: list[KernelCall], problem: Problem, heads: int, taken: int = 0) -> float:
        """The kernels of a rank one after the other; all but the first are merged."""
        width, dim, size = heads * problem.batch, problem.dim, itemsize(problem.dtype)
        total = 0.0
        for number, call in enumerate(calls):
            total += self.attention(call.rows, call.pairs / max(1, call.rows), width, dim, taken)
            if number:
                total += self.merge(call.rows, width, dim, size)
        return total


def efficiency(hda: HDA, divided: Divided, communication: float = 0.0, scale: str = "device") -> float:
    """The share of the peak that the kernels of a schedule reach, merges and launches included.

    ``communication`` (seconds) is how long data travel beside them.
    """
    problem, division = divided.problem, divided.division
    times = KernelTimes.of(hda, problem.dtype, scale)
    heads = divided.head_shares(problem.heads)[0]
    ranks, routes = division.routes.ranks, division.routes
    peers = {t.peer for t in routes.sends(0, 0)} if routes.exchanges else set()
    taken = min(times.kernels.channels[0] * len(peers), times.kernels.channels[1])
    chosen = sorted({r * (ranks - 1) // (LOOKED_AT - 1) for r in range(LOOKED_AT)})
    busy = flops = 0.0
    for rank in chosen:
        calls = [call for step in range(routes.exchanges + 1) for call in division.calls(step, rank)]
        alone, beside = (times.calls(calls, problem, heads, held) for held in (0, taken))
        busy += beside if communication >= beside else communication + (1 - communication / beside) * alone
        flops += FLOPS * problem.dim * heads * problem.batch * sum(call.pairs for call in calls)
    return flops / times.peak / busy if flops else times.kernels.share
