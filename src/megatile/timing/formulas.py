"""How long a library's kernel takes on one device: a rule per operation, every figure from ``kernels`` of the
machine file.

    predict_kernel("gemm", m=4096, n=4096, k=4096, dtype="bf16", machine="dgx-h100", library="trtllm").time_us
    kernel_times_us(hda, "gemm", "bf16", "trtllm", m=array, n=4096, k=4096)

The rules are in ``products.py``, ``attention_rules.py`` and ``exchange_rules.py``. They work on arrays, so
that a whole table is timed, or fitted (``fit.py``), at once, and on plain numbers, which is quicker for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any, NamedTuple

import numpy as np

from megatile.core.dtypes import dtype as dtype_name
from megatile.core.errors import did_you_mean
from megatile.core.registry import Registry
from megatile.hda import HDA
from megatile.timing import attention_rules, exchange_rules, products
from megatile.timing.device import ARRAYS, NUMBERS, Device, Shape, device_of, tensor_engine
from megatile.timing.machine_timing import Origin, TimingError
from megatile.timing.products import gemm
from megatile.timing.schemes import scheme_name

__all__ = [
    "OPERATIONS", "Device", "KernelTime", "Operation", "gemm", "hardware", "kernel_times_us", "tensor_engine"
]  # fmt: skip

Formula = Callable[[Device, Shape, str], Any]
MAX_EXTENT = 10**15
"""Largest extent of a kernel."""
MAX_CACHED_TIMES = 100_000
"""Times of single shapes that are kept for each device, about 30 MB."""


class KernelTime(NamedTuple):
    """A predicted time; ``error`` is what to expect of it relative to the time, where it is known, and
    ``model`` the name of its timing model (``NCCL ring, LL``, ``vLLM one-shot``, ``measured rows``)."""

    time_us: float
    origin: Origin
    error: float | None = None
    model: str = ""

    @property
    def time_ps(self) -> int:
        return round(self.time_us * 1e6)

    @property
    def time_ns(self) -> float:
        return self.time_us * 1e3

    def __repr__(self) -> str:
        about = "" if self.error is None else f" ± {self.error:.0%}"
        return f"KernelTime({self.time_us:.4g} µs{about}, {self.origin.kind}: {self.model or 'rule'})"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


@dataclass(frozen=True)
class Operation:
    """An operation of libraries and its extents, with their usual values (None: must be said)."""

    name: str
    extents: Mapping[str, int | None]
    formula: Formula
    kernels: Callable[[Device, Shape, str], tuple[str, ...]] = lambda device, shape, dtype: ()
    """The kernels whose figures the formula takes, the main one first."""
    dtype: str = "bf16"
    schemes: bool = False
    """Whether its element type may be a quantisation scheme (``fp8_block``)."""
    cache: bool = False
    """Whether a cache may have an element type of its own."""

    def shape(self, given: Shape) -> dict[str, int]:
        """Return the extents, checked and complete."""
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
        least = 0 if self.extents[name] == 0 or name in FLAGS else 1
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or not least <= value <= MAX_EXTENT:
            said = f"an integer from {least} to {MAX_EXTENT}"
            raise TimingError(f"{name} of {self.name} must be {said}, got {value!r}")
        return int(value)

    def dtype_of(self, dtype: Any, kv_dtype: Any = None) -> str:
        """Return the canonical element type: a scheme, or types of compute and cache (``bf16/f8e4m3``)."""
        spelled = dtype if dtype is not None else self.dtype
        if self.schemes:
            name = scheme_name(spelled)
        elif self.cache and isinstance(spelled, str) and "/" in spelled:
            spelled, _, cache = spelled.partition("/")
            return self.dtype_of(spelled, cache)
        else:
            name = dtype_name(spelled)
        if kv_dtype is None:
            return name
        if not self.cache:
            raise TimingError(f"{self.name} has no cache", advice="leave kv_dtype out")
        cache = dtype_name(kv_dtype)
        return name if cache == name else f"{name}/{cache}"

    def origin(self, device: Device, shape: Shape, dtype: str) -> tuple[Origin, float | None]:
        """Return where the time comes from, and the error to expect."""
        names = self.kernels(device, shape, dtype)
        return device.origin(names) if names else exchange_rules.collective_origin(device, self.name, dtype)


OPERATIONS: Registry[Operation] = Registry("operations of libraries")
FLAGS = ("causal", "gated")
"""Extents with default 1."""


def kernel_times_us(
    hda: HDA,
    operation: str,
    dtype: Any = None,
    library: str | None = None,
    kv_dtype: Any = None,
    captured: bool = True,
    **extents: Any,
) -> Any:
    """Return microseconds without origin and checks, quickly; extents are numbers, or arrays of one length.

    ``captured``: a graph replays the kernel, so the host's time to issue it does not count.
    """
    found = OPERATIONS.find(operation)
    kind = _canonical(found, dtype, kv_dtype)
    for value in extents.values():
        if type(value) is not int and type(value) is not float:
            device = device_of(hda, library, captured, ARRAYS)
            return found.formula(device, {**found.extents, **extents}, kind)
    device = device_of(hda, library, captured, NUMBERS)
    key = (operation, kind, *extents.items())
    if (time := device.times.get(key)) is None:
        if len(device.times) >= MAX_CACHED_TIMES:
            device.times.clear()
        time = device.times[key] = found.formula(device, {**found.extents, **extents}, kind)
    return time


_CANONICAL: dict[tuple[str, Any, Any], str] = {}


def _canonical(operation: Operation, dtype: Any, kv_dtype: Any) -> str:
    """Return the canonical element type, looked up."""
    key = (operation.name, dtype, kv_dtype)
    if (known := _CANONICAL.get(key)) is None:
        known = _CANONICAL[key] = operation.dtype_of(dtype, kv_dtype)
    return known


def hardware(hda: HDA, linked: bool) -> tuple[Any, ...]:
    """Return what measured times depend on: machines in which it is equal have the same times. ``linked``: of
    operations of several devices."""
    level = hda.level(hda.scale("device").level)
    inside = [(lv.name, lv.num_units) for lv in hda.levels if lv.position <= level.position]
    memories = [m for m in hda.memories if m.level == level.name]
    return inside, memories, [e for e in hda.engines if e.kind == "tensor"], hda.networks if linked else ()


def elementwise(device: Device, shape: Shape, dtype: str) -> Any:
    """Return passes over memory (norms, rotary embeddings, activations, sampling): a start each, and all
    their bytes."""
    figures = device.kernel("elementwise")
    traffic = shape["bytes"] / (device.bandwidth * figures.bandwidth) * 1e6
    return device.issued("elementwise", shape["kernels"] * figures.start_us + traffic)


_ATTENTION = {"batch": 1, "queries": None, "context": 0, "heads": None, "kv_heads": 0, "head_dim": 128}
_MLA = {
    "batch": 1,
    "queries": None,
    "context": 0,
    "heads": None,
    "kv_lora": 512,
    "rope": 64,
    "nope": 128,
    "v": 128,
}
_MOE = {
    **dict.fromkeys(("tokens", "hidden", "inner", "topk", "experts")),
    **{"tensor_parallel": 1, "expert_parallel": 1, "skew": 0, "gated": 1},
}
_EXPERTS = {"nodes": 1, **dict.fromkeys(("hidden", "tokens", "topk", "experts")), "sms": 24, "low_latency": 0}
_PRODUCT = {"m": None, "n": None, "k": None}
for _operation in (
    Operation("gemm", {**_PRODUCT, "quantised": 0}, gemm, products.gemm_kernels, schemes=True),
    Operation(
        "grouped_gemm",
        {**_PRODUCT, "groups": None},
        products.grouped_gemm,
        products.grouped_kernels,
        schemes=True,
    ),
    Operation(
        "attention",
        {**_ATTENTION, "window": 0, "causal": 1, "backward": 0, "ragged": 0},
        attention_rules.attention,
        attention_rules.attention_kernels,
        cache=True,
    ),
    Operation("mla", {**_MLA, "ragged": 0}, attention_rules.mla, attention_rules.mla_kernels, cache=True),
    Operation("moe", _MOE, products.moe, products.moe_kernels, schemes=True),
    Operation(
        "elementwise",
        {"bytes": None, "kernels": 1},
        elementwise,
        lambda device, shape, dtype: ("elementwise",),
    ),
    *(
        Operation(name, {"ranks": None, "bytes": None}, rule, dtype="f32")
        for name, rule in exchange_rules.collective_rules.items()
    ),
    *(
        Operation(
            f"moe_{name}",
            _EXPERTS,
            partial(exchange_rules.experts, name),
            partial(exchange_rules.experts_kernels, name),
        )
        for name in ("dispatch", "combine")
    ),
):
    OPERATIONS.add(_operation.name, _operation)
