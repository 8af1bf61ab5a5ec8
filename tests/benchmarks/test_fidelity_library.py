"""The score of library kernels is what machine files and database predict now, and keeps its bars."""

import re

import pytest

NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def test_the_page_has_the_scores_of_today(monkeypatch):
    import bench_library
    import fidelity_library
    import harness

    found = fidelity_library.tables()
    monkeypatch.setattr(harness, "publish", lambda page, text: None)
    behind = [",".join(row) for row in harness.rows_behind("library_kernels")]
    shown = "\n".join([harness.shown_section("library kernels"), *behind])
    groups = [line.strip("| ").replace(" | ", ",") for line in fidelity_library.groups(found)][1:]
    made = "\n".join([fidelity_library.section(found), *groups])
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
