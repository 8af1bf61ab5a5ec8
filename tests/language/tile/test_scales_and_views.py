"""Clusters of a grid's blocks, and layouts of views that follow from their uses."""

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.language.tile.errors import ProgramError

M, N, K = 64, 96, 48


def arrays(*shapes: tuple[int, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes]


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


def test_the_readme_as_it_stands() -> None:
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


def viewed(body, shapes=((64, 16), (16, 32), (64, 32))):
    """A kernel whose two warp groups see tiles a, b and c through views."""

    @T.program
    def kernel(A: T.Tensor(shapes[0], "f32"), B: T.Tensor(shapes[1], "f32"), C: T.Tensor(shapes[2], "f32")):
        with T.Kernel(block=1, threads=256):
            a = T.alloc(shapes[0], "f32", level="l1")
            b = T.alloc(shapes[1], "f32", level="l1")
            c = T.alloc(shapes[2], "f32", level="l0")
            T.copy(a, A)
            T.copy(b, B)
            T.clear(c)
            with T.Scale("warpgroup") as w:
                body(a, b, c, w)
            T.copy(C, c)

    return kernel


def layouts(kernel) -> dict[str, str]:
    from megatile.ir.nodes import View, walk

    return {v.source: str(v.layout) for v in walk(kernel.build().body) if isinstance(v, View)}


def product_rows(a, b, c, w) -> None:
    T.gemm(T.view(a), T.view(b), T.view(c, layout=T.FullRow))


def product_columns(a, b, c, w) -> None:
    T.gemm(T.view(a), T.view(b), T.view(c), policy=T.GemmWarpPolicy.FullCol)


def product_from_a(a, b, c, w) -> None:
    T.gemm(T.view(a, layout=T.FullRow), T.view(b), T.view(c))


def product_inner(a, b, c, w) -> None:
    my_c = T.view(c)
    T.gemm(T.view(a, layout=T.FullCol), T.view(b), my_c)
    T.allreduce(my_c)


def product_by_extents(a, b, c, w) -> None:
    mine = T.alloc((64, 16), "f32", level="l0")
    T.clear(mine)
    T.gemm(T.view(a), T.view(b), mine)
    T.copy(T.view(c), mine)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (product_rows, ("Shard(0)", "Replicate", "Shard(0)")),
        (product_columns, ("Replicate", "Shard(1)", "Shard(1)")),
        (product_from_a, ("Shard(0)", "Replicate", "Shard(0)")),
        (product_inner, ("Shard(1)", "Shard(0)", "Partial")),
        (product_by_extents, ("Replicate", "Shard(1)", "Shard(1)")),
    ],
)
def test_products_say_how_their_views_are_divided(body, found) -> None:
    kernel = viewed(body)
    seen = [layout.replace("dim=", "") for layout in map(layouts(kernel).get, "abc")]
    assert all(got.startswith(want.rstrip(")")) for got, want in zip(seen, found, strict=True)), seen
    a, b = arrays((64, 16), (16, 32))
    c = np.zeros((64, 32), np.float32)
    mt.run(kernel, a, b, c)
    np.testing.assert_array_equal(c, a @ b)
    np.testing.assert_array_equal(mt.execute(kernel, a, b, 0 * c)["C"], a @ b)


def test_copies_elements_and_reductions_say_it() -> None:
    @T.program
    def kernel(A: T.Tensor((64, 16), "f32"), R: T.Tensor((64,), "f32")):
        with T.Kernel(block=1, threads=256):
            a = T.alloc((64, 16), "f32", level="l1")
            twice = T.alloc((64, 16), "f32", level="l0")
            total = T.alloc((64,), "f32", level="l0")
            T.copy(a, A)
            with T.Scale("warpgroup"):
                mine, my_total = T.view(twice), T.view(total)
                part = T.view(a, layout=T.FullRow)
                for i, j in T.Parallel(32, 16):
                    mine[i, j] = part[i, j] * 2.0
                T.reduce_sum(mine, my_total, dim=1)
            T.copy(R, total)

    (a,) = arrays((64, 16))
    r = np.zeros(64, np.float32)
    mt.run(kernel, a, r)
    np.testing.assert_array_equal(r, 2 * a.sum(1))


def no_evidence(a, b, c, w) -> None:
    T.clear(T.view(c))


def only_its_own_shape(a, b, c, w) -> None:
    mine = T.view(c)
    other = T.alloc(mine.shape, "f32", level="l0")
    T.copy(other, mine)


def several_ways(a, b, c, w) -> None:
    T.gemm(T.view(a), T.view(b), T.view(c))


@pytest.mark.parametrize("body", [no_evidence, only_its_own_shape, several_ways])
def test_views_whose_uses_do_not_say_it(body) -> None:
    with pytest.raises(
        ProgramError, match=r"T.view of '[abc]' at scale 'warpgroup' has no layout.*FullRow"
    ) as e:
        viewed(body).build()
    assert e.value.place is not None
    assert "T.view(" in str(e.value)
