"""Kernels by framework beside measured ones, as a section of docs/fidelity.md."""

from collections.abc import Iterator

import fidelity_frameworks as fidelity
from harness import Row, at_most, bench

BARS = {
    "gemm": 0.1, "prefill": 0.1, "decode": 0.16, "mla": 0.1, "moe": 0.14, "moe_int4": 0.18, "dispatch": 0.06,
    "combine": 0.11, "dispatch_low_latency": 0.1, "combine_low_latency": 0.1, "all_reduce": 0.05,
}  # fmt: skip
"""The median error allowed, by kernel or by the first word of its name."""


def bar(kernel: str) -> float:
    """Return the median error allowed for a kernel."""
    return BARS[kernel] if kernel in BARS else BARS[kernel.partition("_")[0]]


@bench("kernels by framework")
def frameworks() -> Iterator[Row]:
    for line, _ in fidelity.lines():
        name = f"{line.library} {line.operation} {line.kernel}, {line.constants} constants: median"
        yield Row(name, 100 * line.score.median, "%", bar=at_most(100 * bar(line.kernel)))
        yield Row(f"{line.library} {line.operation} {line.kernel}: p90", 100 * line.score.p90, "%")
    fidelity.write_page()
