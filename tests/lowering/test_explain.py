"""``lowering/explain.py``: what lowering decided, and what a simulated program achieves."""

from dataclasses import replace

import pytest
from tests.lowering.shared import gemm, scaled, tiled_gemm

import megatile as mt
import megatile.language as T
from megatile.lowering.explain import Figures, figures


def test_explanations_name_the_choice_and_the_others() -> None:
    text = mt.lower(gemm(copy="lsu")).explain()
    (line,) = (line for line in text.splitlines() if line.startswith("gemm"))
    assert "tensor" in line
    assert "vector" in line
    assert "shared.py:" in line
    forced = [line for line in text.splitlines() if line.startswith("copy") and "lsu (forced)" in line]
    assert forced
    assert all("tma" in line for line in forced)


def test_time_is_between_the_bounds_and_figures_follow() -> None:
    prog = tiled_gemm(512, 512, 512, 128, 128, 64)
    lowered = mt.lower(prog, machine="dgx-h100")
    result = mt.simulate(prog, machine="dgx-h100")
    found = figures(lowered, result)
    assert found.flops["tensor"] == 2 * 512**3
    assert found.levels[0].instances == 16
    assert 0 < (found.share_of_peak or 0) <= (found.share_of_roofline or 0) < 1
    read = 2 * 512 * 512 * 2  # both inputs once: the cache has the rest, and keeps the result
    assert found.intensity == 2 * 512**3 / read
    cache = result.traffic["l2_cache"]
    assert cache.hit_rate == cache.hits / (cache.hits + cache.misses)
    assert f"{cache.hit_rate:.1%} hits" in result.summary()
    assert found.as_dict()["traffic"]["l2_cache"]["hit_rate"] == cache.hit_rate
    assert result.outputs is None


def test_a_copy_is_held_to_the_roofline_of_memory() -> None:
    """The roof at a low intensity is the memory's bandwidth, not the engine's peak."""

    @T.program
    def add(X: T.Tensor((1 << 16, 128), "f32"), Y: T.Tensor((1 << 16, 128), "f32")):
        with T.Kernel(block=(1 << 16) // 64, threads=128) as b:
            x = T.alloc((64, 128), "f32")
            T.copy(x, X[b * 64, 0])
            for i, j in T.Parallel(64, 128):
                x[i, j] = x[i, j] + 1.0
            T.copy(Y[b * 64, 0], x)

    lowered = mt.lower(add, machine="dgx-h100")
    found = figures(lowered, mt.simulate(lowered))
    assert (found.intensity or 0) < 1
    assert (found.share_of_peak or 0) < 0.1 < (found.share_of_roofline or 0) <= 1


@pytest.mark.parametrize(("columns", "factor"), [(4, 2.0), (8, 1.0), (12, 4 / 3), (64, 1.0)])
def test_rows_are_moved_in_whole_sectors(columns, factor) -> None:
    """Columns of a wider tensor: rows of 16, 32, 48 B in sectors of 32 B; whole rows have no gaps."""

    @T.program
    def part(X: T.Tensor((512, 64), "f32"), Y: T.Tensor((512, 64), "f32")):
        with T.Kernel(block=4, threads=128) as b:
            x = T.alloc((128, columns), "f32")
            T.copy(x, X[b * 128, 0])
            T.copy(Y[b * 128, 0], x)

    lowered = mt.lower(part, machine="dgx-h100")
    found = figures(lowered)
    assert found.moved == 2 * 512 * columns * 4 * factor
    told = [row for row in found.as_dict()["sector_waste"] if row["memory"] == "hbm"]
    assert len(told) == (2 if factor > 1 else 0)
    assert all(row["factor"] == factor and "test_explain.py" in row["source"] for row in told)
    assert ("× the bytes" in str(found)) == (factor > 1)
    machine = mt.machine("tpu-v5p")  # whose file gives no sectors
    assert figures(mt.lower(part, machine=machine)).moved == 2 * 512 * columns * 4


@pytest.mark.parametrize(
    ("bandwidth", "least_us", "of_peak"), [(1e12, 4.0, 0.25), (8e12, 1.0, 0.25), (0.0, 1.0, 0.25)]
)
def test_the_roofline_is_the_longer_of_work_and_moves(bandwidth, least_us, of_peak) -> None:
    """1e9 operations at 1e15 per second, 4 MB, in 4 us; without a bandwidth the work alone."""
    found = Figures(
        "f", "m", (), {"tensor": 10**9, "vector": 5}, 0, {"tensor": 1e15, "vector": 1.0}, 4 * 10**6,
        bandwidth=bandwidth, compulsory_bytes=4 * 10**6,
    )  # fmt: skip
    assert found.least_ps == pytest.approx(least_us * 1e6)
    assert found.share_of_roofline == pytest.approx(least_us / 4)
    assert (found.tflops, found.share_of_peak) == (250.0, of_peak)
    without = replace(found, flops={"vector": 5}, peaks={})
    assert without.share_of_peak is None
    assert without.least_ps == (4e6 * 1e12 / bandwidth if bandwidth else 0)


def test_a_column_of_elements_takes_a_sector_each() -> None:
    """Lanes that are neighbours read 4 B each of other sectors of 32 B."""
    told = figures(mt.lower(scaled("columns", 256), machine="dgx-h100")).as_dict()["sector_waste"]
    assert [(row["memory"], row["row_bytes"], row["factor"]) for row in told] == [("hbm", 4, 8.0)]


def test_rounds_that_data_decide_are_not_counted() -> None:
    @T.program
    def powers(C: T.Tensor((1,), "i32"), X: T.Tensor((64,), "f32")):
        with T.Kernel(block=1, threads=32):
            x = T.alloc((64,), "f32")
            T.copy(x, X)
            n = T.read_scalar(C[0], bound=4)
            for _ in T.serial(n):
                for i in T.Parallel(64):
                    x[i] = x[i] * 2.0
            T.copy(X, x)

    assert figures(mt.lower(powers, machine="dgx-h100")).flops.get("vector", 0) == 0
