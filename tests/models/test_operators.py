"""``models/operators.py``: what a forward pass is made of."""

from __future__ import annotations

import pytest

import megatile as mt


@pytest.mark.parametrize(
    "name", ["Llama-3.1-8B", "gpt-oss-20b", "DeepSeek-V2-Lite", "Qwen3-30B-A3B", "gemma-3-27b"]
)
def test_more_work_never_takes_less(name: str) -> None:
    model = mt.model(name)
    short = model.step([(1, 1000)] * 8, machine="dgx-h100", tp=2).time_us
    assert model.step([(1, 30_000)] * 8, machine="dgx-h100", tp=2).time_us > short
    assert model.step([(1, 1000)] * 64, machine="dgx-h100", tp=2).time_us > short
    assert model.step([(1000, 0)] * 8, machine="dgx-h100", tp=2).time_us > short


def test_experts_of_4_bits_run_natively_where_the_machine_can() -> None:
    kinds = []
    for name in ("dgx-h100", "b200-8"):
        step = mt.model("gpt-oss-20b").step([(1, 100)], machine=name)
        kinds.append(next(row["dtype"] for row in step.rows() if row["operator"] == "experts"))
    assert kinds == ["mxfp4_marlin", "mxfp4"]
