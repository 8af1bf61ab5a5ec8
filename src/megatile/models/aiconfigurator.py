"""Results under the column names of aiconfigurator's tables, for scripts that read those."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from megatile.core.files import write_text
from megatile.models.deployment import Deployment

COLUMNS = (
    "model", "isl", "osl", "concurrency", "request_rate", "bs", "global_bs", "ttft", "tpot", "seq/s",
    "seq/s/gpu", "tokens/s", "tokens/s/gpu", "tokens/s/user", "request_latency", "num_total_gpus", "tp", "pp",
    "dp", "moe_tp", "moe_ep", "parallel", "gemm", "kvcache", "fmha", "moe", "memory", "backend", "system",
)  # fmt: skip
"""Times in ms, memory in GiB of a device, rates per second."""


def row(
    d: Deployment, isl: int, osl: int, concurrency: int, ttft_ms: float, tpot_ms: float, memory_bytes: float
) -> dict[str, Any]:
    """Return a row of a deployment under a load: users of one replica, times that they see."""
    devices = d.group * d.pp
    latency = ttft_ms + tpot_ms * max(0, osl - 1)
    requests = concurrency * 1e3 / latency if latency else 0.0
    batch = -(-concurrency // d.attention_dp)
    experts = bool(d.config.experts)
    parallel = f"tp{d.tp}pp{d.pp}dp{d.attention_dp}etp{d.expert_tp if experts else 1}ep{d.ep}"
    values = (
        d.config.name, isl, osl, concurrency, requests, batch, concurrency, ttft_ms, tpot_ms, requests,
        requests / devices, requests * osl, requests * osl / devices, 1e3 / tpot_ms if tpot_ms else 0.0,
        latency, devices, d.tp, d.pp, d.attention_dp, d.expert_tp if experts else 1, d.ep, parallel, d.dtype,
        d.kv_dtype, "bf16", d.dtype if experts else "", memory_bytes / 2**30, d.library, d.hda.name,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def write_csv(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write rows under these columns."""
    text = StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    return write_text(path, text.getvalue())
