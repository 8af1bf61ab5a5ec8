"""``lowering/passes/synchronise.py``: which regions wait for which."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.lowering.shared import counters, judged, text_after

import megatile as mt
import megatile.language as T


def test_regions_that_only_read_what_the_next_writes_have_ended_before() -> None:
    @T.program
    def kernel(X: T.Tensor((128, 64), "f32"), Y: T.Tensor((128, 64), "f32")):
        with T.Kernel(device=1, block=4, threads=64) as bx:
            with T.Scale("block"):
                x = T.alloc((128, 64), "f32")
                T.copy(x, X)
                T.copy(Y[bx * 32, 0], x[bx * 32 : bx * 32 + 32, :])
            with T.Scale("block"):
                z = T.alloc((32, 64), "f32")
                T.fill(z, 3.0)
                T.copy(X[bx * 32, 0], z)

    x = np.arange(128 * 64, dtype="f4").reshape(128, 64)
    assert counters(judged(kernel, [x, np.zeros_like(x)])) == {"done_1": 1, "go_2": 1}


def test_regions_that_have_nothing_in_common_do_not_wait() -> None:
    @T.program
    def kernel(X: T.Tensor((128, 64), "f32"), Y: T.Tensor((128, 64), "f32")):
        with T.Kernel(device=1, block=4, threads=64) as bx:
            for out, value in ((X, 1.0), (Y, 2.0)):
                with T.Scale("block"):
                    x = T.alloc((32, 64), "f32")
                    T.fill(x, value)
                    T.copy(out[bx * 32, 0], x)

    x = np.zeros((128, 64), "f4")
    assert counters(judged(kernel, [x, x.copy()])) == {}


def copied(first: str, second: str, third: str, in_loop: bool = False) -> Any:
    """Three regions of blocks, each of which adds one to a tensor."""

    @T.program
    def p(A: T.Tensor((64,), "f32"), B: T.Tensor((64,), "f32"), C: T.Tensor((64,), "f32")):
        tensors = {"A": A, "B": B, "C": C}
        with T.Kernel(block=2, threads=32):
            for name in (first, second):
                with T.Scale("block") as b:
                    x = tensors[name]
                    for i in T.Parallel(32):
                        x[b * 32 + i] = x[b * 32 + i] + 1.0
            for _ in T.serial(2 if in_loop else 1):
                with T.Scale("block") as b:
                    y = tensors[third]
                    for i in T.Parallel(32):
                        y[b * 32 + i] = y[b * 32 + i] + 1.0

    return p


@pytest.mark.parametrize(
    ("names", "in_loop", "said"),
    [
        ("AAA", True, ["phase=1", "phase=2, after=(1,)", "phase=3, after=(1, 2)"]),
        ("ABC", True, ["phase=1", "phase=2", "phase=3, after=(1, 2)"]),
    ],
)
def test_synchronise(names: str, in_loop: bool, said: list[str]) -> None:
    lowered = mt.lower(copied(*names, in_loop))
    lines = text_after(lowered, "synchronise")
    found = [re.sub(r'with scale\("block",? ?(.*)\):', r"\1", line) for line in lines if "scale(" in line]
    assert found == said
    arrays = [np.zeros(64, "f4") for _ in range(3)]
    wanted = [np.zeros(64, "f4") for _ in range(3)]
    mt.run(copied(*names, in_loop), *wanted)
    got = mt.execute(lowered, *arrays)
    for name, before, after in zip("ABC", arrays, wanted, strict=True):
        np.testing.assert_array_equal(got.get(name, before), after)
