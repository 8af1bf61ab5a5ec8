"""``timing/resources.py``: what a Plan costs on an HDA."""

from __future__ import annotations

import pytest

import megatile as mt
import megatile.language as T


@T.program
def reduced(X: T.Tensor((8, 1024), "f32")):
    with T.Kernel(device=8, block=1), T.Scale("device"):
        x = T.view(X, layout=T.Shard(0))
        t = T.alloc((1, 1024), "f32", level="l2")
        T.copy(t, x)
        T.allreduce(t, algorithm="in_network")
        T.copy(x, t)


@T.program
def by_switch(X: T.Tensor((8, 1024), "f32")):
    with T.Kernel(device=8), T.Scale("device"):
        T.allreduce(T.view(X, layout=T.Shard(0)), algorithm="in_network", impl="copy_engine")


@T.program
def together(X: T.Tensor((8, 1024), "f32")):
    with T.Kernel(device=8, block=1), T.Scale("device"):
        x = T.view(X, layout=T.Shard(0))
        t = T.alloc((1, 1024), "f32", level="l2")
        T.copy(t, x)
        T.barrier()
        T.copy(x, t)


def test_a_reduction_in_the_switch_is_communication() -> None:
    assert mt.simulate(reduced, machine="dgx-h100").model == "NCCL NVLS"
    with pytest.raises(mt.MegatileError, match="done by the network, so impl='copy_engine' cannot"):
        mt.simulate(by_switch, machine="dgx-h100")
    assert mt.simulate(together, machine="dgx-h100").model == "no communication"
