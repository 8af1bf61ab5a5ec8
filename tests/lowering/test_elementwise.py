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


def counting(most: int, step: int):
    @T.program
    def count(A: T.Tensor((4,), "i32")):
        with T.Kernel(block=1, threads=4):
            x = T.alloc((4,), "i32")
            T.copy(x, A[0])
            while T.bounded(x[0] < most, 64):
                for i in T.Parallel(4):
                    x[i] = x[i] + step
            T.copy(A[0], x)

    return count


@pytest.mark.parametrize(("most", "step"), [(0, 1), (1, 1), (30, 1), (63, 1), (30, 7)])
def test_a_while_ends_when_it_should(most: int, step: int) -> None:
    a = np.arange(4, dtype="i4")
    result = mt.simulate(counting(most, step), a, machine="dgx-h100")
    mt.run(counting(most, step), a)
    np.testing.assert_array_equal(result.outputs["A"], a)
    assert mt.price(counting(most, step), machine="dgx-h100").lower_ps <= result.time_ps


def test_a_while_that_never_ends_is_an_error() -> None:
    with pytest.raises(mt.MegatileError, match=r"test_elementwise.py:\d+: .*while_goes_on"):
        mt.execute(counting(1, 0), np.zeros(4, "i4"), machine="dgx-h100")


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
