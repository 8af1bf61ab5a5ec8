"""Loops whose rounds become blocks: a divided reduction gives the sums of the whole one."""

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.verdict.grid import parts_in_grid, split_sums


def product(last=1, kept=False, K=256):
    @T.program
    def kernel(A: T.Tensor((32, K), "f32"), B: T.Tensor((K, 32), "f32"), C: T.Tensor((32, 32), "f32")):
        with T.Kernel(block=(2, 1, last), threads=32) as (bx, by, _):
            a, b = T.alloc((32, 16), "f32", level="l1"), T.alloc((16, 16), "f32", level="l1")
            c, left = T.alloc((32, 16), "f32"), T.alloc((32, 16), "f32")
            T.clear(c)
            T.clear(left)
            for k in T.Pipelined(K // 16, num_stages=2):
                T.copy(a, A[by * 32, k * 16])
                T.copy(b, B[k * 16, bx * 16])
                T.gemm(a, b, c)
                if kept:
                    for i, j in T.Parallel(32, 16):
                        left[i, j] = T.max(c[i, j], left[i, j])
            T.copy(C[by * 32, bx * 16], left if kept else c)

    return mt.lower(kernel, machine="dgx-h100").source


def run(program):
    rng = np.random.default_rng(5)
    arrays = [rng.random(tuple(map(int, p.shape)), dtype="f4") for p in program.params]
    arrays[-1][...] = 0
    mt.run(program, *arrays)
    return arrays


@pytest.mark.parametrize("most", [4, 5, 16])
def test_parts_of_a_reduction_add_up_to_it(most):
    changed, parts = split_sums(product(), most)
    assert parts == (16 if most == 16 else 4)
    assert changed.launch.count("block") == 2 * parts
    a, b, c = run(changed)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4)


def test_other_loops_are_left_alone():
    """One that keeps more than a sum, and a grid that has no room for another axis."""
    for source in (product(kept=True), product(last=2)):
        assert split_sums(source, 4) == (source, 1)


def test_rounds_that_need_nothing_of_each_other_become_blocks():
    @T.program
    def doubled(X: T.Tensor((8, 64), "f32"), Y: T.Tensor((8, 64), "f32")):
        with T.Kernel(block=2, threads=32) as b:
            x = T.alloc((1, 64), "f32")
            for r in T.Pipelined(4, num_stages=2):
                T.copy(x, X[b * 4 + r, 0])
                for i, j in T.Parallel(1, 64):
                    x[i, j] = x[i, j] * 2.0
                T.copy(Y[b * 4 + r, 0], x)

    changed = parts_in_grid(mt.lower(doubled, machine="dgx-h100").source)
    assert changed.launch.count("block") == 8
    x, y = run(changed)
    np.testing.assert_allclose(y, 2 * x)


def test_blocks_with_rounds_of_their_own_number_are_as_many_as_the_most():
    @T.program
    def doubled(X: T.Tensor((4, 32), "f32"), Y: T.Tensor((4, 32), "f32")):
        with T.Kernel(block=4, threads=32) as b:
            x = T.alloc((1, 8), "f32")
            for r in T.serial(b + 1):
                T.copy(x, X[b : b + 1, r * 8 : r * 8 + 8])
                for i, j in T.Parallel(1, 8):
                    x[i, j] = x[i, j] * 2.0
                T.copy(Y[b : b + 1, r * 8 : r * 8 + 8], x)

    changed = parts_in_grid(mt.lower(doubled, machine="dgx-h100").source)
    assert changed.launch.extents("block") == (4, 4)
    x, y = run(changed)
    np.testing.assert_allclose(y, np.where(np.arange(32) // 8 <= np.arange(4)[:, None], 2 * x, 0))
