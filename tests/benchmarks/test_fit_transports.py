"""The constants of ``transports`` in the machine files on the open rows: bars, and that they are fitted."""

import numpy as np
import pytest

pytest.importorskip("scipy", reason="needs scipy")

import fit_transports


@pytest.mark.parametrize("name", ["dgx-h100", "hgx-a100"])
def test_the_open_rows_are_met(name):
    table = fit_transports.SETS[name].tables[0]
    rows, errors = fit_transports.rows_of(table), fit_transports.shipped_errors(name)[table.name]
    assert len(rows) == 65
    assert np.median(np.abs(errors)) <= 0.04
    assert np.quantile(np.abs(errors), 0.9) <= 0.11
    for kind in {(row.operation, row.ranks) for row in rows}:
        group = np.abs([e for e, r in zip(errors, rows, strict=True) if (r.operation, r.ranks) == kind])
        assert len(group) < 4 or np.median(group) <= 0.11, kind
    for band, low, high in fit_transports.BANDS:
        apart = [e for e, row in zip(errors, rows, strict=True) if low < row.nbytes <= high]
        assert abs(np.median(apart)) <= 0.06, band


@pytest.mark.parametrize("name", ["h100-cluster", "mi300x-8"])
def test_published_tables_are_met(name):
    for table, errors in fit_transports.shipped_errors(name).items():
        assert np.median(np.abs(errors)) <= 0.06, table
        assert np.quantile(np.abs(errors), 0.9) <= 0.16, table


@pytest.mark.parametrize("name", ["dgx-h100", "mi300x-8"])
def test_the_machine_files_have_what_the_fit_finds(name):
    found = fit_transports.fit(name)
    assert fit_transports.largest_change(name) < 0.01, "the files have three digits"
    assert found.after.median < 0.04
    assert all(0 < d < 1.5 for d in found.deviations)
