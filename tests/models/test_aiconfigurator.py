"""``models/aiconfigurator.py``: results under the column names of aiconfigurator's tables, for scripts that
read those."""

from __future__ import annotations

import csv

import pytest
from tests.models.shared import LLAMA

import megatile as mt
from megatile.models.aiconfigurator import COLUMNS


def test_columns_of_aiconfigurator(tmp_path) -> None:
    model = mt.model("Llama-3.1-8B")
    row = model.serve(isl=256, osl=32, concurrency=4, **LLAMA).aiconfigurator_row()
    assert tuple(row) == COLUMNS
    assert (row["isl"], row["osl"], row["concurrency"], row["num_total_gpus"]) == (256, 32, 4, 2)
    assert row["tokens/s/gpu"] == pytest.approx(row["tokens/s"] / 2)
    found = model.search(machine="dgx-h100", isl=256, osl=32, concurrencies=(4,))
    rows = list(csv.DictReader(found.to_aiconfigurator(tmp_path / "rows.csv").read_text().splitlines()))
    assert [float(r["tpot"]) for r in rows] == pytest.approx([r["tpot_ms"] for r in found.rows()])
