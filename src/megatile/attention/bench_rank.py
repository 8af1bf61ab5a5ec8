"""What each process of the benchmark does."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatile.attention.bench import DTYPES, BenchCase, BenchRow
from megatile.attention.functional import hamilton_attention
from megatile.attention.profile import Profile
from megatile.attention.sharding import position_ids, shard_sequence
from megatile.runtime.processes import write

SAMPLED_ROWS = 32  # query rows per rank that are checked against the definition


def work(folder: Path, rank: int, settings: dict[str, Any]) -> None:
    """Measure every schedule; rank 0 leaves a file before and one with the result after each."""
    for number, name in enumerate(settings["schedules"]):
        if rank == 0:
            write(folder / f"start_{number}", name)
        row = _measure(name, BenchCase(**settings["case"]))
        if rank == 0:
            write(folder / f"row_{number}", asdict(row))


def _measure(name: str, case: BenchCase) -> BenchRow:
    generator = torch.Generator().manual_seed(0)
    heads = (case.heads, case.kv_heads, case.kv_heads, case.heads)
    shape = [(case.batch, case.seqlen, h, case.dim) for h in heads]
    whole = [torch.randn(s, generator=generator).to(getattr(torch, DTYPES[case.dtype][0])) for s in shape]
    arguments: dict[str, Any] = {"schedule": name, "causal": case.causal}
    q, k, v, d_out = (shard_sequence(x, **arguments).requires_grad_(case.backward) for x in whole)
    seconds, communication, computation = [], [], []
    out = q
    for repeat in range(case.repeats + 1):
        profile = Profile(q.device)
        dist.barrier()
        start = time.perf_counter()
        out = hamilton_attention(q, k, v, _profile=profile, **arguments)
        if case.backward:
            out.backward(d_out.detach())
        if repeat:  # the first run warms up
            seconds.append(time.perf_counter() - start)
            communication.append(profile.seconds("communication"))
            computation.append(profile.seconds("computation"))
    rows = position_ids(case.seqlen, **arguments)
    error = _error(out.detach(), whole, rows, case)
    medians = [statistics.median(x) for x in (seconds, communication, computation)]
    slowest = torch.tensor([*medians, error], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    total, moved, worked, worst = slowest.tolist()
    return BenchRow(name, total, moved, worked, worst, worst <= DTYPES[case.dtype][1])


def _error(out: Tensor, whole: Sequence[Tensor], rows: Tensor, case: BenchCase) -> float:
    """Return the largest error of some rows of this rank, relative to their scale, against double
    precision."""
    if not len(rows):
        return 0.0
    picked = torch.linspace(0, len(rows) - 1, min(SAMPLED_ROWS, len(rows))).long()
    q = whole[0][:, rows[picked]].double()
    groups = case.heads // case.kv_heads
    k, v = (x.double().repeat_interleave(groups, 2) for x in whole[1:3])
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * case.dim**-0.5
    if case.causal:
        hidden = torch.arange(case.seqlen)[None, :] > rows[picked][:, None]
        scores = scores.masked_fill(hidden, float("-inf"))
    want = torch.einsum("bhij,bjhd->bihd", torch.softmax(scores, -1), v)
    return ((out[:, picked].double() - want).abs().max() / want.abs().max()).item()
