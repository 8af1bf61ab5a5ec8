"""Kernels by framework beside measured ones: rows × kernel × library with median, p90 and constants.

``python benchmarks/fidelity_frameworks.py`` prints the table, ``--folds`` adds the errors of rows left out
(5-fold, and whole groups of shapes) and writes it into the accuracy page, ``--fit [KERNEL]`` prints
figures for the machine file instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness import publish_section, sized, table_behind
from megatile.hda import machine
from megatile.timing.database import Measurement
from megatile.timing.fit import Problem, Score, drawn, figure_line, problems
from megatile.timing.formulas import kernel_times_us
from megatile.timing.measurements import read_measurements

DATA = Path(__file__).parent / "data" / "kernels"
ENGINE_CONSTANTS = 4
"""Of an engine's all-reduce: start, share, and outside graphs issue and copy, or what each rank adds."""
TABLES = (
    "gemm_h100", "gemm_more_h100", "attention_prefill_h100", "attention_prefill_more_h100",
    "attention_decode_h100", "attention_decode_more_h100", "mla_decode_h100", "moe_h100", "deepep_h100",
    "deepep_low_latency_h100",
)  # fmt: skip
MACHINE = "dgx-h100"
UNGATED = {(2048, 5120), (1024, 2688), (2688, 1856)}
"""Hidden and inner sizes of layers without a gate (squared ReLU): Nemotron, by its config.json."""
FOLDS = 5


def rows_of(table: str) -> list[Measurement]:
    """Return the rows of a table, with what its columns do not say."""
    rows = read_measurements(DATA / f"{table}.csv.gz", MACHINE)
    return [_ungated(row) if row.operation == "moe" else row for row in rows]


def _ungated(row: Measurement) -> Measurement:
    layer = (row.shape["hidden"], row.shape["inner"])
    return row._replace(shape={**row.shape, "gated": 0}) if layer in UNGATED else row


def library_of(row: Measurement) -> str:
    return "trtllm" if row.implementation.lower().startswith("trtllm") else "vllm"


def all_problems() -> Iterator[tuple[str, Problem]]:
    """Yield what is fitted, with its framework."""
    rows = [row for table in TABLES for row in rows_of(table)]
    for library in ("vllm", "trtllm"):
        mine = [r for r in rows if library_of(r) == library]
        for problem in problems(machine(MACHINE), mine, library):
            yield library, replace(problem, rows=problem.rows[:: sized(1, 40)])


def all_reduces() -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield errors of the engines' own all-reduces, outside and inside captured graphs."""
    hda = machine(MACHINE)
    for table in ("custom_allreduce_h100", "custom_allreduce_trtllm_h100"):
        rows = rows_of(table)
        for name in dict.fromkeys(row.implementation for row in rows):
            mine = [row for row in rows if row.implementation == name]
            library, captured = library_of(mine[0]), not name.endswith("eager")
            times = [
                kernel_times_us(hda, "all_reduce", "f16", library, captured=captured, **row.shape)
                / row.time_us
                for row in mine
            ]
            yield library, f"all_reduce {name}", np.array(times) - 1


class Line(NamedTuple):
    """How well one kernel is predicted."""

    library: str
    operation: str
    kernel: str
    constants: int
    score: Score

    def text(self) -> str:
        cells = (self.library, self.operation, self.kernel, self.score.rows, self.constants)
        return "| " + " | ".join(map(str, cells)) + f" | {_percent(self.score)} | {self.score.bias:+.1%} |"


def _percent(score: Score) -> str:
    return f"{score.median:.1%} | {score.p90:.1%}"


def lines() -> Iterator[tuple[Line, Problem | None]]:
    """Yield the rows of the table, with what was fitted."""
    for library, p in all_problems():
        score = Score.of(p.errors(p.base))
        yield Line(library, f"{p.operation} {p.dtype}", p.kernels[0], len(p.free), score), p
    for library, name, errors in all_reduces():
        yield Line(library, name, "all_reduce", ENGINE_CONSTANTS, Score.of(errors)), None


def _left_out(problem: Problem | None) -> str:
    if problem is None:
        return " | | | |"
    return "".join(f" {_percent(Score.of(problem.left_out(f(problem))))} |" for f in (_folds, _groups))


def _folds(problem: Problem) -> list[int]:
    return [int(drawn(str(sorted(row.shape.items()))) * FOLDS) for row in problem.rows]


def _groups(problem: Problem) -> list[str]:
    """Return groups of shapes: layers of experts, heads of attention, n of products."""
    keys = {"gemm": ("n",), "attention": ("heads",), "mla": ("heads",), "moe": ("hidden", "experts")}
    names = keys.get(problem.operation, ("hidden",))
    groups = [" ".join(str(row.shape[name]) for name in names) for row in problem.rows]
    several = sorted(set(groups), key=drawn)
    return [str(several.index(group) % 8) for group in groups]  # at most eight fits


TEXT = """## Kernels by framework

Kernels of inference frameworks on H100, as `mt.predict_kernel(…, library=…)` predicts them: vLLM 0.24.0,
TensorRT-LLM 1.3.0rc20, DeepEP through SGLang 0.5.12 ({rows} rows, random samples of tables measured by the
aiconfigurator project, Apache-2.0). Median errors are between {best:.0%} and {worst:.0%}, with 2 to 7 fitted
constants per kernel. The table also gives errors for rows and for groups of shapes left out of the fit. The
forms were chosen with these rows in view.

{table}

vLLM's GEMMs with block scales were timed from Python, where the host takes longer than the kernel for up to
92 µs. With `captured=True` only the kernel counts; that case was not measured.
"""
COLUMNS = (
    "| library | operation | kernel | rows | constants | median | p90 | signed | 5-fold | 5-fold p90 "
    "| shapes left out | shapes left out p90 |"
)


def section() -> str:
    """Return the section of the page; write the table behind it, with errors of rows left out."""
    found = list(lines())
    rows = [COLUMNS, *(line.text() + _left_out(problem) for line, problem in found)]
    medians = [line.score.median for line, _ in found]
    return TEXT.format(
        rows=sum(line.score.rows for line, _ in found),
        best=min(medians),
        worst=max(medians),
        table=table_behind("Errors by kernel", "framework_kernels", rows),
    )


def write_page() -> None:
    publish_section("frameworks", section())


def print_fit(only: str) -> None:
    for library, problem in all_problems():
        if not problem.kernels[0].startswith(only):
            continue
        figures = problem.fitted()
        score = Score.of(problem.errors(figures))
        print(library, problem.operation, problem.dtype, score)
        for name in {name for name, _ in problem.free}:
            print("  ", figure_line(figures[name]))


if __name__ == "__main__":
    if "--fit" in sys.argv:
        print_fit(sys.argv[-1] if sys.argv[-1] != "--fit" else "")
    elif "--folds" in sys.argv:
        write_page()
    else:
        print(*(line.text() for line, _ in lines()), sep="\n")
