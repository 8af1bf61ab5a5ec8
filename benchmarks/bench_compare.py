"""Predicted beside measured on this computer, after measuring it: within 25 %, by one thread and by two.

No shape here is one that the measurement uses, and no figure belongs to a program.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

import megatile as mt
import megatile.language as T
from bench_compile import example, gemm, softmax
from harness import Row, at_most, bench

ALLOWED = 25.0


def copy(count: int, block: int) -> Any:
    @T.program
    def kernel(X: T.Tensor((count,), "f32"), Y: T.Tensor((count,), "f32")):
        with T.Kernel(block=T.ceildiv(count, block), threads=128) as bx:
            x = T.alloc((block,), "f32")
            T.copy(x, X[bx * block])
            T.copy(Y[bx * block], x)

    return kernel


def attention(seq: int, dim: int, heads: int, causal: bool) -> Any:
    make = example("27_flash_attention").flash_attention
    return make(1, heads, heads, seq, dim, causal, bM=64, bN=64)


def programs() -> Iterator[tuple[str, Any]]:
    for n in (384, 512, 768, 1024):
        yield f"GEMM {n}", gemm(n)
    for seq, dim, heads, causal in ((512, 64, 2, False), (512, 64, 2, True), (384, 128, 1, False)):
        yield f"attention {seq} D {dim}{', causal' * causal}", attention(seq, dim, heads, causal)
    for rows, columns in ((256, 768), (512, 512), (1024, 1024), (64, 4096)):
        yield f"softmax {rows}x{columns}", softmax(rows, columns)
    for count, block in ((1 << 17, 1 << 13), (1 << 20, 1 << 14), (1 << 24, 1 << 14)):
        yield f"copy of {4 * count >> 10} KiB", copy(count, block)


def all_reduce(devices: int, count: int) -> Any:
    @T.program
    def kernel(X: T.Tensor((devices, count), "f32"), Y: T.Tensor((count,), "f32")):
        with T.Kernel(device=devices), T.Scale("device"):
            mine, total = T.view(X, layout=T.Shard(0)), T.view(Y, layout=T.Replica)
            T.copy(total[0:count], mine[0, 0:count])
            T.allreduce(total, op="sum")

    return kernel


def several_devices() -> Iterator[tuple[str, Any]]:
    for count in (1 << 12, 3 << 14, 1 << 18, 1 << 20):
        yield f"all-reduce of {4 * count >> 10} KiB by two devices", all_reduce(2, count)


def compared(machine: Any, which: Iterator[tuple[str, Any]], threads: int) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    for name, program in which:
        arrays = [rng.standard_normal(p.shape, dtype=np.float32) for p in program.build("cpu").params]
        found = mt.compile(program, threads=threads).compare(*arrays, machine=machine, repeat=20)
        off = 100 * abs(found.ratio - 1)
        yield Row(f"{name}, {threads} threads: predicted is off by", off, "%", bar=at_most(ALLOWED))


@bench("compare: predicted beside measured")
def predicted() -> Iterator[Row]:
    machine = mt.measure(progress=False).machine
    yield from compared(machine, programs(), 1)
    if len(os.sched_getaffinity(0)) > 1:
        yield from compared(machine, programs(), 2)
        yield from compared(machine, several_devices(), 2)
