"""How long the local kernels of a schedule take on a machine: ``kernels`` of its file and what follows.

A kernel of the forward pass works on some query rows and key columns. Its work-groups take ``rows`` query
rows each and pass in waves over the compute units (groups that share a unit share its rate: how many are
resident does not change how long a unit takes for them). A group also spends a time that does not grow with
the columns (loading queries, filling the pipeline, writing results), counted in columns as ``ramp``; tiles
that a mask cuts are worked on as a whole. After the first kernel of a rank, results are merged as the engine
does it (``merge.py``), in the cache of the device where they fit it, else in its memory. Kernels of a queue
begin at least ``interval`` after one another. While data travel, the kernels that move them hold compute
units: ``channels`` of them for each peer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from megatile.attention.plans import Divided, Problem
from megatile.attention.schedules.division import KernelCall
from megatile.core.dtypes import itemsize
from megatile.core.frozen import Frozen
from megatile.hda import HDA
from megatile.hda.catalog import assumed_kernel
from megatile.hda.model import Engine, KernelFigures
from megatile.timing.formulas import Device
from megatile.timing.library import exchange_figures, exchange_view, links_of, moving_kernel
from megatile.timing.machine_timing import MachineTiming, Origin, Timing

FLOPS = 4
"""Per visible pair and dimension, forward."""
SAMPLED_RANKS = 3
"""Ranks whose kernels stand for those of all: the first, the last and one between."""


@dataclass(frozen=True)
class Merge:
    """How one block of results is taken in: kernels for each run of rows, and what they move per element.

    Log-sum-exps, one per row, are left out. ``words``: f32 values read and written beside the block itself;
    ``cast``: a block that is not f32 is written as f32 first; ``live``: f32 values kept beside the block.
    """

    kernels: int
    words: int
    cast: bool
    live: int

    def traffic(self, size: int) -> int:
        """Bytes read and written per element, of a block whose elements have so many bytes."""
        return size + (2 * 4 if self.cast and size != 4 else 0) + 4 * self.words

    def held(self, size: int) -> int:
        """Bytes per element that are worked on."""
        return size + (4 if self.cast and size != 4 else 0) + 4 * self.live


MERGES = {
    "fused": Merge(kernels=1, words=2, cast=False, live=1),
    "torch": Merge(kernels=20, words=2, cast=True, live=1),
    "ring-flash-attention": Merge(kernels=9, words=7, cast=True, live=4),
}
"""Both forms of ``merge.py``, and what zhuzilin/ring-flash-attention does, whose times others measured.

Its ``out - sigmoid(block_lse - lse) * (out - block)`` and ``lse - logsigmoid(lse - block_lse)`` as written,
one kernel per operation; torch's script compiler may make fewer of them.
"""


def kernels_of(hda: HDA) -> KernelFigures:
    """The figures for a machine: those of its file, inherited ones too, or what is assumed of all."""
    return hda.kernel("attention") or assumed_kernel("attention")


@dataclass(frozen=True)
class KernelTimes:
    """The kernels of one machine: seconds, from rows, columns and heads."""

    kernels: KernelFigures
    units: int
    peak: float  # flops per second of a device, all units
    bandwidth: float  # bytes per second of the device's memory
    cache: tuple[int, float]  # bytes of the device's last cache, and its bandwidth
    launch: float  # seconds

    @classmethod
    def of(cls, hda: HDA, dtype: str, scale: str = "device") -> KernelTimes:
        device, level = Device.of(hda, scale=scale), hda.level(hda.scale(scale).level)
        memories = [m for m in hda.memories if m.level == level.name]
        bandwidth = max((m.effective_bandwidth for m in memories if not m.cache), default=float("inf"))
        cache = max(((m.size, m.effective_bandwidth) for m in memories if m.cache), default=(0, bandwidth))
        kernels = kernels_of(hda)
        stations = hda.control.launch if hda.control else ()
        own = kernels.interval_ps
        launch = (sum(s.overhead_ps for s in stations) if own is None else own) / 1e12
        return cls(kernels, device.units, device.rate(dtype) * device.units, bandwidth, cache, launch)

    def attention(self, rows: int, columns: float, heads: int, dim: int, taken: int = 0) -> float:
        """One kernel over ``heads`` (times batch), launched, while others hold some units."""
        waves = ceil(ceil(rows / self.kernels.rows) * heads / max(1, self.units - taken))
        flops = FLOPS * dim * self.kernels.rows * (columns + self.kernels.ramp)
        return self.launch + waves * flops * self.units / (self.peak * self.kernels.share)

    def merge(self, rows: int, heads: int, dim: int, size: int, runs: int = 1) -> float:
        """A block of results taken in, whose rows are so many runs."""
        merge, elements = MERGES[self.kernels.merge], rows * heads * dim
        fits = elements * merge.held(size) <= self.cache[0]
        rate = max(self.bandwidth, self.cache[1]) if fits else self.bandwidth
        return merge.kernels * runs * self.launch + elements * merge.traffic(size) / rate

    def columns(self, call: KernelCall) -> float:
        """The mean number of columns that a row of a kernel is worked on with."""
        seen = call.pairs / max(1, call.rows)
        cut = call.pairs < call.rows * call.columns
        return min(seen + self.kernels.rows / 2, call.columns) if cut else seen

    def calls(self, calls: list[KernelCall], problem: Problem, heads: int, taken: int = 0) -> float:
        """The kernels of a rank one after the other; all but the first are merged."""
        width, dim, size = heads * problem.batch, problem.dim, itemsize(problem.dtype)
        total = 0.0
        for number, call in enumerate(calls):
            total += self.attention(call.rows, self.columns(call), width, dim, taken)
            if number:
                total += self.merge(call.rows, width, dim, size, len(call.q))
        return total


def efficiency(hda: HDA, divided: Divided, communication: float = 0.0, scale: str = "device") -> float:
    """The share of the peak that the kernels of a schedule reach, merges and launches included.

    That of the rank that takes longest, for which all others wait in the end. ``communication`` (seconds) is
    how long data travel beside them.
    """
    problem, division = divided.problem, divided.division
    times = KernelTimes.of(hda, problem.dtype, scale)
    heads = divided.head_shares(problem.heads)[0]
    ranks, routes = division.routes.ranks, division.routes
    peers = {t.peer for t in routes.sends(0, 0)} if routes.exchanges else set()
    taken = min(times.kernels.channels[0] * len(peers), times.kernels.channels[1])
    chosen = sorted({r * (ranks - 1) // (SAMPLED_RANKS - 1) for r in range(SAMPLED_RANKS)})
    slowest: tuple[float, float] = (0.0, 0.0)  # seconds, and flops
    for rank in chosen:
        calls = [call for step in range(routes.exchanges + 1) for call in division.calls(step, rank)]
        alone, beside = (times.calls(calls, problem, heads, held) for held in (0, taken))
        busy = beside if communication >= beside else communication + (1 - communication / beside) * alone
        pairs = sum(call.pairs for call in calls)
        slowest = max(slowest, (busy, FLOPS * problem.dim * heads * problem.batch * pairs))
    seconds, flops = slowest
    return flops / times.peak / seconds if flops else times.kernels.share


PACKETS = 64
NO_TIME = 1e30
"""Operations per second of an engine that takes no time."""


@dataclass(frozen=True)
class AttentionKernels(Timing):
    """``share`` of the tensor engines' peak is reached (None: kernels take no time, so that what remains is
    communication); others may go first on a link after ``granule`` bytes."""

    share: float | None
    granule: int

    @classmethod
    def of(
        cls, hda: HDA, divided: Divided, communication: float = 0.0, scale: str = "device"
    ) -> AttentionKernels:
        """The kernels of a schedule beside data that travel so long (s)."""
        share = efficiency(hda, divided, communication, scale)
        return cls(float(f"{share:.6g}"), _granule(divided))

    @classmethod
    def without_compute(cls, divided: Divided) -> AttentionKernels:
        return cls(None, _granule(divided))

    def view(self, hda: HDA, scale: str) -> MachineTiming:
        found, paid = exchange_view(hda, scale), exchange_figures(hda, scale)
        if paid is None:
            found = found.with_engine(moving_kernel(hda, scale))
        level = hda.level(hda.scale(scale).level)
        start_ps = paid[1].start_ps if paid is not None else 0
        networks = {}
        for network in hda.networks:
            seen = found.networks.get(network.name, network)
            # Every exchange is a kernel of its own, so its messages pay the start that collectives pay once.
            # They start together: on a port that several share, the starts must not follow one another, so
            # they are latency of the links.
            outside = hda.level(network.level).position > level.position
            more = start_ps // links_of(network) if outside else 0
            networks[network.name] = replace(seen, latency_ps=seen.latency_ps + more, granule=self.granule)
        figures = hda.kernel("attention")
        said = hda.spec.kernels[0].source if figures is not None else "no figures in the machine file"
        origins = {**found.origins, "tensor": Origin("measured" if figures else "assumed", str(said))}
        engines = tuple(map(self._computing, found.engines))
        return replace(found, networks=networks, engines=engines, origins=origins, roofline=False)

    def _computing(self, engine: Engine) -> Engine:
        if engine.kind != "tensor":
            return engine
        if self.share is not None:
            return replace(engine, efficiency=self.share)
        rates = Frozen(dict.fromkeys(engine.throughput, NO_TIME))
        return replace(engine, efficiency=1.0, throughput=rates, startup_ps=0)


def _granule(divided: Divided) -> int:
    """Switches send packets of several messages in turn; 64 of them for what a rank holds are fine enough."""
    problem, ranks = divided.problem, divided.schedule.ranks
    token = 2 * problem.groups * problem.dim * itemsize(problem.dtype) * problem.batch
    return max(4096, problem.keys * token // (PACKETS * ranks))
