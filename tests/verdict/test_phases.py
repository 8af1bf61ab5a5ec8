"""Phases as one, and work done once before: the programs that are timed compute what they replace."""

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.ir import nodes as n
from megatile.verdict.phases import _passed, _phases, on_chip, shared_work, without_shared


def stepped(in_loop, border=0, steps=4, size=512):
    @T.program
    def kernel(X: T.Tensor((2, size), "f32")):
        with T.Kernel(block=size // 64, threads=64) as b:
            for s in T.serial(steps) if in_loop else range(steps):
                with T.Scale("block"):
                    x, y = T.alloc((1, 64 + border), "f32", level="l1"), T.alloc((1, 64), "f32")
                    T.copy(x, X[s % 2 : s % 2 + 1, b * 64 : b * 64 + 64 + border])
                    for i, j in T.Parallel(1, 64):
                        y[i, j] = x[i, j + border] * 0.5 + 1.0
                    T.copy(X[(s + 1) % 2 : (s + 1) % 2 + 1, b * 64 : b * 64 + 64], y)

    return kernel


def source_of(made):
    return mt.lower(made, machine="dgx-h100").source


def run(program, *arrays):
    rng = np.random.default_rng(2)
    arrays = [*arrays, *(rng.random(tuple(p.shape), dtype="f4") for p in program.params[len(arrays) :])]
    mt.run(program, *arrays)
    return arrays


@pytest.mark.parametrize("border", [0, 2])
@pytest.mark.parametrize("in_loop", [False, True])
def test_steps_that_stay_on_the_chip_are_found(in_loop, border):
    source = source_of(stepped(in_loop, border))
    ((loop, regions),) = _phases(source)
    assert (loop is not None, len(regions)) == (in_loop, 1 if in_loop else 4)
    assert _passed(source, regions) == {"X"}
    changed = on_chip(source, loop, regions, {"X"})
    moves = [m for m in mt.lower(changed, machine="dgx-h100").plan.streams if m.level == "block"]
    assert len(moves) == 1
    if not border:
        np.testing.assert_allclose(run(changed)[0][0], run(source)[0][0])


def test_a_phase_that_reads_what_others_wrote_is_left():
    @T.program
    def kernel(X: T.Tensor((512,), "f32"), S: T.Tensor((8,), "f32")):
        with T.Kernel(block=8, threads=64) as b:
            with T.Scale("block"):
                x, s = T.alloc((64,), "f32"), T.alloc((1,), "f32")
                T.copy(x, X[b * 64])
                T.reduce_sum(x, s, dim=0)
                T.copy(S[b], s)
            with T.Scale("block"):
                every, y = T.alloc((8,), "f32"), T.alloc((64,), "f32")
                T.copy(every, S[0])
                T.copy(y, X[b * 64])
                for i in T.Parallel(64):
                    y[i] = y[i] / every[0]
                T.copy(X[b * 64], y)

    source = source_of(kernel)
    assert [_passed(source, regions) for _, regions in _phases(source)] == [set()]


def gated(M=128, N=96, K=64):
    @T.program
    def kernel(G: T.Tensor((M, K), "f32"), U: T.Tensor((M, K), "f32"), W: T.Tensor((K, N), "f32"),
               Y: T.Tensor((M, N), "f32")):  # fmt: skip
        with T.Kernel(block=(N // 32, M // 32), threads=64) as (bx, by):
            g, u = T.alloc((32, 16), "f32", level="l1"), T.alloc((32, 16), "f32", level="l1")
            h, w = T.alloc((32, 16), "f32", level="l1"), T.alloc((16, 32), "f32", level="l1")
            y = T.alloc((32, 32), "f32")
            T.clear(y)
            for k in T.Pipelined(K // 16, num_stages=2):
                T.copy(g, G[by * 32, k * 16])
                T.copy(u, U[by * 32, k * 16])
                T.copy(w, W[k * 16, bx * 32])
                for i, j in T.Parallel(32, 16):
                    h[i, j] = g[i, j] * T.sigmoid(g[i, j]) * u[i, j]
                T.gemm(h, w, y)
            T.copy(Y[by * 32, bx * 32], y)

    return kernel


def test_what_does_not_differ_between_blocks_is_found():
    source = source_of(gated())
    ((found, times),) = shared_work(source)
    assert (n.written(tuple(found)), times) == ({"h"}, 3)
    (loop,) = n.each(n.Loop, without_shared(source, found).body)
    assert [type(m).__name__ for m in loop.body] == ["Copy", "Copy", "Gemm"]  # of 'h', for which 'g' stands


def test_sums_that_every_column_of_blocks_repeats_are_found():
    @T.program
    def normed(X: T.Tensor((64, 64), "f32"), Y: T.Tensor((64, 64), "f32")):
        with T.Kernel(block=(4, 4), threads=64) as (bx, by):
            x, y = T.alloc((16, 16), "f32"), T.alloc((16, 16), "f32")
            s = T.alloc((16,), "f32")
            T.clear(s)
            for k in T.serial(4):
                T.copy(x, X[by * 16, k * 16])
                T.reduce_sum(x, s, dim=1, clear=False)
            T.copy(y, X[by * 16, bx * 16])
            for i, j in T.Parallel(16, 16):
                y[i, j] = y[i, j] / s[i]
            T.copy(Y[by * 16, bx * 16], y)

    ((found, times),) = shared_work(source_of(normed))
    assert ([type(m) for m in found], times) == ([n.Reduce], 4)
    assert not list(n.each(n.Loop, without_shared(source_of(normed), found).body))
