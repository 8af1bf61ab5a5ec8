"""Library kernels beside measured ones: ``data/kernels/``, by formula and by database.

``python benchmarks/fidelity_library.py`` writes its section of the accuracy page; with
``--fit`` it prints the figures for the machine files instead, fitted to all rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from harness import publish_section, sized, table_behind
from megatile.hda import HDA, machine
from megatile.timing.database import Database, Measurement
from megatile.timing.fit import Score, fit
from megatile.timing.formulas import OPERATIONS, Device
from megatile.timing.measurements import read_measurements

DATA = Path(__file__).parent / "data" / "kernels"
FITTED = "vllm_flash_attn_fa3"
"""The attention kernels that figures are fitted to; the few of FlashAttention 4 have none of their own."""

TEXT = """## Library kernels

GEMM and attention kernels on one device, compared with {count} measured times: random tenths of tables
measured by the aiconfigurator project (Apache-2.0), H100 SXM with vLLM 0.24.0, A100 SXM with TensorRT-LLM
1.0.0. The prediction is that of `mt.predict_kernel`.

*Formula*: constants fitted to all rows (at most 7 per table). *Held out*: constants fitted to one half of the
rows and judged on the other half; the form of the formula was chosen with all rows in view. *Database*: each
row is predicted from the other measured rows (`megatile perfdb`). A negative signed error means that the
prediction is too fast.

| table | rows | formula: median | p90 | signed | held out: median | p90 | database: median | p90 | signed |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|
{lines}

{groups}

{others}

{elsewhere_rows} rows of GEMM in f16 on A100, measured by LLMCompass and not used in any fit: median error
{elsewhere.median:.1%}, signed {elsewhere.bias:+.1%}, 90 % within {elsewhere.p90:.1%}. The worst rows are tiny
products that took 30 µs there.
"""


@dataclass(frozen=True)
class Table:
    """The rows of one kind, with what is predicted for them (relative errors)."""

    name: str
    machine: str
    rows: tuple[Measurement, ...]
    formula: np.ndarray
    held_out: Score
    database: np.ndarray


def measurements() -> Iterator[tuple[str, str, list[Measurement]]]:
    for file, name in (("gemm_h100", "dgx-h100"), ("gemm_a100", "hgx-a100")):
        rows = read_measurements(DATA / f"{file}.csv.gz", name)
        for dtype in dict.fromkeys(row.dtype for row in rows):
            yield f"gemm {dtype}, {name}", name, [row for row in rows if row.dtype == dtype]
    for kind in ("prefill", "decode"):
        yield (
            f"{kind} bf16, dgx-h100",
            "dgx-h100",
            read_measurements(DATA / f"attention_{kind}_h100.csv.gz", "dgx-h100"),
        )


@cache
def tables() -> tuple[Table, ...]:
    return tuple(_table(name, on, rows[:: sized(1, 60)]) for name, on, rows in measurements())


def _table(name: str, on: str, rows: list[Measurement]) -> Table:
    hda = machine(on)
    (judged,) = fit(hda, [r for r in rows if r.implementation in ("", FITTED)], held_out=0.5)
    with Database(":memory:") as database:
        database.add(rows)
        left_out = database.leave_one_out(rows[0].operation, hda, rows[0].dtype)
    return Table(name, on, tuple(rows), _errors(hda, rows), judged.after, left_out)


def _errors(hda: HDA, rows: list[Measurement]) -> np.ndarray:
    """Signed relative errors of the formula."""
    operation = OPERATIONS[rows[0].operation]
    shapes = [operation.shape(row.shape) for row in rows]
    columns = {extent: np.array([s[extent] for s in shapes], float) for extent in operation.extents}
    times = np.array([row.time_us for row in rows])
    return operation.formula(Device.of(hda), columns, rows[0].dtype) / times - 1


def section(found: tuple[Table, ...]) -> str:
    """Return the section of the page; write the tables behind it."""
    lines = []
    for t in found:
        formula, database = Score.of(t.formula), Score.of(t.database)
        lines.append(
            f"| {t.name} | {formula.rows} | {formula.median:.1%} | {formula.p90:.1%} | {formula.bias:+.1%} "
            f"| {t.held_out.median:.1%} | {t.held_out.p90:.1%} "
            f"| {database.median:.1%} | {database.p90:.1%} | {database.bias:+.1%} |"
        )
    other = elsewhere()
    return TEXT.format(
        count=sum(len(t.rows) for t in found),
        lines="\n".join(lines),
        groups=table_behind("Formula errors by shape", "library_kernels", groups(found)),
        others=table_behind("NCCL's collectives by formula and database", "nccl_closed_form", others()),
        elsewhere_rows=other.rows,
        elsewhere=other,
    ).strip()


def groups(found: tuple[Table, ...]) -> Iterator[str]:
    yield "| table | group | rows | median, signed | median, absolute | p90 |"
    for t in found:
        yield from _groups(t)


def others() -> Iterator[str]:
    """Collectives, a line for each operation."""
    yield "| table | rows | formula: median | p90 | signed | database: median |"
    for file, on in (("nccl_h100", "dgx-h100"), ("nccl_a100", "hgx-a100")):
        rows, hda = read_measurements(DATA / f"{file}.csv.gz", on), machine(on)
        for operation in dict.fromkeys(row.operation for row in rows):
            mine = [row for row in rows if row.operation == operation]
            score = Score.of(_errors(hda, mine))
            with Database(":memory:") as database:
                database.add(mine)
                known = Score.of(database.leave_one_out(operation, hda, mine[0].dtype))
            yield (
                f"| {operation} {mine[0].dtype}, {on} | {score.rows} | {score.median:.1%} | {score.p90:.1%} "
                f"| {score.bias:+.1%} | {known.median:.1%} |"
            )


def elsewhere() -> Score:
    rows = read_measurements(DATA / "gemm_elsewhere.csv", "hgx-a100")
    return Score.of(_errors(machine("hgx-a100"), rows))


def _band(extent: str, *ends: int) -> Callable[[Measurement], str]:
    def group(row: Measurement) -> str:
        value = row.shape.get(extent, 0)
        below = next((end for end in ends if value <= end), None)
        return f"{extent} up to {below}" if below is not None else f"{extent} above {ends[-1]}"

    return group


def _groups(table: Table) -> Iterator[str]:
    gemm = (_band("m", 16, 256, 2048), _band("n", 256, 4096), _band("k", 256, 4096))
    attention = (
        _band("queries", 1, 128, 2048), _band("context", 0, 128, 4096), _band("batch", 4, 64),
        lambda row: f"head_dim {row.shape['head_dim']}",
        lambda row: "a window" if row.shape.get("window") else "no window",
    )  # fmt: skip
    for group in gemm if table.rows[0].operation == "gemm" else attention:
        names = sorted({group(row) for row in table.rows}, key=_order)
        for name in names if len(names) > 1 else ():
            score = Score.of(table.formula[[group(row) == name for row in table.rows]])
            errors = f"{score.bias:+.1%} | {score.median:.1%} | {score.p90:.1%}"
            yield f"| {table.name} | {name} | {score.rows} | {errors} |"


def _order(name: str) -> tuple[int, str]:
    digits = "".join(c for c in name if c.isdigit())
    return (int(digits) if digits else 0) * 2 + ("above" in name), name


def write_page() -> None:
    publish_section("library kernels", section(tables()))


def print_fit() -> None:
    for name, on, rows in measurements():
        for found in fit(machine(on), [r for r in rows if r.implementation in ("", FITTED)], held_out=0):
            print(name, *found.lines(), sep="\n  ")


if __name__ == "__main__":
    if "--fit" in sys.argv:
        print_fit()
    else:
        write_page()
