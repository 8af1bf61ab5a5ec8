"""The score of library kernels is what machine files and database predict now, and keeps its bars."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def test_the_page_has_the_scores_of_today():
    import bench_library
    import fidelity_library

    found = fidelity_library.tables()
    page = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    shown = page[page.index(fidelity_library.BEGIN) : page.index(fidelity_library.END)]
    made = fidelity_library.section(found).partition(fidelity_library.END)[0]
    assert NUMBER.sub("#", shown) == NUMBER.sub("#", made)
    # Sums of other processors may differ in their last digits, and a fit ends elsewhere then.
    numbers = [[float(n) for n in NUMBER.findall(text)] for text in (shown, made)]
    assert numbers[1] == pytest.approx(numbers[0], abs=0.2)
    assert len(found) == len(bench_library.BARS)
    for table in found:
        median, p90, database = bench_library.BARS[table.name]
        formula = fidelity_library.Score.of(table.formula)
        assert max(formula.median, table.held_out.median) <= median, table.name
        assert p90 is None or max(formula.p90, table.held_out.p90) <= p90, table.name
        assert fidelity_library.Score.of(table.database).median <= database, table.name
