"""How long a library's kernel takes on one device: a formula per operation, every figure from ``kernels`` of
the machine file.

    predict_kernel("gemm", m=4096, n=4096, k=4096, dtype="bf16", machine="dgx-h100").time_us

A kernel starts, its work-groups pass in waves over the compute units, and its operands travel: the longer of
work and traffic counts, and of the shorter one what does not hide behind it (``exposed``). Where work-groups
are fewer than units, libraries divide the inner loop (``split``) and pay for joining the parts. Formulas work
on arrays, so that a whole table is timed, or fitted (``fit.py``), at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.core.errors import MissingDescriptionError, did_you_mean
from megatile.core.registry import Registry
from megatile.hda import HDA
from megatile.hda.catalog import assumed_kernel
from megatile.hda.model import Engine, KernelFigures
from megatile.timing.collective_choice import library_of, reservation, rule_of, times_ps
from megatile.timing.library import between_experts
from megatile.timing.machine_timing import Origin, TimingError

Shape = Mapping[str, Any]
"""Extents by name: numbers, or arrays of the same length."""
Formula = Callable[["Device", Shape, str], Any]
MAX_EXTENT = 10**15
SPLITS = (1, 2, 4, 8, 16, 32)

FALLBACKS = {"gemm_f8": "gemm", "moe_f8": "moe", "moe_f8_tensor": "moe_f8"}
"""Kernels whose figures stand in for those that a machine file lacks."""


class KernelTime(NamedTuple):
    """A predicted time; ``error`` is what to expect of it relative to the time, where it is known."""

    time_us: float
    origin: Origin
    error: float | None = None

    @property
    def time_ps(self) -> int:
        return round(self.time_us * 1e6)

    @property
    def time_ns(self) -> float:
        return self.time_us * 1e3


@dataclass(frozen=True)
class Operation:
    """An operation of libraries and its extents, with their usual values (None: must be said)."""

    name: str
    extents: Mapping[str, int | None]
    formula: Formula
    kernels: Callable[[Shape, str], tuple[str, ...]] = lambda shape, dtype: ()
    """The kernels whose figures the formula takes, the main one first."""
    dtype: str = "bf16"

    def shape(self, given: Shape) -> dict[str, int]:
        """The extents, checked and complete."""
        unknown = [name for name in given if name not in self.extents]
        if unknown:
            advice = did_you_mean(unknown[0], self.extents, what="extents")
            raise TimingError(f"{self.name} has no extent '{unknown[0]}'", advice=advice)
        values = {**self.extents, **{name: value for name, value in given.items() if value is not None}}
        missing = [name for name, value in values.items() if value is None]
        if missing:
            needed = " ".join(f"{name}=…" for name, value in self.extents.items() if value is None)
            raise TimingError(f"{self.name} needs {', '.join(missing)}", advice=f"give {needed}")
        return {name: self._extent(name, value) for name, value in values.items()}

    def _extent(self, name: str, value: Any) -> int:
        least = 0 if self.extents[name] == 0 else 1
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or not least <= value <= MAX_EXTENT:
            raise TimingError(f"{name} of {self.name} is a whole number from {least} on, not {value!r}")
        return int(value)


OPERATIONS: Registry[Operation] = Registry("operations of libraries")


@dataclass(frozen=True)
class Device:
    """What formulas need to know of one device of a machine, and where its figures come from."""

    hda: HDA
    units: int
    bandwidth: float
    figures: Mapping[str, KernelFigures]

    @classmethod
    def of(
        cls, hda: HDA, figures: Mapping[str, KernelFigures] | None = None, scale: str = "device"
    ) -> Device:
        level = hda.level(hda.scale(scale).level)
        engine = next((e for e in hda.engines if e.kind == "tensor"), None)
        units = max(1, hda.level(engine.level).total // level.total) if engine else 1
        memories = [m.bandwidth for m in hda.memories if m.level == level.name and not m.cache]
        return cls(hda, units, max(memories, default=float("inf")), figures or {})

    def kernel(self, name: str) -> KernelFigures:
        own = self.figures.get(name) or self.hda.kernel(name)
        return own or (self.kernel(FALLBACKS[name]) if name in FALLBACKS else assumed_kernel(name))

    def origin(self, names: tuple[str, ...], operation: str = "", dtype: str = "") -> Origin:
        """Where the time of kernels comes from: figures of the machine file, or what is assumed of all."""
        specs = {k.name: k for k in self.hda.spec.kernels}
        if not names:
            library = library_of(self.hda)
            if library is None:
                return Origin("assumed", f"{self.hda.name} has no transports: the wires alone count")
            doubt = reservation(rule_of(self.hda), operation, dtype)
            return Origin("rule", f"transports.device.{library}{f'; {doubt}' if doubt else ''}")
        unknown = [n for n in names if n not in specs and FALLBACKS.get(n) not in specs]
        if unknown:
            return Origin("assumed", f"{self.hda.name} has no figures for kernel '{unknown[0]}'")
        used = dict.fromkeys(n if n in specs else FALLBACKS[n] for n in names)
        return Origin("rule", "; ".join(f"{n}: {_text(specs[n].source)}" for n in used))

    def rate(self, dtype: str) -> float:
        """Operations per second of a compute unit's tensor engines."""
        engine = tensor_engine(self.hda)
        rate = engine.rate(dtype) or max(engine.throughput.values(), default=0.0) * engine.efficiency
        if not rate:
            raise MissingDescriptionError(f"'{engine.name}' of '{self.hda.name}' has no throughput")
        return rate * engine.count

    def time(self, name: str, groups: Any, group_us: Any, moved: Any) -> Any:
        """Microseconds of a kernel: ``groups`` of ``group_us`` each, ``moved`` bytes."""
        k = self.kernel(name)
        waves = _waves(groups, self.units)
        work = waves * group_us
        if k.split_us is not None:
            tries = [_waves(groups * s, self.units) * group_us / s + k.split_us * (s > 1) for s in SPLITS]
            work = np.min(tries, axis=0)
        traffic = moved / (self.bandwidth * k.bandwidth) * 1e6
        longer, shorter = np.maximum(work, traffic), np.minimum(work, traffic)
        return k.start_us + waves * k.wave_us + longer + k.exposed * shorter


def hardware(hda: HDA, linked: bool) -> tuple[Any, ...]:
    """What measured times depend on: machines in which it is equal have the same times. ``linked``: of
    operations of several devices."""
    level = hda.level(hda.scale("device").level)
    inside = [(lv.name, lv.num_units) for lv in hda.levels if lv.position <= level.position]
    memories = [m for m in hda.memories if m.level == level.name]
    return inside, memories, [e for e in hda.engines if e.kind == "tensor"], hda.networks if linked else ()


def tensor_engine(hda: HDA) -> Engine:
    engines = [e for e in hda.engines if e.kind == "tensor"]
    if not engines:
        advice = "add one under 'engines'"
        raise MissingDescriptionError(f"machine '{hda.name}' describes no tensor engine", advice=advice)
    return engines[0]


def _text(source: Any) -> str:
    return source if isinstance(source, str) else "; ".join((source or {"": "no source"}).values())


def _waves(groups: Any, units: int) -> Any:
    return np.ceil(groups / units)


def gemm(device: Device, shape: Shape, dtype: str) -> Any:
    """(m × k) · (k × n) into 16 bits. For 8-bit operands the m × k activations are quantised from 16 bits
    first, unless they are ``quantised`` already."""
    m, n, k = (np.asarray(shape[name], float) for name in "mnk")
    name, size = _gemm_kernels(shape, dtype)[0], itemsize(dtype)
    figures = device.kernel(name)
    rate = device.rate(dtype) * figures.share
    groups = np.ceil(m / figures.rows) * np.ceil(n / figures.columns)
    group = 2 * figures.rows * figures.columns * k / rate * 1e6
    time = device.time(name, groups, group, (m + n) * k * size + m * n * max(2, size))
    if "quantise" not in _gemm_kernels(shape, dtype):
        return time
    return time + device.time("quantise", m / device.kernel("quantise").rows, 0.0, m * k * (2 + size))


def _gemm_kernels(shape: Shape, dtype: str) -> tuple[str, ...]:
    if not dtype.startswith("f8"):
        return ("gemm",)
    return ("gemm_f8",) if np.any(shape["quantised"]) else ("gemm_f8", "quantise")


def attention(device: Device, shape: Shape, dtype: str) -> Any:
    """Causal attention of ``queries`` new tokens after ``context`` cached ones, keys and values put into the
    cache on the way; a window lets a query see so many keys back. Heads that share keys share work-groups."""
    decode, prefill = (_attention(device, name, shape, dtype) for name in ("decode", "prefill"))
    return np.where(_is_decode(shape), decode, prefill)


def _attention(device: Device, name: str, shape: Shape, dtype: str) -> Any:
    batch, queries, context, heads, kv_heads, dim, window = (
        np.asarray(shape[extent], float) for extent in OPERATIONS["attention"].extents
    )
    figures, size = device.kernel(name), itemsize(dtype)
    kv_heads = np.where(kv_heads > 0, kv_heads, heads)
    together = heads / kv_heads
    keys = context + queries
    reach = np.where(window > 0, np.minimum(window + 1, keys), keys)
    whole = np.clip(reach - context, 0, queries)  # queries that see every key before them
    seen = (whole * context + whole * (whole + 1) / 2 + (queries - whole) * reach) / queries
    further = np.maximum(np.minimum(figures.rows / together, queries) - 1, 0)  # queries in a work-group
    columns = np.minimum(seen + further / 2 * (1 + (whole < queries)), keys)
    groups = np.ceil(queries * together / figures.rows) * batch * kv_heads
    rate = device.rate(dtype) * figures.share
    group = 4 * figures.rows * columns * (dim + figures.softmax) / rate * 1e6
    moved = size * batch * dim * (2 * queries * heads + 2 * kv_heads * np.minimum(keys, reach + queries))
    cached = 4 * size * batch * dim * queries * kv_heads / (device.bandwidth * figures.bandwidth) * 1e6
    return device.time(name, groups, group, moved) + cached


def _is_decode(shape: Shape) -> Any:
    return (np.asarray(shape["queries"]) == 1) & (np.asarray(shape["context"]) > 0)


def _attention_kernels(shape: Shape, dtype: str) -> tuple[str, ...]:
    return ("decode",) if np.all(_is_decode(shape)) else ("prefill",)


def moe(device: Device, shape: Shape, dtype: str) -> Any:
    """A layer of experts on one device: two products (gate and up, then down) over the experts that some
    token of the device's part goes to, 16-bit activations, tokens spread evenly. 8-bit weights have a scale
    for every block, or one each (``per_tensor``), which is another kernel."""
    whole = np.asarray(shape["per_tensor"]) > 0
    return np.where(whole, *(_moe(device, shape, dtype, _moe_kernel(dtype, one)) for one in (True, False)))


def _moe(device: Device, shape: Shape, dtype: str, kernel: str) -> Any:
    tokens, hidden, inner, topk, experts, tensor, expert = (np.asarray(shape[name], float) for name in _MOE)
    figures, size = device.kernel(kernel), itemsize(dtype)
    rate = device.rate(dtype) * figures.share
    own, pairs, inner = experts / expert, tokens * topk / expert, inner / tensor
    met = np.maximum(1, own * (1 - (1 - 1 / np.maximum(experts, 2)) ** (tokens * topk)))
    time = 0.0
    for columns, depth in ((2 * inner, hidden), (hidden, inner)):
        groups = met * np.ceil(pairs / met / figures.rows) * np.ceil(columns / figures.columns)
        group = 2 * figures.rows * figures.columns * depth / rate * 1e6
        moved = met * columns * depth * size + pairs * (columns + depth) * 2
        time = time + device.time(kernel, groups, group, moved)
    return time


def _moe_kernel(dtype: str, per_tensor: bool) -> str:
    return "moe" if not dtype.startswith("f8") else "moe_f8_tensor" if per_tensor else "moe_f8"


def _moe_kernels(shape: Shape, dtype: str) -> tuple[str, ...]:
    return (_moe_kernel(dtype, bool(np.any(np.asarray(shape["per_tensor"]) > 0))),)


def _collective(kind: str, device: Device, shape: Shape, dtype: str) -> Any:
    """With the library's own choice of algorithm and protocol; bytes as nccl-tests counts them."""
    rule, most = rule_of(device.hda), device.hda.count("device")
    if (ranks := int(np.max(shape["ranks"]))) > most:
        raise TimingError(f"{ranks} ranks are more than the {most} devices of '{device.hda.name}'")
    return np.maximum(times_ps(rule, kind, shape["ranks"], shape["bytes"], itemsize=itemsize(dtype)), 1) / 1e6


def _experts(kind: str, device: Device, shape: Shape, dtype: str) -> Any:
    extents = (shape[name] for name in ("nodes", "hidden", "tokens", "topk", "sms"))
    return between_experts(device.hda, device.kernel(kind), dtype, *extents)


_ATTENTION = {"batch": 1, "queries": None, "context": 0, "heads": None, "kv_heads": 0, "head_dim": 128}
_MOE = ("tokens", "hidden", "inner", "topk", "experts", "tensor_parallel", "expert_parallel")
for _operation in (
    Operation("gemm", {"m": None, "n": None, "k": None, "quantised": 0}, gemm, _gemm_kernels),
    Operation("attention", {**_ATTENTION, "window": 0}, attention, _attention_kernels),
    Operation("moe", {**dict.fromkeys(_MOE), "per_tensor": 0}, moe, _moe_kernels),
    *(
        Operation(name, {"ranks": None, "bytes": None}, partial(_collective, name), dtype="f16")
        for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
    ),
    *(
        Operation(
            f"moe_{name}",
            dict.fromkeys(("nodes", "hidden", "tokens", "topk", "experts", "sms")),
            partial(_experts, name),
            lambda shape, dtype, name=name: (name,),  # type: ignore[misc]
        )
        for name in ("dispatch", "combine")
    ),
):
    OPERATIONS.add(_operation.name, _operation)
