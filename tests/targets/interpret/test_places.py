"""``targets/interpret/places.py``: where the elements of a name are for a unit."""

import numpy as np
from tests.targets.interpret.shared import f32, fails

import megatile as mt
import megatile.language as T
from megatile.targets.interpret.errors import RunError


def test_no_such_peer() -> None:
    @T.program
    def p(X: T.Tensor((2, 4), "f32")):
        with T.Kernel(device=2):
            with T.Scale("device") as (r, n):
                t = T.alloc((1, 4), "f32", level="l2")
                T.copy(t, T.view(X, layout=T.FullRow), dst=r + 1)

    fails(RunError, "there is no device 2: ranks go from 0 to 1.*% size", p, f32(2, 4))


def test_uneven_shards_must_be_copied_by_their_own_extent() -> None:
    @T.program
    def p(X: T.Tensor((10,), "f32"), Y: T.Tensor((10,), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device"):
                x, y = T.view(X, layout=T.Shard(0)), T.view(Y, layout=T.Shard(0))
                t = T.alloc((3,), "f32", level="l2")
                T.copy(t[0 : x.shape[0]], x)
                T.copy(y, t[0 : y.shape[0]])

    x, y = f32(10), np.zeros(10, np.float32)
    mt.run(p, x, y)
    np.testing.assert_array_equal(x, y)

    @T.program
    def wrong(X: T.Tensor((10,), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device"):
                x = T.view(X, layout=T.Shard(0))
                t = T.alloc((3,), "f32", level="l2")
                T.copy(t, x)

    fails(RunError, r"T.copy: 't' \(3,\) and 'x' \(1,\) have different shapes.*uneven shards", wrong, f32(10))
