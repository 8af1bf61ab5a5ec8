"""Tensors between phases: what a phase adds up is not computed again by every reader."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.verdict.fusion import between, intermediate
from megatile.verdict.study import Study
from megatile.verdict.traffic import phases


@T.program
def in_two_passes(
    X: T.Tensor((256, 4096), "f32"), Part: T.Tensor((256,), "f32"), Y: T.Tensor((256, 4096), "f32")
):
    with T.Kernel(block=256, threads=128) as b:
        with T.Scale("block"):
            x, part = T.alloc((1, 4096), "f32"), T.alloc((1,), "f32")
            T.copy(x, X[b, 0])
            T.reduce_sum(x, part, dim=1)
            T.copy(Part[b], part)
        with T.Scale("block"):
            every, total, y = T.alloc((1, 256), "f32"), T.alloc((1,), "f32"), T.alloc((1, 4096), "f32")
            T.copy(every, Part[0])
            T.reduce_sum(every, total, dim=1)
            T.copy(y, X[b, 0])
            for i, j in T.Parallel(1, 4096):
                y[i, j] = y[i, j] + total[i]
            T.copy(Y[b, 0], y)


def test_sums_of_a_phase_are_not_computed_by_every_reader():
    (part,) = between(mt.lower(in_two_passes, machine="dgx-h100").plan)
    assert part.name == "Part"
    assert not part.recomputable
    assert not part.elementwise_reader


def passes(together, rows=512, n=1024):
    """Three passes over rows, the last one by parts of a row: through memory, or in a tile."""

    @T.program
    def three(
        X: T.Tensor((rows, n), "f32"),
        A: T.Tensor((rows, n), "f32"),
        B: T.Tensor((rows, n), "f32"),
        Y: T.Tensor((rows, n), "f32"),
    ):
        with T.Kernel(block=rows, threads=256) as b:
            with T.Scale("block"):
                x, s = T.alloc((1, n), "f32"), T.alloc((1,), "f32")
                T.copy(x, X[b, 0])
                T.reduce_max(x, s, dim=1)
                for i, j in T.Parallel(1, n):
                    x[i, j] = x[i, j] * s[i]
                if together:
                    T.reduce_sum(x, s, dim=1)
                    for i, j in T.Parallel(1, n):
                        x[i, j] = T.exp(x[i, j] * s[i])
                    T.copy(Y[b, 0], x)
                else:
                    T.copy(A[b, 0], x)
            if not together:
                with T.Scale("block"):
                    y, total = T.alloc((1, n), "f32"), T.alloc((1,), "f32")
                    T.copy(y, A[b, 0])
                    T.reduce_sum(y, total, dim=1)
                    for i, j in T.Parallel(1, n):
                        y[i, j] = y[i, j] * total[i]
                    T.copy(B[b, 0], y)
                with T.Scale("block"):
                    for k in T.serial(4):
                        z = T.alloc((1, n // 4), "f32")
                        T.copy(z, B[b, k * n // 4])
                        for i, j in T.Parallel(1, n // 4):
                            z[i, j] = T.exp(z[i, j])
                        T.copy(Y[b, k * n // 4], z)

    return three


def test_a_chain_of_phases_is_estimated_as_one():
    slow, fast = (mt.simulate(passes(together), machine="dgx-h100") for together in (False, True))
    (found,) = phases(Study(slow))
    assert "'A'" in found.bottleneck
    assert "then do what is left with 'B' there too" in found.step
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.25)


def widened(before, M=16, N=1024, K=2048):
    """Products with weights of a byte: made wider in a phase before, or in the loop of the product."""

    @T.program
    def made(
        X: T.Input((M, K), "f16"), W: T.Input((K, N), "i8"), Y: T.Tensor((M, N), "f16"),
        Wide: T.Tensor((K, N), "f16"),
    ):  # fmt: skip
        with T.Kernel(block=N // 64, threads=128) as bx:
            if before:
                with T.Scale("block"):
                    q, w = T.alloc((128, 64), "i8", level="l1"), T.alloc((128, 64), "f16")
                    for k in T.Pipelined(K // 128, num_stages=3):
                        T.copy(q, W[k * 128, bx * 64])
                        T.copy(w, q)
                        T.copy(Wide[k * 128, bx * 64], w)
            with T.Scale("block"):
                x, b = T.alloc((M, 128), "f16", level="l1"), T.alloc((128, 64), "f16", level="l1")
                narrow, c = T.alloc((128, 64), "i8", level="l1"), T.alloc((M, 64), "f32")
                T.clear(c)
                for k in T.Pipelined(K // 128, num_stages=3):
                    T.copy(x, X[0, k * 128])
                    if before:
                        T.copy(b, Wide[k * 128, bx * 64])
                    else:
                        T.copy(narrow, W[k * 128, bx * 64])
                        T.copy(b, narrow)
                    T.gemm(x, b, c)
                T.copy(Y[0, bx * 64], c)

    return made


def test_elements_could_be_computed_where_they_are_read():
    slow, fast = (mt.simulate(widened(before), machine="dgx-h100") for before in (True, False))
    (found,) = intermediate(Study(slow))
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.2)
    assert "compute 'Wide' where it is read" in found.step
