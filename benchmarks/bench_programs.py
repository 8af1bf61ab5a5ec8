"""Tile programs: how long lowering and simulating every block takes, and predicted products beside TileLang's
on one H800 (which computes like an H100), as a section of docs/fidelity.md."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import megatile as mt
import megatile.language as T
from harness import Bar, Row, at_most, bench, best_of

ROWS = Path(__file__).parent / "data" / "tilelang_gemm.csv"
PAGE = Path(__file__).parent.parent / "docs" / "fidelity.md"
BEGIN, END = "<!-- tile programs: begin -->", "<!-- tile programs: end -->"
ALLOWED = 0.15
MACHINE = "dgx-h100"


def gemm(M: int, N: int, K: int, bM: int = 128, bN: int = 256, bK: int = 64, stages: int = 3) -> Any:
    """A product with one tile of the result per block; copies run ahead by the number of stages."""

    @T.program
    def matmul(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, N), "f16"), C: T.Tensor((M, N), "f16")):
        with T.Kernel(block=(T.ceildiv(N, bN), T.ceildiv(M, bM)), threads=256) as (bx, by):
            a = T.alloc((bM, bK), "f16", level="l1")
            b = T.alloc((bK, bN), "f16", level="l1")
            c = T.alloc((bM, bN), "f32", level="l0")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=stages):
                T.copy(a, A[by * bM, k * bK])
                T.copy(b, B[k * bK, bx * bN])
                T.gemm(a, b, c)
            T.copy(C[by * bM, bx * bN], c)

    return matmul


def measured() -> list[dict[str, str]]:
    with ROWS.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def predicted_tflops(row: dict[str, str]) -> float:
    m, n, k = (int(row[name]) for name in "mnk")
    return 2 * m * n * k / mt.simulate(gemm(m, n, k), machine=MACHINE, record=False).time_ps


@bench("tile programs")
def speed() -> Iterator[Row]:
    program = gemm(8192, 8192, 8192)
    yield Row(
        "lower a product of 8192", best_of(lambda: mt.lower(program, machine=MACHINE)), "s", bar=at_most(1)
    )
    lowered = mt.lower(program, machine=MACHINE)
    mt.simulate(lowered, record=False)
    began = time.process_time()
    mt.simulate(lowered, record=False)
    took = time.process_time() - began
    yield Row("simulate each of its 2048 blocks (time of the processor)", took, "s", bar=at_most(1))


@bench("tile programs fidelity")
def fidelity() -> Iterator[Row]:
    lines = []
    for row in measured():
        ours, theirs = predicted_tflops(row), float(row["tflops"])
        above = ours >= theirs
        bar = Bar(1 + ALLOWED if above else 1 - ALLOWED, on_ratio=True, at_most=above)
        yield Row(f"8192×8192×{row['k']} f16", ours, "TFLOP/s", theirs, "TileLang on H800", bar)
        lines.append(f"| {row['k']} | {theirs:.0f} | {ours:.0f} | {ours / theirs - 1:+.1%} |")
    write_page(lines)


def write_page(lines: list[str]) -> None:
    section = "\n".join(
        [
            BEGIN,
            "## Tile programs",
            "",
            "A product written in `T` (128×256×64, three stages: `benchmarks/bench_programs.py`), lowered",
            "for `dgx-h100` and simulated block by block, beside TileLang's on one H800, which computes like",
            "an H100. M = N = 8192, f16. The constants are those of the machine file; none was fitted to",
            "these rows. The rate under load (`sustained`) is the median of large library products.",
            "",
            "| K | measured TFLOP/s | predicted | error |",
            "|---:|---:|---:|---:|",
            *lines,
            END,
            "",
        ]
    )
    text = PAGE.read_text(encoding="utf-8")
    if BEGIN in text:
        text = text[: text.index(BEGIN)] + section.rstrip("\n") + text[text.index(END) + len(END) :]
    else:
        text = f"{text.rstrip()}\n\n{section}"
    PAGE.write_text(text, encoding="utf-8")
