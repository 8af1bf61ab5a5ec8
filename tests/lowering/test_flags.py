"""Flags between phases: per granule where a reader names one, a count per phase where it does not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.lowering.shared import counters, judged

import megatile as mt
import megatile.language as T
from megatile.core.expr import unit
from megatile.lowering import flags
from megatile.plan import model as pm
from megatile.plan.build import PlanBuilder


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lower with a count per phase only."""

    def do() -> None:
        monkeypatch.setattr(flags.Phase, "waits", lambda self, *_: None)

    return do


def chain(M: int, N: int, K: int, t: int = 64, read: int | None = None, shift: tuple[int, int] = (0, 0)):
    """Y = (X · 2) in one region of blocks; Z = Y (moved by ``shift``) + 1 in the next."""
    r = read or t

    @T.program
    def kernel(X: T.Tensor((M, N), "f32"), Y: T.Tensor((M, N), "f32"), Z: T.Tensor((M, N), "f32")):
        with T.Kernel(device=1, block=(-(-N // t), -(-M // t)), threads=128) as (bx, by):
            with T.Scale("block"):
                x = T.alloc((t, t), "f32")
                T.copy(x, X[by * t, bx * t])
                for _ in T.serial(K):
                    for i, j in T.Parallel(t, t):
                        x[i, j] = x[i, j] * 2.0
                T.copy(Y[by * t, bx * t], x)
            with T.Scale("block"):
                y = T.alloc((r, r), "f32")
                for a in T.serial(t // r):
                    for b in T.serial(t // r):
                        T.copy(y, Y[by * t + a * r + shift[0], bx * t + b * r + shift[1]])
                        for i, j in T.Parallel(r, r):
                            y[i, j] = y[i, j] + 1.0
                        T.copy(Z[by * t + a * r, bx * t + b * r], y)

    x = np.random.default_rng(0).integers(0, 9, (M, N)).astype("f4")
    return kernel, [x, np.zeros_like(x), np.zeros_like(x)]


@pytest.mark.parametrize(
    ("sizes", "members"),
    [
        ((256, 192, 1), 12),  # one writer for each reader
        ((250, 130, 1), 12),  # over the edges
        ((256, 192, 1, 64, 32), 12),  # four readings of one writer's tile
    ],
)
def test_a_reader_waits_for_the_writer_of_its_tile(sizes: tuple[int, ...], members: int) -> None:
    lowered = judged(*chain(*sizes))
    assert counters(lowered) == {"done_1_Y": members}
    assert "go_" not in str(lowered.plan)


def test_a_reader_of_tiles_in_one_column_waits_for_the_column() -> None:
    lowered = judged(*chain(256, 192, 1, shift=(8, 0)))
    assert counters(lowered) == {"done_1_Y": 3}
    assert "wait(done_1_Y, value=4, " in str(lowered.plan)


def test_a_reader_whose_writers_cannot_be_named_waits_for_all() -> None:
    lowered = judged(*chain(256, 192, 1, shift=(8, 8)))
    assert counters(lowered) == {"done_1": 1, "go_2": 1}
    assert "wait(done_1, value=12)" in str(lowered.plan)


def test_blocks_begin_while_earlier_ones_still_work(coarse: Any) -> None:
    prog, arrays = chain(64 * 40, 64 * 30, 6)
    fine = mt.simulate(prog, *(a.shape for a in arrays)).time_ps
    text = str(mt.lower(prog).plan)
    coarse()
    assert fine < mt.simulate(prog, *(a.shape for a in arrays)).time_ps
    assert len(text) < 1.1 * len(str(mt.lower(prog).plan)) + 400


def test_the_text_of_the_plan_does_not_grow() -> None:
    small, large = (str(mt.lower(chain(64 * n, 64 * n, 1)[0]).plan) for n in (8, 64))
    numbers = re.compile(r"\d+")
    assert numbers.sub("0", small) == numbers.sub("0", large)


def reduced(
    M: int, N: int, K: int, devices: int, t: int, algorithm: str = "ring", panels: int = 1, impl: Any = None
):
    rows = M // panels

    @T.program
    def kernel(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(device=devices, block=(N // t, M // t), threads=128) as (bx, by):
            with T.Scale("device"):
                my_A, my_B = T.view(A, layout=T.FullCol), T.view(B, layout=T.FullRow)
                my_C = T.view(C, layout=T.Replica)
            with T.Scale("block"):
                a = T.alloc((t, 32), "f32", level="l1")
                b = T.alloc((32, t), "f32", level="l1")
                c = T.alloc((t, t), "f32")
                T.clear(c)
                for k in T.serial(K // devices // 32):
                    T.copy(a, my_A[by * t, k * 32])
                    T.copy(b, my_B[k * 32, bx * t])
                    T.gemm(a, b, c)
                T.copy(my_C[by * t, bx * t], c)
            with T.Scale("device"):
                for p in T.serial(panels):
                    T.allreduce(my_C[p * rows : p * rows + rows, :], algorithm=algorithm, impl=impl)

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, s).astype("f4") for s in ((M, K), (K, N)))
    return kernel, [a, b, np.zeros((M, N), "f4")]


@pytest.mark.parametrize(
    ("devices", "algorithm", "panels"),
    [(2, "ring", 1), (4, "ring", 1), (3, "ring", 2), (2, "direct", 2)],
)
def test_a_collective_waits_for_the_rows_it_sends(devices: int, algorithm: str, panels: int) -> None:
    sizes = (32 * devices, 64, 32 * devices, devices, 16, algorithm, panels)
    (flag,) = counters(judged(*reduced(*sizes, impl="copy_engine")))
    assert flag == "done_1_C"
    # The kernel of a library begins when all that it is asked for is there.
    lowered = judged(*reduced(*sizes))
    assert ("done_1_C" if panels > 1 else "done_1") in counters(lowered)
    commands = [type(s) for s in pm.statements(lowered.plan.streams[0].body) if not isinstance(s, pm.Loop)]
    assert commands[:2] == [pm.Wait, pm.Start]


def test_a_collective_whose_parts_shrink_waits_for_all() -> None:
    assert list(counters(judged(*reduced(128, 64, 128, 4, 16, "halving_doubling")))) == ["done_1"]


def test_a_collective_of_rows_begins_before_the_last_block_has_finished(coarse: Any) -> None:
    prog, arrays = reduced(128 * 48, 128 * 33, 512, 4, 128, panels=4)
    shapes = [a.shape for a in arrays]
    fine = mt.simulate(prog, *shapes).time_ps
    coarse()
    assert fine < 0.95 * mt.simulate(prog, *shapes).time_ps


def test_what_a_region_reads_is_not_overwritten_too_early() -> None:
    """The second region writes what blocks of the first read, each its own tile: one counter for each."""

    @T.program
    def kernel(X: T.Tensor((128, 64), "f32"), Y: T.Tensor((128, 64), "f32")):
        with T.Kernel(device=1, block=4, threads=64) as bx:
            with T.Scale("block"):
                x = T.alloc((32, 64), "f32")
                T.copy(x, X[bx * 32, 0])
                T.copy(Y[bx * 32, 0], x)
                T.copy(X[bx * 32, 0], x)
            with T.Scale("block"):
                z = T.alloc((32, 64), "f32")
                T.fill(z, 3.0)
                T.copy(X[bx * 32, 0], z)
            with T.Scale("block"):
                w = T.alloc((32, 64), "f32")
                T.copy(w, Y[(3 - bx) * 32, 0])
                T.copy(X[bx * 32, 0], w)

    x = np.arange(128 * 64, dtype="f4").reshape(128, 64)
    lowered = judged(kernel, [x, np.zeros_like(x)])
    assert all(members == 4 for members in counters(lowered).values())


def test_a_wait_for_too_few_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests above rest on: were a granule's count too small, executing the Plan would say so."""
    prog, arrays = chain(256, 192, 1, shift=(8, 0))
    wanted = flags.Granule.wanted
    monkeypatch.setattr(flags.Granule, "wanted", lambda self, index: wanted(self, index) - 1)
    monkeypatch.setattr(flags.Phase, "_adds_up", lambda *_: True)
    with pytest.raises(mt.MegatileError, match="race on tile 'Y'"):
        mt.execute(prog, *arrays)


def divided(parts: int, together: bool, M: int = 512, N: int = 256, K: int = 128, devices: int = 2):
    """A product that is summed over the devices in parts of its rows, each while the next is computed."""
    rows, each = M // parts, K // devices

    @T.program
    def layer(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(device=devices, block=(N // 64, rows // 64), threads=128) as (bx, by):
            with T.Scale("device"):
                a, b = T.view(A, layout=T.FullCol), T.view(B, layout=T.FullRow)
                c = T.view(C, layout=T.Replica)
            for p in range(parts):
                with T.Scale("block"):
                    left, right = (T.alloc((64, 64), "f16", level="l1") for _ in range(2))
                    total = T.alloc((64, 64), "f32")
                    T.clear(total)
                    for k in T.Pipelined(each // 64, num_stages=2):
                        T.copy(left, a[p * rows + by * 64, k * 64])
                        T.copy(right, b[k * 64, bx * 64])
                        T.gemm(left, right, total)
                    T.copy(c[p * rows + by * 64, bx * 64], total)
                with T.Scale("device"):
                    T.allreduce(c if together else c[p * rows : p * rows + rows, :])

    r = np.random.default_rng(0)
    return layer, [r.integers(0, 3, s).astype("f4") for s in ((M, K), (K, N), (M, N))]


def test_regions_of_a_tensor_that_do_not_meet_overlap() -> None:
    lowered = judged(*divided(4, False))
    order = [type(s).__name__ for s in lowered.plan.streams[0].body]
    assert "Collective" not in order  # no meeting between the parts: who has the last message has all
    assert [s.after for s in lowered.steps[-1].program.body if getattr(s, "phase", 0) > 1] == [()] * 3
    judged(*divided(2, True))  # where each sum is one of all rows, regions and sums take turns


def test_parts_hide_what_they_communicate() -> None:
    def took(parts: int) -> int:
        return mt.simulate(divided(parts, False, 2048, 2048, 4096)[0], machine="dgx-h100").time_ps

    assert took(2) < 0.97 * took(1)


def test_a_tile_that_is_changed_in_place_has_versions_too() -> None:
    def scaled(stages: int, level: str = "l1"):
        @T.program
        def kernel(X: T.Tensor((65536,), "f32"), Y: T.Tensor((65536,), "f32")):
            with T.Kernel(block=4, threads=128) as b:
                t = T.alloc((1024,), "f32", level=level)
                for k in T.Pipelined(16, num_stages=stages):
                    T.copy(t, X[(k * 4 + b) * 1024])
                    for i in T.Parallel(1024):
                        t[i] = t[i] * 2.0
                    T.copy(Y[(k * 4 + b) * 1024], t)

        return kernel, [np.arange(65536, dtype="f4"), np.zeros(65536, "f4")]

    lowered = judged(*scaled(3))
    assert next(t.versions for t in lowered.plan.tiles if t.name == "t") == 3
    one, three = (mt.simulate(scaled(n)[0], machine="dgx-h100").time_ps for n in (1, 3))
    assert three < 0.9 * one
    in_registers = mt.lower(scaled(3, "l0")[0], machine="dgx-h100").plan
    assert next(t.versions for t in in_registers.tiles if t.name == "t") == 1


def test_copies_that_are_surely_another_units_do_not_concern_this_one() -> None:
    """A loop decides whose copy the last is: it may be the unit's own."""
    b = PlanBuilder("others", scale="device", units=4)
    x, y = (b.tile(name, (4,), "f32", memory="hbm") for name in "xy")
    with b.loop(0, 3) as loop:
        for at in ((unit + 1) % 4, unit, (unit + loop.index) % 4, 3):
            b.compute("copy", x, [y.at(at)])
    (every,) = b.finish().bodies
    copies = [s for s in every if isinstance(s, pm.Compute)]
    read = [bool(flags.touched([s], {"unit": (0, 3)}, 4).reads) for s in copies]  # type: ignore[union-attr]
    assert read == [False, True, True, True]
    assert flags.touched(copies[:1], {"unit": (0, 3)}).reads  # type: ignore[union-attr]
