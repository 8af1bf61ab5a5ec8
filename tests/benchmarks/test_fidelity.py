"""``docs/fidelity.md`` is what the machine files predict, for every published row."""

import csv
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def benchmarks_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield
    for name in ("fidelity_collectives", "fidelity_page", "fit_protocol"):
        sys.modules.pop(name, None)


def lines_of(title: str) -> list[str]:
    collectives = PAGE.partition("<!-- collectives: end -->")[0]
    part = collectives.partition(f"### {title}\n")[2].partition("\n###")[0]
    return [line for line in part.splitlines() if line.startswith("| ") and "measured (" not in line]


def test_every_row_is_on_the_page_once():
    with (ROOT / "benchmarks" / "data" / "collectives.csv").open(encoding="utf-8", newline="") as file:
        wanted = [f"| {r['table_id']} | {r['op']} | {r['size_bytes']} |" for r in csv.DictReader(file)]
    shown = [*lines_of("Scored rows"), *lines_of("Outliers"), *lines_of("Rows fitted to")]
    assert sorted(wanted) == sorted("|".join(line.split("|")[:4]) + "|" for line in shown)


@pytest.mark.parametrize(
    ("table", "size"),
    [
        ("H100x8_dgxc", 512),
        ("H100x8_dgxc", 1 << 30),
        ("H100x16_309a", 64),
        ("A100x8_thanos_mpi", 1 << 20),
        ("MI300Xx8_rocmblog", 1 << 16),
        ("MI300Xx8_rocmblog_graph", 1 << 21),
    ],
)
def test_the_page_is_what_is_predicted_now(table, size):
    from fidelity_collectives import compare

    (found,) = compare(table, (size,))
    ends = f"{found.row.us:.2f} | {found.predicted:.2f} | {found.error:+.1%} | {found.algorithm} |"
    assert f"| {table} | all_reduce | {size} | {ends}" in PAGE


def test_constants_of_the_files_are_on_the_page():
    from fidelity_page import constants

    for line in constants():
        assert line in PAGE


def test_three_sizes_by_one_rule():
    from fidelity_collectives import FITTED, fit_rows, fit_sizes

    for machine, tables in FITTED.items():
        small, half, large = fit_sizes(machine)
        assert small < half < large
        assert {row.size for row in fit_rows(machine)} == {small, half, large}
        assert {row.table for row in fit_rows(machine)} == set(tables)


def test_outliers_are_slower_than_larger_sizes():
    from fidelity_collectives import kind_of, measurements

    marked = {(r.table, r.size) for r in measurements() if kind_of(r) == "outlier"}
    plain, graph = "MI300Xx8_rocmblog", "MI300Xx8_rocmblog_graph"
    assert marked == {(plain, 128), (plain, 256), (plain, 512), (graph, 8), (graph, 16)}
