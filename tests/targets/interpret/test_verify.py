"""A Plan beside the interpreter: what is said where they differ, and work that is too large for one step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.targets.interpret import verify as module
from megatile.targets.interpret.errors import RunError


@T.program
def double(A: T.Tensor((4,), "f32")):
    with T.Kernel(block=1, threads=32):
        for i in T.Parallel(4):
            A[i] = A[i] * 2


def test_a_plan_that_differs_is_an_error_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = mt.lower(double, machine="dgx-h100")
    assert module.verify(lowered, np.arange(4, dtype="f4")) == "bit for bit"

    def wrong(*arguments: Any) -> dict[str, Any]:
        return {"A": np.array([0, 2, 5, 6], "f4")}

    monkeypatch.setattr(module, "execute", wrong)
    with pytest.raises(module.PlanMismatch, match=r"'A'\[2\] is 5.0 in the Plan and 4.0 interpreted"):
        module.verify(lowered, np.arange(4, dtype="f4"))


def test_more_iterations_than_fit_at_once_are_refused() -> None:
    @T.program
    def huge(A: T.Tensor((4,), "f32")):
        with T.Kernel(block=1, threads=32):
            for i, j in T.Parallel(1 << 20, 1 << 20):
                A[(i + j) % 4] = 0.0

    with pytest.raises(RunError, match=r"iterations: at most 268435456 are run at once.*T.serial"):
        mt.run(huge, np.zeros(4, "f4"))


def test_data_that_do_not_fit_are_one_sentence() -> None:
    @T.program
    def large(X: T.Tensor((2**25, 2**25), "f32")):
        with T.Kernel(block=1):
            T.clear(X[0:1, 0:1])

    with pytest.raises(mt.MegatileError, match="data for 'X' needs more memory.*smaller extents"):
        module.random_arrays(mt.lower(large))
