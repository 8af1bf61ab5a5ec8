"""Times beyond what was measured say so, with a wide error."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

import megatile as mt
from megatile.timing.coverage import RANGES, WIDE_ERROR, beyond

DATA = Path(__file__).parents[2] / "benchmarks" / "data" / "kernels"


def test_a_shape_within_the_rows_keeps_its_error() -> None:
    found = mt.predict_kernel("gemm", machine="dgx-h100", library="vllm", m=64, n=8192, k=8192, dtype="bf16")
    assert found.error is not None
    assert found.error < 0.1
    assert "beyond" not in found.origin.source


@pytest.mark.parametrize(
    ("operation", "extents", "said"),
    [
        ("gemm", {"m": 10**6, "n": 64, "k": 64}, "m 1000000 (rows: 1 to 32768)"),
        ("attention", {"queries": 1, "context": 10**6, "heads": 8}, "context 1000000"),
        ("attention", {"queries": 10**5, "heads": 8}, "queries 100000"),
        ("moe", {"tokens": 64, "hidden": 2**15, "inner": 1024, "topk": 2, "experts": 8}, "hidden 32768"),
    ],
)
def test_a_shape_far_beyond_the_rows_says_so(operation: str, extents: dict[str, int], said: str) -> None:
    given: dict[str, object] = dict(extents)
    found = mt.predict_kernel(operation, machine="dgx-h100", library="vllm", dtype="bf16", **given)
    assert said in found.origin.source
    assert found.error is not None
    assert found.error >= WIDE_ERROR


def test_ranges_are_those_of_the_rows() -> None:
    with gzip.open(DATA / "gemm_h100.csv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for name, (low, high) in RANGES["gemm"].items():
        sizes = [int(row[name]) for row in rows]
        assert (min(sizes), max(sizes)) == (low, high)


def test_a_step_lists_what_is_beyond() -> None:
    model = mt.model("Llama-3.1-8B")
    assert model.step([(1, 2048)], machine="dgx-h100", tp=8).notes == []
    far = model.step([(1, 10**6)], machine="dgx-h100", tp=8)
    assert far.notes == ["decode attention: beyond what was measured: context 1000000 (rows: 1 to 131071)"]
    assert far.errors["decode attention"] >= WIDE_ERROR
    assert beyond("all_reduce", {"ranks": 8, "bytes": 1}) == ""
