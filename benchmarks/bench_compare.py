"""Predicted beside measured on this computer, after measuring it: within 25 %, by one thread and by two.

The shapes are drawn at random, so that nobody has chosen them: ``BENCH_SEED=7`` draws others. No
figure belongs to a program or to a shape.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

import megatile as mt
import megatile.language as T
from bench_compile import example, softmax
from harness import Row, at_most, bench, sized, smoke
from megatile.runtime.measure.samples import copies

ALLOWED = 25.0
SEED = int(os.environ.get("BENCH_SEED", "2024"))
EACH = sized(4, 1)
"""Shapes of every kind of program."""


def gemm(m: int, n: int, k: int) -> Any:
    return example("21_gemm_block").gemm(m, n, k, 128, 128, 32, "f32", 2)


def attention(seq: int, dim: int, heads: int, causal: bool) -> Any:
    make = example("27_flash_attention").flash_attention
    return make(1, heads, heads, seq, dim, causal, bM=64, bN=64)


def all_reduce(devices: int, count: int) -> Any:
    @T.program
    def kernel(X: T.Tensor((devices, count), "f32"), Y: T.Tensor((count,), "f32")):
        with T.Kernel(device=devices), T.Scale("device"):
            mine, total = T.view(X, layout=T.Shard(0)), T.view(Y, layout=T.Replica)
            T.copy(total[0:count], mine[0, 0:count])
            T.allreduce(total, op="sum")

    return kernel


def programs(seed: int, each: int = EACH) -> Iterator[tuple[str, int, Any]]:
    """A name, how many devices, and the program; sizes are spread evenly over their logarithm."""
    draw = random.Random(seed)

    def size(low: int, high: int, step: int) -> int:
        high = sized(high, low)
        return max(step, round(math.exp(draw.uniform(math.log(low), math.log(high))) / step) * step)

    for number in range(each):
        m = size(128, 1280, 32)
        n, k = (size(64, 1280, 16), size(64, 1280, 16)) if number % 2 else (m, m)
        yield f"GEMM {m}x{n}x{k}", 1, gemm(m, n, k)
    for _ in range(each):
        seq, dim, heads, causal = (
            size(128, 1024, 32),
            draw.choice((64, 128)),
            draw.choice((1, 2, 3)),
            draw.random() < 0.5,
        )
        yield f"attention {seq} D {dim} H {heads}{', causal' * causal}", 1, attention(seq, dim, heads, causal)
    for _ in range(each):
        rows, columns = size(16, 2048, 1), size(128, 8192, 16)
        yield f"softmax {rows}x{columns}", 1, softmax(rows, columns)
    for _ in range(each):
        count, block = size(1 << 13, 1 << 24, 1 << 10), size(1 << 10, 1 << 14, 64)
        yield f"copy of {4 * count >> 10} KiB in blocks of {4 * block >> 10}", 1, copies(count, block)
    for _ in range(each):
        count = size(1 << 8, 1 << 21, 64)
        yield f"all-reduce of {count} elements", 2, all_reduce(2, count)


@bench("compare: predicted beside measured")
def predicted() -> Iterator[Row]:
    machine = mt.machine("cpu") if smoke() else mt.measure(progress=False).machine
    rng = np.random.default_rng(SEED)
    cores = len(os.sched_getaffinity(0))
    for name, devices, program in programs(SEED):
        arrays = [rng.standard_normal(p.shape, dtype=np.float32) for p in program.build("cpu").params]
        for threads in (1, 2):
            if devices <= threads <= cores:
                found = mt.compile(program, threads=threads).compare(
                    *arrays, machine=machine, repeat=sized(20, 1)
                )
                off = 100 * abs(found.ratio - 1)
                yield Row(f"{name}, {threads} threads: predicted is off by", off, "%", bar=at_most(ALLOWED))
