"""``targets/interpret/record.py``: what one may look at."""

import numpy as np
import pytest
from tests.targets.interpret.shared import f32, looked_at

import megatile as mt
import megatile.language as T
from megatile.targets.interpret.errors import ArgumentError


def test_who_wrote_tiles_and_scalars() -> None:
    arrays = f32(8), np.full(1, 3, np.int32)
    result = mt.run(looked_at(), *arrays, record=True, output=lambda text: None)
    tensor, tile = result.last_write("X", 6), result.last_write("x", 2, unit=0)
    assert tensor is not None and tensor.unit == "block 1" and tensor.statement.startswith("copy(X[")
    assert tile is not None and tile.unit == "block 0" and "T.fill(x, half)" in tile.place.snippet
    assert tile.step < tensor.step
    loop = result.last_write("k", unit=1)
    assert loop is not None and loop.value == 1 and "for k in serial" in str(loop)
    for name, message in (("Z", "nothing called 'Z' was written"), ("xx", "did you mean 'x'")):
        with pytest.raises(ArgumentError, match=message):
            result.last_write(name, 0)
    with pytest.raises(ArgumentError, match="no unit 7 has a tile 'x'.*2 units, from 0"):
        result.last_write("x", 0, unit=7)
    with pytest.raises(ArgumentError, match=r"'x' has 1 dimensions, 0 indices were given.*shape is \(4,\)"):
        result.last_write("x")
    with pytest.raises(ArgumentError, match="'X' has no copy 1"):
        result.last_write("X", 0, copy=1)
    with pytest.raises(ArgumentError, match="this run was not recorded.*record=True"):
        mt.run(looked_at(), *arrays, output=lambda text: None).last_write("X", 0)


def test_the_first_write_of_a_run_is_found() -> None:
    @T.program
    def kernel(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            T.fill(X, 2.0)

    found = mt.run(kernel, np.zeros(4, np.float32), record=True).last_write("X", 0)
    assert found is not None
    assert found.unit == "block 0"
