"""What devices tell each other: gathers in the order of the networks, and of results rather than of rows."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.verdict.devices import gathered_by_sums, needless_collectives, nested_gathers
from megatile.verdict.reductions import late_reductions
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


def on_rows(body, n=1 << 18, devices=8):
    @T.program
    def made(X: T.Tensor((devices, n), "f32"), Y: T.Tensor((devices, n), "f32")):
        with T.Kernel(device=devices), T.Scale("device"):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            a, b = T.alloc((1, n), "f32", level="l2"), T.alloc((1, n), "f32", level="l2")
            body(x, y, a, b)

    return mt.simulate(made, machine="dgx-h100")


def sent_again(times):
    def body(x, y, a, b):
        T.copy(a, x)
        T.allreduce(a)
        if times == 2:
            T.broadcast(a, root=0)
        T.copy(y, a)

    return body


def sum_of_two(sums, operator="+"):
    def body(x, y, a, b):
        _, n = x.shape
        for i, j in T.Parallel(1, n):
            a[i, j] = x[i, j] * 0.5
        for i, j in T.Parallel(1, n):
            b[i, j] = x[i, j] * x[i, j]
        if sums == 1:
            for i, j in T.Parallel(1, n):
                a[i, j] = a[i, j] + b[i, j]
        T.allreduce(a)
        if sums == 2:
            T.allreduce(b)
        for i, j in T.Parallel(1, n):
            y[i, j] = a[i, j] if sums == 1 else a[i, j] * b[i, j] if operator == "*" else a[i, j] + b[i, j]

    return body


@pytest.mark.parametrize("body", [sent_again, sum_of_two])
def test_a_collective_too_many(body):
    slow, fast = (on_rows(body(times)) for times in (2, 1))
    (found,) = needless_collectives(Study(slow))
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.15)
    assert not list(needless_collectives(Study(fast)))
    assert not list(needless_collectives(Study(on_rows(sum_of_two(2, "*")))))
