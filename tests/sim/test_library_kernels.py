"""While a library's collective overlaps a kernel it takes compute units and memory bandwidth from it."""

from __future__ import annotations

from functools import cache

import pytest

import megatile as mt
import megatile.language as T
from megatile.collectives.planner import predict

SMALL = {"gpus": 2, "hw_spec.pe_groups.gpu.num_units": 1}
"""Two devices of 22 SMs."""


@cache
def program(first: bool, reduce: bool, compute: bool, small: bool = False):
    """Blocks of a product, and an all-reduce of other data that comes before or beside them."""
    devices, edge, each = (2, 512, 1 << 14) if small else (4, 2048, 1 << 20)

    @T.program
    def kernel(
        A: T.Tensor((devices * edge, 512), "f16"),
        B: T.Tensor((512, edge), "f16"),
        C: T.Tensor((devices * edge, edge), "f16"),
        X: T.Tensor((devices * each,), "f32"),
    ):
        with T.Kernel(device=devices, block=(edge // 64, edge // 64), threads=128) as (bx, by):
            with T.Scale("device"):
                a, c, x = (T.view(t, layout=T.FullRow) for t in (A, C, X))
                if reduce and first:
                    T.allreduce(x)
            if compute:
                with T.Scale("block"):
                    if first:  # blocks that need its data come after it
                        seen = T.alloc((64,), "f32", level="l1")
                        T.copy(seen, x[0])
                    left, right = T.alloc((64, 64), "f16", level="l1"), T.alloc((64, 64), "f16", level="l1")
                    total = T.alloc((64, 64), "f32", level="l0")
                    T.clear(total)
                    for k in T.Pipelined(8, num_stages=2):
                        T.copy(left, a[by * 64, k * 64])
                        T.copy(right, B[k * 64, bx * 64])
                        T.gemm(left, right, total)
                    T.copy(c[by * 64, bx * 64], total)
            if reduce and not first:
                with T.Scale("device"):
                    T.allreduce(x)

    return mt.lower(kernel, machine=mt.machine("dgx-h100", **(SMALL if small else {})))


def blocks_end_us(lowered, engine=None) -> float:
    """When the last block has finished."""
    result = mt.simulate(lowered, launch=False, engine=engine)
    return max(e.end_ps for e in result.trace if e.operation in ("gemm_add", "copy", "fill")) / 1e6


def test_blocks_beside_a_collective_have_fewer_compute_units() -> None:
    alone = blocks_end_us(program(False, False, True))
    collective = mt.simulate(program(False, True, False), launch=False).time_us
    (transport,) = program(False, True, True).plan.transports
    share = (transport.channels or 0) / 132
    assert share > 0.15
    both = blocks_end_us(program(False, True, True))
    assert alone * (1 + 0.8 * share) < both < alone + collective


def test_plain_and_compiled_engine_agree() -> None:
    times = {blocks_end_us(program(False, True, True, small=True), e) for e in ("plain", "compiled")}
    (both,) = times
    assert both > blocks_end_us(program(False, False, True, small=True))


def test_compute_units_are_free_again_after_the_collective() -> None:
    """What follows it takes as long as alone."""
    alone, collective = (mt.simulate(program(True, r, not r), launch=False).time_us for r in (False, True))
    both = mt.simulate(program(True, True, True), launch=False).time_us
    assert both == pytest.approx(alone + collective, rel=0.03)


@pytest.mark.parametrize("machine", ["mi300x-8", "dgx-h100"])
@pytest.mark.parametrize("operation", ["all_reduce", "all_to_all"])
def test_after_blocks_a_collective_takes_as_long_as_alone(machine, operation) -> None:
    """Its messages to several peers leave at the same time, although blocks see what they are read from."""
    each = 1 << 18

    @T.program
    def kernel(X: T.Tensor((4 * each,), "f32"), Y: T.Tensor((4 * each,), "f32")):
        with T.Kernel(device=4, block=4, threads=128) as b:
            with T.Scale("device"):
                x, y = (T.view(t, layout=T.FullRow) for t in (X, Y))
            with T.Scale("block"):
                t = T.alloc((1024,), "f32", level="l1")
                T.fill(t, 1.0)
                T.copy(x[b * 1024], t)
            with T.Scale("device"):
                if operation == "all_reduce":
                    T.allreduce(x)
                else:
                    T.all_to_all(y, x)

    asked = {"machine": machine, "ranks": 4, "nbytes": 4 * each, "launch": False}
    alone = predict(operation, **asked, in_place=operation == "all_reduce")
    result = mt.simulate(kernel, machine=machine, launch=False)
    begin = min(e.start_ps for e in result.trace if e.operation == "start")
    assert result.time_ps - begin == pytest.approx(alone.time_ps, rel=0.02)
