"""How many blocks an SM holds; those that wait for a slot are explained by the blocks before them."""

from pathlib import Path

import numpy as np
import pytest
from tests.lowering.machines import user_machine

import megatile as mt
import megatile.language as T

WAVES, WIDTH, ROOM = 4, 8_000, 40_000


@T.program
def scale(X: T.Tensor((132 * WAVES, WIDTH), "f32"), Y: T.Tensor((132 * WAVES, WIDTH), "f32")):
    """Both tensors fit into the L2 cache, so that all blocks of a wave take equally long."""
    with T.Kernel(block=132 * WAVES, threads=128) as b:
        x = T.alloc((1, ROOM), "f32", level="l1")  # one block fits on an SM
        T.copy(x[0:1, 0:WIDTH], X[b, 0])
        for i, j in T.Parallel(1, WIDTH):
            x[i, j] = x[i, j] * 2.0
        T.copy(Y[b, 0], x[0:1, 0:WIDTH])


def test_the_critical_path_goes_through_all_waves():
    r = mt.simulate(scale, machine="dgx-h100")
    work = [step for step in r.critical_path if "test_waves" in step.event.source]
    assert len(work) == 3 * WAVES
    assert max(step.adds_ps for step in work) < r.time_ps / (WAVES - 1)
    assert sum(step.adds_ps for step in r.critical_path) == r.time_ps


def test_a_block_takes_its_time_to_begin_where_another_has_ended(tmp_path: Path) -> None:
    """Three blocks after one another in each place, with and without ``begin`` in the machine's file; the
    upper bound counts it for every block."""
    plain = Path(user_machine(tmp_path)).read_text(encoding="utf-8")
    slow = tmp_path / "slow.yaml"
    slow.write_text(plain.replace("max_resident: 8}", "max_resident: 8, begin: 5 us}"), encoding="utf-8")

    @T.program
    def move(X: T.Tensor((72, 64), "f32"), Y: T.Tensor((72, 64), "f32")):
        with T.Kernel(block=72, threads=128) as b:
            x = T.alloc((1, 24_000), "f32", level="l1")  # one block fits on a core
            T.copy(x[0:1, 0:64], X[b : b + 1, 0:64])
            T.copy(Y[b : b + 1, 0:64], x[0:1, 0:64])

    times = [mt.simulate(move, machine=str(file)).time_ps for file in (user_machine(tmp_path), slow)]
    assert times[1] - times[0] == pytest.approx(15_000_000, rel=0.01)
    assert times[1] <= mt.price(move, machine=str(slow)).upper_ps


def test_a_number_that_is_read_comes_from_its_memory_first() -> None:
    """Two loads after one another, where the second needs what the first has brought."""

    @T.program
    def gather(At: T.Tensor((132,), "i32"), X: T.Tensor((132, 64), "f32"), Y: T.Tensor((132, 64), "f32")):
        with T.Kernel(block=132, threads=64) as b:
            x = T.alloc((1, 64), "f32")
            at = T.read_scalar(At[b], bound=131)
            T.copy(x, X[at, 0])
            T.copy(Y[b, 0], x)

    r = mt.simulate(gather, machine="dgx-h100", assume={"scalar": np.arange(132)})
    hda = mt.machine("dgx-h100")
    loads = 2 * (hda.memory("hbm").latency_ps + hda.memory("l2_cache").latency_ps)
    assert r.time_ps >= mt.simulate(gather, machine="dgx-h100", assume={"scalar": 0}).time_ps
    assert r.time_ps >= loads + 3_000_000  # after the launch


def test_blocks_that_only_copy_take_the_time_of_all_bytes_by_the_engine_that_is_fastest_for_many() -> None:
    """What the last cache does not keep is written back; while one block waits, others of the SM go on."""
    n, b = 8192, 64

    def doubled(impl: str | None) -> float:
        @T.program
        def kernel(X: T.Tensor((n, n), "f16"), Y: T.Tensor((n, n), "f16")):
            with T.Kernel(block=(n // b, n // b), threads=128) as (x, y):
                tile = T.alloc((b, b), "f16", level="shared")
                T.copy(tile, X[y * b, x * b], impl=impl)
                for i, j in T.Parallel(b, b):
                    tile[i, j] = tile[i, j] * 2
                T.copy(Y[y * b, x * b], tile, impl=impl)

        return mt.simulate(kernel, machine="dgx-h100", record=False).time_ps / 1e12

    times = {impl: doubled(impl) for impl in ("tma", "lsu")}
    assert doubled(None) == min(times.values())
    hda = mt.machine("dgx-h100")
    kept = hda.memory("l2_cache").size
    assert times["tma"] >= (4 * n * n - kept) / hda.memory("hbm").effective_bandwidth


def test_a_block_on_a_large_machine_is_not_0_waves():
    @T.program
    def one(X: T.Tensor((1, 1024), "f32")):
        with T.Kernel(block=1, threads=32):
            x = T.alloc((1, 1024), "f32", level="l0")
            T.copy(x, X[0, 0])
            T.copy(X[0, 0], x)

    assert "less than 0.01 waves" in mt.lower(one, machine="dgx-h100").explain()
