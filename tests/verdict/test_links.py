"""Chains of blocks that wait for each other, and sums of parts instead."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.verdict.links import chain_of_blocks, links
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
