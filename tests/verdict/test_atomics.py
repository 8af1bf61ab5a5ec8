"""Estimates of remedies with a tile of the block's own are what these bring."""

import pytest

import megatile as mt
import megatile.language as T


def histogram(own, blocks=216, rounds=4, tile=2048, bins=256):
    @T.program
    def made(X: T.Tensor((blocks * rounds * tile,), "u8"), H: T.Tensor((bins,), "i32")):
        with T.Kernel(block=blocks, threads=256) as b:
            x = T.alloc((tile,), "i32")
            mine = T.alloc((bins,), "i32", level="l1")
            if own:
                T.clear(mine)
            for k in T.serial(rounds):
                T.copy(x, X[(b * rounds + k) * tile])
                for i in T.Parallel(tile):
                    if own:
                        T.atomic_add(mine[x[i]], 1)
                    else:
                        T.atomic_add(H[x[i]], 1)
            if own:
                for i in T.Parallel(bins):
                    T.atomic_add(H[i], mine[i])

    return made


def box_filter(near, n=2048):
    @T.program
    def made(X: T.Tensor((n + 2, n + 2), "f16"), Y: T.Tensor((n, n), "f16")):
        with T.Kernel(block=(n // 128, n // 32), threads=256) as (bx, by):
            x, y = T.alloc((32, 128), "f16"), T.alloc((32, 128), "f32")
            edges = T.alloc((34, 130), "f16", level="l1")
            T.clear(y)
            if near:
                T.copy(edges, X[by * 32, bx * 128])
            for di in T.unroll(3):
                for dj in T.unroll(3):
                    if near:
                        for i, j in T.Parallel(32, 128):
                            y[i, j] = y[i, j] + edges[i + di, j + dj]
                    else:
                        T.copy(x, X[by * 32 + di, bx * 128 + dj])
                        for i, j in T.Parallel(32, 128):
                            y[i, j] = y[i, j] + x[i, j]
            T.copy(Y[by * 32, bx * 128], y)

    return made


def scores(heads, rows=16, batch=64, group=8):
    """Products of one query, or of a whole group, in tiles of as many rows as an instruction takes."""

    @T.program
    def made(
        Q: T.Tensor((batch * group, 128), "f16"), K: T.Tensor((batch, 1024, 128), "f16"),
        O: T.Tensor((batch * group, 128), "f32"),
    ):  # fmt: skip
        with T.Kernel(block=batch * group // heads, threads=128) as b:
            q, k = T.alloc((rows, 128), "f16", level="l1"), T.alloc((128, 128), "f16", level="l1")
            s = T.alloc((rows, 128), "f32")
            T.clear(q)
            T.clear(s)
            T.copy(q[0:heads, :], Q[b * heads : b * heads + heads, :])
            for i in T.Pipelined(8, num_stages=2):
                T.copy(k, K[b * heads // group, i * 128, 0])
                T.gemm(q, k, s, transpose_B=True)
            T.copy(O[b * heads : b * heads + heads, :], s[0:heads, :])

    return made


@pytest.mark.parametrize(
    ("name", "make", "values"),
    [
        ("contended atomics", histogram, (False, True)),
        ("repeated loads", box_filter, (False, True)),
        ("blocks that load the same tiles", scores, (1, 8)),
    ],
)
def test_the_gain_is_that_of_a_tile_for_all(name, make, values):
    slow, fast = (mt.simulate(make(value), machine="hgx-a100") for value in values)
    (found,) = (one for one in slow.verdict().findings if one.name == name)
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.2)
