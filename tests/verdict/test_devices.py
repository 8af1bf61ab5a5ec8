"""What devices tell each other: gathers in the order of the networks, and of results rather than of rows."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.verdict.devices import (
    gathered_by_sums,
    late_reductions,
    nested_gathers,
    reduced_by_blocks,
)
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


def pooled(late, samples=512, bag=4, width=64):
    @T.program
    def kernel(X: T.Tensor((8, samples * bag, width), "f32"), Y: T.Tensor((8, samples, width), "f32")):
        with T.Kernel(device=8, block=samples // 16, threads=128) as b, T.Scale("device"):
            x, y = T.view(X, layout=T.Shard(0)), T.view(Y, layout=T.Shard(0))
            got = T.alloc((samples * (bag if late else 1), width), "f32", level="l2")
            if late:
                T.all_to_all(got, x[0])
            with T.Scale("block"):
                z = T.alloc((16 * bag, width), "f32", level="l1")
                total = T.alloc((16, width), "f32")
                T.clear(total)
                if late:
                    T.copy(z, got[b * 16 * bag, 0])
                else:
                    T.copy(z, x[0, b * 16 * bag, 0])
                for s in T.serial(bag):
                    for i, j in T.Parallel(16, width):
                        total[i, j] += z[i * bag + s, j]
                T.copy(y[0, b * 16, 0], total)
            if not late:
                T.all_to_all(got, y[0])

    return kernel


def test_sums_of_what_was_exchanged_could_be_exchanged():
    slow, fast = (mt.simulate(pooled(late), machine="hgx-a100") for late in (True, False))
    (found,) = late_reductions(Study(slow))
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.25)
    assert not list(late_reductions(Study(fast)))


@pytest.mark.parametrize(
    ("rule", "slow", "fast", "machine"),
    [
        (nested_gathers, gathered(False), gathered(True), "h100-cluster"),
        (late_reductions, largest(True), largest(False), "dgx-h100"),
    ],
)
def test_gathers_of_more_than_need_be(rule, slow, fast, machine):
    slow, fast = (mt.simulate(program, machine=machine) for program in (slow, fast))
    (found,) = rule(Study(slow))
    assert found.time_ps == pytest.approx(fast.time_ps, rel=0.05)
    assert not list(rule(Study(fast)))


def test_parts_that_are_added_to_zeros_are_an_all_gather():
    def shared(by_sum, rows=1 << 16):
        @T.program
        def kernel(X: T.Tensor((8, rows), "f32"), Y: T.Tensor((8, 8, rows), "f32")):
            with T.Kernel(device=8), T.Scale("device") as (r, _):
                x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.Shard(0))
                every = T.alloc((8, rows), "f32", level="l2")
                if by_sum:
                    T.clear(every)
                    T.copy(every[r, 0:rows], x[0, 0:rows])
                    T.allreduce(every)
                else:
                    T.allgather(every, x)
                T.copy(y[0], every)

        return kernel

    slow, fast = (mt.simulate(shared(by_sum), machine="dgx-h100") for by_sum in (True, False))
    (found,) = gathered_by_sums(Study(slow))
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.1)


def best_of(gathered, of_a_view, rows=64, columns=4096, devices=4):
    """The largest element of each row: of all columns on every device, or of its own first."""

    @T.program
    def kernel(L: T.Tensor((rows, columns), "f32"), Best: T.Tensor((rows,), "f32")):
        with T.Kernel(device=devices, block=rows // 2, threads=128) as bx:
            with T.Scale("device"):
                mine, best = T.view(L, layout=T.FullCol), T.view(Best, layout=T.Replica)
                if gathered and of_a_view:
                    mine = T.allgather(mine)
                elif gathered:
                    every = T.alloc((rows, columns), "f32", level="l2")
                    T.allgather(every, mine)
                    mine = every
                with T.Scale("block"):
                    x, top = T.alloc((2, 256), "f32"), T.alloc((2,), "f32")
                    T.fill(top, -T.infinity("f32"))
                    for k in T.Pipelined(columns // 256 // (1 if gathered else devices), num_stages=2):
                        T.copy(x, mine[bx * 2, k * 256])
                        T.reduce_max(x, top, dim=1, clear=False)
                    T.copy(best[bx * 2], top)
                if not gathered:
                    T.allreduce(best, op="max")

    return kernel


@pytest.mark.parametrize("of_a_view", [False, True])
def test_blocks_that_reduce_what_was_gathered(of_a_view):
    slow, fast = (mt.simulate(best_of(g, of_a_view), machine="hgx-a100") for g in (True, False))
    (found,) = reduced_by_blocks(Study(slow))
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.1)
    assert not list(reduced_by_blocks(Study(fast)))
