"""Extents that measured kernels span: a time far beyond them says so, with a wide error.

Ranges are those of the open tables of H100 kernels (``benchmarks/data/kernels``).
"""

from __future__ import annotations

from collections.abc import Mapping

from megatile.timing.machine_timing import Origin

BEYOND = 2
"""Up to so many times outside a range, rules that are affine in an extent are trusted."""
WIDE_ERROR = 0.3
"""The error to expect of a time beyond what was measured, relative to it."""
_HEADS = {"heads": (1, 128), "head_dim": (64, 512)}
RANGES: dict[str, dict[str, tuple[int, int]]] = {
    "gemm": {"m": (1, 32768), "n": (32, 65536), "k": (32, 65536)},
    "grouped_gemm": {"m": (1, 32768), "n": (32, 65536), "k": (32, 65536)},
    "decode": {"batch": (1, 2048), "context": (1, 131071), **_HEADS},
    "prefill": {"batch": (1, 256), "queries": (16, 16384), **_HEADS},
    "mla": {"batch": (1, 1024), "context": (1, 131071), "heads": (1, 128)},
    "moe": {"tokens": (1, 16384), "hidden": (1024, 7168), "inner": (512, 16384), "experts": (8, 896)},
    "moe_dispatch": {"hidden": (2048, 7168), "tokens": (1, 131072), "experts": (8, 512)},
    "moe_combine": {"hidden": (2048, 7168), "tokens": (1, 131072), "experts": (8, 512)},
}
"""By operation (attention by its kind): the smallest and the largest of each extent."""


def beyond(operation: str, shape: Mapping[str, int]) -> str:
    """Return which extents lie far outside what was measured, in words; empty if none does."""
    if operation == "attention":
        operation = "decode" if shape["queries"] == 1 else "prefill"
    ranges = RANGES.get(operation, {})
    far = [
        f"{name} {shape[name]} (rows: {low} to {high})"
        for name, (low, high) in ranges.items()
        if name in shape and not low / BEYOND <= max(1, shape[name]) <= high * BEYOND
    ]
    return ", ".join(far)


def with_coverage(
    operation: str, shape: Mapping[str, int], origin: Origin, error: float | None
) -> tuple[Origin, float | None]:
    """Return an origin and an error that say where a shape lies beyond what was measured."""
    far = beyond(operation, shape)
    if not far:
        return origin, error
    return Origin(origin.kind, f"{origin.source}; beyond what was measured: {far}"), max(
        error or 0.0, WIDE_ERROR
    )
