"""``lowering/lowered.py``: ``lower(prog, …, machine=)``."""

from __future__ import annotations

from tests.lowering.shared import tiled_gemm

import megatile as mt


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
