"""Tile programs: how long lowering and simulating every block takes, and predicted products beside TileLang's
on one H800 (which computes like an H100), as a section of docs/fidelity.md."""

from __future__ import annotations

import csv
import gzip
import math
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import megatile as mt
import megatile.language as T
from harness import Bar, Row, at_most, bench, best_of, publish, sized, smoke

ROWS = Path(__file__).parent / "data" / "tilelang_gemm.csv"
PAGE = Path(__file__).parent.parent / "docs" / "fidelity.md"
BEGIN, END = "<!-- tile programs: begin -->", "<!-- tile programs: end -->"
PREFILL = Path(__file__).parent / "data" / "kernels" / "attention_prefill_h100.csv.gz"
ALLOWED = 0.10
ALLOWED_ATTENTION = 0.20
MEDIAN_ATTENTION, P90_ATTENTION = 8, 15
MACHINE = "dgx-h100"
L2_SHARE = (32 << 20, 8 << 20)
"""Keys and values that FlashAttention 3 means to keep in the L2: of batches as they are, and of ragged ones
(tile_scheduler.hpp, flash_prepare_scheduler.cu)."""


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


def flash_attention(
    batch: int, heads: int, kv_heads: int, seq: int, dim: int, rows: int = 64, ragged: bool = False,
    section: int | None = None,
) -> Any:  # fmt: skip
    """FlashAttention 3's structure, causal: blocks of 128 rows (192 at head dimension 64), a row for each
    token and each of the heads that share its key; one warp group loads tiles of 128 keys and values into two
    slots, the others compute, each on its rows. Blocks come in FlashAttention 3's order: the longest first of
    as many heads (``section``) as the L2 holds the keys and values of, then of the next ones; in ragged
    batches sequence by sequence."""
    slots, consumers, bN = 2, 3 if dim == 64 else 2, 128
    bM, group, scale = rows * consumers, heads // kv_heads, math.log2(math.e) / math.sqrt(dim)
    blocks, least = -(-seq * group // bM), -T.infinity("f32")
    together = kv_heads if ragged else kv_heads * batch
    held = L2_SHARE[ragged] // (2 * seq * dim * 2)
    section = min(together, section or 1 << max(0, held.bit_length() - 1))
    half = bN // 2  # of three warp groups the weights in 16 bits have no room beside those in 32

    @T.program
    def forward(
        Q: T.Tensor((batch, kv_heads, seq * group, dim), "f16"),
        K: T.Tensor((batch, kv_heads, seq, dim), "f16"),
        V: T.Tensor((batch, kv_heads, seq, dim), "f16"),
        Out: T.Tensor((batch, kv_heads, seq * group, dim), "f16"),
    ):
        with T.Kernel(block=kv_heads * batch * blocks, warpgroup=1 + consumers) as number:
            before = number // (together * blocks) * together
            first = number % (together * blocks) // (section * blocks) * section
            here = T.min(section, together - first)
            turn = number % (together * blocks) - first * blocks
            head = before + first + turn % here
            bx = blocks - 1 - turn // here
            by, bz = head % kv_heads, head // kv_heads
            steps = T.min(T.ceildiv(seq, bN), T.ceildiv((bx + 1) * bM, bN * group))
            q = T.alloc((bM, dim), "f16", level="l1")
            key = T.alloc((slots, bN, dim), "f16", level="l1")
            value = T.alloc((slots, bN, dim), "f16", level="l1")
            T.copy(q, Q[bz, by, bx * bM, 0])
            with T.Scale("warpgroup") as (w, _):
                key_full = T.alloc((slots,), "i32", level="l1")
                value_full = T.alloc((slots,), "i32", level="l1")
                empty = T.alloc((slots,), "i32", level="l1")
                score = T.alloc((rows, bN), "f32")
                weight = T.alloc((rows, half), "f16")
                out = T.alloc((rows, dim), "f32")
                top = T.alloc((rows,), "f32")
                shrink = T.alloc((rows,), "f32")
                part = T.alloc((rows,), "f32")
                total = T.alloc((rows,), "f32")
                if w == 0:
                    for k in T.serial(steps):
                        if k >= slots:
                            T.wait(empty[k % slots], consumers * (k // slots))
                        T.copy(key[k % slots, 0:bN, 0:dim], K[bz, by, k * bN, 0])
                        for c in range(consumers):
                            T.signal(key_full[k % slots], dst=1 + c)
                        T.copy(value[k % slots, 0:bN, 0:dim], V[bz, by, k * bN, 0])
                        for c in range(consumers):
                            T.signal(value_full[k % slots], dst=1 + c)
                else:
                    at = (w - 1) * rows
                    T.clear(out)
                    T.clear(total)
                    T.fill(top, least)
                    for k in T.serial(steps):
                        T.wait(key_full[k % slots], k // slots + 1)
                        T.gemm(q[at : at + rows, 0:dim], key[k % slots], score, False, True, clear_accum=True)
                        if (k * bN + bN) * group > bx * bM:
                            for i, j in T.Parallel(rows, bN):
                                seen = (k * bN + j) * group <= bx * bM + at + i
                                score[i, j] = T.if_then_else(seen, score[i, j], least)
                        T.copy(shrink, top)
                        T.reduce_max(score, top, dim=1, clear=False)
                        for i in T.Parallel(rows):
                            shrink[i] = T.exp2((shrink[i] - top[i]) * scale)
                        for i, j in T.Parallel(rows, bN):
                            score[i, j] = T.exp2(score[i, j] * scale - top[i] * scale)
                        T.reduce_sum(score, part, dim=1)
                        for i in T.Parallel(rows):
                            total[i] = total[i] * shrink[i] + part[i]
                        for i, j in T.Parallel(rows, dim):
                            out[i, j] *= shrink[i]
                        T.copy(weight, score[0:rows, 0:half])
                        T.wait(value_full[k % slots], k // slots + 1)
                        T.gemm(weight, value[k % slots, 0:half, 0:dim], out)
                        T.copy(weight, score[0:rows, half:bN])
                        T.gemm(weight, value[k % slots, half:bN, 0:dim], out)
                        T.signal(empty[k % slots], dst=0)
                    for i, j in T.Parallel(rows, dim):
                        out[i, j] /= total[i]
                    T.copy(Out[bz, by, bx * bM + at, 0], out)

    return forward


def cache_keys(tokens: int, width: int) -> Any:
    """Keys and values of every token to their places in the cache, a block for each token: it learns its
    place first, then the key comes and goes, then the value."""

    @T.program
    def write(
        Keys: T.Tensor((tokens, width), "f16"),
        Values: T.Tensor((tokens, width), "f16"),
        Cache: T.Tensor((2, tokens, width), "f16"),
        Slots: T.Tensor((tokens,), "i64"),
    ):
        with T.Kernel(block=tokens, threads=min(width, 512)) as b:
            row = T.alloc((2, 1, width), "f16")
            slot = T.read_scalar(Slots[b], bound=tokens - 1)
            T.copy(row[0], Keys[b, 0])
            T.copy(Cache[0, slot, 0], row[0])
            T.copy(row[1], Values[b, 0])
            T.copy(Cache[1, slot, 0], row[1])

    return write


def schedule_batch(batch: int) -> Any:
    """One block that reads the lengths of all sequences and writes how many blocks each has."""

    @T.program
    def prepare(Lengths: T.Tensor((batch,), "i32"), Blocks: T.Tensor((batch,), "i32")):
        with T.Kernel(block=1, threads=128):
            each = T.alloc((batch,), "i32")
            T.copy(each, Lengths)
            T.copy(Blocks, each)

    return prepare


def simulated_us(program: Any, assume: dict[str, Any] | None = None) -> float:
    return mt.simulate(program, machine=MACHINE, record=False, assume=assume).time_ps / 1e6


class Attention(NamedTuple):
    """A measured causal forward pass. ``serving``: as vLLM calls it on ragged batches, three kernels one
    after another: the keys and values go to the cache, the batch is scheduled, attention runs."""

    batch: int
    heads: int
    kv_heads: int
    seq: int
    dim: int
    us: float
    source: str
    serving: bool = True

    @property
    def blocks(self) -> int:
        return self.batch * self.heads * -(-self.seq // 128)

    def predicted_us(self) -> float:
        attention = simulated_us(flash_attention(*self[:5], ragged=self.serving))
        if not self.serving:
            return attention
        tokens = self.batch * self.seq
        return (
            simulated_us(cache_keys(tokens, self.kv_heads * self.dim), {"scalar": np.arange(tokens)})
            + simulated_us(schedule_batch(self.batch))
            + attention
        )


def measured_attention(step: int = 8) -> tuple[list[Attention], list[Attention]]:
    """FlashAttention 3's own figure and every eighth of vLLM's rows without a window and with at least 1024
    tokens (and no more than are simulated in a few seconds), from the smallest batch to the largest; then
    some of the shorter ones."""
    first = Attention(4, 16, 16, 4096, 128, 474.7, "FlashAttention 3 (validation.csv V17)", False)
    long, short = list[Attention](), list[Attention]()
    names = ("batch_size", "num_heads", "num_key_value_heads", "isl", "head_dim")
    with gzip.open(PREFILL, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            a = Attention(*(int(row[name]) for name in names), float(row["us"]), "vLLM")
            fa3 = row["kernel_source"] == "vllm_flash_attn_fa3" and row["step"] == row["window_size"] == "0"
            if fa3 and a.seq % 128 == 0 and a.dim in (64, 128) and a.blocks * a.seq <= 60_000 * 256:
                (long if a.seq >= 1024 else short).append(a)
    long.sort(key=lambda a: a.batch)
    return [first, *long[(len(long) - 1) % step :: step]], short[:: 3 * step]


def measured() -> list[dict[str, str]]:
    with ROWS.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def predicted_tflops(row: dict[str, str]) -> float:
    m, n, k = (int(row[name]) for name in "mnk")
    return 2 * m * n * k / mt.simulate(gemm(m, n, k), machine=MACHINE, record=False).time_ps


def allgather_gemm(n: int, devices: int = 8, bM: int = 128, bN: int = 128, bK: int = 64) -> Any:
    """AllGather-GEMM tile by tile: blocks put tiles of A into every device's memory and signal each; a block
    waits for the rows it needs (`examples/44_allgather_gemm_tiles.py` with a pipeline along K)."""
    rows, columns = n // devices, n // devices
    tiles = rows // bM

    @T.program
    def kernel(A: T.Tensor((n, n), "f16"), B: T.Tensor((n, n), "f16"), C: T.Tensor((n, n), "f16")):
        grid = (columns // bN, n // bM)
        with T.Kernel(device=devices, block=grid, threads=256) as (bx, by), T.Scale("device") as (r, all_):
            my_A = T.view(A, layout=T.FullRow)
            my_B, my_C = T.view(B, layout=T.FullCol), T.view(C, layout=T.FullCol)
            gathered = T.alloc((n, n), "f16", level="l2")
            ready = T.alloc((n // bM,), "i32", level="l2")
            with T.Scale("block"):
                a = T.alloc((bM, bK), "f16", level="l1")
                b = T.alloc((bK, bN), "f16", level="l1")
                c = T.alloc((bM, bN), "f32")
                tile = (r * tiles + by) % (n // bM)
                if bx == 0 and by < tiles:
                    for k in T.serial(n // bK):
                        T.copy(a, my_A[by * bM, k * bK])
                        for s in T.serial(all_):
                            T.copy(gathered[tile * bM, k * bK], a, dst=(r + s) % all_, scale="device")
                    for s in T.serial(all_):
                        T.signal(ready[tile], dst=(r + s) % all_, scale="device")
                T.wait(ready[tile], 1, scale="device")
                T.clear(c)
                for k in T.Pipelined(n // bK, num_stages=2):
                    T.copy(a, gathered[tile * bM, k * bK])
                    T.copy(b, my_B[k * bK, bx * bN])
                    T.gemm(a, b, c)
                T.copy(my_C[tile * bM, bx * bN], c)

    return kernel


@bench("tile programs")
def speed() -> Iterator[Row]:
    n = sized(8192, 512)
    program = gemm(n, n, n)
    yield Row(
        f"lower a product of {n}", best_of(lambda: mt.lower(program, machine=MACHINE)), "s", bar=at_most(1)
    )
    lowered = mt.lower(program, machine=MACHINE)
    mt.simulate(lowered, record=False)
    began = time.process_time()
    mt.simulate(lowered, record=False)
    took = time.process_time() - began
    yield Row("simulate each of its blocks (time of the processor)", took, "s", bar=at_most(1))
    for machine, limit in (("dgx-h100", 3), ("mi300x-8", 5)):
        gathered = mt.lower(allgather_gemm(sized(8192, 1024)), machine=machine)
        began = time.process_time()
        mt.simulate(gathered, record=False)
        took = time.process_time() - began
        yield Row(f"simulate an AllGather-GEMM of {n} on {machine}", took, "s", bar=at_most(limit))


@bench("tile programs fidelity")
def fidelity() -> Iterator[Row]:
    lines = []
    for row in sized(measured(), measured()[:1]):
        ours, theirs = predicted_tflops(row), float(row["tflops"])
        bar = _within(ours, theirs, ALLOWED)
        yield Row(f"8192×8192×{row['k']} f16", ours, "TFLOP/s", theirs, "TileLang on H800", bar)
        lines.append(f"| {row['k']} | {theirs:.0f} | {ours:.0f} | {ours / theirs - 1:+.1%} |")
    full, others = measured_attention()
    if smoke():
        full, others = [], others[:1]
    attention, errors = [], []
    for a in full:
        us = a.predicted_us()
        attention.append(_line(a, us))
        errors.append(abs(us / a.us - 1))
        if not a.serving:
            yield Row(f"attention {_name(a)}", us, "µs", a.us, a.source, _within(us, a.us, ALLOWED))
    scored = sorted(errors[1:]) or [0.0]
    median_, p90 = (100 * scored[int(share * (len(scored) - 1))] for share in (0.5, 0.9))
    yield Row("attention of 1024 tokens and more: median error", median_, "%", bar=at_most(MEDIAN_ATTENTION))
    yield Row("attention of 1024 tokens and more: nine of ten within", p90, "%", bar=at_most(P90_ATTENTION))
    rest, short = [], []
    for a in others:
        us = a.predicted_us()
        rest.append(_line(a, us))
        short.append(abs(us / a.us - 1))
    within = sum(e <= ALLOWED_ATTENTION for e in short)
    yield Row("attention of shorter sequences: median error", 100 * median(short), "%")
    score = f"The median error of vLLM's rows is {median_:.1f} %, nine of ten are within {p90:.1f} %."
    said = f"{within} of {len(short)} are within 20 %, the median error is {median(short):.1%}."
    write_page(lines, attention, score, said, rest)


def _name(a: Attention) -> str:
    return f"{a.batch}×{a.seq} tokens, {a.heads}/{a.kv_heads} heads of {a.dim}"


def _line(a: Attention, us: float) -> str:
    return f"| {_name(a)} | {a.us:.0f} | {us:.0f} | {us / a.us - 1:+.1%} | {a.source} |"


def _within(ours: float, theirs: float, allowed: float) -> Bar:
    above = ours >= theirs
    return Bar(1 + allowed if above else 1 - allowed, on_ratio=True, at_most=above)


def write_page(lines: list[str], attention: list[str], score: str, said: str, rest: list[str]) -> None:
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
            "",
            "Causal attention, f16, with the structure of FlashAttention 3 (a warp group that loads, two",
            "that compute, three at head dimension 64, each 64 rows; a row for every token and head that",
            "share a key; 128 keys at a time; the longest blocks first of as many heads as the L2 holds",
            "keys and values of): its own published figure, and every eighth of vLLM's rows without a",
            "window, with at least 1024 tokens, of all batches. A call of vLLM is three kernels, each in",
            "`T` and simulated with its launch: keys and values go to the cache (a block for each token,",
            "which learns its place first, then moves the key, then the value), the batch is scheduled,",
            "attention runs, one sequence after another.",
            "",
            "One constant was fitted to rows of this table: how long a block takes to begin on an SM where",
            "another has ended (`begin`, 0.4 µs). Calls with many key heads for many tokens had been",
            "predicted 20 to 50 % too short, and the reason is the cache: blocks of 512 threads, four to an",
            "SM, each three loads after one another. Over all rows a wave of them takes 2.0 µs.",
            "What one SM gets from the L2 (`unit_bandwidth`, 64 bytes a cycle) is assumed; 40 and 60 GB/s",
            "were tried on these rows and on those of products, and were worse.",
            "",
            "| batch × tokens, heads/kv heads | measured µs | predicted | error | source |",
            "|---|---:|---:|---:|---|",
            *attention,
            "",
            f"{score}",
            "Too short are above all calls with a key head for each head and short sequences: a third of",
            "their time is memory traffic, much of it writing, for which memory is slower than for reading.",
            "",
            f"Some of the rows with shorter sequences: {said}",
            "",
            "| batch × tokens, heads/kv heads | measured µs | predicted | error | source |",
            "|---|---:|---:|---:|---|",
            *rest,
            END,
            "",
        ]
    )
    text = PAGE.read_text(encoding="utf-8")
    if BEGIN in text:
        text = text[: text.index(BEGIN)] + section.rstrip("\n") + text[text.index(END) + len(END) :]
    else:
        text = f"{text.rstrip()}\n\n{section}"
    publish(PAGE, text)
