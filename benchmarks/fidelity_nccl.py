"""Predicted collectives beside NCCL rows that no fit has seen: ``data/nccl.csv``, 2, 4 and 8 ranks.

``python benchmarks/fidelity_nccl.py`` writes the part of ``docs/fidelity.md`` between its marks.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness import publish

DATA = Path(__file__).parent / "data" / "nccl.csv"
PAGE = Path(__file__).parent.parent / "docs" / "fidelity.md"
BEGIN, END = "<!-- nccl: begin -->", "<!-- nccl: end -->"
SIZES = ((1 << 16, "up to 64 KiB"), (1 << 22, "up to 4 MiB"), (1 << 60, "above 4 MiB"))

HEAD = """### NCCL rows that no fit has seen

Runs of NCCL on one node ({count} rows, f16: H100 SXM with NCCL 2.29.2, A100 SXM with 2.27.3), a random
sample of tables measured by the aiconfigurator project (Apache-2.0). Nothing was fitted to them. Errors are
signed, predicted beside measured: below zero the prediction is too fast. The machine files as they are,
`predict(…, algorithm="nccl")`; sizes as nccl-tests counts them.

All {count} rows: median error {median:.1%} absolute, {signed:+.1%} signed; worst {worst:+.1%}.

"""


@dataclass(frozen=True)
class Row:
    """One measured time with its prediction, in microseconds."""

    machine: str
    operation: str
    ranks: int
    size: int
    us: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.us - 1

    @property
    def sizes(self) -> str:
        return next(name for most, name in SIZES if self.size <= most)


@cache
def rows() -> tuple[Row, ...]:
    with DATA.open(encoding="utf-8", newline="") as file:
        return tuple(map(_row, csv.DictReader(file)))


def _row(row: dict[str, str]) -> Row:
    from megatile.collectives.planner import predict

    operation, ranks, size = row["operation"], int(row["ranks"]), int(row["bytes"])
    found = predict(
        operation, machine=row["machine"], nbytes=size, ranks=ranks, dtype="f16", algorithm="nccl"
    )
    return Row(row["machine"], operation, ranks, size, float(row["us"]), found.time_ps / 1e6)


def section(found: tuple[Row, ...]) -> str:
    errors = [r.error for r in found]
    head = HEAD.format(
        count=len(found),
        median=statistics.median(map(abs, errors)),
        signed=statistics.median(errors),
        worst=max(errors, key=abs),
    )
    groups: tuple[tuple[str, Callable[[Row], str]], ...] = (
        ("machine", lambda r: r.machine),
        ("operation", lambda r: r.operation),
        ("ranks", lambda r: f"{r.ranks} ranks"),
        ("size", lambda r: r.sizes),
        ("operation and ranks", lambda r: f"{r.operation}, {r.ranks} ranks"),
    )
    lines = ["| by | group | rows | median, signed | median, absolute | worst |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    for name, key in groups:
        lines += _lines(name, found, key)
    return "\n".join([BEGIN, head + "\n".join(lines), END])


def _lines(name: str, found: tuple[Row, ...], key: Callable[[Row], str]) -> Iterator[str]:
    order = [text for _, text in SIZES]
    names = sorted({key(r) for r in found}, key=lambda g: (order.index(g) if g in order else 0, g))
    for group in names:
        errors = [r.error for r in found if key(r) == group]
        signed, absolute = statistics.median(errors), statistics.median(map(abs, errors))
        worst = max(errors, key=abs)
        yield f"| {name} | {group} | {len(errors)} | {signed:+.1%} | {absolute:.1%} | {worst:+.1%} |"


def write_page() -> None:
    old = PAGE.read_text(encoding="utf-8")
    made = section(rows())
    if BEGIN in old:
        new = old.partition(BEGIN)[0] + made + old.partition(END)[2]
    else:
        mark = "<!-- collectives: end -->"
        new = old.replace(mark, f"{mark}\n\n{made}", 1)
    publish(PAGE, new)


if __name__ == "__main__":
    write_page()
    print(section(rows()))
