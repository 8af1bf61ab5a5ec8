"""Tile programs: how long lowering and simulating every block takes, and predicted products beside TileLang's
on one H800 (which computes like an H100), as a section of the accuracy page."""

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
from harness import Bar, Row, at_most, bench, best_of, publish_section, sized, smoke, table_behind

ROWS = Path(__file__).parent / "data" / "tilelang_gemm.csv"
PREFILL = Path(__file__).parent / "data" / "kernels" / "attention_prefill_h100.csv.gz"
ALLOWED = 0.10
ALLOWED_ATTENTION = 0.20
MEDIAN_ATTENTION, P90_ATTENTION = 8, 15
MACHINE = "dgx-h100"
L2_SHARE = (32 << 20, 8 << 20)
"""Keys and values that FlashAttention 3 means to keep in the L2: of batches as they are, and of ragged ones
(tile_scheduler.hpp, flash_prepare_scheduler.cu)."""
L2_BYTES = 50 << 20
"""Calls that move more than twice as much leave nothing behind that the next one finds."""
CACHE_REGISTERS, COUNTED_REGISTERS = 48, 16
"""Of a thread that writes to the cache (fitted: it decides how many blocks an SM holds), and those of them
that every thread has by the machine file (``thread_overhead``)."""


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
    slots, the others compute, each on its rows: the scores of the next keys are under way while those of the
    last ones become weights (``IntraWGOverlap``). Blocks come in FlashAttention 3's order: the longest first
    of as many heads (``section``) as the L2 holds the keys and values of, then of the next ones; in ragged
    batches sequence by sequence, where a block reads first where its sequence begins and how long it is, and
    of every tile of keys where it lies (``flash_fwd_kernel_sm90.h``, ``paged_kv.h``)."""
    slots, consumers, bN = 2, 3 if dim == 64 else 2, 128
    bM, group, scale = rows * consumers, heads // kv_heads, math.log2(math.e) / math.sqrt(dim)
    blocks, least = -(-seq * group // bM), -T.infinity("f32")
    together = kv_heads if ragged else kv_heads * batch
    held = L2_SHARE[ragged] // (2 * seq * dim * 2)
    section = min(together, section or 1 << max(0, held.bit_length() - 1))

    @T.program
    def forward(
        Q: T.Tensor((kv_heads, batch * seq * group, dim), "f16"),
        K: T.Tensor((batch, kv_heads, seq, dim), "f16"),
        V: T.Tensor((batch, kv_heads, seq, dim), "f16"),
        Out: T.Tensor((batch, kv_heads, seq * group, dim), "f16"),
        Starts: T.Tensor((batch,), "i32"),
        Lengths: T.Tensor((batch,), "i32"),
        Pages: T.Tensor((batch, -(-seq // bN)), "i32"),
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
            # Registers of the warp groups that compute; the one that loads has given up its own.
            score = T.alloc((bM, bN), "f32", level="l0")
            weight = T.alloc((bM, bN), "f16", level="l0")
            out = T.alloc((bM, dim), "f32", level="l0")
            top = T.alloc((bM,), "f32", level="l0")
            shrink = T.alloc((bM,), "f32", level="l0")
            part = T.alloc((bM,), "f32", level="l0")
            total = T.alloc((bM,), "f32", level="l0")
            start = T.read_scalar(Starts[bz], bound=batch * seq * group) if ragged else bz * seq * group
            length = T.read_scalar(Lengths[bz], bound=seq) if ragged else seq
            if bx * bM < length * group:
                T.copy(q, Q[by, start + bx * bM, 0])
            with T.Scale("warpgroup") as (w, _):
                key_full = T.alloc((slots,), "i32", level="l1")
                key_empty = T.alloc((slots,), "i32", level="l1")
                value_full = T.alloc((slots,), "i32", level="l1")
                value_empty = T.alloc((slots,), "i32", level="l1")
                if w == 0:
                    for k in T.serial(steps + 1):  # from the last keys to the first; values a step later
                        if k < steps:
                            n = steps - 1 - k
                            page = T.read_scalar(Pages[bz, n], bound=seq) if ragged else 0
                            if k >= slots:
                                T.wait(key_empty[k % slots], consumers * (k // slots))
                            T.copy(key[k % slots, 0:bN, 0:dim], K[bz, by, page + n * bN, 0])
                            for c in range(consumers):
                                T.signal(key_full[k % slots], dst=1 + c)
                        if k > 0:
                            if k > slots:
                                T.wait(value_empty[(k - 1) % slots], consumers * ((k - 1) // slots))
                            T.copy(value[(k - 1) % slots, 0:bN, 0:dim], V[bz, by, (steps - k) * bN, 0])
                            for c in range(consumers):
                                T.signal(value_full[(k - 1) % slots], dst=1 + c)
                else:
                    at = (w - 1) * rows
                    mine = slice(at, at + rows)
                    T.clear(out[mine, 0:dim])
                    T.clear(total[mine])
                    T.fill(top[mine], least)
                    for k in T.serial(steps + 1):
                        if k < steps:
                            T.wait(key_full[k % slots], k // slots + 1)
                            T.gemm(
                                q[mine, 0:dim],
                                key[k % slots],
                                score[mine, 0:bN],
                                False,
                                True,
                                clear_accum=True,
                            )
                            T.signal(key_empty[k % slots], dst=0)
                        if k > 0:
                            T.wait(value_full[(k - 1) % slots], (k - 1) // slots + 1)
                            T.gemm(weight[mine, 0:bN], value[(k - 1) % slots, 0:bN, 0:dim], out[mine, 0:dim])
                            T.signal(value_empty[(k - 1) % slots], dst=0)
                        if k < steps:
                            n = steps - 1 - k
                            if (n * bN + bN) * group > bx * bM:
                                for i, j in T.Parallel(rows, bN):
                                    seen = (n * bN + j) * group <= bx * bM + at + i
                                    score[at + i, j] = T.if_then_else(seen, score[at + i, j], least)
                            T.copy(shrink[mine], top[mine])
                            T.reduce_max(score[mine, 0:bN], top[mine], dim=1, clear=False)
                            for i in T.Parallel(rows):
                                shrink[at + i] = T.exp2((shrink[at + i] - top[at + i]) * scale)
                            for i, j in T.Parallel(rows, bN):
                                score[at + i, j] = T.exp2(score[at + i, j] * scale - top[at + i] * scale)
                            T.reduce_sum(score[mine, 0:bN], part[mine], dim=1)
                            for i in T.Parallel(rows):
                                total[at + i] = total[at + i] * shrink[at + i] + part[at + i]
                            T.copy(weight[mine, 0:bN], score[mine, 0:bN])
                            for i, j in T.Parallel(rows, dim):
                                out[at + i, j] *= shrink[at + i]
                    for i, j in T.Parallel(rows, dim):
                        out[at + i, j] /= total[at + i]
                    T.copy(Out[bz, by, bx * bM + at, 0], out[mine, 0:dim])

    return forward


def cache_keys(tokens: int, width: int) -> Any:
    """Keys and values of every token to their places in the cache, a block for each token: it learns its
    place first, then the key comes and goes, then the value (vLLM's ``reshape_and_cache_flash``). A thread
    has ``CACHE_REGISTERS``, most of them for addresses of 64 bits."""
    threads = min(width, 512)

    @T.program
    def write(
        Keys: T.Tensor((tokens, width), "f16"),
        Values: T.Tensor((tokens, width), "f16"),
        Cache: T.Tensor((2, tokens, width), "f16"),
        Slots: T.Tensor((tokens,), "i64"),
    ):
        with T.Kernel(block=tokens, threads=threads) as b:
            row = T.alloc((2, 1, width), "f16")
            addresses = T.alloc((threads, CACHE_REGISTERS - COUNTED_REGISTERS), "i32")
            slot = T.read_scalar(Slots[b], bound=tokens - 1)
            T.clear(addresses)
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


def repeated_us(calls: list[tuple[Any, dict[str, Any] | None]], rounds: int) -> float:
    """The last of several rounds of launches one after another: benchmarks find in the L2 what they left."""
    session = mt.Session(MACHINE, record=0)
    lowered = [(mt.lower(program, machine=MACHINE).plan, assume) for program, assume in calls]
    began = 0
    for _ in range(rounds):
        began = session.time_ps
        for plan, assume in lowered:
            session.launch(plan, assume=assume)
    return (session.time_ps - began) / 1e6


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
        attention = flash_attention(*self[:5], ragged=self.serving)
        if not self.serving:
            return simulated_us(attention)
        rows, tokens = self.seq * self.heads // self.kv_heads, self.batch * self.seq
        order = np.arange(self.batch * self.kv_heads * -(-rows // (192 if self.dim == 64 else 128)))
        starts = order * self.batch // len(order) * rows  # sequence by sequence
        calls = [
            (cache_keys(tokens, self.kv_heads * self.dim), {"scalar": np.arange(tokens)}),
            (schedule_batch(self.batch), None),
            (attention, {"scalar": starts, "scalar_2": self.seq, "scalar_3": 0}),
        ]
        moved = 2 * tokens * self.dim * (2 * self.heads + 4 * self.kv_heads)
        return repeated_us(calls, 2 if moved < 2 * L2_BYTES else 1)


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


def attention_errors() -> list[float]:
    """Relative errors of vLLM's calls of at least 1024 tokens."""
    return [a.predicted_us() / a.us - 1 for a in measured_attention()[0] if a.serving]


def product_errors() -> list[float]:
    """Relative errors of times of TileLang's products."""
    return [float(row["tflops"]) / predicted_tflops(row) - 1 for row in measured()]


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


TEXT = """## Tile programs

A GEMM written in `T` (128×256×64, three stages), lowered for `dgx-h100` and simulated block by block,
compared with TileLang's on one H800, which computes like an H100. M = N = 8192, f16. No constant was
fitted to these rows.

| K | measured TFLOP/s | predicted | error |
|---:|---:|---:|---:|
{products}

Causal attention in `T` with the structure of FlashAttention 3 (`benchmarks/bench_programs.py`), compared with
its own published figure and with every eighth of vLLM's rows that have no window and at least 1024 tokens. A
call of vLLM is three kernels, each written in `T`: write keys and values to the cache, schedule the batch,
run attention. The calls run twice and the second run counts, with what the first left in the L2.

{score} Calls with fewer blocks than SMs are predicted too slow, because FlashAttention 3 splits their keys.
Calls with one key head per head are predicted too fast, because a third of their traffic is writes.

{attention}

The form of the programs and two constants were fitted to these rows: how long a block takes to start on an SM
where another has ended (`begin`, 0.4 µs), and the registers of a thread that writes to the cache (48). The L2
bandwidth of one SM (`unit_bandwidth`, 64 bytes per cycle) is assumed.

Shorter sequences: {said}

{rest}
"""
COLUMNS = "| batch × tokens, heads/kv heads | measured µs | predicted | error | source |"


def write_page(lines: list[str], attention: list[str], score: str, said: str, rest: list[str]) -> None:
    title = "Attention in T, at least 1024 tokens"
    text = TEXT.format(
        products="\n".join(lines),
        attention=table_behind(title, "attention_in_t", [COLUMNS, *attention]),
        rest=table_behind("Attention in T, shorter sequences", "attention_in_t_short", [COLUMNS, *rest]),
        score=score,
        said=said,
    )
    publish_section("tile programs", text)
