"""``lowering/calls.py``: ``check``, ``execute``, ``simulate`` and ``price`` of a tile program with arrays
or shapes, or of a Plan."""

from __future__ import annotations

import numpy as np
import pytest
from tests.lowering.shared import tiled_gemm

import megatile as mt


def test_arrays_give_outputs_and_shapes_do_not() -> None:
    a = np.ones((64, 32), "f2")
    b = np.ones((32, 64), "f2")
    result = mt.simulate(tiled_gemm(64, 64, 32), a, b, np.zeros((64, 64), "f4"), machine="dgx-h100")
    np.testing.assert_array_equal(result.outputs["C"], np.full((64, 64), 32, "f4"))


def test_wrong_arguments() -> None:
    with pytest.raises(mt.MegatileError, match="takes 3 arrays or shapes"):
        mt.simulate(tiled_gemm(64, 64, 32), (64, 32), machine="dgx-h100")
    with pytest.raises(mt.MegatileError, match="is not a tile program"):
        mt.lower(print, machine="dgx-h100")
    with pytest.raises(mt.MegatileError, match="runs a program on arrays"):
        mt.execute(tiled_gemm(64, 64, 32), machine="dgx-h100")
