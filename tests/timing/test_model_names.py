"""Results name the model that times their communication."""

from __future__ import annotations

import pytest

import megatile as mt
import megatile.language as T
from megatile.collectives.planner import predict


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
    with pytest.raises(mt.MegatileError, match="done by the network, so impl='copy_engine' cannot"):
        mt.simulate(by_switch, machine="dgx-h100")
    assert mt.simulate(together, machine="dgx-h100").model == "no communication"


def test_a_library_is_named_with_its_protocol() -> None:
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=65536, ranks=4)
    assert mt.simulate(plan, machine="dgx-h100").model == "NCCL ring, LL"


@pytest.mark.parametrize(
    ("operation", "options", "model"),
    [
        ("all_reduce", {"ranks": 8, "bytes": 1 << 16}, "NCCL ring, LL"),
        ("all_reduce", {"ranks": 8, "bytes": 1 << 26}, "NCCL in network, NVLS"),
        ("all_reduce", {"ranks": 8, "bytes": 1 << 16, "library": "vllm"}, "vLLM one-shot"),
        ("all_reduce", {"ranks": 4, "bytes": 1 << 28, "library": "vllm"}, "NCCL ring, Simple"),
        ("all_to_all", {"ranks": 8, "bytes": 1 << 26}, "NCCL direct, Simple"),
        ("gemm", {"m": 64, "n": 64, "k": 64}, "library gemm kernel"),
        ("gemm", {"m": 64, "n": 64, "k": 64, "library": "trtllm"}, "TensorRT-LLM gemm kernel"),
        (
            "moe_dispatch",
            {"hidden": 4096, "tokens": 64, "topk": 8, "experts": 64, "low_latency": 1},
            "DeepEP low-latency dispatch",
        ),
    ],
)
def test_kernels_are_named(operation, options, model) -> None:
    assert mt.predict_kernel(operation, machine="dgx-h100", **options).model == model


def test_kernels_and_plans_of_collectives_have_one_name() -> None:
    for nbytes in (1 << 10, 1 << 18, 1 << 22, 1 << 28):
        kernel = mt.predict_kernel("all_reduce", machine="dgx-h100", ranks=8, bytes=nbytes)
        assert kernel.model == predict("all_reduce", machine="dgx-h100", ranks=8, nbytes=nbytes).model


@pytest.mark.parametrize("name", ["dgx-h100", "v100-8", "mi300x-8"])
def test_one_rank_does_not_communicate(name: str) -> None:
    for operation in ("all_reduce", "all_gather"):
        found = predict(operation, machine=name, ranks=1, nbytes=1 << 20)
        kernel = mt.predict_kernel(operation, machine=name, ranks=1, bytes=1 << 20)
        assert found.model == kernel.model == "no communication"
