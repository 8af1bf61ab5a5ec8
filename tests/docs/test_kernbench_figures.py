"""The tables beside KernBench's published times are those of today (``--update-golden`` writes them)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.docs import kernbench_figures as figures

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kernbench-figures.md"
TABLE = re.compile(r"(<!-- table: (\w+) -->\n\n)(.*?)(\n?<!-- end of table -->)", re.DOTALL)


def test_the_tables_are_generated(golden) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(TABLE.findall(text)) == 2
    golden(PAGE, TABLE.sub(lambda m: f"{m[1]}{getattr(figures, m[2])()}\n<!-- end of table -->", text))


def test_with_its_figures_what_the_page_calls_reproduced_is() -> None:
    found, wanted = figures.measured(figures.LARGE, figures.STATED), figures.PUBLISHED
    for name in wanted:
        far = name in ("worst remote cube", "8 PEs over one link", "128 PEs on PE 0's memory")
        assert (found[name] == pytest.approx(wanted[name], rel=0.1)) != far, name
    hot = [found[f"hot target, issuers: {n}"] / found["own memory"] for n in (1, 2, 3)]
    assert hot == pytest.approx([1, 2, 3], rel=0.02)
    narrow = figures.STATED | {"sip.cube_mesh.link.bandwidth": "128 GB/s"}
    again = figures.measured(figures.LARGE, narrow)
    assert round(again["8 PEs over one link"]) == 1064
    assert round(again["128 PEs on PE 0's memory"], -2) == 12900
