"""Units that work one after the other: blocks that wait for each other, devices without micro-batches."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.verdict.chains import chain_of_blocks, devices_take_turns, links, turns_of
from megatile.verdict.study import Study


def running_sums(chained, blocks=512, n=4096):
    """Running sums of a row over all blocks: each passes its own on to the next, or in three phases."""

    @T.program
    def scan(X: T.Tensor((blocks, n), "f32"), Y: T.Tensor((blocks, n), "f32"), S: T.Tensor((blocks,), "f32")):
        with T.Kernel(block=blocks, threads=256) as b:
            with T.Scale("device"):
                flag = T.alloc((blocks,), "i32", level="l2")
            with T.Scale("block"):
                x, total, before = T.alloc((1, n), "f32"), T.alloc((1,), "f32"), T.alloc((1,), "f32")
                T.copy(x, X[b, 0])
                T.reduce_sum(x, total, dim=1)
                if chained:
                    T.clear(before)
                    if b > 0:
                        T.wait(flag[b - 1], 1)
                        T.copy(before, S[b - 1])
                    for i in T.Parallel(1):
                        total[i] = total[i] + before[i]
                    T.copy(S[b], total)
                    T.signal(flag[b])
                    T.cumsum(x, x, dim=1)
                    for i, j in T.Parallel(1, n):
                        x[i, j] = x[i, j] + before[i]
                    T.copy(Y[b, 0], x)
                else:
                    T.copy(S[b], total)
            if not chained:
                with T.Scale("block"):
                    sums = T.alloc((blocks,), "f32")
                    if b == 0:
                        T.copy(sums, S[0])
                        T.cumsum(sums, sums, dim=0)
                        T.copy(S[0:blocks], sums)
                with T.Scale("block"):
                    y, first = T.alloc((1, n), "f32"), T.alloc((1,), "f32")
                    T.copy(y, X[b, 0])
                    T.copy(first, S[b])
                    T.cumsum(y, y, dim=1)
                    for i, j in T.Parallel(1, n):
                        y[i, j] = y[i, j] + first[i]
                    T.copy(Y[b, 0], y)

    return scan


def test_a_chain_of_blocks_is_named_and_parts_are_summed_first():
    slow, fast = (mt.simulate(running_sums(chained), machine="dgx-h100") for chained in (True, False))
    (found,) = chain_of_blocks(Study(slow))
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.25)
    assert not list(chain_of_blocks(Study(fast)))


def test_neighbours_that_exchange_are_no_chain():
    @T.program
    def exchange(X: T.Tensor((8, 64), "f32"), Y: T.Tensor((8, 64), "f32")):
        with T.Kernel(block=8, threads=128) as b:
            with T.Scale("device"):
                flag = T.alloc((8,), "i32", level="l2")
            with T.Scale("block"):
                x = T.alloc((64,), "f32")
                T.copy(x, X[b, 0])
                T.copy(Y[b, 0], x)
                T.signal(flag[b])
                if b > 0:
                    T.wait(flag[b - 1], 1)
                    T.copy(x, Y[b - 1, 0])

    assert not links(mt.lower(exchange, machine="dgx-h100").source)


def pipeline(parts, M=8192, N=1024, devices=4):
    """A product with every device's weights, one after the other, of all rows or of a part at a time."""
    rows = M // parts

    @T.program
    def kernel(
        X: T.Tensor((M, N), "f16"),
        W: T.Tensor((devices * N, N), "f16"),
        Y: T.Tensor((devices * M, N), "f16"),
    ):
        with T.Kernel(device=devices, block=(N // 128, rows // 128), threads=256) as (bx, by):
            with T.Scale("device") as (r, n):
                w, y = T.view(W, layout=T.FullRow), T.view(Y, layout=T.FullRow)
                x, box = T.view(X, layout=T.Replica), T.alloc((M, N), "f16", level="l2")
                T.copy(box, x)
                T.barrier()
            for s in T.serial(devices + parts - 1):
                with T.Scale("block"):
                    if (s >= r) & (s - r < parts):
                        a, b = T.alloc((128, 64), "f16", level="l1"), T.alloc((64, 128), "f16", level="l1")
                        c = T.alloc((128, 128), "f32")
                        T.clear(c)
                        for k in T.Pipelined(N // 64, num_stages=3):
                            T.copy(a, box[(s - r) * rows + by * 128, k * 64])
                            T.copy(b, w[k * 64, bx * 128])
                            T.gemm(a, b, c)
                        T.copy(y[(s - r) * rows + by * 128, bx * 128], c)
                with T.Scale("device"):
                    mine = (s >= r) & (s - r < parts) & (r < n - 1)
                    if mine:
                        at = (s - r) * rows
                        T.copy(box[at : at + rows, :], y[at : at + rows, :], dst=r + 1)
                    T.barrier()

    return kernel


def test_devices_of_which_one_works_at_a_time_are_found():
    slow = mt.simulate(pipeline(1), machine="dgx-h100")
    (found,) = devices_take_turns(Study(slow))
    parts = int(found.step.split()[4])
    written = mt.simulate(pipeline(parts), machine="dgx-h100")
    assert found.gain == pytest.approx(slow.time_ps / written.time_ps, rel=0.25)
    assert turns_of(Study(written)) is None
