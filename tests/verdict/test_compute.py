"""Work on the wrong engine."""

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.ir import nodes as n
from megatile.verdict.compute import with_products
from megatile.verdict.serial import serial_sums
from megatile.verdict.study import Study


def product(inside):
    @T.program
    def kernel(A: T.Tensor((32, 32), "f32"), B: T.Tensor((32, 16), "f32"), C: T.Tensor((32, 16), "f32")):
        with T.Kernel(block=2, threads=32) as y:
            a, b = T.alloc((16, 32), "f32", level="l1"), T.alloc((32, 16), "f32", level="l1")
            c = T.alloc((16, 16), "f32")
            T.clear(c)
            T.copy(a, A[y * 16, 0])
            T.copy(b, B[0, 0])
            if inside:
                for i, j in T.Parallel(16, 16):
                    for q in T.serial(32):
                        c[i, j] += a[i, q] * b[q, j]
            else:
                for q in T.serial(32):
                    for i, j in T.Parallel(16, 16):
                        c[i, j] += a[i, q] * b[q, j]
            T.copy(C[y * 16, 0], c)

    return kernel


def product_by_sums(rows):
    """A column (or row) of the result at a time: products of elements, then their sums."""

    @T.program
    def kernel(A: T.Tensor((32, 32), "f32"), B: T.Tensor((32, 16), "f32"), C: T.Tensor((32, 16), "f32")):
        with T.Kernel(block=2, threads=32) as y:
            a, b = T.alloc((16, 32), "f32", level="l1"), T.alloc((32, 16), "f32", level="l1")
            c, part, total = T.alloc((16, 16), "f32"), T.alloc((16, 32), "f32"), T.alloc((16,), "f32")
            T.copy(a, A[y * 16, 0])
            T.copy(b, B[0, 0])
            T.clear(c)
            for j in T.serial(16):
                for i, q in T.Parallel(16, 32):
                    part[i, q] = a[j, q] * b[q, i] if rows else a[i, q] * b[q, j]
                T.reduce_sum(part, total, dim=1)
                for i in T.Parallel(16):
                    if rows:
                        c[j, i] = total[i]
                    else:
                        c[i, j] = total[i]
            T.copy(C[y * 16, 0], c)

    return kernel


@pytest.mark.parametrize("rows", [False, True])
def test_products_by_sums_of_elements_are_found(rows):
    changed = with_products(mt.lower(product_by_sums(rows), machine="dgx-h100").source)
    assert len(list(n.each(n.Gemm, changed.body))) == 1
    rng = np.random.default_rng(0)
    a, b, c = rng.random((32, 32), "f4"), rng.random((32, 16), "f4"), np.zeros((32, 16), "f4")
    mt.run(changed, a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-3)


@pytest.mark.parametrize("inside", [False, True])
def test_products_by_hand_are_found_in_either_order_of_loops(inside):
    changed = with_products(mt.lower(product(inside), machine="dgx-h100").source)
    assert len(list(n.each(n.Gemm, changed.body))) == 1
    rng = np.random.default_rng(0)
    a, b, c = rng.random((32, 32), "f4"), rng.random((32, 16), "f4"), np.zeros((32, 16), "f4")
    mt.run(changed, a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-3)


def test_loops_in_elementwise_code_are_no_reductions_of_tiles():
    assert not list(serial_sums(Study(mt.simulate(product(True), machine="dgx-h100"))))
