"""``targets/interpret/arguments.py``: the arrays a program is called with."""

from typing import Any

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.targets.interpret.errors import ArgumentError


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((), r"'p' takes 1 arrays \(X\), 0 were given.*outputs are arguments too"),
        ((np.zeros(5, np.float32),), r"'X' has shape \(5,\), the program wants \(4,\)"),
        ((np.zeros(4, np.float64),), r"'X' is f64, the program wants f32.*astype\(float32\)"),
        (([1.0, 2.0],), "an argument is list, not an array"),
    ],
)
def test_wrong_arguments(arrays: tuple[Any, ...], message: str) -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            T.clear(X)

    with pytest.raises(ArgumentError, match=message):
        mt.run(p, *arrays)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2"])
def test_narrow_floats_of_torch_are_read_and_written_where_they_are(name: str) -> None:
    torch = pytest.importorskip("torch")

    @T.program
    def p(X: T.Tensor((3,), name), Y: T.Tensor((3,), name)):
        with T.Kernel(block=1):
            for i in T.Parallel(3):
                Y[i] = -X[i]

    x, y = (torch.tensor(values).to(getattr(torch, name)) for values in ([0.5, -1.0, 2.0], [0.0] * 3))
    mt.run(p, x, y)
    assert y.float().tolist() == [-0.5, 1.0, -2.0]
