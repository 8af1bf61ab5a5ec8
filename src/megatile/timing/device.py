"""One device of a machine as the rules of library kernels see it: rates, and figures of kernels by framework.

A kernel starts, its work-groups pass in waves over the compute units, and its operands travel: the longer of
work and traffic counts, and of the shorter one what does not hide behind it (``exposed``). Where work-groups
are fewer than units, libraries divide the inner loop (``split``) and pay for joining the parts. A call that
no captured graph replays takes at least as long as the host needs to issue it (``issue``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.errors import MissingDescriptionError, did_you_mean
from megatile.hda import HDA
from megatile.hda.catalog import assumed_kernel
from megatile.hda.model import Engine, KernelFigures
from megatile.timing.machine_timing import Origin, TimingError

Shape = Mapping[str, Any]
"""Extents by name: numbers, or arrays of the same length."""
SPLITS = (1, 2, 4, 8, 16, 32)
LIBRARIES = ("vllm", "trtllm", "sglang", "torch")
BASE_LIBRARY = "vllm"
"""The framework whose kernels the figures without a framework's name are."""

FALLBACKS = {
    "gemm_f8": "gemm", "gemm_f8_block": "gemm_f8", "gemm_int4": "gemm", "gemm_mxfp4": "gemm_int4",
    "gemm_nvfp4": "gemm_f8", "quantise_block": "quantise", "moe_f8": "moe", "moe_f8_block": "moe_f8",
    "moe_int4": "moe", "moe_mxfp4": "moe_int4", "moe_nvfp4": "moe_f8", "prefill_kv8": "prefill",
    "prefill_f8": "prefill_kv8", "prefill_wide": "prefill", "decode_wide": "decode",
    "decode_kv8": "decode", "decode_f8": "decode_kv8", "mla": "decode", "mla_kv8": "mla",
    "dispatch_low_latency": "dispatch", "combine_low_latency": "combine",
}  # fmt: skip
"""Kernels whose figures stand in for those that a machine file lacks."""
ESTIMATED_ERROR, BORROWED_ERROR = 0.2, 0.3
"""What to expect of figures that a file calls an estimate, and of those of another kernel or framework."""


class Maths(NamedTuple):
    """The functions that rules use, for plain numbers or for arrays."""

    ceil: Callable[[Any], Any]
    maximum: Callable[[Any, Any], Any]
    minimum: Callable[[Any, Any], Any]
    where: Callable[[Any, Any, Any], Any]
    exp: Callable[[Any], Any]
    log: Callable[[Any], Any]
    sqrt: Callable[[Any], Any]


def _choose(condition: Any, this: Any, that: Any) -> Any:
    return this if condition else that


ARRAYS = Maths(np.ceil, np.maximum, np.minimum, np.where, np.exp, np.log, np.sqrt)
NUMBERS = Maths(math.ceil, max, min, _choose, math.exp, math.log, math.sqrt)
"""Plain numbers: NumPy's functions take ten times as long for one."""


def every(flags: Any) -> bool:
    """Return whether a flag, or each of an array, is set."""
    return bool(flags) if isinstance(flags, (bool, int, float)) else bool(np.all(flags))


def some(flags: Any) -> bool:
    """Return whether a flag, or one of an array, is set."""
    return bool(flags) if isinstance(flags, (bool, int, float)) else bool(np.any(flags))


@dataclass(frozen=True)
class Device:
    """What rules need to know of one device of a machine, and where its figures come from."""

    hda: HDA
    units: int
    bandwidth: float
    figures: Mapping[str, KernelFigures] = field(default_factory=dict)
    """Figures in place of those of the machine file (fits)."""
    library: str = ""
    """The framework whose kernels are meant; none: the plain figures, which are those of `BASE_LIBRARY`."""
    captured: bool = False
    x: Maths = ARRAYS
    times: dict[Any, float] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Times of shapes that were asked for."""

    @classmethod
    def of(
        cls, hda: HDA, figures: Mapping[str, KernelFigures] | None = None, scale: str = "device",
        library: str | None = None, captured: bool = False, x: Maths = ARRAYS,
    ) -> Device:  # fmt: skip
        level = hda.level(hda.scale(scale).level)
        engine = next((e for e in hda.engines if e.kind == "tensor"), None)
        units = max(1, hda.level(engine.level).total // level.total) if engine else 1
        memories = [m.bandwidth for m in hda.memories if m.level == level.name and not m.cache]
        rate = max(memories, default=float("inf"))
        return cls(hda, units, rate, figures or {}, library_name(library), captured, x)

    @cached_in_owner
    def kernel(self, name: str) -> KernelFigures:
        """Return the figures of a kernel: the framework's, the machine's, or those of the nearest kernel."""
        own = self.figures.get(name) or self.hda.kernel(self.found(name) or "")
        return own or (self.kernel(FALLBACKS[name]) if name in FALLBACKS else assumed_kernel(name))

    @cached_in_owner
    def found(self, name: str) -> str | None:
        """Return the name under which the machine file has a kernel: the framework's, or the plain one."""
        own = f"{self.library}.{name}"
        return next((n for n in (own, name) if self.hda.kernel(n) is not None), None)

    def protocol_origin(self, section: str, protocol: str) -> tuple[Origin, float | None]:
        """Return where the figures of a protocol come from, and the error to expect of it."""
        found = self.hda.spec.transports["device"][section].protocols[protocol]
        said = _text(found.source)
        if self.library == "sglang":
            said = f"estimate: the kernels of vLLM: {said}"
        guessed = said.startswith("estimate")
        error = self.hda.transports[self.hda.scale("device").name][section].protocols[protocol].error
        where = f"transports.device.{section}.{protocol}: {said}"
        return Origin("assumed" if guessed else "rule", where), ESTIMATED_ERROR if guessed else error

    @cached_in_owner
    def has(self, name: str) -> bool:
        """Return whether the framework has a kernel of its own for a case that others do not tell apart."""
        plain = name if self.library in ("", BASE_LIBRARY) else None
        return name in self.figures or self.found(name) in (plain or "", f"{self.library}.{name}")

    def origin(self, names: tuple[str, ...]) -> tuple[Origin, float | None]:
        """Return where the time of kernels comes from, and the error to expect of it."""
        specs = {k.name: k for k in self.hda.spec.kernels}
        texts: list[str] = []
        kind, errors = "rule", []
        for name in names:
            base, stands = name, self.found(name)
            while stands is None and base in FALLBACKS:
                base = FALLBACKS[base]
                stands = self.found(base)
            if stands is None:
                reason = f"{self.hda.name} has no figures for kernel '{name}'"
                return Origin("assumed", reason), BORROWED_ERROR
            if stands not in specs:
                origin, error = self.protocol_origin("deepep", stands)
                kind = "assumed" if origin.kind == "assumed" else kind
                errors.append(error)
                texts.append(origin.source)
                continue
            said = _text(specs[stands].source)
            other = self.library in ("trtllm", "sglang") and stands == base
            borrowed = base != name or other
            guessed = said.startswith("estimate")
            if borrowed:
                said = f"estimate: as {BASE_LIBRARY if base == name else base}: {said}"
            kind = "assumed" if borrowed or guessed else kind
            error = self.hda.kernel(stands).error  # type: ignore[union-attr]
            errors.append(BORROWED_ERROR if borrowed else ESTIMATED_ERROR if guessed else error)
            if (text := f"{stands}: {said}") not in texts:
                texts.append(text)
        known = [e for e in errors if e is not None]
        return Origin(kind, "; ".join(texts)), max(known) if known else None

    @cached_in_owner
    def rate(self, dtype: str) -> float:
        """Return operations per second of a compute unit's tensor engines."""
        engine = tensor_engine(self.hda)
        rate = engine.rate(dtype) or max(engine.throughput.values(), default=0.0) * engine.efficiency
        if not rate:
            raise MissingDescriptionError(f"'{engine.name}' of '{self.hda.name}' has no throughput")
        return rate * engine.count

    @cached_in_owner
    def multiplies(self, dtype: str) -> bool:
        """Return whether the tensor engines multiply this element type as it is."""
        engines = [e for e in self.hda.engines if e.kind == "tensor"]
        return not engines or any(e.rate(dtype) for e in engines)

    def time(self, name: str, groups: Any, group_us: Any, moved: Any) -> Any:
        """Return the microseconds of a kernel: ``groups`` of ``group_us`` each, ``moved`` bytes."""
        k, x, units = self.kernel(name), self.x, self.units
        waves = x.ceil(groups / units)
        work = waves * group_us
        if k.split_us is not None:
            for parts in SPLITS[1:]:
                divided = x.ceil(groups * parts / units) * group_us / parts + k.split_us
                work = x.minimum(work, divided)
        traffic = moved / (self.bandwidth * k.bandwidth) * 1e6
        longer, shorter = x.maximum(work, traffic), x.minimum(work, traffic)
        return k.start_us + waves * k.wave_us + longer + k.exposed * shorter

    def issued(self, name: str, time: Any) -> Any:
        """Return the time of a call: the kernel's, or the host's where that is longer and nothing replays
        it."""
        issue = 0.0 if self.captured else self.kernel(name).issue_us
        return self.x.maximum(time, issue) if issue else time


@cached_in_owner
def device_of(hda: HDA, library: str | None, captured: bool, x: Maths) -> Device:
    """Return the device with the figures of a framework, the same object every time."""
    return Device.of(hda, library=library, captured=captured, x=x)


def library_name(library: str | None) -> str:
    """Return a framework's name, checked; nothing for None."""
    if library is None:
        return ""
    if library not in LIBRARIES:
        advice = did_you_mean(str(library), LIBRARIES, what="libraries")
        raise TimingError(f"library {library!r} is unknown", advice=advice)
    return library


def tensor_engine(hda: HDA) -> Engine:
    engines = [e for e in hda.engines if e.kind == "tensor"]
    if not engines:
        advice = "add one under 'engines'"
        raise MissingDescriptionError(f"machine '{hda.name}' describes no tensor engine", advice=advice)
    return engines[0]


def _text(source: Any) -> str:
    return source if isinstance(source, str) else "; ".join((source or {"": "no source"}).values())
