"""Predicted products beside measured ones (benchmarks/data/tilelang_gemm.csv); all rows: ``make bench``."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from bench_programs import ALLOWED, measured, predicted_tflops


@pytest.mark.parametrize("k", ["256", "1024"])
def test_a_product_on_an_h100_is_predicted(k: str) -> None:
    (row,) = (row for row in measured() if row["k"] == k)
    assert predicted_tflops(row) == pytest.approx(float(row["tflops"]), rel=ALLOWED)
