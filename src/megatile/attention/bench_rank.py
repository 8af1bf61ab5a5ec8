"""One process of the benchmark, run as a module with its task as JSON on standard input."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatile.attention.bench import DTYPES, BenchCase, BenchRow
from megatile.attention.functional import hamilton_attention
from megatile.attention.profile import Profile
from megatile.attention.sharding import position_ids, shard_sequence

SAMPLED_ROWS = 32  # query rows per rank that are checked against the definition


def main() -> None:
    """Measure every schedule of the task; rank 0 prints a line of JSON before and after each."""
    task = json.load(sys.stdin)
    case, rank = BenchCase(**task["case"]), task["rank"]
    torch.set_num_threads(case.threads)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{task['port']}",
        rank=rank,
        world_size=case.processes,
        timeout=timedelta(seconds=task["timeout"]),
    )
    for name in task["schedules"]:
        _say(rank, {"start": name})
        _say(rank, {"row": asdict(_measure(name, case))})
    dist.destroy_process_group()


def _say(rank: int, what: dict[str, Any]) -> None:
    if rank == 0:
        print(json.dumps(what), flush=True)


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
    """The largest error of some rows of this rank, relative to their scale, against double precision."""
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


if __name__ == "__main__":
    main()
