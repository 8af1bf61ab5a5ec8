"""Tensors between phases: what a phase adds up is not computed again by every reader."""

import megatile as mt
import megatile.language as T
from megatile.verdict.fusion import between


@T.program
def in_two_passes(
    X: T.Tensor((256, 4096), "f32"), Part: T.Tensor((256,), "f32"), Y: T.Tensor((256, 4096), "f32")
):
    with T.Kernel(block=256, threads=128) as b:
        with T.Scale("block"):
            x, part = T.alloc((1, 4096), "f32"), T.alloc((1,), "f32")
            T.copy(x, X[b, 0])
            T.reduce_sum(x, part, dim=1)
            T.copy(Part[b], part)
        with T.Scale("block"):
            every, total, y = T.alloc((1, 256), "f32"), T.alloc((1,), "f32"), T.alloc((1, 4096), "f32")
            T.copy(every, Part[0])
            T.reduce_sum(every, total, dim=1)
            T.copy(y, X[b, 0])
            for i, j in T.Parallel(1, 4096):
                y[i, j] = y[i, j] + total[i]
            T.copy(Y[b, 0], y)


def test_sums_of_a_phase_are_not_computed_by_every_reader():
    (part,) = between(mt.lower(in_two_passes, machine="dgx-h100").plan)
    assert part.name == "Part"
    assert not part.recomputable
    assert not part.elementwise_reader
