"""Results name the model that times their communication."""

from __future__ import annotations

import pytest

import megatile as mt
from megatile.collectives.planner import predict
from megatile.plan.model import Transport


def test_a_library_is_named_with_its_protocol() -> None:
    plan = mt.collective("all_reduce", machine="dgx-h100", nbytes=65536, ranks=4)
    assert mt.simulate(plan, machine="dgx-h100").model == "NCCL ring, LL"


@pytest.mark.parametrize(
    ("operation", "options", "model"),
    [
        ("all_reduce", {"ranks": 8, "bytes": 1 << 16}, "NCCL ring, LL"),
        ("all_reduce", {"ranks": 8, "bytes": 1 << 26}, "NCCL NVLS"),
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


def test_nccl_names_its_algorithms_and_no_library_is_named_where_none_has_the_kernel() -> None:
    names = {
        name: Transport("kernel", "nccl", name, protocol).model_name()
        for name, protocol in (("node_tree", "LL"), ("rail_rings", "LL128"), ("in_network_tree", "NVLS"))
    }
    assert list(names.values()) == ["NCCL tree, LL", "NCCL ring, LL128", "NCCL NVLSTree"]
    assert Transport("kernel", "own", "rail_rings", "LL").model_name() == "hypothetical rail rings, LL"
    assert Transport("kernel", "rccl", "node_tree", "LL").model_name() == "RCCL node tree, LL"


@pytest.mark.parametrize("name", ["dgx-h100", "v100-8", "mi300x-8"])
def test_one_rank_does_not_communicate(name: str) -> None:
    for operation in ("all_reduce", "all_gather"):
        found = predict(operation, machine=name, ranks=1, nbytes=1 << 20)
        kernel = mt.predict_kernel(operation, machine=name, ranks=1, bytes=1 << 20)
        assert found.model == kernel.model == "no communication"
