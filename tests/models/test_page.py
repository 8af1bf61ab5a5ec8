"""The page of a step: its numbers are those of the step, and nothing is loaded from elsewhere."""

from __future__ import annotations

import json
import re

import pytest

import megatile as mt
from megatile.hda.parameters import scaled
from megatile.models.neighbours import _rows
from megatile.models.operators import gemm
from megatile.models.page import FACTORS, page_data, work, write_page


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "DeepSeek-V2-Lite"])
def test_the_numbers_of_the_page_are_those_of_the_step(name: str, tmp_path) -> None:
    step = mt.model(name).step([(1, 2048)] * 16, machine="dgx-h100", tp=2)
    text = write_page(tmp_path / "page.html", {"decode": step}).read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=|https?://", text.replace("http://www.w3.org", ""))
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    shown = json.loads(found[1].replace("<\\/", "</"))["steps"]["decode"]
    assert sum(row["time_us"] for row in shown["rows"]) == pytest.approx(step.time_us)
    assert all(row["source"] and row["error"] > 0 for row in shown["rows"])
    names = [row["operator"] for row in shown["rows"]]
    assert shown["longest"] in names


def test_the_grid_is_what_the_machine_with_other_figures_predicts() -> None:
    step = mt.model("Llama-3.1-8B").step([(1, 2048)] * 16, machine="dgx-h100", tp=2)
    data = page_data({"decode": step})
    assert data["sliders"] == ["memory bandwidth", "tensor throughput", "network bandwidth"]
    grid, n, one = data["steps"]["decode"]["grid"], len(FACTORS), FACTORS.index(1.0)
    assert grid[one * n * n + one * n + one] == pytest.approx(step.time_us - step.host_us)
    fast = scaled(mt.machine("dgx-h100"), {"memory.hbm.bandwidth": FACTORS[2]})
    wanted = mt.model("Llama-3.1-8B").step([(1, 2048)] * 16, machine=fast, tp=2)
    assert grid[2 * n * n + one * n + one] == pytest.approx(wanted.time_us - wanted.host_us)


def test_a_page_without_tables_says_so(tmp_path, monkeypatch) -> None:
    """As in a package whose build had no tables: a sentence in place of the rows."""
    monkeypatch.setattr("megatile.models.neighbours.FOLDERS", (tmp_path / "nowhere",))
    _rows.cache_clear()
    step = mt.model("Llama-3.1-8B").step([(1, 2048)], machine="dgx-h100")
    assert page_data({"decode": step})["steps"]["decode"]["neighbours"] == []
    _rows.cache_clear()
    assert "No table of measured kernels" in write_page(tmp_path / "p.html", {"decode": step}).read_text()


def test_work_of_a_product() -> None:
    d = mt.model("Llama-3.1-8B").deployment("dgx-h100")
    assert work(d, gemm("x", "head", 1, "fp8", 2, 3, 5)) == (60.0, 15 + 2 * 8 * 2)
