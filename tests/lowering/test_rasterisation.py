"""``use_swizzle`` of TileLang changes which blocks run together, so what they find in the cache; no data."""

import numpy as np
import pytest

import megatile as mt
import megatile.language as L
from megatile.core.expr import substitute, unit
from megatile.ir import nodes as n
from megatile.lowering.phases import rasterised

import megatile.tilelang.language as T  # isort: skip
from megatile import tilelang  # isort: skip


@pytest.mark.parametrize(
    ("across", "rows", "panel"), [(4, 6, 2), (5, 7, 3), (3, 2, 10), (1, 5, 2), (6, 1, 4)]
)
def test_every_block_runs_once_and_panels_go_to_and_fro(across, rows, panel):
    found = rasterised(unit, (across, rows), (n.Hint("use_swizzle", f"panel_size={panel}"),))
    order = [int(str(substitute(found, {"unit": i}))) for i in range(across * rows)]
    assert sorted(order) == list(range(across * rows))
    height = min(panel, rows)
    assert order[:height] == [row * across for row in range(height)]  # the first column of the first panel
    if rows > panel and across > 1:
        first = order[height * across]
        assert (first % across, first // across) == (across - 1, panel)  # the next panel comes back


@pytest.mark.parametrize("text", ["panel_size=8, enable=False", "", "panel_size=0"])
def test_other_hints_leave_the_order(text):
    assert rasterised(unit, (4, 16), (n.Hint("use_swizzle", text),)) is unit


def product(size: int, inner: int, panel: int):
    @T.prim_func
    def main(
        A: T.Tensor((size, inner), "float16"),
        B: T.Tensor((inner, size), "float16"),
        C: T.Tensor((size, size), "float16"),
    ):
        with T.Kernel(size // 128, size // 128, threads=128) as (bx, by):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            if panel:
                T.use_swizzle(panel_size=panel)
            T.clear(c)
            for k in T.Pipelined(inner // 64, num_stages=2):
                T.copy(A[by * 128, k * 64], a)
                T.copy(B[k * 64, bx * 128], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 128, bx * 128])

    return tilelang.compile(main).program


def test_panels_move_less_through_the_cache():
    small = mt.machine("dgx-h100", **{"memory.l2_cache.size": "3 MiB"})
    plain, panels = (mt.simulate(product(8192, 256, panel), machine=small) for panel in (0, 16))
    assert panels.traffic["hbm"].read_bytes < 0.75 * plain.traffic["hbm"].read_bytes


def test_data_do_not_change():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((384, 384)).astype("f2") for _ in range(2))
    found = mt.execute(product(384, 384, 2), a, b, np.zeros((384, 384), "f2"), machine="dgx-h100")
    np.testing.assert_allclose(found["C"], a.astype("f4") @ b.astype("f4"), rtol=2e-2, atol=0.2)


def test_panels_of_columns_and_the_last_block_first():
    across, rows = 5, 7
    hints = (n.Hint("use_swizzle", 'panel_size=2, order="column"'), n.Hint("reverse_blocks"))
    columns, backwards = (
        [int(str(substitute(rasterised(unit, (across, rows), hint), {"unit": i}))) for i in range(35)]
        for hint in (hints[:1], hints[1:])
    )
    assert sorted(columns) == list(range(35))
    assert columns[:4] == [0, 1, 5, 6]  # two columns, row by row
    assert columns[14] == (rows - 1) * across + 2  # and the next two from the last row back
    assert backwards == list(reversed(range(35)))


def own_product(panel: int, order: str = "row"):
    @L.program
    def made(A: L.Tensor((160, 64), "f16"), B: L.Tensor((64, 224), "f16"), C: L.Tensor((160, 224), "f32")):
        with L.Kernel(block=(7, 5), threads=32) as (bx, by):
            if panel:
                L.use_swizzle(panel, order=order)
            a, b = L.alloc((32, 64), "f16", level="l1"), L.alloc((64, 32), "f16", level="l1")
            c = L.alloc((32, 32), "f32")
            L.copy(a, A[by * 32, 0])
            L.copy(b, B[0, bx * 32])
            L.gemm(a, b, c, clear_accum=True)
            L.copy(C[by * 32, bx * 32], c)

    return made


@pytest.mark.parametrize("order", ["row", "column"])
def test_our_own_word_is_lowered_and_exported(order):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((160, 64)).astype("f2"), rng.standard_normal((64, 224)).astype("f2")
    program, expected = own_product(2, order), a.astype("f4") @ b.astype("f4")
    assert mt.lower(program).plan != mt.lower(own_product(0)).plan
    np.testing.assert_allclose(
        mt.execute(program, a, b, np.zeros((160, 224), "f4"))["C"], expected, rtol=1e-3, atol=1e-3
    )
    c = np.zeros((160, 224), "f4")
    mt.compile(program, target="cuda")(a, b, c)  # by the emulation of the CUDA text
    np.testing.assert_allclose(c, expected, rtol=1e-3, atol=1e-3)
    assert f'T.use_swizzle(panel_size=2, order="{order}")' in mt.export(program, "tilelang")
    assert "const long block_" in mt.export(program, "cuda")


@pytest.mark.parametrize(
    ("panel", "order", "said"),
    [(0, "row", "panel_size must be at least 1, got 0"), (2, "diagonal", "unknown order")],
)
def test_wrong_arguments_are_refused(panel, order, said):
    @L.program
    def wrong(A: L.Tensor((4,), "f32")):
        with L.Kernel(block=4, threads=32):
            L.use_swizzle(panel, order=order)

    with pytest.raises(mt.MegatileError, match=said):
        mt.lower(wrong)
