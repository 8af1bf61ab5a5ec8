"""Factories that workers of any kind can import."""

import os

import megatile.language as T
from megatile.plan.build import PlanBuilder

CHOICES = {"parts": [1, 2, 4, 8, 16, 32], "passes": [2, 1, 3], "memory": ["shared", "hbm"]}


def adding(parts=1, passes=1, memory="shared", n=1 << 16, wrong=False):
    """x + y in parts on one SM; further passes do it again, and change nothing."""
    if passes == 3 and parts == 2:
        raise ValueError("not these two")
    b = PlanBuilder("adding", scale="block", units=1)
    x, y = (b.tile(name, (n,), "f32", memory="hbm", role="input") for name in "xy")
    z = b.tile("z", (n,), "f32", memory="hbm", role="output")
    size = n // parts
    a, c, d = (b.tile(name, (size,), "f32", memory=memory, versions=2) for name in "acd")
    with b.loop(0, parts) as loop:
        here = slice_of(loop.index * size, size)
        for _ in range(passes):
            b.copy(a, x[here], fresh=True)
            b.copy(c, y[here], fresh=True)
            b.compute("mul" if wrong and passes == 1 else "add", d, [a, c], fresh=True)
        b.copy(z[here], d)
    return b.finish()


def slice_of(start, size):
    return slice(start, start + size)


def gemm(M=128, N=128, K=64, bM=32, bN=32, bK=16, stages=1):
    @T.program
    def kernel(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, N), "f16"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=(T.ceildiv(N, bN), T.ceildiv(M, bM)), threads=128) as (bx, by):
            a = T.alloc((bM, bK), "f16", level="l1")
            b = T.alloc((bK, bN), "f16", level="l1")
            c = T.alloc((bM, bN), "f32", level="l0")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=stages):
                T.copy(a, A[by * bM, k * bK])
                T.copy(b, B[k * bK, bx * bN])
                T.gemm(a, b, c)
            T.copy(C[by * bM, bx * bN], c)

    return kernel


def killing(parts=8, die=32):
    if parts == die:
        os.kill(os.getpid(), 9)
    return adding(parts)


def by_time(result):
    """An objective of which nothing is known before."""
    return result.time_ps


def needy(size, b):
    return gemm(size, bM=b)


def rounded_down(size=96, step=32):
    """Blocks of ``step`` elements; where that does not divide the size, the last elements are left out."""

    @T.program
    def kernel(X: T.Tensor((size,), "f32"), Y: T.Tensor((size,), "f32")):
        with T.Kernel(block=size // step, threads=32) as b:
            x = T.alloc((step,), "f32")
            T.copy(x, X[b * step])
            T.copy(Y[b * step], x)

    return kernel


def two_products(threads=256, columns=256):
    """Two products of one operand: their sums are in registers at one time."""

    @T.program
    def both(
        A: T.Tensor((1024, 1024), "f16"),
        B: T.Tensor((2, 1024, 2048), "f16"),
        C: T.Tensor((2, 1024, 2048), "f16"),
    ):
        with T.Kernel(block=(2048 // columns, 8), threads=threads) as (x, y):
            a, b = T.alloc((128, 32), "f16", level="l1"), T.alloc((32, columns), "f16", level="l1")
            c, d = T.alloc((128, columns), "f32"), T.alloc((128, columns), "f32")
            e = T.alloc((32, columns), "f16", level="l1")
            T.clear(c)
            T.clear(d)
            for k in T.Pipelined(32, num_stages=3):
                T.copy(a, A[y * 128, k * 32])
                T.copy(b, B[0, k * 32, x * columns])
                T.copy(e, B[1, k * 32, x * columns])
                T.gemm(a, b, c)
                T.gemm(a, e, d)
            T.copy(C[0, y * 128, x * columns], c)
            T.copy(C[1, y * 128, x * columns], d)

    return both
