"""Measured kernels that are nearest to one of a step: what they took, and what is predicted for them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from megatile.core.cached import cached
from megatile.core.errors import MegatileError
from megatile.hda import machine as find_machine
from megatile.models.operators import Operator
from megatile.timing.database import Measurement, predict_kernel
from megatile.timing.formulas import OPERATIONS
from megatile.timing.measurements import read_measurements

FOLDERS = (
    Path(__file__).with_name("measured"), Path(__file__).parents[3] / "benchmarks" / "data" / "kernels",
)  # fmt: skip
"""Where the tables are: in an installed package (`setup.py` copies them), in the source tree."""
TABLES = {
    "gemm": ("gemm_h100", "gemm_more_h100"), "moe": ("moe_h100",), "mla": ("mla_decode_h100",),
    "attention": (
        "attention_decode_h100", "attention_decode_more_h100", "attention_prefill_h100",
        "attention_prefill_more_h100",
    ),
    "all_reduce": ("custom_allreduce_h100", "custom_allreduce_trtllm_h100"), "all_gather": ("nccl_h100",),
    "reduce_scatter": ("nccl_h100",),
}  # fmt: skip
MACHINE = "dgx-h100"
"""On which the tables were measured."""
MAX_NEIGHBOUR_ROWS = 5
"""Measured rows that are listed beside a prediction."""


class Neighbour(NamedTuple):
    """A measured kernel beside its prediction; ``distance`` 1 means extents that differ by e together."""

    shape: str
    implementation: str
    measured_us: float
    predicted_us: float
    distance: float
    source: str

    @property
    def error(self) -> float:
        return self.predicted_us / self.measured_us - 1


@cached()
def _rows(kernel: str) -> tuple[Measurement, ...]:
    folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    files = [folder / f"{table}.csv.gz" for table in TABLES.get(kernel, ())] if folder else []
    return tuple(
        row for file in files if file.is_file() for row in read_measurements(file, MACHINE)
        if row.operation == kernel
    )  # fmt: skip


def neighbours(operator: Operator, library: str) -> list[Neighbour]:
    """Return the measured kernels that are nearest to an operator's, nearest first; none where no table
    has such a kernel."""
    extents, found = dict(operator.extents), OPERATIONS.find(operator.kernel)
    dtype = found.dtype_of(operator.dtype, operator.kv_dtype or None)
    kinds = {dtype, "f16"} if operator.communicates else {dtype}
    rows = [row for row in _rows(operator.kernel) if row.dtype in kinds and _library(row) in ("", library)]
    near = sorted(((_distance(row.shape, extents), n) for n, row in enumerate(rows)), key=lambda one: one)
    return [_neighbour(rows[n], distance, library) for distance, n in near[:MAX_NEIGHBOUR_ROWS]]


def _library(row: Measurement) -> str:
    name = row.implementation.lower()
    return next((word for word in ("trtllm", "vllm") if name.startswith(word)), "")


def _distance(one: dict[str, int], other: dict[str, int]) -> float:
    """Return how far shapes are apart: logarithms of the ratios of extents, the farthest first."""
    steps = [math.log((1 + one[name]) / (1 + other[name])) for name in one if name in other]
    return math.sqrt(sum(step * step for step in steps))


def _neighbour(row: Measurement, distance: float, library: str) -> Neighbour:
    dtype, _, kv = row.dtype.partition("/")
    shape: dict[str, Any] = row.shape
    try:
        predicted = predict_kernel(
            row.operation, machine=find_machine(MACHINE), dtype=dtype, kv_dtype=kv or None, library=library,
            captured=True, **shape,
        ).time_us  # fmt: skip
    except MegatileError:
        predicted = math.nan
    text = " ".join(f"{name} {value}" for name, value in row.shape.items())
    return Neighbour(text, row.implementation, row.time_us, predicted, distance, row.source)
