"""Every result has its time in picoseconds, nanoseconds and microseconds."""

from __future__ import annotations

import pytest

import megatile as mt
import megatile.language as T
from megatile.attention.plans import Problem
from megatile.attention.predict import predict
from megatile.collectives import predict as predict_collective
from megatile.sim import Session
from megatile.tuning import tune


@T.program
def copied(A: T.Tensor((64,), "f32"), B: T.Tensor((64,), "f32")):
    with T.Kernel(block=1, threads=32):
        t = T.alloc_shared((64,), "f32")
        T.copy(t, A)
        T.copy(B, t)


MADE = {
    "Result": lambda: mt.simulate(copied),
    "Prediction": lambda: predict_collective("all_reduce", machine="dgx-h100", nbytes=1024),
    "attention": lambda: predict("dgx-h100", Problem(256, 2, 64), schedules=["ring"]).predictions[0],
    "KernelTime": lambda: mt.predict_kernel("gemm", m=64, n=64, k=64, dtype="bf16", machine="dgx-h100"),
    "Session": lambda: Session("dgx-h100"),
    "Tuned": lambda: tune(lambda size: copied, {"size": [1]}, machine="dgx-h100", verify=False),
}


@pytest.mark.parametrize("name", ["Result", "Prediction", "attention", "Session", "Tuned"])
def test_results_are_short_to_print(name: str) -> None:
    found = MADE[name]()
    assert len(repr(found)) < 130
    for part in ("plan", "trace", "machine", "made"):
        assert len(repr(getattr(found, part, ""))) < 130
    assert len(repr(mt.lower(copied))) < 130


@pytest.mark.parametrize("name", MADE)
def test_times_are_the_same_in_every_unit(name: str) -> None:
    found = MADE[name]()
    assert isinstance(found.time_ps, int)
    assert found.time_ns == pytest.approx(found.time_ps / 1e3, abs=1e-3)
    assert found.time_us == pytest.approx(found.time_ps / 1e6, abs=1e-6)
