"""``lowering/lowered.py``: ``lower(prog, …, machine=)``."""

from __future__ import annotations

from typing import Any

import pytest
from tests.lowering.shared import tiled_gemm

import megatile as mt
import megatile.language as T
from megatile.lowering.explain import figures
from megatile.plan import model as pm


def without_places(plan: mt.Plan) -> str:
    return "\n".join(line.split("  #")[0] for line in str(plan).splitlines())


GEMM = """\
plan("kernel", scale="device", grid=(1,))
block = level(scale="block", grid=(6,), parent="device", slots=6)
A = tile(f16, (128, 64), memory="hbm", role="inout")
B = tile(f16, (64, 192), memory="hbm", role="inout")
C = tile(f32, (128, 192), memory="hbm", role="inout")
a = tile(f16, (64, 32), memory="shared", versions=3, level="block")
b = tile(f16, (32, 64), memory="shared", versions=3, level="block")
c = tile(f32, (64, 64), memory="registers", level="block")
with units((0, 6, 1), level="block"):
    c <- fill(value=0, flops=4096)
    for k in range(0, 2, 1):
        a <- fresh.copy(A[unit // 3 * 64:+64, k * 32:+32], bytes=4096, dtype="f16")
        b <- fresh.copy(B[k * 32:+32, unit % 3 * 64:+64], bytes=4096, dtype="f16")
        c <- gemm_add(a, b, c, flops=262144, dtype="f16")
    C[unit // 3 * 64:+64, unit % 3 * 64:+64] <- copy(c, bytes=16384, by="lsu")"""


def test_a_product_in_full() -> None:
    assert without_places(mt.lower(tiled_gemm(128, 192, 64), machine="dgx-h100").plan).rstrip() == GEMM


def test_the_plan_does_not_grow_with_blocks_or_iterations() -> None:
    small = mt.lower(tiled_gemm(128, 192, 64), machine="dgx-h100").plan
    large = mt.lower(tiled_gemm(8192, 8192, 8192), machine="dgx-h100").plan
    assert len(str(large).splitlines()) == len(str(small).splitlines())
    assert large.instances("block") == 16384


def test_more_stages_help_until_the_engine_is_busy() -> None:
    times = [mt.simulate(tiled_gemm(64, 64, 1024, stages=s), machine="dgx-h100").time_ps for s in (1, 2, 4)]
    assert times[0] > times[1] > times[2]


def copies(prog: Any, machine: Any = "dgx-h100") -> list[int]:
    """The bytes of every copy of a program's Plan by a DMA engine."""
    plan = mt.lower(prog, machine=machine).plan
    return [
        int(s.work.bytes.value)
        for body in plan.bodies
        for s in body
        if isinstance(s, pm.Compute) and s.engine == "dma"
    ]


def through(tensor: str, tile: str, level: str, result: str | None = None) -> Any:
    """Every block loads 64×128 elements of a tensor into a tile, and stores them to another tensor."""

    @T.program
    def program(X: T.Tensor((640, 128), tensor), Y: T.Tensor((640, 128), result or tensor)):
        with T.Kernel(block=10, threads=128) as b:
            x = T.alloc((64, 128), tile, level=level)
            T.copy(x, X[b * 64, 0])
            T.copy(Y[b * 64, 0], x)

    return program


@pytest.mark.parametrize("level", ["l0", "l1"])
@pytest.mark.parametrize(
    ("tensor", "tile", "width"),
    [("f16", "f32", 2), ("f32", "f16", 4), ("f8e4m3", "f32", 1), ("f32", "f32", 4)],
)
@pytest.mark.parametrize("machine", ["dgx-h100", "mi300x-8"])
def test_a_copy_that_converts_moves_the_elements_of_the_tensor(
    tensor: str, tile: str, width: int, level: str, machine: str
) -> None:
    """Memories above the unit hold the tensor's type; the unit converts."""
    assert copies(through(tensor, tile, level), machine) == [64 * 128 * width] * 2


def test_each_tensor_has_its_own_width() -> None:
    assert copies(through("f16", "f32", "l0", "f8e4m3")) == [64 * 128 * 2, 64 * 128]


def test_a_copy_between_tensors_moves_the_wider_elements() -> None:
    @T.program
    def program(X: T.Tensor((640, 128), "f32"), Y: T.Tensor((640, 128), "f16")):
        with T.Kernel(block=10, threads=128) as b:
            T.copy(Y[b * 64 : b * 64 + 64, 0:128], X[b * 64 : b * 64 + 64, 0:128])

    assert max(copies(program)) == 64 * 128 * 4


def test_rows_of_a_narrow_tensor_fill_its_own_sectors() -> None:
    """Rows of 8 elements: 32 bytes in f32, one sector; 16 bytes in f16, half of one."""

    @T.program
    def program(X: T.Tensor((64, 64), "f32"), Y: T.Tensor((64, 64), "f16")):
        with T.Kernel(block=1, threads=128):
            x = T.alloc((64, 8), "f32")
            T.copy(x, X[0, 0])
            T.copy(Y[0, 0], x)

    assert copies(program) == [64 * 32, 64 * 32]


def test_a_product_of_1024_stores_half_floats() -> None:
    """64 blocks, each 32 tiles of 8 KiB of both factors; the result is 2 MiB in f16, 4 in f32."""
    for dtype, stored in (("f16", 2 << 20), ("f32", 4 << 20)):
        prog = tiled_gemm(1024, 1024, 1024, 128, 128, 32, result=dtype)
        lowered = mt.lower(prog, machine="dgx-h100")
        assert figures(lowered).moved == 64 * 32 * 2 * (128 * 32 * 2) + stored
        assert mt.simulate(lowered).traffic["l2_cache"].written_bytes == stored


def test_a_store_in_half_floats_takes_half_the_time() -> None:
    """Blocks that only store: 256 MiB of f16 and 512 MiB of f32 at the memory's rate."""

    def filled(dtype: str, rows: int = 1 << 20) -> Any:
        @T.program
        def program(Y: T.Tensor((rows, 128), dtype)):
            with T.Kernel(block=rows // 64, threads=128) as b:
                y = T.alloc((64, 128), "f32")
                T.fill(y, 1.0)
                T.copy(Y[b * 64, 0], y)

        return program

    half, full = (mt.lower(filled(dtype), machine="dgx-h100") for dtype in ("f16", "f32"))
    times = [mt.simulate(low, record=False).time_ps for low in (half, full)]
    bounds = [mt.price(low).lower_ps for low in (half, full)]
    assert times[1] / times[0] == pytest.approx(2, rel=0.1)
    assert bounds[0] <= times[0] <= 1.1 * bounds[0]
