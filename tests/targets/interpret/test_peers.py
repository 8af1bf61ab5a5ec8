"""Puts, gets and signals between blocks: a block's tiles end with it, under every schedule alike."""

from typing import Any

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.targets.interpret.errors import DataRaceError

SCHEDULES = [("round-robin", 0), ("adversarial", 0), ("random", 0), ("random", 1), ("random", 2)]


def ring(n: int, put: bool, wait: bool) -> Any:
    """Block r's number goes to block r + n/2, which hands it out if it waits for it."""

    @T.program
    def p(X: T.Tensor((n,), "f32")):
        with T.Kernel(block=n):
            with T.Scale("block") as (r, size):
                mine = T.alloc((1,), "f32")
                got = T.alloc((1,), "f32")
                T.fill(mine, r)
                if put:
                    T.copy(got, mine, dst=(r + size // 2) % size)
                else:
                    T.barrier()
                    T.copy(got, mine, src=(r + size // 2) % size)
                if wait:
                    T.barrier()
                    T.copy(X[r : r + 1], got)

    return p


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("put", [True, False])
def test_a_block_that_does_not_wait_for_others(put: bool, schedule: str, seed: int) -> None:
    name = "got" if put else "mine"
    early, late = "ends, and its tile may still be", "has finished and its tiles are gone"
    with pytest.raises(DataRaceError, match=rf"(?s)data race on '{name}': .*({early}|{late})") as caught:
        mt.run(ring(8, put, wait=False), np.zeros(8, np.float32), schedule=schedule, seed=seed)
    assert "T.barrier" in caught.value.advice
    assert "T.copy(got, mine" in str(caught.value)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("put", [True, False])
def test_a_far_peer_that_fits_is_resident(put: bool, schedule: str, seed: int) -> None:
    x = np.zeros(130, np.float32)
    mt.run(ring(130, put, wait=True), x, schedule=schedule, seed=seed)
    np.testing.assert_array_equal(x, (np.arange(130) + 65) % 130)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_a_signal_to_a_block_that_has_finished_is_lost(schedule: str, seed: int) -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=4):
            with T.Scale("block") as (r, size):
                flag = T.alloc((1,), "i32")
                T.fill(X[r : r + 1], r)
                T.signal(flag[0], dst=(r + 1) % size)

    x = np.zeros(4, np.float32)
    mt.run(p, x, schedule=schedule, seed=seed)
    np.testing.assert_array_equal(x, np.arange(4))
