"""``language/tile/nest.py``: launches that nested ``T.Scale("block", 4)`` describe, without a
``T.Kernel``."""

import inspect

import numpy as np
import pytest

import megatile as mt
import megatile.language as ours
import megatile.tilelang as tilelang
import megatile.tilelang.language as theirs
from megatile.compat.tilelang.takeover import installed
from megatile.core.errors import MegatileError
from megatile.language.tile.program import ProgramFunction


def run(kernel, *arrays):
    """A kernel in either spelling."""
    if isinstance(kernel, ProgramFunction):
        mt.run(kernel, *arrays)
    else:
        tilelang.compile(kernel)(*arrays)
    return arrays[-1]


@pytest.fixture(params=[ours, theirs], ids=["ours", "theirs"])
def T(request):
    return request.param


def zeros(*shape):
    return np.zeros(shape, np.int32)


def test_blocks_of_two_dimensions_and_threads(T):
    @T.prim_func
    def kernel(out: T.Tensor((2, 4, 32), T.int32)):
        with T.scale("block", workgroup=(4, 2)) as (bx, by):
            with T.scale("thread", workgroup=[32]) as t:
                out[by, bx, t] = 1000 * by + 100 * bx + t

    by, bx, t = np.ogrid[:2, :4, :32]
    assert (run(kernel, zeros(2, 4, 32)) == 1000 * by + 100 * bx + t).all()


def test_dies_clusters_and_sms(T):
    @T.prim_func
    def kernel(order: T.Tensor((148,), T.int32), out: T.Tensor((37, 2, 2), T.int32)):
        with T.Scale("die", 2) as die:
            with T.Scale("sm-cluster", 2, cluster_size=2) as rank:
                with T.Scale("sm", 37, num_sms_per_die=74, cluster_size=2, sm_schedule=order) as sm:
                    with T.Scale("thread", 64) as t:
                        if t == 0:
                            out[sm, die, rank] = 10000 * die + 10 * sm + rank

    sm, die, rank = np.ogrid[:37, :2, :2]
    assert (run(kernel, zeros(148), zeros(37, 2, 2)) == 10000 * die + 10 * sm + rank).all()


def test_clusters_in_clusters_with_a_loop_and_an_assumption_between(T):
    @T.prim_func
    def kernel(out: T.Tensor((4, 2, 2, 8), T.int32)):
        with T.scale("cluster", workgroup=(4,)) as cx:
            with T.scale("cluster", workgroup=2) as cy:
                with T.scale("block", workgroup=(2, 1, 1)) as rank:
                    for _ in T.serial(1):
                        with T.scale("thread", workgroup=(8,)) as t:
                            out[cx, cy, rank, t] = 1000 * cx + 100 * cy + 10 * rank + t

    cx, cy, rank, t = np.ogrid[:4, :2, :2, :8]
    assert (run(kernel, zeros(4, 2, 2, 8)) == 1000 * cx + 100 * cy + 10 * rank + t).all()


def test_warps_are_a_level(T):
    @T.prim_func
    def kernel(out: T.Tensor((4, 8), T.int32)):
        with T.Scale("block", 4) as b:
            with T.Scale("warp", 8) as w:
                out[b, w] = 10 * b + w

    b, w = np.ogrid[:4, :8]
    assert (run(kernel, zeros(4, 8)) == 10 * b + w).all()


def test_a_copy_of_the_block_is_seen_by_its_threads():
    T = theirs

    @T.prim_func
    def kernel(A: T.Tensor((4, 64, 64), T.float16), B: T.Tensor((4, 32), T.float16)):
        with T.scale("block", workgroup=(4,)) as bx:
            tile = T.alloc_shared((64, 64), T.float16)
            T.copy(A[bx, 0, 0], tile)
            with T.scale("thread", workgroup=(32,)) as t:
                B[bx, t] = tile[t, 3]

    a = np.random.default_rng(0).standard_normal((4, 64, 64)).astype(np.float16)
    assert (run(kernel, a, np.zeros((4, 32), np.float16)) == a[:, :32, 3]).all()


def test_a_product_at_the_scale_of_the_device(T):
    @T.prim_func
    def kernel(
        A: T.Tensor((128, 96), T.float16),
        B: T.Tensor((96, 256), T.float16),
        C: T.Tensor((128, 256), T.float16),
    ):
        with T.scale("device"):
            T.gemm(A, B, C)

    random = np.random.default_rng(1)
    a, b = (random.standard_normal(shape).astype(np.float16) for shape in ((128, 96), (96, 256)))
    found = run(kernel, a, b, np.zeros((128, 256), np.float16))
    np.testing.assert_allclose(found, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-2, atol=5e-2)


def test_one_extent_of_devices_gives_one_index():
    T = ours

    @T.program
    def kernel(out: T.Tensor((4, 2), "i32")):
        with T.Scale("device", 4) as di:
            with T.Scale("block", 2, cluster_size=2) as bx:
                out[di, bx] = 10 * di + bx

    assert (run(kernel, zeros(4, 2)) == 10 * np.arange(4)[:, None] + np.arange(2)).all()
    assert mt.simulate(kernel).time_ns > 0
    assert kernel.build().launch.count("cluster") == 4


def test_ranks_of_a_device_scale_are_processes_in_tilelangs_spelling():
    T = theirs

    @T.prim_func
    def kernel(out: T.Tensor((2,), T.int32)):
        with T.Scale("device", 4) as di:
            with T.Scale("block", 1):
                out[0] = di

    assert kernel.build({}, {}).ranks == 4
    with pytest.raises(MegatileError, match="runs on 4 ranks, and 1 launch"):
        tilelang.compile(kernel)(zeros(2))


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ((("block", 4, {"workgroup": (4,)}),), "has extents and workgroup"),
        ((("device", None, {"workgroup": ()}),), r"\", workgroup=\(\)\)"),
        ((("device", None, {"workgroup": (2, 2)}),), "single workgroup dimension"),
        ((("block", 4, {}), ("cluster", 2, {})), r'cluster.* inside T.Scale\("block"\) is not supported'),
        ((("thread", 4, {}), ("block", 2, {})), r'block.* inside T.[sS]cale\("thread"\)'),
        ((("thread", 32, {"swizzle": 8}),), r'T.Scale\("thread", swizzle=8'),
        ((("sm-cluster", 4, {"cluster_size": 2}),), r'sm-cluster", 4, cluster_size=2'),
        ((("sm", 40, {"num_sms_per_die": 74, "cluster_size": 2}),), "40 clusters of 2 do not fit on 74 SMs"),
        ((("blok", 4, {}),), "no scale 'blok'"),
        ((("block", 0, {}),), "whole numbers from 1"),
    ],
)
def test_shapes_without_a_meaning_are_refused_in_a_sentence(T, words, match):
    def kernel(out: T.Tensor((8,), T.int32)):
        with T.scale(words[0][0], *([] if words[0][1] is None else [words[0][1]]), **words[0][2]) as x:
            if len(words) > 1:
                with T.scale(words[1][0], words[1][1]) as y:
                    out[x] = y
            else:
                out[x] = x

    with pytest.raises(MegatileError, match=match) as error:
        run(T.prim_func(kernel), zeros(8))  # TileLang's own reads it at once
    assert "\n" not in error.value.message


def between(kind):
    """A kernel with something between two levels."""
    T = theirs

    @T.prim_func
    def kernel(out: T.Tensor((256,), T.int32), A: T.Tensor((64, 64), T.float16)):
        if kind == "store":
            with T.scale("block", workgroup=(4,)) as b:
                out[b] = b
                with T.scale("thread", workgroup=(32,)) as t:
                    out[b * 32 + t] = t
        if kind == "if":
            with T.scale("block", workgroup=(4,)) as b:
                if b >= 1:
                    with T.scale("thread", workgroup=(32,)) as t:
                        out[b * 32 + t] = t
        if kind == "second thread":
            with T.scale("block", workgroup=(4,)) as b:
                for _ in T.serial(1):
                    with T.scale("thread", workgroup=(32,)) as t:
                        out[b * 32 + t] = t
                for _ in T.serial(1):
                    with T.scale("thread", workgroup=(32,)) as t:
                        out[b * 32 + t] = t
        if kind == "copy":
            with T.scale("cluster", workgroup=(4, 2)) as (c, _d):
                tile = T.alloc_shared((64, 64), T.float16)
                T.copy(A[c * 16, 0], tile)
                with T.scale("block", workgroup=(2,)) as b:
                    with T.scale("thread", workgroup=(32,)) as t:
                        out[(c * 2 + b) * 32 + t] = t
        if kind == "assume":
            with T.scale("die", 2) as d:
                T.assume(d >= 0)
                with T.scale("sm", 4) as s:
                    with T.scale("thread", 32) as t:
                        out[(d * 4 + s) * 32 + t] = t
        if kind == "second launch":
            with T.scale("block", 4) as b:
                with T.scale("thread", 32) as t:
                    out[b * 32 + t] = t
            with T.scale("block", 4) as b:
                with T.scale("thread", 32) as t:
                    out[b * 32 + t] = t
        if kind == "gemm":
            with T.scale("cluster", 2):
                T.gemm(A, A, A)
        if kind == "odd gemm":
            with T.scale("device"):
                T.gemm(A, A, A)

    return kernel


@pytest.mark.parametrize(
    "kind", ["store", "if", "second thread", "copy", "assume", "second launch", "gemm", "odd gemm"]
)
def test_what_tilescale_refuses_is_refused(kind):
    with pytest.raises(MegatileError, match="not supported yet") as error:
        tilelang.compile(between(kind))
    assert "scale" in error.value.message


def test_lowering_refuses_what_tilescale_refuses_and_shows_no_modules():
    with installed():
        import tilelang as taken

        with pytest.raises(MegatileError, match="not supported yet"):
            taken.lower(between("store"), target="cuda")
        T = theirs

        @T.prim_func
        def kernel(out: T.Tensor((4,), T.int32)):
            with T.Scale("block", 4) as b:
                out[b] = b

        artifact = taken.lower(kernel, target="cuda")
        assert artifact.programs[0].launch.count("block") == 4
        assert artifact.kernel_source == taken.compile(kernel).get_kernel_source()
        with pytest.raises(MegatileError, match="host_mod has no counterpart"):
            _ = artifact.host_mod


def test_signature():
    for words in (ours, theirs):
        parameters = inspect.signature(words.scale).parameters
        assert "workgroup" in parameters
        assert "grid" not in parameters


def test_extents_that_contradict_each_other():
    T = ours

    def kernel(*levels):
        @T.program
        def built(out: T.Tensor((8,), T.int32)):
            if levels[0] is not None:
                with T.Kernel(block=levels[0]):
                    with T.Scale("block", levels[1]) as b:
                        out[b] = b
            elif len(levels) == 2:
                with T.Scale("block"):
                    T.clear(out)
            elif levels[1] == "cluster":
                with T.Scale("cluster", 2, cluster_size=4), T.Scale("block", 2) as b:
                    out[b] = b
            else:
                with T.Scale("block", 4) as b:
                    out[b] = b
                with T.Scale("block", 2) as b:
                    out[b] = b

        return built

    wanted = {
        (4, 2): "of 2 units, and the launch has 4",
        (None, 1): "without a launch",
        (None, "cluster", 1): "clusters of 2 blocks, and cluster_size=4",
        (None, "again", 1): r'"\) has extents \(4,\) before and \(2,\) here',
    }
    for levels, match in wanted.items():
        with pytest.raises(MegatileError, match=match):
            mt.run(kernel(*levels), zeros(8))
    assert (run(kernel(8, 8), zeros(8)) == np.arange(8)).all()
