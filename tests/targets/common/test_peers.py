"""``targets/common/peers.py``: other units of a group."""

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.targets.interpret.errors import RunError


def test_a_peer_that_does_not_exist() -> None:
    @T.program
    def kernel(A: T.Tensor((4, 8), "f32")):
        with T.Kernel(block=4), T.Scale("block") as (r, n):
            inbox = T.alloc((1, 8), "f32", level="l1")
            T.copy(inbox, A[r, 0], dst=r + 1)
            T.barrier()
            T.copy(A[r, 0], inbox)

    with pytest.raises(RunError, match="there is no block 4: ranks go from 0 to 3"):
        mt.compile(kernel, threads=1)(np.zeros((4, 8), np.float32))
