"""Kernels by framework: rules against sums by hand, numbers against arrays, which figures are taken, bad
input."""

import pytest
from tests.timing.kernels_by_framework_cases import H100, SHAPES, us

import megatile as mt
from megatile.collectives.planner import predict
from megatile.core.errors import MegatileError
from megatile.timing.formulas import kernel_times_us


def test_the_cache_has_a_type_of_its_own():
    shape = {"batch": 64, "queries": 1, "context": 8191, "heads": 32, "kv_heads": 8}
    for library in ("vllm", "trtllm"):
        wide, narrow = (
            kernel_times_us(H100, "attention", "bf16", library, kv, **shape) for kv in ("bf16", "fp8")
        )
        assert 0.4 < narrow / wide < 0.95
    assert kernel_times_us(H100, "attention", "bf16", "vllm", "bf16", **shape) == us("attention", **shape)
    with pytest.raises(MegatileError, match="gemm has no cache"):
        mt.predict_kernel("gemm", machine=H100, kv_dtype="fp8", m=1, n=1, k=1)


def test_figures_of_another_framework_say_so():
    shape = SHAPES["moe"]
    own = mt.predict_kernel("moe", machine=H100, library="vllm", **shape)
    borrowed = mt.predict_kernel("moe", machine=H100, library="sglang", **shape)
    assert own.time_us == borrowed.time_us
    assert (own.origin.kind, borrowed.origin.kind) == ("rule", "assumed")
    assert "estimate: as vllm" in borrowed.origin.source
    assert own.error < borrowed.error
    elsewhere = mt.predict_kernel("moe", machine="b200-8", library="vllm", **shape)
    assert elsewhere.origin.kind == "assumed"
    assert elsewhere.error >= 0.2
    ours = mt.predict_kernel("gemm", machine=H100, library="trtllm", m=64, n=64, k=64)
    assert "trtllm.gemm" in ours.origin.source


@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 16, 1 << 20, 1 << 24])
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_captured_collective_is_that_of_predict(operation: str, nbytes: int) -> None:
    """RCCL takes other kernels in graphs: both ways to ask choose them."""
    asked = {"machine": "mi300x-8", "ranks": 8}
    found = predict(operation, nbytes=nbytes, launch=False, **asked)
    kernel = mt.predict_kernel(operation, bytes=nbytes, captured=True, **asked)
    assert kernel.time_us == pytest.approx(found.time_us, rel=0.02)
    assert kernel.model == found.model
