"""Constants of the machine files' ``kernels`` from published benchmarks of single kernels.

None of these figures is a speed-up of sequence-parallel attention, so that those remain a test of the model.
"""

from __future__ import annotations

import heapq
from math import exp, log

TILE, DIM = 128, 128
SOFTMAX = 50.62
"""Dimensions that a softmax is worth: the kernel ``prefill`` of dgx-h100. Shares count it as work."""
MI300X = {"peak": 1307.4, "units": 304}
SWEEP = {
    "AITER": {1024: 225.1, 2048: 314.5, 4096: 408.8, 8192: 446.3},
    "AOTriton (torch SDPA)": {1024: 164.1, 2048: 214.5, 4096: 256.9, 8192: 289.5},
}
"""TFLOP/s, causal forward, 16 x 16 heads of 128, one MI300X: midiareshadi/attn-dsl-bench sweep_v1.csv."""


def busy(columns: list[float], units: int) -> float:
    """When the last of some work-groups ends that units take one after the other, as columns."""
    free = [0.0] * units
    for work in columns:
        heapq.heappush(free, heapq.heappop(free) + work)
    return max(free)


def causal_rate(tokens: int, ramp: float, heads: int, units: int) -> float:
    """Counted work over time, of a kernel whose inner loop reaches 1; blocks of queries in their order."""
    groups = [(block + 1) * TILE + ramp for block in range(tokens // TILE) for _ in range(heads)]
    return heads * tokens / TILE * tokens / 2 / units / busy(groups, units)


def fit(rates: dict[int, float], peak: float, units: int) -> tuple[float, int, float]:
    """Share of the peak, ramp in keys, and the largest relative error."""
    found = []
    for ramp in range(0, 1000, 20):
        ratios = [log(rate / peak / causal_rate(n, ramp, 256, units)) for n, rate in rates.items()]
        share = exp(sum(ratios) / len(ratios))
        found.append((max(abs(r - log(share)) for r in ratios), ramp, share))
    error, ramp, share = min(found)
    return share, ramp, error


def micros(ramp: float, share: float, peak: float, units: int) -> float:
    """The time of so many columns of one work-group."""
    return ramp * 4 * TILE * DIM / (peak * 1e12 * share / units) * 1e6


def counted(share: float) -> float:
    """A share of the peak, with the softmax of these heads counted as work."""
    return share * (DIM + SOFTMAX) / DIM


def main() -> None:
    for name, rates in SWEEP.items():
        share, ramp, error = fit(rates, **MI300X)
        time = micros(ramp, share, **MI300X)
        print(f"{name}: share {counted(share):.3f}, ramp {ramp} keys = {time:.1f} us, to {error:.1%}")
    # The Composable Kernel backend of flash-attn: the same time per work-group, its own rate.
    share = 0.285
    for _ in range(5):
        ramp = 21 / micros(1, share, **MI300X)
        waves = 16 * 16384 / TILE / MI300X["units"]
        share = 353.22 / MI300X["peak"] / (waves / -(-waves // 1)) * (1 + ramp / 16384)
    print(
        f"flash-attn (Composable Kernel) on MI300X: share {counted(share):.3f}, ramp {ramp:.0f} keys = 21 us"
    )
    ramp = (304.199 / 287.457 - 1) / (1 / 1024 - 304.199 / 287.457 / 16384)
    print(f"flash-attn 2 on H100: ramp {ramp:.0f} keys")
    for name, peak, units, rate in (("H100", 989.4, 132, 591.5), ("A100", 312.0, 108, 373.4)):
        waves = -(-32 * 8192 // TILE // units)
        columns = 8192 / 2 + TILE / 2 + ramp
        share = waves * units * 4 * TILE * DIM * columns * rate / (peak * 1e12)
        print(f"flash-attn 2 on {name}: share {counted(share):.3f}")


if __name__ == "__main__":
    main()
