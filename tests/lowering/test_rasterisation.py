"""``use_swizzle`` of TileLang changes which blocks run together, so what they find in the cache; no data."""

import numpy as np
import pytest

import megatile as mt
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


@pytest.mark.parametrize(
    "text", ["panel_size=8, enable=False", "panel_size=8, order=column", "", "panel_size=0"]
)
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
