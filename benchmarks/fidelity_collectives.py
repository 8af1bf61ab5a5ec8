"""Predicted collectives beside published measurements: every row of ``data/collectives.csv``.

The protocol constants of the machine files come from ``fit_protocol.py``, which sees three sizes per machine;
all other rows are scored. A row is predicted as ``megatile collective -a nccl`` (or ``rccl``) does; a forced
ring is followed.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
RINGS = ("ring", "rail_rings")


@dataclass(frozen=True)
class Setting:
    """How a table of measurements is predicted; ``launch=False``: captured graphs, no launch by the host."""

    machine: str
    library: str
    parameters: tuple[tuple[str, Any], ...] = ()
    launch: bool = True
    forced_ring: bool = False


SETTINGS = {
    "H100x8_dgxc": Setting("dgx-h100", "nccl"),
    "H100x16_309a": Setting("h100-cluster", "nccl", (("nodes", 2),)),
    "H100x32_309b": Setting("h100-cluster", "nccl", (("nodes", 4),)),
    "H100x16_309g": Setting("h100-cluster", "nccl", (("nodes", 2),), forced_ring=True),
    "H200x8_stas_16G": Setting("dgx-h100", "nccl"),
    "A100x8_thanos_mpi": Setting("hgx-a100", "nccl"),
    "MI300Xx8_rocmblog": Setting("mi300x-8", "rccl"),
    "MI300Xx8_rocmblog_graph": Setting("mi300x-8", "rccl", launch=False),
}
FITTED = {
    "dgx-h100": ("H100x8_dgxc",),
    "h100-cluster": ("H100x16_309a",),
    "hgx-a100": ("A100x8_thanos_mpi",),
    "mi300x-8": ("MI300Xx8_rocmblog", "MI300Xx8_rocmblog_graph"),
}
"""The tables whose three sizes a machine file is fitted to: its first, and the same with captured graphs."""


@dataclass(frozen=True)
class Measured:
    """One row: the smaller of the in-place and the out-of-place time, in microseconds."""

    table: str
    operation: str
    config: str
    size: int
    us: float
    source: str

    @property
    def setting(self) -> Setting:
        return SETTINGS[self.table]


@dataclass(frozen=True)
class Compared:
    """A row with its prediction; ``kind`` is "scored" or "fitted"."""

    row: Measured
    predicted: float
    algorithm: str
    kind: str

    @property
    def error(self) -> float:
        return self.predicted / self.row.us - 1


@cache
def measurements() -> tuple[Measured, ...]:
    with (DATA / "collectives.csv").open(encoding="utf-8", newline="") as file:
        return tuple(
            Measured(
                row["table_id"],
                row["op"],
                row["config"],
                int(row["size_bytes"]),
                _smaller(row),
                row["source"],
            )
            for row in csv.DictReader(file)
        )


def _smaller(row: dict[str, str]) -> float:
    return min(float(row[k]) for k in ("time_us_out_of_place", "time_us_in_place") if row[k])


def rows_of(table: str) -> list[Measured]:
    return sorted((row for row in measurements() if row.table == table), key=lambda row: row.size)


@cache
def fit_sizes(machine: str) -> tuple[int, ...]:
    """The three sizes a machine file is fitted to, by one rule for all machines.

    Hockney's half-performance size n½ (time of the smallest row × rate of the largest), the middle of the
    sizes below it on a logarithmic scale, and the largest size; each the nearest in the table.
    """
    rows = rows_of(FITTED[machine][0])
    first, last = rows[0], rows[-1]
    half = math.log2(first.us * last.size / last.us)
    wanted = ((math.log2(first.size) + half) / 2, half)
    found = [min((r.size for r in rows), key=lambda s: abs(math.log2(s) - w)) for w in wanted]
    return (*found, last.size)


def fit_rows(machine: str) -> list[Measured]:
    sizes = fit_sizes(machine)
    return [row for table in FITTED[machine] for row in rows_of(table) if row.size in sizes]


def kind_of(row: Measured) -> str:
    machine = row.setting.machine
    fitted = row.table in FITTED[machine] and row.size in fit_sizes(machine)
    return "fitted" if fitted else "scored"


# -- predictions ------------------------------------------------------------------------------------


def predicted(row: Measured, hda: Any, floors: Any = None) -> tuple[float, str]:
    """Microseconds and the algorithm, as users get them."""
    from megatile.collectives.planner import predict

    setting = row.setting
    ring = setting.forced_ring or "Ring" in row.config
    how: dict[str, Any] = {"algorithm": setting.library, "among": RINGS if ring else None}
    how["launch"] = setting.launch
    found = predict(row.operation, machine=hda, nbytes=row.size, in_place=True, floors=floors, **how)
    return found.time_ps / 1e6, f"{found.candidate.label} {found.candidate.path}"


def hda_of(setting: Setting, **overrides: Any) -> Any:
    from megatile.hda import machine

    return machine(setting.machine, **dict(setting.parameters), **overrides)


def compare(
    table: str | None = None,
    sizes: tuple[int, ...] | None = None,
    constants: Callable[[str], dict[str, str]] | None = None,
) -> Iterator[Compared]:
    """Predict rows, table by table and upwards in size; ``constants``: others than the machine file has."""
    from megatile.collectives.ranking import Floors

    floors: dict[tuple[str, str, str], Any] = {}
    machines: dict[str, Any] = {}
    for row in measurements():
        if (table is not None and row.table != table) or (sizes is not None and row.size not in sizes):
            continue
        if row.table not in machines:
            machines[row.table] = hda_of(row.setting, **(constants(row.setting.machine) if constants else {}))
        hda = machines[row.table]
        known = floors.setdefault((row.table, row.operation, row.config), Floors())
        us, algorithm = predicted(row, hda, known)
        yield Compared(row, us, algorithm, kind_of(row))


def score(rows: list[Compared]) -> tuple[float, float]:
    """Median and worst absolute relative error."""
    errors = [abs(r.error) for r in rows]
    return statistics.median(errors), max(errors)


@dataclass(frozen=True)
class Check:
    """A row of ``data/validation.csv`` that is a collective, with its prediction."""

    number: str
    tests: str
    case: str
    us: float
    predicted: float | None


def validation(rows: list[Compared]) -> Iterator[Check]:
    """The rows of ``data/validation.csv``; what is not a collective has no prediction here."""
    known = {(f"{r.row.operation} {r.row.size} B [{r.row.config}]", r.row.source): r.predicted for r in rows}
    with (DATA / "validation.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found = known.get((row["case"], row["source"]))
            yield Check(
                row["id"], row["what_it_tests"], f"{row['machine']}: {row['case']}", float(row["measured"]),
                found,
            )  # fmt: skip


if __name__ == "__main__":
    from fidelity_page import draw, write_page
    from fit_protocol import priors_of

    found = list(compare())
    write_page(found, list(compare(constants=priors_of)))
    draw(found)
    print("median {:.1%}, worst {:.1%}".format(*score([r for r in found if r.kind == "scored"])))
