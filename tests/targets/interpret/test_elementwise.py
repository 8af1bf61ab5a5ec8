"""``targets/interpret/elementwise.py``: elementwise code."""

import warnings

import numpy as np
import pytest
from tests.targets.interpret.shared import f32, fails

import megatile as mt
import megatile.language as T
from megatile.language.tile.errors import ProgramWarning
from megatile.targets.interpret.errors import DependenceError, DeviceAssertionError, OutOfBoundsError


def test_element_out_of_bounds() -> None:
    @T.program
    def p(X: T.Tensor((10,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(8):
                X[i + 4] = X[i + 4] + 1.0

    fails(
        OutOfBoundsError,
        r"out of bounds: dimension 0 has 10 elements",
        p,
        f32(10),
        line="X[i + 4] = X[i + 4] + 1.0",
    )


def test_gather_out_of_bounds() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32"), I: T.Tensor((4,), "i32"), Y: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(4):
                Y[i] = X[I[i]]

    fails(OutOfBoundsError, r"'X\[9\]' is out of bounds", p, f32(4), np.array([0, 9, 1, 2], np.int32), f32(4))


def test_dependence_between_iterations() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(7):
                X[i + 1] = X[i] + 1.0

    fails(
        DependenceError,
        r"iteration 1 of T.Parallel reads an element of 'X' that iteration 0 "
        r"writes.*T.serial",
        p,
        f32(8),
    )


def test_iterations_writing_one_element() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32"), Y: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(8):
                Y[i // 2] = X[i]

    fails(
        DependenceError,
        r"several iterations of T.Parallel write 'Y\[0\]'.*T.atomic_add",
        p,
        f32(8),
        f32(4),
        line="Y[i // 2] = X[i]",
    )


def test_independent_iterations_with_other_indices_are_fine() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(4):
                X[i + 4] = X[i] * 2.0

    x = f32(8)
    mt.run(p, x)
    np.testing.assert_array_equal(x, [0, 1, 2, 3, 0, 2, 4, 6])


def test_assert_statement_in_parallel_code() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(4):
                assert X[i] < 3.0, "large"

    with pytest.raises(
        DeviceAssertionError, match=r"assertion failed: large \(iteration \(3,\) of block 0\)"
    ):
        mt.run(p, f32(4))


def test_one_array_given_twice_is_a_warning_where_it_is_written() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32"), Z: T.Tensor((4,), "f32"), Y: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(4):
                Y[i] = X[i] + Z[3 - i]

    both, even = f32(8), f32(8)
    with pytest.warns(
        ProgramWarning, match=r"'X' and 'Y' of 'p' share memory, and one of each is written"
    ) as seen:
        mt.run(p, both[:4], both[4:], both[:4])
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mt.run(p, even[::2], even[::2], even[1::2])


def test_iterations_that_write_one_element_are_found_where_runs_are_checked() -> None:
    @T.program
    def kernel(X: T.Tensor((2,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(4):
                X[i % 2] = T.cast(i, "f32")

    with pytest.raises(DependenceError):
        mt.run(kernel, np.zeros(2, np.float32))
    x = np.zeros(2, np.float32)
    mt.run(kernel, x, checks=False)
    assert set(x.tolist()) <= {0.0, 1.0, 2.0, 3.0}
