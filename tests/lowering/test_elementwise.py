"""``lowering/elementwise.py``: elementwise code as ``nest`` commands."""

from __future__ import annotations

import numpy as np
import pytest

import megatile as mt
import megatile.language as T


def test_variables_that_a_store_changes_keep_their_value() -> None:
    @T.program
    def swap(A: T.Tensor((16,), "f32"), B: T.Tensor((16,), "f32")):
        with T.Kernel(block=1, threads=16):
            a = T.alloc((16,), "f32")
            b = T.alloc((16,), "f32")
            T.copy(a, A[0])
            T.copy(b, B[0])
            for i in T.Parallel(16):
                t = a[i]
                a[i] = b[i]
                b[i] = t
            T.copy(A[0], a)
            T.copy(B[0], b)

    a, b = np.arange(16, dtype="f4"), -np.arange(16, dtype="f4")
    got = mt.execute(swap, a, b, machine="dgx-h100")
    np.testing.assert_array_equal(got["A"], b)
    np.testing.assert_array_equal(got["B"], a)


def test_the_first_special_function_of_a_command_is_waited_for():
    def program(function):
        @T.program
        def kernel(X: T.Tensor((16,), "f32")):
            with T.Kernel(block=1, threads=128):
                x = T.alloc((16,), "f32")
                T.copy(x, X[0])
                for i in T.Parallel(16):
                    x[i] = function(x[i])
                T.copy(X[0], x)

        return kernel

    def longer(function):
        times = []
        for latency in ("0 ns", "40 ns"):
            host = mt.machine("cpu", **{"engines.special_functions.latency": latency})
            times.append(mt.simulate(program(function), (16,), machine=host).time_ns)
        return times[1] - times[0]

    assert longer(T.exp) == pytest.approx(40, rel=0.01)
    assert longer(lambda x: x + 1.0) == 0
