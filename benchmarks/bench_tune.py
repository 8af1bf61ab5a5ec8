"""Tuning: 500 choices of a GEMM, and what it gains on three programs and two machines."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial

import megatile as mt
from bench_language import example
from harness import Row, at_least, at_most, bench, sized

SIZE = sized(1024, 128)
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


def some(choices: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the choices to measure; in a smoke run one, and two of the first parameter."""
    few = {name: values[:1] for name, values in choices.items()}
    return sized(choices, few | {"bM": choices["bM"][:2]})


@bench("500 choices")
def many() -> Iterator[Row]:
    factory = partial(example("21_gemm_block").gemm, SIZE, SIZE, SIZE)
    began, choices = time.perf_counter(), some(CHOICES)
    found = mt.tune(factory, choices, machine="dgx-h100", workers=sized(2, 1), progress=False)
    seconds = time.perf_counter() - began
    assert len(found.points) == math.prod(map(len, choices.values()))
    yield Row(f"{len(found.points)} choices of a GEMM of {SIZE}, 2 processes", seconds, "s", bar=at_most(60))
    yield Row("of them simulated", found.counts["simulated"], "choices")


@bench("tuned beats default")
def gains() -> Iterator[Row]:
    for name, (factory, choices) in sized(list(PROGRAMS.items()), list(PROGRAMS.items())[:1]):
        for machine in sized(("dgx-h100", "mi300x-8"), ("mi300x-8",)):
            found = mt.tune(factory, some(choices), machine=machine, workers=sized(2, 1), progress=False)
            assert found.verified.startswith("results match"), found.verified
            yield Row(
                f"{name} on {machine}: {found.best}", found.speedup or 0.0, "times", bar=at_least(1.0001)
            )
