"""``docs/fidelity.md`` is what the machine files predict, for every published row."""

import csv
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")


def lines_of(title: str) -> list[str]:
    collectives = PAGE.partition("<!-- collectives: end -->")[0]
    part = collectives.partition(f"### {title}\n")[2].partition("\n###")[0]
    return [line for line in part.splitlines() if line.startswith("| ") and "measured (" not in line]


def test_every_row_is_on_the_page_once():
    with (ROOT / "benchmarks" / "data" / "collectives.csv").open(encoding="utf-8", newline="") as file:
        wanted = [f"| {r['table_id']} | {r['op']} | {r['size_bytes']} |" for r in csv.DictReader(file)]
    shown = [*lines_of("Scored rows"), *lines_of("Rows fitted to")]
    assert sorted(wanted) == sorted("|".join(line.split("|")[:4]) + "|" for line in shown)


@pytest.mark.parametrize(
    ("table", "size"),
    [
        ("H100x8_dgxc", 512),
        ("H100x8_dgxc", 1 << 30),
        ("H100x16_309a", 64),
        ("A100x8_thanos_mpi", 1 << 20),
        ("A100x8_thanos_mpi", 8),
        ("MI300Xx8_rocmblog", 512),
        ("MI300Xx8_rocmblog", 1 << 16),
        ("MI300Xx8_rocmblog_graph", 16),
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


def test_every_validation_row_is_on_the_page_or_said_not_to_be():
    from fidelity_kernels import ELSEWHERE, KERNELS

    with (ROOT / "benchmarks" / "data" / "validation.csv").open(encoding="utf-8", newline="") as file:
        numbers = [row["id"] for row in csv.DictReader(file)]
    part = PAGE.partition("### Rows of `benchmarks/data/validation.csv`")[2].partition("\n###")[0]
    assert [n for n in numbers if f"| {n} |" in part] == [n for n in numbers if n not in ELSEWHERE]
    for number, kernel in KERNELS.items():
        (line,) = [x for x in part.splitlines() if x.startswith(f"| {number} |")]
        assert f"| {kernel.us():.2f} |" in line


def test_three_sizes_by_one_rule():
    from fidelity_collectives import FITTED, fit_rows, fit_sizes

    for machine, tables in FITTED.items():
        small, half, large = fit_sizes(machine)
        assert small < half < large
        assert {row.size for row in fit_rows(machine)} == {small, half, large}
        assert {row.table for row in fit_rows(machine)} == set(tables)


def errors(lines: list[str]) -> list[float]:
    return [abs(float(line.split("|")[6].strip().rstrip("%"))) / 100 for line in lines]


def test_no_row_is_left_out_of_the_score():
    from fidelity_collectives import fit_rows, kind_of, measurements

    fitted = [
        r for machine in ("dgx-h100", "h100-cluster", "hgx-a100", "mi300x-8") for r in fit_rows(machine)
    ]
    assert {kind_of(r) for r in measurements()} == {"scored", "fitted"}
    assert [r for r in measurements() if kind_of(r) == "fitted"] == sorted(fitted, key=measurements().index)


def test_scored_rows_are_within_the_aim():
    found = errors(lines_of("Scored rows"))
    assert statistics.median(found) <= 0.10
    assert max(found) <= 0.35
    assert f"All scored rows ({len(found)}):" in PAGE
