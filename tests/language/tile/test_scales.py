"""``language/tile/scales.py``: ``T.Kernel`` and ``T.Scale``."""

import numpy as np
import pytest
from tests.language.tile.shared import arrays, zeros

import megatile as mt
import megatile.language as T
from megatile.language.tile.errors import ProgramError


@pytest.mark.parametrize(("wide", "narrow"), [("device", "threads"), ("gpu", "thread")])
def test_aliases_of_scales(wide: str, narrow: str) -> None:
    @T.program
    def p(X: T.Tensor((2, 2), "i32")):
        with T.Kernel(**{wide: 2, "block": 1, narrow: 256}):
            with T.Scale(wide):
                x = T.view(X, layout=T.FullRow)
            with T.Scale("block"):
                with T.Scale("warp_group") as (r, n):
                    x[0, r] = r + 10 * n

    x = zeros(2, 2, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, [[20, 21], [20, 21]])


def test_the_three_spellings_of_scale() -> None:
    @T.program
    def p(X: T.Tensor((3, 2), "i32")):
        with T.Kernel(block=1, threads=256):
            with T.Scale("warpgroup") as (r, n):
                X[0, r] = n
            with T.Scale("warpgroup") as a, b:
                X[1, a] = b
            with T.Scale("warpgroup") as rank:
                X[2, rank] = rank.size

    x = zeros(3, 2, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, np.full((3, 2), 2))


def test_coordinates_of_a_grid() -> None:
    @T.program
    def p(X: T.Tensor((8, 3), "i32")):
        with T.Kernel(device=(2, 4)):
            with T.Scale("device") as r:
                x, y = r.coords
                X[r, 0] = r
                X[r, 1] = x
                X[r, 2] = y

    x = zeros(8, 3, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, [[r, r % 2, r // 2] for r in range(8)])


def test_scales_that_a_machine_lacks_have_one_unit() -> None:
    @T.program
    def p(X: T.Tensor((1,), "i32")):
        with T.Kernel(block=1):
            with T.Scale("warpgroup") as (r, n):
                X[r] = n

    x = zeros(1, dtype=np.int32)
    mt.run(p, x, machine="cerebras-wse2")
    assert x[0] == 1


def test_waves() -> None:
    @T.program
    def p(X: T.Tensor((3000,), "i32")):
        with T.Kernel(block=3000, threads=1024) as b:
            X[b] = b + 1

    assert p.build().launch.slots == 264
    x = zeros(3000, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, np.arange(1, 3001))


def test_clusters_run_in_waves() -> None:
    @T.program
    def p(X: T.Tensor((3000, 2), "i32")):
        with T.Kernel(cluster=3000, block=2, threads=1024):
            with T.Scale("cluster") as (c, _):
                with T.Scale("block") as (b, _):
                    T.barrier()
                    X[c, b] = c

    assert p.build().launch.slots == 264
    x = zeros(3000, 2, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, np.repeat(np.arange(3000)[:, None], 2, axis=1))

    @T.program
    def waiting(X: T.Tensor((1,), "i32")):
        with T.Kernel(cluster=3000, block=2, threads=1024):
            with T.Scale("cluster"):
                T.barrier()

    with pytest.raises(mt.MegatileError, match="are not resident, only 132 fit at once"):
        mt.run(waiting, zeros(1, dtype=np.int32))


def test_positional_extents_are_blocks() -> None:
    @T.prim_func
    def p(X: T.Tensor((2, 3), "i32")):
        with T.Kernel(3, 2, threads=32) as (bx, by):
            X[by, bx] = bx + 10 * by

    x = zeros(2, 3, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, [[0, 1, 2], [10, 11, 12]])


def test_rank_below_several_scales() -> None:
    @T.program
    def p(X: T.Tensor((8,), "i32")):
        with T.Kernel(device=2, block=1, threads=128):
            with T.Scale("warp") as (r, n):
                X[r // n * 4 + r % n] = 1
            with T.Scale("device") as (d, _):
                with T.Scale("block"):
                    with T.Scale("warp") as (w, m):
                        X[d * m + w] = X[d * m + w] + w

    x = zeros(8, dtype=np.int32)
    with pytest.raises(
        mt.MegatileError
    ):  # outside a device, T.Scale("warp") counts the warps of one implied block
        mt.run(p, x)


M, N, K = 64, 96, 48


def cluster_gemm(size=(2), machine_tile: int = 32):
    """The README's cluster-level product, with its tiles."""
    t, k = machine_tile, 16

    @T.program
    def kernel(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(cta_cluster=size, block=(2 * N // t, M // t), threads=256):
            with T.Scale("cta_cluster") as cluster:
                cx, cy = cluster.coords
                a = T.alloc((t, k), "f32", level="l1")
                b = T.alloc((k, t), "f32", level="l1")
                c = T.alloc((t, t), "f32", level="l1")
                T.clear(c)
                for i in T.serial(K // k):
                    T.copy(a, A[cy * t, i * k])
                    T.copy(b, B[i * k, cx * t])
                    T.gemm(a, b, c)
                T.copy(C[cy * t, cx * t], c)

    return kernel


def test_clusters_of_two_blocks_of_the_grid() -> None:
    program = cluster_gemm().build()
    launch = program.launch
    assert (launch.extents("cluster"), launch.extents("block")) == ((3, 2), (2, 1))
    a, b = arrays((M, K), (K, N))
    c = np.zeros((M, N), np.float32)
    mt.run(cluster_gemm(), a, b, c)
    np.testing.assert_array_equal(c, a @ b)
    np.testing.assert_array_equal(mt.execute(cluster_gemm(), a, b, 0 * c)["C"], a @ b)
    assert mt.simulate(cluster_gemm()).time_ps > 0


def test_the_readme_as_written() -> None:
    @T.program
    def gemm(A: T.Tensor((32, 16), "f32"), B: T.Tensor((16, 32), "f32"), C: T.Tensor((32, 32), "f32")):
        with T.Kernel(cta_cluster=(2), block=(2, 1), threads=256):
            with T.Scale("cta_cluster"):
                T.gemm(A, B, C)

    a, b = arrays((32, 16), (16, 32))
    c = np.zeros((32, 32), np.float32)
    assert "cluster" in str(gemm)
    mt.run(gemm, a, b, c)
    np.testing.assert_array_equal(c, a @ b)
    np.testing.assert_array_equal(mt.execute(gemm, a, b, 0 * c)["C"], a @ b)


def test_coordinates_are_those_of_the_grid() -> None:
    @T.program
    def kernel(Y: T.Tensor((4, 6), "i32")):
        with T.Kernel(cta_cluster=(2, 2), block=(6, 4), threads=32) as (bx, by):
            Y[by, bx] = by * 10 + bx

    y = np.zeros((4, 6), np.int32)
    mt.run(kernel, y)
    assert (y == np.arange(4)[:, None] * 10 + np.arange(6)).all()


@pytest.mark.parametrize("size", [4, (2, 3), (2, 1, 1), 0])
def test_grids_that_are_not_made_of_clusters(size) -> None:
    with pytest.raises(ProgramError, match="is not made of clusters|whole numbers from 1"):
        cluster_gemm(size).build()


def test_a_pair_and_a_cluster_are_different_scales() -> None:
    hda = mt.machine("dgx-h100")
    assert (hda.scale("cta_pair").level, hda.scale("tbc").level) == ("tpc", "gpc")
    assert hda.count("block", within="cta_pair") == 2

    @T.program
    def kernel(Y: T.Tensor((2, 3, 2), "i32")):
        with T.Kernel(tbc=2, cta_pair=3, block=2, threads=32):
            with T.Scale("tbc") as c:
                with T.Scale("cta_pair") as p:
                    with T.Scale("block") as b:
                        Y[c, p, b] = c * 100 + p * 10 + b

    y = np.zeros((2, 3, 2), np.int32)
    mt.run(kernel, y)
    assert y[1, 2].tolist() == [120, 121]
