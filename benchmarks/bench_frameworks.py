"""Kernels by framework beside measured ones, as a section of docs/fidelity.md."""

import timeit
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

import fidelity_frameworks as fidelity
from harness import Row, at_most, bench, sized, smoke
from megatile.hda import machine
from megatile.timing.formulas import kernel_times_us

BARS = {
    "gemm": 0.1, "prefill": 0.1, "decode": 0.16, "mla": 0.1, "moe": 0.14, "moe_int4": 0.18, "dispatch": 0.06,
    "combine": 0.11, "dispatch_low_latency": 0.1, "combine_low_latency": 0.1, "all_reduce": 0.05,
}  # fmt: skip
"""The median error allowed, by kernel or by the first word of its name."""


SHAPES = {
    "gemm": {"m": 64, "n": 4096, "k": 4096},
    "attention": {"batch": 64, "queries": 1, "context": 4096, "heads": 8, "kv_heads": 1},
    "moe": {"tokens": 64, "hidden": 7168, "inner": 2048, "topk": 8, "experts": 256, "skew": 101},
}


def bar(kernel: str) -> float:
    """Return the median error allowed for a kernel."""
    return BARS[kernel] if kernel in BARS else BARS[kernel.partition("_")[0]]


@bench("kernels by framework")
def frameworks() -> Iterator[Row]:
    for line, _ in islice(fidelity.lines(), sized(None, 2)):
        name = f"{line.library} {line.operation} {line.kernel}, {line.constants} constants: median"
        yield Row(name, 100 * line.score.median, "%", bar=at_most(100 * bar(line.kernel)))
        yield Row(f"{line.library} {line.operation} {line.kernel}: p90", 100 * line.score.p90, "%")
    if not smoke():
        fidelity.write_page()


@bench("kernels by framework: speed")
def speed() -> Iterator[Row]:
    hda, tokens = machine("dgx-h100"), np.arange(1, 1001)
    for operation, extents in SHAPES.items():
        name = next(iter(extents))
        several = {**extents, name: extents[name] + tokens}
        warm = timed(lambda o=operation, e=extents: kernel_times_us(hda, o, "bf16", "vllm", **e))
        many = timed(lambda o=operation, e=several: kernel_times_us(hda, o, "bf16", "vllm", **e), calls=5)
        yield Row(f"{operation}: a shape asked again", 1e6 * warm, "us", bar=at_most(5))
        yield Row(f"{operation}: each of 1000 shapes", 1e3 * many, "us", bar=at_most(5))


def timed(call: Callable[[], object], calls: int = 1000) -> float:
    """Return the seconds of one call, the best of three runs."""
    call()
    return min(timeit.repeat(call, number=calls, repeat=3)) / calls
