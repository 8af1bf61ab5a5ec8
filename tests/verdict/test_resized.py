"""Programs with other tiles compute what they did, and are refused where a size would not go along."""

from fractions import Fraction

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.verdict.resized import axes, changed_sizes, resized, sizes_of


def product(M=64, N=96, K=128, bM=16, bN=32, bK=16):
    @T.program
    def kernel(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=(N // bN, M // bM), threads=128) as (bx, by):
            a, b = T.alloc((bM, bK), "f32", level="l1"), T.alloc((bK, bN), "f32", level="l1")
            c = T.alloc((bM, bN), "f32")
            T.clear(c)
            for k in T.Pipelined(K // bK, num_stages=2):
                T.copy(a, A[by * bM, k * bK])
                T.copy(b, B[k * bK : k * bK + bK, bx * bN : bx * bN + bN])
                T.gemm(a, b, c)
            for i, j in T.Parallel(bM, bN):
                c[i, j] = T.if_then_else(by * bM + i >= bx * bN + j, c[i, j], 0.0)
            T.copy(C[by * bM, bx * bN], c)

    return kernel


def attention(causal, S=64, D=16, bM=8, bN=8):
    @T.program
    def kernel(Q: T.Tensor((2, S, D), "f32"), K: T.Tensor((2, S, D), "f32"), O: T.Tensor((2, S, D), "f32")):
        with T.Kernel(block=(S // bM, 2), threads=32) as (bx, h):
            q, k = T.alloc((bM, D), "f32", level="l1"), T.alloc((bN, D), "f32", level="l1")
            s, o = T.alloc((bM, bN), "f32"), T.alloc((bM, D), "f32")
            m, before, total = T.alloc((bM,), "f32"), T.alloc((bM,), "f32"), T.alloc((bM,), "f32")
            part = T.alloc((bM,), "f32")
            T.copy(q, Q[h, bx * bM : bx * bM + bM, :])
            T.clear(o)
            T.clear(total)
            T.fill(m, -1e30)
            for j in T.Pipelined((bx * bM + bM) // bN if causal else S // bN, num_stages=2):
                T.copy(k, K[h, j * bN : j * bN + bN, :])
                T.clear(s)
                T.gemm(q, k, s, transpose_B=True)
                for y, x in T.Parallel(bM, bN):
                    seen = bx * bM + y >= j * bN + x if causal else True
                    s[y, x] = T.if_then_else(seen, s[y, x], -1e30)
                T.copy(before, m)
                T.reduce_max(s, m, dim=1, clear=False)
                for y, x in T.Parallel(bM, bN):
                    s[y, x] = T.exp(s[y, x] - m[y])
                T.reduce_sum(s, part, dim=1)
                for y in T.Parallel(bM):
                    total[y] = total[y] * T.exp(before[y] - m[y]) + part[y]
                for y, x in T.Parallel(bM, D):
                    o[y, x] = o[y, x] * T.exp(before[y] - m[y])
                T.gemm(s, k, o)
            for y, x in T.Parallel(bM, D):
                o[y, x] = o[y, x] / total[y]
            T.copy(O[h, bx * bM : bx * bM + bM, :], o)

    return kernel


def run(program, seed=3):
    rng = np.random.default_rng(seed)
    arrays = [rng.random(tuple(map(int, p.shape)), dtype="f4") for p in program.params]
    arrays[-1][...] = 0
    mt.run(program, *arrays)
    return arrays[-1]


@pytest.mark.parametrize(
    ("made", "factor", "axes_of"),
    [
        (product(), 2, ["block.y", "k"]),
        (product(), Fraction(1, 2), ["block.x", "block.y", "k"]),
        (attention(False), 2, ["block.x", "j"]),
        (attention(False), Fraction(1, 2), ["block.x", "j"]),
        (attention(True), 2, ["block.x"]),
        (attention(True), Fraction(1, 2), []),
    ],
)
def test_results_are_the_same(made, factor, axes_of):
    source = mt.lower(made, machine="dgx-h100").source
    wanted, tried = run(source), list[str]()
    for here, loop in axes(source):
        changed = resized(source, here, loop, Fraction(factor))
        if changed is not None:
            tried.append(here.text())
            assert sizes_of(changed) != sizes_of(source)
            np.testing.assert_allclose(run(changed), wanted, rtol=1e-4, atol=1e-6)
    assert tried == axes_of


def test_what_overlaps_or_stands_elsewhere_keeps_its_size():
    """A border around the rows of a block, a row of its own, and a tile that a device shares."""

    @T.program
    def smoothed(X: T.Tensor((66,), "f32"), W: T.Tensor((8,), "f32"), Y: T.Tensor((64,), "f32")):
        with T.Kernel(block=8, threads=32) as b:
            x, w = T.alloc((10,), "f32"), T.alloc((8,), "f32")
            T.copy(x, X[b * 8 : b * 8 + 10])
            T.copy(w, W[0])
            for i in T.Parallel(8):
                w[i] = w[i] * (x[i] + x[i + 2])
            T.copy(Y[b * 8], w)

    source = mt.lower(smoothed, machine="dgx-h100").source
    assert [resized(source, here, loop, Fraction(2)) for here, loop in axes(source)] == [None]


def test_extents_of_parallel_are_named_where_there_are_no_tiles() -> None:
    @T.program
    def transpose(X: T.Tensor((64, 64), "f32"), Y: T.Tensor((64, 64), "f32")):
        with T.Kernel(block=(4, 4), threads=32) as (bx, by):
            for i, j in T.Parallel(16, 16):
                Y[bx * 16 + j, by * 16 + i] = X[by * 16 + i, bx * 16 + j]

    program = transpose.build("dgx-h100")
    made = (resized(program, here, loop, Fraction(1, 2)) for here, loop in axes(program))
    said = {changed_sizes(program, one) for one in made if one is not None}
    assert said == {"T.Parallel 16×16 -> 16×8", "T.Parallel 16×16 -> 8×16"}
