"""The accuracy page and the tables behind it are what the machine files predict, for every published row."""

import csv
from pathlib import Path

import pytest

from harness import ACCURACY, rows_behind

ROOT = Path(__file__).parents[2]
PAGE = ACCURACY.read_text(encoding="utf-8")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_row_is_in_the_table_once():
    with (ROOT / "benchmarks" / "data" / "collectives.csv").open(encoding="utf-8", newline="") as file:
        wanted = [[r["table_id"], r["op"], r["size_bytes"]] for r in csv.DictReader(file)]
    assert sorted(wanted) == sorted(row[:3] for row in rows_behind("collectives"))


@pytest.mark.parametrize(
    "table", ["H100x8_dgxc", "H100x32_309b", "H200x8_stas_16G", "MI300Xx8_rocmblog_graph"]
)
def test_the_page_is_what_is_predicted_now(table):
    from fidelity_collectives import compare

    rows = rows_behind("collectives")
    for found in compare(table):
        figures = [f"{found.us:.2f}", f"{found.predicted:.2f}", f"{found.error:+.1%}"]
        row = [table, found.operation, str(found.size), *figures, found.way]
        assert [*row, "yes" if found.fitted else "no"] in rows


def test_constants_of_the_files_are_behind_the_page():
    from fidelity_page import CONSTANTS, constants

    assert CONSTANTS.read_text(encoding="utf-8").splitlines() == list(constants())


def test_the_page_leads_with_unseen_rows():
    head = PAGE.partition("## What cannot be predicted")[0]
    assert head.index("Unseen rows") < head.index("Rows left out") < head.index("Fitted rows")
    from fidelity_collectives import compare, score

    blind = score(list(compare("H200x8_stas_16G")))
    assert f"on h200-8 | {blind.rows} | {blind.median:.1%} | {blind.p90:.1%} |" in head
    assert blind.p90 < 0.12


def test_what_cannot_be_predicted_names_what_has_no_rows():
    from megatile.timing.collective_choice import MEASURED

    listed = PAGE.partition("## What cannot be predicted")[2].partition("<!-- summary: end -->")[0]
    assert all(f"`{name}`" in listed for names in MEASURED.values() for name in names)


def test_every_validation_row_is_in_the_table_or_said_not_to_be():
    from fidelity_kernels import ELSEWHERE, KERNELS

    with (ROOT / "benchmarks" / "data" / "validation.csv").open(encoding="utf-8", newline="") as file:
        numbers = [row["id"] for row in csv.DictReader(file)]
    shown = {row[0]: row for row in rows_behind("validation")}
    assert list(shown) == [n for n in numbers if n not in ELSEWHERE]
    assert all(f"{number} {where}" in PAGE for number, where in ELSEWHERE.items())
    for number, kernel in KERNELS.items():
        assert f"{kernel.us():.2f}" in shown[number]


def test_groups_of_rows_on_one_node_are_behind_the_page():
    from fidelity_page import groups

    assert [cells(line) for line in groups()][1:] == rows_behind("nccl_one_node")


def test_every_table_behind_the_page_is_linked_from_it():
    from harness import DOCS

    others = {"tilelang_examples", "tilescale_examples"}
    for table in (DOCS / "tables").iterdir():
        assert f"(tables/{table.name})" in PAGE or table.stem in others, table
