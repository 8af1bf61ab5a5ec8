"""How long attention kernels take on a device, command by command: ``kernels`` of the machine file.

A kernel of the forward pass works on some query rows and key columns. Its work-groups take ``rows`` query
rows each and pass in waves over the compute units (groups that share a unit share its rate: how many are
resident does not change how long a unit takes for them). A softmax takes as long as some dimensions of a head
more, so that narrow heads are slower than their products. A group also spends a time that does not grow with
the columns (loading queries, filling the pipeline, writing results), counted in columns as ``ramp``; tiles
that a mask cuts are worked on as a whole. Results of a kernel after the first one of a rank are merged, in
the cache of the device where they fit it, else in its memory. Kernels of a queue begin at least ``interval``
after one another.

Kernels that frameworks were measured with (``prefill``: FlashAttention 3) take what `predict_kernel` says of
them: their ``start`` in place of the interval, their memory traffic, and once, with the keys of the rank
itself, what it takes to put these into the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, prod

from megatile.core.dtypes import itemsize
from megatile.core.errors import MegatileError, did_you_mean
from megatile.hda import HDA
from megatile.hda.catalog import assumed_kernel
from megatile.hda.model import KernelFigures
from megatile.timing.fabric import serialise_ps
from megatile.timing.formulas import Device
from megatile.timing.rules import Command, Rule

FLOPS_PER_PAIR = {"attention": 4, "attention_grad_kv": 8, "attention_grad_q": 2}
"""Per visible pair and dimension. Both gradients are parts of one kernel, which begins with that of KV."""


@dataclass(frozen=True)
class Merge:
    """How one block of results is taken in: kernels for each run of rows, and what they move per element.

    Log-sum-exps, one per row, are left out. ``words``: f32 values read and written beside the block itself;
    ``cast``: a block that is not f32 is written as f32 first; ``live``: f32 values kept beside the block.
    ``back``: kernels that write results back where the block has only some rows of a rank; ``ends``: kernels
    that convert the first block to f32 and the last results from it; ``tensors``: messages in which keys and
    values travel.
    """

    kernels: int
    words: int
    cast: bool
    live: int
    back: int = 0
    ends: int = 0
    tensors: int = 1

    def traffic(self, size: int, part: bool = False) -> int:
        """Return the bytes read and written per element of a block whose elements have so many bytes;
        ``part``: it has only some rows of a rank."""
        copied = 2 * 4 if part and self.back else 0
        return size + (2 * 4 if self.cast and size != 4 else 0) + 4 * self.words + copied

    def held(self, size: int) -> int:
        """Return the bytes per element that are worked on."""
        return size + (4 if self.cast and size != 4 else 0) + 4 * self.live


MERGES = {
    "fused": Merge(kernels=1, words=2, cast=False, live=1),
    "torch": Merge(kernels=7, words=2, cast=True, live=1),
    "ring-flash-attention": Merge(kernels=9, words=7, cast=True, live=4, back=2, ends=2, tensors=2),
}
"""Both forms of ``attention/merge.py``, and what zhuzilin/ring-flash-attention does, which others measured.

Its ``out - sigmoid(block_lse - lse) * (out - block)`` and ``lse - logsigmoid(lse - block_lse)`` as written,
one kernel per operation. The fuser of torch's script compiler makes one kernel of the first expression.
"""


KERNELS = {"fa2": "attention", "ck": "attention", "fa3": "prefill", "cudnn": "cudnn.prefill"}
"""Local kernels by the name that users know, and the ``kernels`` of machine files that describe them."""


TITLES = {"fa2": "flash-attn 2", "fa3": "FlashAttention 3", "cudnn": "cuDNN", "ck": "Composable Kernel"}


def known_kernels(hda: HDA) -> list[str]:
    """Return the kernels of ``KERNELS`` that a machine file has figures of, its usual one first."""
    of_amd = "rccl" in hda.transports.get("device", {})
    return [name for name, entry in KERNELS.items() if hda.kernel(entry) and (name == "ck") == of_amd]


def kernel_model(hda: HDA, kernel: str | None = None) -> str:
    """Return the name of the model that times local attention: ``flash-attn 2 (kernel fa2; others: fa3)``."""
    if hda.kernel("attention") is None and kernel is None:
        return "assumed kernel, no figures in the machine file"
    known = known_kernels(hda)
    name = kernel or known[0]
    others = [other for other in known if other != name]
    return f"{TITLES[name]} (kernel {name}{'; others: ' if others else ''}{', '.join(others)})"


def kernels_of(hda: HDA, kernel: str | None = None) -> KernelFigures:
    """Return the figures for a machine: those of its file, inherited ones too, or what is assumed of all.

    ``kernel``: one of ``KERNELS`` in place of the machine's usual one (flash-attn 2, on AMD's GPUs that of
    Composable Kernel); launches, merges and units that messages hold stay.
    """
    usual = hda.kernel("attention") or assumed_kernel("attention")
    if kernel is None:
        return usual
    if kernel not in KERNELS:
        raise MegatileError(f"there is no kernel '{kernel}'", advice=did_you_mean(kernel, KERNELS))
    found = hda.kernel(KERNELS[kernel])
    of_amd = "rccl" in hda.transports.get("device", {})
    if found is None or (KERNELS[kernel] == "attention" and (kernel == "ck") != of_amd):
        known = known_kernels(hda)
        raise MegatileError(
            f"machine '{hda.name}' has no figures of the kernel '{kernel}'",
            advice=f"use {' or '.join(known)}, or describe it as '{KERNELS[kernel]}' in the machine file",
        )
    if found.name == usual.name:
        return usual
    return replace(found, interval_ps=usual.interval_ps, merge=usual.merge)


@dataclass(frozen=True)
class KernelTimes:
    """The kernels of one machine: seconds, from rows, columns and heads."""

    kernels: KernelFigures
    units: int
    peak: float  # flops per second of a device, all units
    bandwidth: float  # bytes per second of the device's memory
    cache: tuple[int, float]  # bytes of the device's last cache, and its bandwidth
    launch: float  # seconds
    memory: float = inf  # bytes per second of the device's memory at its peak

    @classmethod
    def of(cls, hda: HDA, dtype: str, scale: str = "device", kernel: str | None = None) -> KernelTimes:
        device, level = Device.of(hda, scale=scale), hda.level(hda.scale(scale).level)
        memories = [m for m in hda.memories if m.level == level.name]
        bandwidth = max((m.effective_bandwidth for m in memories if not m.cache), default=float("inf"))
        cache = max(((m.size, m.effective_bandwidth) for m in memories if m.cache), default=(0, bandwidth))
        kernels = kernels_of(hda) if kernel is None else kernels_of(hda, kernel)
        stations = hda.control.launch if hda.control else ()
        own = kernels.interval_ps
        launch = (sum(s.overhead_ps for s in stations) if own is None else own) / 1e12
        peak = device.rate(dtype) * device.units
        return cls(kernels, device.units, peak, bandwidth, cache, launch, device.bandwidth)

    @property
    def start(self) -> float:
        """Return the seconds before the work-groups of a kernel: the start in its figures, or a launch."""
        return self.kernels.start_us / 1e6 or self.launch

    def attention(
        self,
        rows: int,
        columns: float,
        heads: int,
        dim: int,
        taken: int = 0,
        moved: int = 0,
        shared: float = 1,
    ) -> float:
        """Return the time of a launched kernel over ``heads`` (times batch) while others hold some units."""
        return self.start + self.groups(rows, columns + self.kernels.ramp, heads, dim, taken, moved, shared)

    def groups(
        self,
        rows: int,
        columns: float,
        heads: int,
        dim: int,
        taken: int = 0,
        moved: int = 0,
        shared: float = 1,
        begins: bool = True,
        sequences: int = 1,
    ) -> float:
        """Return the time that the work-groups of a kernel spend on so many columns, and on ``moved`` bytes.
        ``shared``: heads that have the same keys; ``begins``: it is the first part of its kernel;
        ``sequences``: others whose groups fill the last wave."""
        kernels = self.kernels
        together = shared if kernels.packed and kernels.start_us else 1
        groups = ceil(rows * together / kernels.rows) * (heads / together)
        waves = ceil(sequences * groups / max(1, self.units - taken)) / sequences
        flops = FLOPS_PER_PAIR["attention"] * (dim + kernels.softmax) * kernels.rows * columns
        work = waves * flops * self.units / (self.peak * kernels.share)
        traffic = moved / (self.memory * kernels.bandwidth) if kernels.start_us else 0.0
        busy = max(work, traffic) + kernels.exposed * min(work, traffic)
        return busy + waves * kernels.wave_us / 1e6 * (begins or not kernels.start_us)

    def merge(
        self,
        rows: int,
        heads: int,
        dim: int,
        size: int,
        runs: float = 1,
        form: str | None = None,
        part: bool = False,
    ) -> float:
        """Return the time in which a block of results is taken in, whose rows are so many runs; ``part``: of
        the rows of a rank."""
        merge, elements = MERGES[form or self.kernels.merge], rows * heads * dim
        fits = elements * merge.held(size) <= self.cache[0]
        rate = max(self.bandwidth, self.cache[1]) if fits else self.bandwidth
        kernels = merge.kernels + (merge.back if part else 0)
        return kernels * runs * self.launch + elements * merge.traffic(size, part) / rate

    def conversions(self, rows: int, heads: int, dim: int, size: int) -> float:
        """Return the time in which first results become f32, and the last ones what they are returned as."""
        kernels = MERGES[self.kernels.merge].ends
        moved = 2 * rows * heads * dim * (size + 4) if kernels else 0
        return kernels * self.launch + moved / self.bandwidth

    def columns(self, rows: int, columns: int, pairs: int, shared: float = 1) -> float:
        """Return the mean columns that a row is worked on with, where so many pairs are visible."""
        seen, kernels = pairs / max(1, rows), self.kernels
        if pairs >= rows * columns:
            return seen
        if not kernels.start_us:
            return min(seen + kernels.rows / 2, columns)
        block = min(kernels.rows / (shared if kernels.packed else 1), rows)
        return min(seen + max(block - 1, 0) / 2, columns)


@dataclass(frozen=True)
class AttentionRule:
    """Time a command as (a part of) an attention kernel, by the extents of its queries and keys.

    For a share ``beside`` of the time data travel, and the kernels that move them hold ``taken`` units. A
    command that moves neither queries nor results goes on with the kernel of the command before it.
    """

    times: KernelTimes
    beside: float = 0.0
    taken: int = 0
    sequences: int = 1
    """Packed sequences that share every kernel: its start, and its last wave."""
    rows: int = 0
    """Query rows of every rank, at least; results of fewer are part of those of a rank."""

    def __call__(self, command: Command) -> int:
        if not command.operands:  # not known yet: the work alone is less than any kernel takes
            return serialise_ps(command.flops, self.times.peak * self.times.kernels.share)
        (batch, rows, heads, dim), keys = command.operands[0][-4:], command.operands[1]
        name, times, size = command.operation.removesuffix("_add"), self.times, itemsize(command.dtype)
        width, per_pair = heads * batch, FLOPS_PER_PAIR[name]
        pairs = command.flops // max(1, per_pair * dim * width)
        shared = heads / keys[-2]
        columns = times.columns(rows, keys[-3], pairs, shared)
        begins = command.nbytes > prod(keys) * (size + 4 * (name == "attention_grad_kv"))
        starts = begins and name != "attention_grad_q"
        if starts:
            columns += times.kernels.ramp
        moved = size * (prod(keys) + 2 * begins * rows * width * dim)
        busy = [
            times.groups(rows, columns, width, dim, taken, moved, shared, starts, self.sequences)
            for taken in (0, self.taken)
        ]
        seconds = (1 - self.beside) * busy[0] + self.beside * busy[1]
        seconds = times.start * starts / self.sequences + seconds * per_pair / FLOPS_PER_PAIR["attention"]
        if times.kernels.start_us and command.operation == "attention":  # the keys of the rank itself
            seconds += 2 * size * prod(keys) / (times.memory * times.kernels.bandwidth)
        if command.operation == "attention":
            seconds += times.conversions(rows, width, dim, size)
        if begins and command.operation == "attention_add":
            unseen = pairs < rows * (rows + 1) // 2 and keys[-3] >= rows  # the first rows see no key
            part = rows < self.rows or unseen
            seconds += times.merge(rows, width, dim, size, 1 / self.sequences, part=part)
        elif begins and command.operation == "attention_grad_q_add":
            seconds += times.merge(rows, width, dim, size, 1 / self.sequences, form="fused")
        return round(seconds * 1e12)


def no_time(command: Command) -> int:
    """Return time a command as if its kernel took none, so that what remains is communication."""
    return 0


def attention_rules(rule: AttentionRule | None) -> dict[str, Rule]:
    """Return the rule for every operation of attention kernels."""
    names = (name + suffix for name in FLOPS_PER_PAIR for suffix in ("", "_add"))
    return dict.fromkeys(names, rule or no_time)
