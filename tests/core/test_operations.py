"""Operations, dtypes and registries."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from megatile.core.dtypes import NAMES, DtypeError, accumulator, dtype, itemsize, numpy_dtype
from megatile.core.errors import MegatileError, Place
from megatile.core.operations import OPERATIONS, OperationError, apply, broadcast_shapes, cast, work_of
from megatile.core.registry import Registry, UnknownNameError


def test_spellings_of_dtypes():
    assert dtype("float16") == dtype(np.float16) == dtype(np.dtype("f2")) == dtype("half") == "f16"
    assert dtype(ml_dtypes.bfloat16) == dtype("bfloat16") == "bf16"
    assert dtype("torch.float32") == "f32"
    assert dtype("f8") == dtype("float8_e4m3fn") == "f8e4m3"
    assert [itemsize(n) for n in ("f64", "f32", "bf16", "f8e5m2", "bool")] == [8, 4, 2, 1, 1]
    assert [accumulator(n) for n in ("f16", "f64", "i8", "i64")] == ["f32", "f64", "i32", "i64"]
    with pytest.raises(DtypeError, match=r"dtype 'f31' is unknown.*did you mean 'f32'"):
        dtype("f31")


@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_round_trips_through_numpy(name):
    assert dtype(numpy_dtype(name)) == ("f32" if name == "tf32" else name)  # NumPy has no tf32


GIVEN = {
    "pad": {"at0": 1, "at1": 0, "n0": 5, "n1": 4},
    "nest": {"code": "w[j, i] = (exp(a0[i, j]) + s0 for i, j in (3, 3))", "s0": 2},
}
"""Attributes that an operation cannot do without."""


def test_leading_axes_are_a_batch():
    """The meaning on a batch is the meaning on each of its elements: for every operation."""
    rng = np.random.default_rng(0)
    for name, operation in OPERATIONS.items():
        if operation.operands == 0 or name.startswith("attention"):
            continue  # attention takes operands of shapes of its own: test_attention_operations.py
        if name == "library_kernel":
            continue  # it has a time and no data: tests/models/test_plans.py
        more = GIVEN.get(name, {})
        shapes = [(3, 3)] * abs(operation.operands)
        if name.endswith("_onto"):
            shapes[-1] = (3,)
        arrays = [rng.uniform(0.5, 2, (5, *shape)).astype("f4") for shape in shapes]
        together = operation.meaning(*arrays, **more)
        for i in range(5):
            np.testing.assert_allclose(
                together[i], operation.meaning(*[a[i] for a in arrays], **more), rtol=1e-6, err_msg=name
            )
        shape = operation.shape(*shapes, **more)
        assert together.shape[1:] == tuple(shape), name


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


def test_registries():
    things: Registry[int] = Registry("things")
    things.register("one")(1)
    assert (things["one"], list(things), len(things), "one" in things) == (1, ["one"], 1, True)
    with pytest.raises(MegatileError, match="'one' is already among the things"):
        things.add("one", 2)
    with pytest.raises(UnknownNameError, match=r"f.py:3: 'ane' is not among the things.*did you mean 'one'"):
        things.find("ane", Place("f.py", 3))
