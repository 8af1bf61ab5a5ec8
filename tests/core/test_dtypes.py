"""``core/dtypes.py``: element types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from megatile.core.dtypes import NAMES, DtypeError, accumulator, dtype, itemsize, numpy_dtype


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
