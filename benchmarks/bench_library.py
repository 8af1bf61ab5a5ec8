"""Library kernels by formula and by database beside measured ones, as a section of docs/fidelity.md."""

from collections.abc import Iterator

import fidelity_library as fidelity
from harness import Row, at_most, bench

BARS = {
    "gemm bf16, dgx-h100": (0.08, 0.24, 0.04),
    "gemm f8e4m3, dgx-h100": (0.16, None, 0.06),
    "gemm bf16, hgx-a100": (0.09, 0.35, 0.06),
    "prefill bf16, dgx-h100": (0.12, None, 0.07),
    "decode bf16, dgx-h100": (0.12, None, 0.07),
}
"""Of the formula the median and the 90th percentile, of the database the median."""


@bench("library kernels")
def library() -> Iterator[Row]:
    for table in fidelity.tables():
        median, p90, database = BARS[table.name]
        formula = fidelity.Score.of(table.formula)
        yield Row(f"{table.name}: formula, median", 100 * formula.median, "%", bar=at_most(100 * median))
        if p90 is not None:
            yield Row(f"{table.name}: formula, p90", 100 * formula.p90, "%", bar=at_most(100 * p90))
        yield Row(
            f"{table.name}: held out, median", 100 * table.held_out.median, "%", bar=at_most(100 * median)
        )
        left = fidelity.Score.of(table.database)
        yield Row(f"{table.name}: database, median", 100 * left.median, "%", bar=at_most(100 * database))
    fidelity.write_page()
