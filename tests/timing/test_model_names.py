"""Results name the model that times their communication."""

from __future__ import annotations

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
    assert mt.simulate(reduced, machine="dgx-h100").model == "NCCL in network, NVLS"
    assert mt.simulate(by_switch, machine="dgx-h100").model == "the network's own reduction"
    assert mt.simulate(together, machine="dgx-h100").model == "no communication"


def test_a_library_is_named_with_its_protocol() -> None:
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=65536, ranks=4)
    assert mt.simulate(plan, machine="dgx-h100").model == "NCCL ring, LL"
