"""Threads in step, as TileLang's kernels have them: every statement by all threads before the next."""

import numpy as np

import megatile as mt
import megatile.tilelang as tilelang
import megatile.tilelang.language as T


@T.prim_func
def folded(A: T.Tensor((100,), "float32"), B: T.Tensor((128,), "float32")):
    with T.Kernel(2, threads=64) as bx:
        s = T.alloc_shared((64,), "float32")
        t = T.get_thread_binding()
        s[t] = A[bx * 64 + t]
        T.sync_threads()
        B[bx * 64 + t] = s[63 - t]
        for _ in T.serial(3):
            if t < 32:
                s[t] = s[t + 32] + s[t]
            else:
                s[t] = s[t - 1] * 0.5
            T.sync_threads()
        A[bx * 64 + t] = s[t]


def test_statements_are_done_by_all_threads_before_the_next() -> None:
    program = tilelang.compile(folded).program
    results = []
    for run in (lambda *x: mt.run(program, *x), mt.compile(program, target="cuda")):
        results.append((np.arange(100, dtype=np.float32), np.zeros(128, np.float32)))
        run(*results[-1])
    for wanted, got in zip(*results, strict=True):
        np.testing.assert_array_equal(got, wanted)
