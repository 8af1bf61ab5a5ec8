"""Reductions over units that come too late, or too often."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.verdict.reductions import in_a_loop, late_reductions, reduced_by_blocks
from megatile.verdict.study import Study


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


def gradients(each, n=1 << 18, b=4096, devices=8):
    """A sum over the devices of every micro-batch, added up by blocks; or of what was added up."""

    @T.program
    def made(X: T.Tensor((devices, 4, n), "f32"), G: T.Tensor((devices, n), "f32")):
        with T.Kernel(device=devices, block=n // b, threads=128) as bx:
            with T.Scale("device"):
                x, g = T.view(X, layout=T.Shard(0)), T.view(G, layout=T.FullRow)
                part, total = (T.alloc((n,), "f32", level="l2") for _ in range(2))
                T.clear(total)
                for m in T.serial(4):
                    with T.Scale("block"):
                        u = T.alloc((b,), "f32")
                        T.copy(u, x[0, m, bx * b])
                        T.copy(part[bx * b], u)
                    if each:
                        T.allreduce(part)
                    with T.Scale("block"):
                        v, w = T.alloc((b,), "f32"), T.alloc((b,), "f32")
                        T.copy(v, part[bx * b])
                        T.copy(w, total[bx * b])
                        for i in T.Parallel(b):
                            w[i] = w[i] + v[i]
                        T.copy(total[bx * b], w)
                if not each:
                    T.allreduce(total)
                T.copy(g[0, 0:n], total)

    return made


def test_sums_that_blocks_add_up_could_be_one_sum():
    slow, fast = (mt.simulate(gradients(each), machine="dgx-h100") for each in (True, False))
    (found,) = in_a_loop(Study(slow))
    assert found.time_ps == pytest.approx(fast.time_ps, rel=0.05)
    assert not list(in_a_loop(Study(fast)))


def test_rows_could_be_summed_before_they_are_summed_over_units():
    def sums(late, devices=8, rows=16, n=1 << 14):
        @T.program
        def made(X: T.Tensor((devices, rows, n), "f32"), Y: T.Tensor((devices, rows), "f32")):
            with T.Kernel(device=devices), T.Scale("device"):
                x, y = T.view(X, layout=T.Shard(0)), T.view(Y, layout=T.FullRow)
                total = T.alloc((rows,), "f32", level="l2")
                t = T.alloc((rows, n), "f32", level="l2")
                T.copy(t, x[0])
                if late:
                    T.allreduce(t)
                T.reduce_sum(t, total, dim=1)
                if not late:
                    T.allreduce(total)
                T.copy(y[0, 0:rows], total)

        return mt.simulate(made, machine="dgx-h100")

    (found,) = late_reductions(Study(sums(True)))
    assert found.time_ps == sums(False).time_ps
    assert not list(late_reductions(Study(sums(False))))
