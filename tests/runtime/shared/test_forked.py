"""``runtime/shared/forked.py``: fork ranks, watch them, bring back what they return, and name the one at
fault."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from tests.patience import patience

import megatile as mt
import megatile.language as T
from megatile.runtime.errors import LaunchError


@T.program
def circle(x: T.Tensor((4, 8), "f32")):
    """Every device waits for a signal that none sends."""
    with T.Kernel(device=4), T.Scale("device"):
        mine = T.view(x, layout=T.Shard(0))
        flag = T.alloc((1,), "i32", level="l2")
        T.wait(flag, 1)
        T.copy(mine, mine)


def test_units_that_wait_for_ever_are_ended() -> None:
    with pytest.raises(LaunchError, match="did not finish within"):
        mt.launch(circle, np.zeros((4, 8), "f4"), machine="dgx-h100", timeout=0.5)


def test_a_killed_process_is_named() -> None:
    def kill(pids: list[int]) -> None:
        os.kill(pids[2], signal.SIGKILL)

    begun = time.monotonic()
    with pytest.raises(LaunchError, match="rank 2: ended by signal SIGKILL"):
        mt.launch(circle, np.zeros((4, 8), "f4"), machine="dgx-h100", started=kill)
    assert time.monotonic() - begun < patience(5)
