"""Barriers of groups, collectives on both sides of a branch, counts of an uneven all_to_all, atomics."""

from typing import Any

import numpy as np
import pytest
from tests.language.tile.shared import SCHEDULES, run

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError


def test_a_broadcast_reads_its_root_only() -> None:
    @T.program
    def kernel(A: T.Tensor((4, 8), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, n):
                t = T.alloc((8,), "f32", level="l2")
                if r == 1:
                    T.fill(t, 7)
                T.broadcast(t, 1)
                T.copy(T.view(A, layout=T.FullRow)[0, 0], t)

    for schedule in SCHEDULES:
        a = np.zeros((4, 8), np.float32)
        mt.run(kernel, a, schedule=schedule)
        assert (a == 7).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda r, n, t: T.barrier(units=(0, 1)), "device 2 comes to a barrier of units 0, 1"),
        (lambda r, n, t: T.barrier(units=3), "T.barrier is not reached by device"),
        (lambda r, n, t: T.barrier(units=(0, 9)), "T.barrier with units=.*: there are 4 units of scale"),
        (lambda r, n, t: T.barrier(group=r // 2), "T.barrier with group= and no units="),
        (lambda r, n, t: T.atomic_add(t, t, return_prev=True), "of a region has no single old value"),
        (lambda r, n, t: T.all_to_all(t, t, t), "of f32 are not counts for 4 units"),
    ],
)
def test_what_cannot_meet(body: Any, message: str) -> None:
    with pytest.raises(MegatileError, match=message):
        run(lambda r, n, t: body(r, n, t))
