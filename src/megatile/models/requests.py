"""Requests of a load: equal or spread lengths, a Poisson process, or a JSONL trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from megatile.core.errors import Place
from megatile.core.files import parse_json, read_text
from megatile.models.scheduler import Request
from megatile.models.schemes import ModelError, require_whole

MAX_TRACE_BYTES = 256 << 20
"""Bytes of a JSONL trace of requests that are read."""
MAX_REQUESTS = 1_000_000
"""Requests of one simulation."""


def make_requests(
    isl: int,
    osl: int,
    count: int,
    *,
    spread: float = 0.0,
    rate: float | None = None,
    prefix: float = 0.0,
    seed: int = 0,
) -> list[Request]:
    """Return requests of ``isl`` + ``osl`` tokens; lengths lie evenly in [1 − spread, 1] times these,
    arrivals are a Poisson process of ``rate`` per second, or all at 0, and the share ``prefix`` of each
    prompt is in the cache already."""
    require_whole(isl=isl, osl=osl, requests=count)
    require_whole(0, seed=seed)
    if count > MAX_REQUESTS:
        raise ModelError(f"{count} requests are more than {MAX_REQUESTS}")
    for name, share in (("spread", spread), ("prefix", prefix)):
        if not (isinstance(share, (int, float)) and 0 <= share < 1):
            raise ModelError(f"{name} must be in [0, 1), got {share!r}")
    if rate is not None and not (isinstance(rate, (int, float)) and 0 < rate < 1e9):
        raise ModelError(f"rate must be positive requests per second, got {rate!r}")
    random = np.random.default_rng(seed)
    shares = 1 - spread * random.random((count, 2))
    arrivals = np.zeros(count) if rate is None else np.cumsum(random.exponential(1e6 / rate, count))
    lengths = [(max(1, round(isl * a)), max(1, round(osl * b))) for a, b in shares]
    return [
        Request(float(t), prompt, output, int(prompt * prefix))
        for t, (prompt, output) in zip(arrivals, lengths, strict=True)
    ]


def read_requests(path: str | Path) -> list[Request]:
    """Return the requests of a JSONL trace: ``timestamp`` (seconds), ``prompt_len``, ``output_len``, and
    optionally ``cached_len``."""
    found = []
    for number, line in enumerate(read_text(path, MAX_TRACE_BYTES, ModelError).splitlines(), 1):
        if not line.strip():
            continue
        place = Place(str(path), number)
        try:
            row = parse_json(line)
            time, prompt, output = (row[key] for key in ("timestamp", "prompt_len", "output_len"))
            cached = row.get("cached_len", 0)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise ModelError(
                f"is not a request: {problem!s}", place=place,
                advice='{"timestamp": 0.5, "prompt_len": 1024, "output_len": 128}',
            ) from None  # fmt: skip
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in (prompt, output, cached))
        if not whole or prompt < 1 or output < 1 or not 0 <= cached <= prompt or not _is_time(time):
            raise ModelError(f"lengths and times must be positive, got {line.strip()[:80]}", place=place)
        found.append(Request(float(time) * 1e6, prompt, output, cached))
    if not found:
        raise ModelError("holds no requests", place=Place(str(path)))
    return sorted(found, key=lambda r: r.arrival_us)


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9


def listed_requests(requests: Any) -> list[Request]:
    """Return the requests of (seconds, prompt, output) triples."""
    try:
        found = [Request(float(t) * 1e6, int(p), int(o)) for t, p, o in requests]
    except (TypeError, ValueError):
        raise ModelError("requests are (seconds, prompt, output) triples or a JSONL file") from None
    if not found or any(r.prompt < 1 or r.output < 1 or not 0 <= r.arrival_us < 1e15 for r in found):
        raise ModelError("each request needs at least one token and a non-negative time")
    return sorted(found, key=lambda r: r.arrival_us)
