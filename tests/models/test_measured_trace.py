"""``models/measured_trace.py``: a measured trace of GPU kernels (Kineto, as ``torch.profiler`` writes it)
beside a predicted step."""

from __future__ import annotations

import gzip
import json

import pytest
from tests.models.shared import LLAMA

import megatile as mt
from megatile.models.measured_trace import kind_of
from megatile.models.schemes import ModelError


def test_a_measured_trace_beside_the_predicted_step(tmp_path) -> None:
    step = mt.model("Llama-3.1-8B").step([(1, 512)] * 8, **LLAMA)
    names = {
        "gemm": "nvjet_tst_64x8", "attention": "flash::FlashAttnFwdSm90", "elementwise": "rms_norm_kernel",
        "all_reduce": "void vllm::cross_device_reduce_1stage", "all_gather": "ncclDevKernel_AllGather_RING",
    }  # fmt: skip
    now, events = 5.0, [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 9}]
    for _ in range(2):
        for o, time in step.timed:
            events.append({"ph": "X", "cat": "kernel", "name": names[o.kernel], "ts": now, "dur": 2 * time})
            now += 2 * time
    file = tmp_path / "kineto.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    both = step.beside(file, steps=2)
    for row in both.rows()[:-1]:
        assert row["measured_us"] == pytest.approx(2 * row["predicted_us"])
    assert "0.50" in str(both)
    events = json.loads(both.write(tmp_path / "both.json").read_text())["traceEvents"]
    predicted = [e for e in events if e["ph"] == "X" and e["pid"] == 1]
    assert predicted[-1]["ts"] + predicted[-1]["dur"] == pytest.approx(step.time_us)
    file.write_bytes(gzip.compress(b'{"traceEvents": [{"ph": "X"}, 7]}'))
    with pytest.raises(ModelError, match="holds no kernels of a device"):
        step.beside(file)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm90_xmma_gemm_bf16bf16", "gemm"), ("fused_moe_kernel", "moe"), ("fmhaSm90", "attention"),
        ("ncclDevKernel_ReduceScatter", "reduce_scatter"), ("vectorized_elementwise_kernel", "elementwise"),
    ],
)  # fmt: skip
def test_kernels_are_known_by_their_names(name: str, kind: str) -> None:
    assert kind_of(name) == kind
