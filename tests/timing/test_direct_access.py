"""Elementwise code that reads and writes tensors takes no less than its bytes take in the memory, and atomics
no less than those on one address."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.sim.simpy_reader import read

import megatile as mt
import megatile.language as T
from megatile.cost.price import price
from megatile.hda import machine

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
