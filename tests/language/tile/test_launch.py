"""``language/tile/launch.py``: from ``T.Kernel(device=4, block=(8, 8), threads=256)`` and a machine to the
scales of a launch."""

import numpy as np
from tests.language.tile.shared import zeros

import megatile as mt
import megatile.language as T
from megatile.hda import ScaleView


def test_an_instance_as_launch() -> None:
    instance = mt.machine("dgx-h100").instantiate(
        [ScaleView("gpu", instance_num=2), ScaleView("block", instance_num=3, is_flatten=True),
         ScaleView("thread", instance_num=256, is_flatten=True)]
    )  # fmt: skip

    @T.program
    def p(X: T.Tensor((6, 2), "i32")):
        with instance:
            with T.Scale("block") as (b, _):
                with T.Scale("warpgroup") as (w, _):
                    X[b, w] = 10 * b + w

    x = zeros(6, 2, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, [[10 * b, 10 * b + 1] for b in range(6)])
