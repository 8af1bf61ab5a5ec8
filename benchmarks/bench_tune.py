"""Tuning: 500 choices of a GEMM, and what it gains on three programs and two machines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import megatile as mt
from bench_language import example
from harness import Row, at_least, at_most, bench

CHOICES = {
    "bM": [64, 32, 16, 128, 256],
    "bN": [64, 32, 128, 256],
    "bK": [32, 16, 64, 128, 256],
    "stages": [3, 1, 2, 4, 5],
}
PROGRAMS = {
    "gemm 512": (partial(example("21_gemm_block").gemm, 512, 512, 512), CHOICES | {"stages": [3, 1]}),
    "softmax 1024 x 1024": (
        partial(example("25_softmax").softmax, 1024, 1024),
        {"bM": [32, 4, 8, 16, 64], "bN": [64, 32, 128, 256]},
    ),
    "attention 1024": (
        partial(example("27_flash_attention").flash_attention, 1, 8, 8, 1024, 64, dtype="f16"),
        {"bM": [64, 32, 128], "bN": [64, 32, 128], "stages": [2, 1, 3]},
    ),
}


@bench("500 choices")
def many() -> Iterator[Row]:
    factory = partial(example("21_gemm_block").gemm, 1024, 1024, 1024)
    began = time.perf_counter()
    found = mt.tune(factory, CHOICES, machine="dgx-h100", workers=2, progress=False)
    seconds = time.perf_counter() - began
    assert len(found.points) == 500
    yield Row("500 choices of a GEMM of 1024, 2 processes", seconds, "s", bar=at_most(60))
    yield Row("of them simulated", found.counts["simulated"], "choices")


@bench("tuned beats default")
def gains() -> Iterator[Row]:
    for name, (factory, choices) in PROGRAMS.items():
        for machine in ("dgx-h100", "mi300x-8"):
            found = mt.tune(factory, choices, machine=machine, workers=2, progress=False)
            assert found.verified.startswith("data equal"), found.verified
            yield Row(
                f"{name} on {machine}: {found.best}", found.speedup or 0.0, "times", bar=at_least(1.0001)
            )
