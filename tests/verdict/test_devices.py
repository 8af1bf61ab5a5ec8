"""What devices tell each other: gathers in the order of the networks, and of results rather than of rows."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.verdict.devices import gathered_then_reduced, nested_gathers
from megatile.verdict.study import Study


def gathered(across_first, rows=64, columns=256):
    @T.program
    def kernel(X: T.Tensor((16 * rows, columns), "f16"), Y: T.Tensor((16, 2, 8, rows, columns), "f16")):
        with T.Kernel(node=2, device=8), T.Scale("node"):
            xs, ys = T.view(X, layout=T.FullRow), T.view(Y, layout=T.Shard(0))
            with T.Scale("device"):
                x, y = T.view(xs, layout=T.FullRow), T.view(ys, layout=T.Shard(0))
                every = T.alloc((2, 8, rows, columns), "f16", level="l2")
                mine = T.alloc((1, 1, rows, columns), "f16", level="l2")
                T.copy(mine[0, 0, 0:rows, 0:columns], x)
                if across_first:
                    part = T.alloc((2, 1, rows, columns), "f16", level="l2")
                    T.allgather(part, mine, scale="node")
                    T.allgather(every, part)
                else:
                    part = T.alloc((1, 8, rows, columns), "f16", level="l2")
                    T.allgather(part, mine)
                    T.allgather(every, part, scale="node")
                T.copy(y[0], every)

    return kernel


def largest(late, rows=64, columns=256):
    @T.program
    def kernel(X: T.Tensor((8 * rows, columns), "f32"), Y: T.Tensor((8, 8 * rows), "f32")):
        with T.Kernel(device=8), T.Scale("device"):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            tops = T.alloc((8 * rows,), "f32", level="l2")
            if late:
                every = T.alloc((8 * rows, columns), "f32", level="l2")
                T.allgather(every, x)
                T.reduce_max(every, tops, dim=1)
            else:
                top = T.alloc((rows,), "f32", level="l2")
                T.reduce_max(x, top, dim=1)
                T.allgather(tops, top)
            T.copy(y[0, 0 : 8 * rows], tops)

    return kernel


@pytest.mark.parametrize(
    ("rule", "slow", "fast", "machine"),
    [
        (nested_gathers, gathered(False), gathered(True), "h100-cluster"),
        (gathered_then_reduced, largest(True), largest(False), "dgx-h100"),
    ],
)
def test_gathers_of_more_than_need_be(rule, slow, fast, machine):
    slow, fast = (mt.simulate(program, machine=machine) for program in (slow, fast))
    (found,) = rule(Study(slow))
    assert found.time_ps == pytest.approx(fast.time_ps, rel=0.05)
    assert not list(rule(Study(fast)))
