"""Grids of blocks on a wafer's mesh: neighbours stay neighbours whichever way a grid fits, and data agree."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.cost import bounded, links
from megatile.lowering.explain import figures
from megatile.sim import sharing
from megatile.timing.resources import control_ps

stencil = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "38_stencil.py"))["stencil"]
WAFER = mt.machine("cerebras-wse2", width=6, height=5)


@pytest.mark.parametrize(
    ("nx", "ny", "furthest"),
    [(6, 5, 1), (4, 3, 1), (5, 6, 1), (12, 2, 2), (2, 12, 2), (17, 1, 3)],
    ids=["whole", "part", "turned", "folded", "turned and folded", "folded twice"],
)
def test_neighbours_stay_near(nx, ny, furthest):
    low = mt.lower(stencil(nx, ny, h=2, w=2, steps=2), machine=WAFER)
    (level,) = low.plan.levels
    place = np.broadcast_to(level.place.evaluate({"unit": np.arange(nx * ny)}), (nx * ny,)).reshape(ny, nx)
    assert len(np.unique(place)) == nx * ny
    assert place.min() >= 0
    assert place.max() < 30
    x, y = place % 6, place // 6
    for axis in (0, 1):
        apart = abs(np.diff(x, axis=axis)) + abs(np.diff(y, axis=axis))
        assert apart.max(initial=0) <= furthest
    u = np.random.default_rng(0).standard_normal((2 * ny, 2 * nx), dtype=np.float32)
    expected = u.copy()
    mt.run(low.program, expected, machine=WAFER)
    np.testing.assert_array_equal(mt.execute(low, u)["U"], expected)
    assert mt.simulate(low, record=False).time_ps >= mt.price(low).lower_ps


def test_transfers_without_end_are_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(sharing, "MAX_HOPS", 100)
    with pytest.raises(mt.MegatileError, match=r"cross more than 100 links.*side by side.*'fabric'"):
        mt.simulate(stencil(7, 4, h=2, w=2, steps=1), machine=WAFER)


@pytest.mark.parametrize("name", ["cerebras-wse2", "ahbm", "tpu-v5p"])
def test_a_captured_launch_leaves_the_host_out(name: str) -> None:
    """Neither the message that installs queues nor the one that starts the plan comes from the host."""
    hda = mt.machine(name, **({"width": 8, "height": 8} if name == "cerebras-wse2" else {}))
    plan = mt.collective("all_reduce", machine=hda, scale="block", nbytes=1024, algorithm="ring", ranks=2)
    usual, captured = (mt.simulate(plan, machine=hda, launch=launch).time_ps for launch in (True, False))
    assert usual - captured == 2 * control_ps(hda, hda.level(hda.scale("block").level).position)
    bounds = mt.price(plan, hda, launch=False)
    assert bounds.lower_ps <= captured <= bounds.upper_ps


def gemm(size: int, tile: int, depth: int):
    @T.program
    def kernel(
        A: T.Tensor((size, size), "f16"), B: T.Tensor((size, size), "f16"), C: T.Tensor((size, size), "f16")
    ):
        with T.Kernel(block=(size // tile, size // tile), threads=1) as (bx, by):
            left, right = T.alloc((tile, depth), "f16", level="l1"), T.alloc((depth, tile), "f16", level="l1")
            total = T.alloc((tile, tile), "f32", level="l0")
            T.clear(total)
            for k in T.Pipelined(size // depth, num_stages=2):
                T.copy(left, A[by * tile, k * depth])
                T.copy(right, B[k * depth, bx * tile])
                T.gemm(left, right, total)
            T.copy(C[by * tile, bx * tile], total)

    return kernel


@pytest.mark.parametrize(("width", "height", "size", "tile"), [(6, 5, 80, 16), (5, 9, 96, 16), (8, 8, 64, 8)])
def test_loads_of_a_mesh_are_those_of_its_routes(monkeypatch, width, height, size, tile):
    """Counted by the ends of straight parts as by the links one by one."""
    hda = mt.machine("cerebras-wse2", width=width, height=height)
    low = mt.lower(gemm(size, tile, 16), machine=hda)
    lower = mt.price(low, launch=False).lower_ps
    monkeypatch.setattr(links, "_mesh", lambda view: None)
    again = mt.lower(gemm(size, tile, 16), machine=hda)
    assert lower == pytest.approx(mt.price(again, launch=False).lower_ps, rel=1e-4)
    assert mt.simulate(low, launch=False, record=False).time_ps >= lower


def test_a_gemm_that_is_too_large_to_simulate_is_bounded_by_its_links(monkeypatch):
    hda = mt.machine("cerebras-wse2", width=8, height=8)
    simulated = mt.simulate(gemm(128, 16, 32), machine=hda, launch=False)
    monkeypatch.setattr(bounded, "MAX_HOPS", 100)
    result = mt.simulate(gemm(128, 16, 32), machine=hda, launch=False)
    assert result.time_ps <= mt.price(gemm(128, 16, 32), machine=hda, launch=False).lower_ps
    assert 0.5 * simulated.time_ps < result.time_ps <= simulated.time_ps
    assert "busiest link" in result.summary()
    assert "at least" in result.summary()
    assert "too many to be simulated" in result.timed_by
    assert result.verdict() is None
    assert "the busiest link serves" in result.why_slow()
    assert figures(mt.lower(gemm(128, 16, 32), machine=hda), result).time_ps == result.time_ps
    with pytest.raises(mt.MegatileError, match="its time is a bound"):
        result.trace  # noqa: B018


def test_the_fabric_bounds_a_gemm_of_the_whole_wafer():
    """570 TFLOP/s were said once, without the fabric."""
    result = mt.simulate(gemm(4096, 32, 64), machine="cerebras-wse2", launch=False)
    assert 10 < 2 * 4096**3 / result.time_ps < 100
