"""Predicted collectives beside measured ones: every row of ``data/collectives.csv`` and of NCCL on one node.

The constants of the machine files come from ``fit_transports.py``. A row is predicted by the rule for its
library with the library's own choice (`megatile.predict_kernel`), with the variables that its run had set.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from fit_transports import DATA, SETS, Table, hda_of, rows_of
from megatile.timing.collective_choice import choose, rule_of, times_ps
from megatile.timing.fit import Score

MACHINE_OF = {table.name: (name, table) for name, chosen in SETS.items() for table in chosen.tables}
"""The tables that constants were fitted to, with the machine file."""
OTHERS = {"H200x8_stas_16G": ("h200-8", Table("H200x8_stas_16G"))}
"""Tables that chose neither constants nor form."""
VARIABLES = {"NCCL_NVLS_ENABLE=0": {"NCCL_NVLS_ENABLE": 0}, "NCCL_ALGO=Ring": {"NCCL_ALGO": "Ring"}}
"""What a run's settings mean."""


@dataclass(frozen=True)
class Compared:
    """A measured row with its prediction, in microseconds: the smaller of in-place and out-of-place times."""

    table: str
    operation: str
    config: str
    ranks: int
    size: int
    us: float
    source: str
    predicted: float
    way: str

    @property
    def error(self) -> float:
        return self.predicted / self.us - 1

    @property
    def fitted(self) -> bool:
        """Whether the row chose constants."""
        found = MACHINE_OF.get(self.table)
        return found is not None and self.size >= found[1].smallest


def compare(table: str | None = None, sizes: tuple[int, ...] | None = None) -> Iterator[Compared]:
    """The rows of ``data/collectives.csv`` with their predictions."""
    with (DATA / "collectives.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if table in (None, row["table_id"]) and (sizes is None or int(row["size_bytes"]) in sizes):
                yield _compared(row)


def _compared(row: dict[str, str]) -> Compared:
    name, table = (MACHINE_OF | OTHERS)[row["table_id"]]
    rule = rule_of(hda_of(name, table.parameters))
    env: dict[str, Any] = dict(table.env)
    for words, variables in VARIABLES.items():
        env |= variables if words in row["config"] else {}
    ranks, size, kind = int(row["n_gpus"]), int(row["size_bytes"]), row["op"]
    way = choose(rule, kind, ranks, size, graph=table.graph, env=env)
    predicted = float(times_ps(rule, kind, ranks, size, graph=table.graph, env=env)) / 1e6
    us = min(float(row[k]) for k in ("time_us_out_of_place", "time_us_in_place") if row[k])
    shown = f"{way.algorithm} {way.protocol}"
    return Compared(row["table_id"], kind, row["config"], ranks, size, us, row["source"], predicted, shown)


@cache
def one_node() -> dict[str, Any]:
    """Errors of NCCL's rows on one node, by machine."""
    found = {}
    for name in ("dgx-h100", "hgx-a100"):
        rows, rule = rows_of(SETS[name].tables[0]), rule_of(hda_of(name))
        times = [float(times_ps(rule, r.operation, r.ranks, r.nbytes)) / 1e6 for r in rows]
        found[name] = np.array(times) / np.array([r.us for r in rows]) - 1
    return found


def score(rows: list[Compared]) -> Score:
    return Score.of(np.array([row.error for row in rows]))
