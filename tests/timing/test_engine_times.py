"""``timing/engine_times.py``: how long commands keep the engines of a machine."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.sim.simpy_reader import read
from tests.timing.rules_cases import H100, MI, adding, slow_core

import megatile as mt
import megatile.language as T
from megatile.cost.price import price
from megatile.hda import machine
from megatile.plan.build import PlanBuilder
from megatile.timing import Resources

GPUS = ("hgx-a100", "dgx-h100", "h200-8", "b200-8", "mi300x-8", "mi325x-8", "v100-8", "l20-8", "h800-8")


def elementwise(rows: int, block: int, dtype: str, load: bool, store: bool, turned: bool) -> Any:
    """Y from X in square blocks; ``load`` and ``store``: by copies, not by the elements' own code."""

    @T.program
    def run(X: T.Tensor((rows, rows), dtype), Y: T.Tensor((rows, rows), dtype)):
        with T.Kernel(block=(rows // block, rows // block), threads=256) as (bx, by):
            x = T.alloc((block, block), dtype, level="l1")
            if load:
                T.copy(x, X[by * block, bx * block])
            else:
                for i, j in T.Parallel(block, block):
                    x[i, j] = X[by * block + i, bx * block + j]
            if store:
                T.copy(Y[by * block, bx * block], x)
            elif turned:
                for j, i in T.Parallel(block, block):
                    Y[bx * block + j, by * block + i] = x[i, j] + 1
            else:
                for i, j in T.Parallel(block, block):
                    Y[by * block + i, bx * block + j] = x[i, j] + 1

    return run


@pytest.mark.parametrize("name", GPUS)
def test_bytes_take_their_time(name: str) -> None:
    memory, chosen = machine(name).memory("hbm"), random.Random(name)
    for load in (False, True):
        rows, block = (4096, 128) if load else (chosen.choice([1024, 2048]), chosen.choice([64, 128]))
        dtype, turned = chosen.choice(["f16", "f32"]), not load and chosen.random() < 0.5
        program = elementwise(rows, block, dtype, load, False, turned)
        result = mt.simulate(program, machine=name)
        nbytes = rows * rows * (4 if dtype == "f32" else 2)
        least = 2 * nbytes / memory.effective_bandwidth * 1e6
        assert result.time_us >= least, (name, load, rows, block, dtype, turned)
        bounds = price(mt.lower(program, machine=name).plan, name)
        assert bounds.lower_ps <= result.time_ps <= bounds.upper_ps, (name, load, rows, block)


def added(rounds: int) -> Any:
    """Column sums, an atomic for each element; ``rounds`` blocks of rows in each unit."""

    @T.program
    def run(X: T.Tensor((4096, 2048), "f32"), S: T.Tensor((2048,), "f32")):
        with T.Kernel(block=(16, 128 // rounds), threads=128) as (bx, _):
            x = T.alloc((32, 128), "f32")
            T.fill(x, 1.0)
            for _ in T.serial(rounds):
                for i, j in T.Parallel(32, 128):
                    T.atomic_add(S[bx * 128 + j], x[i, j])

    return run


@pytest.mark.parametrize("name", ["hgx-a100", "mi300x-8"])
def test_atomics_take_their_time_however_they_are_divided(name: str) -> None:
    hda = machine(name)
    cache = next(m for m in hda.memories if m.cache and m.of and hda.memory(m.of).name == "hbm")
    least = max(4096 * hda.memory("hbm").atomic_ps / 1e6, 4096 * 2048 * 4 / cache.effective_bandwidth * 1e6)
    times = [mt.simulate(added(rounds), machine=name).time_us for rounds in (1, 4)]
    assert min(times) >= least
    assert max(times) <= 1.25 * min(times), times


@pytest.mark.parametrize("load", [False, True])
def test_the_reader_agrees_on_direct_access(load: bool) -> None:
    plan = mt.lower(elementwise(512, 64, "f32", load, False, False), machine="hgx-a100").plan
    expected = read(plan, machine("hgx-a100"), None)
    for engine in ("plain", None):
        assert mt.simulate(plan, machine="hgx-a100", engine=engine).time_ps == expected.time_ps


def test_adding_64_mi_floats_in_hbm_takes_their_bytes():
    plan = adding(64 * MI, "hbm")
    took = mt.simulate(plan, machine=H100).time_ps - Resources(H100, plan).start_ps(0)
    bytes_ps = 3 * 4 * 64 * MI / H100.memory("hbm").effective_bandwidth * 1e12
    assert took == pytest.approx(bytes_ps, rel=1e-4)
    bounds = mt.price(plan, H100)
    assert bounds.lower_ps <= took + Resources(H100, plan).start_ps(0) <= bounds.upper_ps


def test_scratchpads_are_as_fast_as_the_engine_unless_the_file_says_otherwise():
    plan = adding(1024, "shared", "block")
    command = plan.streams[0].body[0]
    engine = next(e for e in H100.engines if e.kind == "vector")
    plain = Resources(H100, plan).compute_ps(command, 1024, 0)
    assert plain == pytest.approx(engine.startup_ps + 1024 / engine.rate("f32") * 1e12, abs=1)
    bound = Resources(machine("dgx-h100", **{"memory.shared.roofline": True}), plan)
    shared = H100.memory("shared")
    expected = engine.startup_ps + 12 * 1024 / shared.effective_bandwidth * 1e12
    assert bound.compute_ps(command, 1024, 0) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize(("shares", "expected"), [("core", 2_000_000), (None, 1_000_000)])
def test_engines_that_share_something_take_turns(shares, expected):
    """A thousand additions and a product of a thousand operations that do not wait for each other."""
    hda = slow_core(**{"engines.simd.shares": shares, "engines.fma.shares": shares})
    b = PlanBuilder("both", scale="block", units=1)
    x, y = (b.tile(name, (1000,), "f32", memory="scratch") for name in "xy")
    a, c = b.tile("a", (5, 10), "f32", memory="scratch"), b.tile("c", (5, 10), "f32", memory="scratch")
    d = b.tile("d", (10, 10), "f32", memory="scratch")
    b.compute("add", x, [x, y])
    b.compute("gemm", c, [a, d], engine="tensor")
    plan = b.finish()
    assert mt.simulate(plan, machine=hda).time_ps == pytest.approx(expected, rel=1e-3)
    bounds = mt.price(plan, hda)
    assert bounds.lower_ps <= expected <= bounds.upper_ps * 1.001
