"""``core/basic_operations.py``: operations on tiles."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from megatile.core.operations import OPERATIONS, OperationError, apply, broadcast_shapes, cast, work_of


def test_gemm_accumulates_in_f32():
    a = np.full((1, 4096), 1.0, "f2")
    b = np.full((4096, 1), 1.0, "f2")
    assert apply("gemm", [a, b], "f16")[0, 0] == 4096
    old = np.full((1, 1), 0.5, "f4")
    assert apply("gemm_add", [a, b, old], "f32")[0, 0] == 4096.5
    assert apply("gemm", [a.T, b], "f32", transpose_a=True)[0, 0] == 4096
    integers = np.full((1, 300), 100, "i1")
    assert apply("gemm", [integers, integers.T], "i32")[0, 0] == 3_000_000


def test_reductions_of_half_precision_do_not_lose_the_small_ones():
    x = np.full(4096, 1.0, "f2")
    assert apply("sum", [x], "f16") == 4096
    assert apply("absmax", [np.asarray([-3.0, 2.0])], "f32") == 3
    assert apply("softmax", [np.asarray([1000.0, 1000.0], "f2")], "f16").tolist() == [0.5, 0.5]
    assert apply("cumsum", [np.asarray([1, 2, 3])], "i32").tolist() == [1, 3, 6]


def test_casts_round_and_clip():
    assert cast(np.asarray([300.7, -300.7, np.nan]), "i8").tolist() == [127, -128, 0]
    assert cast(np.asarray([1e10, -1e10, np.inf], "f4"), "i32").tolist() == [2**31 - 1, -(2**31), 2**31 - 1]
    assert cast(np.asarray([1e30, -2.9], "f4"), "i64").tolist() == [2**63 - 1, -2]
    assert cast(np.asarray([300, -1.5], ml_dtypes.bfloat16), "i8").tolist() == [127, -1]
    assert cast(np.asarray([1.005], "f4"), "bf16").dtype == ml_dtypes.bfloat16
    assert np.isinf(cast(np.asarray([1e9], "f4"), "f16")[0])


def test_shapes_and_work():
    assert broadcast_shapes((3, 1), (4,)) == (3, 4)
    with pytest.raises(OperationError, match=r"shapes \(3,\) and \(4,\) do not fit together"):
        broadcast_shapes((3,), (4,))
    with pytest.raises(OperationError, match="takes two matrices"):
        OPERATIONS["gemm"].shape((3,), (3, 3))
    with pytest.raises(OperationError, match="axis 2 is outside"):
        OPERATIONS["sum"].shape((3, 3), axis=2)
    assert work_of("gemm", (2, 4), [(2, 3), (3, 4)], {}) == 48
    assert work_of("add", (5,), [(5,), (5,)], {}) == 5
