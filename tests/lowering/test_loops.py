"""``lowering/loops.py``: loops and branches of a stream."""

from __future__ import annotations

from tests.lowering.shared import products_done

import megatile as mt
import megatile.language as T
from megatile.plan import model as pm


def test_what_an_inner_loop_does_not_change_is_counted_once_for_each_round_outside():
    @T.program
    def scaled(X: T.Tensor((8, 16), "f32"), S: T.Tensor((8,), "f32")):
        with T.Kernel(block=1, threads=32):
            x, s = T.alloc((8, 16), "f32"), T.alloc((8,), "f32")
            T.copy(x, X[0, 0])
            T.copy(s, S[0])
            for i, j in T.Parallel(8, 16):
                x[i, j] = x[i, j] * (1.0 / s[i])
            T.copy(X[0, 0], x)

    nest = next(
        s for stream in mt.lower(scaled, machine="mi300x-8").plan.streams
        for s in pm.statements(stream.body) if getattr(s, "operation", "") == "nest"
    )  # fmt: skip
    assert int(nest.work.flops.evaluate({})) == 8 * 16 + 4 * 8


def test_a_tile_that_stays_over_a_loop_is_not_clipped():
    """As compiled code does it: only a loop that fills both operands is one long product."""

    def program(M, N):
        @T.program
        def kernel(A: T.Tensor((M, 32), "f32"), B: T.Tensor((32, N), "f32"), C: T.Tensor((M, N), "f32")):
            with T.Kernel(block=1, threads=128):
                a = T.alloc((64, 32), "f32", level="l1")
                b = T.alloc((32, 64), "f32", level="l1")
                c = T.alloc((64, 64), "f32")
                T.copy(a, A[0, 0])
                for j in T.serial(T.ceildiv(N, 64)):
                    T.clear(c)
                    T.copy(b, B[0, j * 64])
                    T.gemm(a, b, c)
                    T.copy(C[0, j * 64], c)

        return kernel

    assert products_done(program(60, 100), "cpu") == products_done(program(64, 128), "cpu")
