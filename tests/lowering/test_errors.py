"""``lowering/errors.py``: what cannot be lowered, and why."""

from __future__ import annotations

import pytest

import megatile as mt
import megatile.language as T
from megatile.lowering.errors import LoweringError


def test_one_sentence_with_its_line() -> None:
    @T.program
    def locked(A: T.Tensor((1,), "i32")):
        with T.Kernel(block=1, threads=4):
            old = T.atomic_cas(A[0], 0, 1)
            A[0] = old + 1

    with pytest.raises(
        LoweringError, match=r"test_errors.py:\d+: an atomic_cas of i32 that several units .* lowered"
    ):
        mt.lower(locked, machine="dgx-h100")
