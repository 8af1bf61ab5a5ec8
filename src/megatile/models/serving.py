"""Serving: requests through an engine's scheduler, and what their users see.

Requests come in a closed loop (``concurrency`` users, each asks again when answered), by a Poisson process
(``rate``), or from a trace with a line ``{"timestamp": …, "prompt_len": …, "output_len": …}`` for each.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from megatile.core.errors import Place
from megatile.core.files import read_text
from megatile.core.tables import text_table
from megatile.models.batch import Batch
from megatile.models.deployment import Deployment
from megatile.models.memory import Memory, cache_bytes, memory, require_fit
from megatile.models.prices import prices
from megatile.models.scheduler import Request, Scheduler, Segment
from megatile.models.schemes import ModelError
from megatile.models.step import step_us

MAX_TRACE_BYTES = 256 << 20
MAX_REQUESTS = 1_000_000
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, repr=False)
class Serving:
    """What users of a deployment see: times in milliseconds, tokens per second."""

    deployment: Deployment
    asked: str
    requests: tuple[Request, ...]
    segments: tuple[Segment, ...]
    duration_s: float
    memory: Memory
    preemptions: int
    steps: int

    def _of(self, values: Sequence[float]) -> dict[str, float]:
        found = {f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES} if len(values) else {}
        return {"mean": float(np.mean(values)) if len(values) else 0.0, **found}

    @property
    def ttft(self) -> dict[str, float]:
        """Time to the first token: mean and percentiles."""
        more = self.deployment.engine.frontend_ms
        return self._of([(r.first_us - r.arrival_us) / 1e3 + more for r in self.requests])

    @property
    def tpot(self) -> dict[str, float]:
        """Per request (latency − TTFT) / (tokens − 1): mean and percentiles."""
        return self._of(
            [(r.end_us - r.first_us) / 1e3 / (r.output - 1) for r in self.requests if r.output > 1]
        )

    @property
    def latency(self) -> dict[str, float]:
        more = self.deployment.engine.frontend_ms
        return self._of([(r.end_us - r.arrival_us) / 1e3 + more for r in self.requests])

    @property
    def itl(self) -> dict[str, float]:
        """Gaps between tokens, each counted once for every request that waits for it."""
        if not self.segments:
            return self._of([])
        first, last, steps, requests = (
            np.array([getattr(s, n) for s in self.segments], float)
            for n in ("first_us", "last_us", "steps", "requests")
        )
        weights, middle = steps * requests, (first + last) / 2e3
        order = np.argsort(middle)
        below = np.cumsum(weights[order])
        at = {p: int(np.searchsorted(below, below[-1] * p / 100)) for p in PERCENTILES}
        found = {f"p{p}": float(middle[order][min(i, len(middle) - 1)]) for p, i in at.items()}
        return {"mean": float((weights * middle).sum() / weights.sum()), **found}

    @property
    def ttft_ms(self) -> float:
        return self.ttft["mean"]

    @property
    def tpot_ms(self) -> float:
        return self.tpot["mean"]

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of all replicas."""
        return self.deployment.dp * sum(r.output for r in self.requests) / self.duration_s

    @property
    def tokens_per_s_device(self) -> float:
        return self.tokens_per_s / self.deployment.devices

    @property
    def tokens_per_s_user(self) -> float:
        return 1e3 / self.tpot_ms if self.tpot_ms else 0.0

    @property
    def verdict(self) -> str:
        """Whether the engine keeps up, or what limits it."""
        if self.preemptions:
            return f"saturated: {self.preemptions} preemptions, the KV cache is too small"
        waits = [r.first_us - r.arrival_us for r in self.requests]
        quarter = max(1, len(waits) // 4)
        early, late = np.mean(waits[:quarter]), np.mean(waits[-quarter:])
        if self.asked.startswith("rate") and late > 4 * early + 1e6:
            return "saturated: requests arrive faster than they are served"
        return "keeps up"

    def rows(self) -> list[dict[str, Any]]:
        """One row for each measure."""
        measures = {
            "ttft_ms": self.ttft,
            "tpot_ms": self.tpot,
            "itl_ms": self.itl,
            "latency_ms": self.latency,
        }
        return [{"measure": name, **values} for name, values in measures.items()]

    def to_pandas(self) -> Any:
        """Return one row per request as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame([
            {"arrival_ms": r.arrival_us / 1e3, "prompt": r.prompt, "output": r.output,
             "ttft_ms": (r.first_us - r.arrival_us) / 1e3, "latency_ms": (r.end_us - r.arrival_us) / 1e3}
            for r in self.requests
        ])  # fmt: skip

    def __repr__(self) -> str:
        d = self.deployment
        times = f"TTFT {self.ttft_ms:.4g} ms, TPOT {self.tpot_ms:.4g} ms, {self.tokens_per_s:.5g} tokens/s"
        return f"Serving({d.config.name} on {d.hda.name}, {d.words()}, {self.asked}: {times})"

    def __str__(self) -> str:
        head = ("measure", "mean", *(f"p{p}" for p in PERCENTILES))
        rows = [(r["measure"], *(f"{r[k]:.4g}" for k in head[1:] if k in r)) for r in self.rows()]
        e = self.deployment.engine
        lines = [
            repr(self), text_table(head, rows),
            f"{self.tokens_per_s:.5g} tokens/s, {self.tokens_per_s_device:.4g} a device, "
            f"{self.tokens_per_s_user:.4g} a user; {self.verdict}",
            f"engine: max_num_seqs {e.max_num_seqs}, token_budget {e.token_budget}, "
            f"memory_share {e.memory_share}, block_tokens {e.block_tokens}, "
            f"chunked prefill {'on' if e.chunked else 'off'}, no speculative decoding",
        ]  # fmt: skip
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def make_requests(
    isl: int, osl: int, count: int, *, spread: float = 0.0, rate: float | None = None, seed: int = 0
) -> list[Request]:
    """Return requests of ``isl`` + ``osl`` tokens; lengths lie evenly in [1 − spread, 1] times these, and
    arrivals are a Poisson process of ``rate`` per second, or all at 0."""
    for name, value in (("isl", isl), ("osl", osl), ("requests", count)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**9:
            raise ModelError(f"{name} must be a whole number from 1 on, got {value!r}")
    if count > MAX_REQUESTS:
        raise ModelError(f"{count} requests are more than {MAX_REQUESTS}")
    if not 0 <= spread < 1:
        raise ModelError(f"spread must be in [0, 1), got {spread!r}")
    if rate is not None and not (isinstance(rate, (int, float)) and 0 < rate < 1e9):
        raise ModelError(f"rate must be positive requests per second, got {rate!r}")
    random = np.random.default_rng(seed)
    shares = 1 - spread * random.random((count, 2))
    arrivals = np.zeros(count) if rate is None else np.cumsum(random.exponential(1e6 / rate, count))
    return [
        Request(float(t), max(1, round(isl * a)), max(1, round(osl * b)))
        for t, (a, b) in zip(arrivals, shares, strict=True)
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
            row = json.loads(line)
            time, prompt, output = (row[key] for key in ("timestamp", "prompt_len", "output_len"))
            cached = row.get("cached_len", 0)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise ModelError(
                f"is no request: {problem!s}", place=place,
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


def simulate_requests(
    d: Deployment, requests: Iterable[Request], *, concurrency: int | None = None, ramp_s: float = 0.0
) -> tuple[Scheduler, Memory]:
    """Return the scheduler of one replica after all requests have left.

    With ``concurrency``, requests are those of a closed loop, whose users begin evenly over ``ramp_s``.
    """
    waiting = deque(requests)
    scheduler, held = _scheduler(d, waiting, concurrency)
    if concurrency is None:
        arriving, waiting = waiting, deque[Request]()
    else:
        users = min(concurrency, len(waiting))
        arriving = deque(waiting.popleft() for _ in range(users))
        for number, request in enumerate(arriving):
            request.arrival_us = ramp_s * 1e6 * number / users
    answered = 0
    while arriving or scheduler.running or scheduler.waiting:
        while arriving and arriving[0].arrival_us <= scheduler.now_us:
            scheduler.add(arriving.popleft())
        scheduler.advance(arriving[0].arrival_us if arriving else float("inf"))
        for _ in range(len(scheduler.done) - answered):
            if waiting:
                request = waiting.popleft()
                request.arrival_us = scheduler.now_us
                scheduler.add(request)
        answered = len(scheduler.done)
    return scheduler, held


def _scheduler(
    d: Deployment, requests: Sequence[Request], concurrency: int | None
) -> tuple[Scheduler, Memory]:
    """Return an idle scheduler whose cache is what the memory has room for."""
    longest = max(r.prompt + r.output for r in requests)
    held = memory(d, requests=1, context=longest)
    require_fit(d, held, 1, longest)
    per_token = cache_bytes(d, longest) / longest
    priced = prices(d.hda, d.library)
    engine = d.engine
    if not engine.chunked:  # whole prompts: the budget must hold the longest beside decoding requests
        needed = max(r.prompt for r in requests) + min(engine.max_num_seqs, concurrency or len(requests))
        engine = replace(engine, token_budget=max(engine.token_budget, needed))

    def time_us(groups: tuple[tuple[int, int, int], ...]) -> float:
        return step_us(d, Batch.from_groups(groups).share(d.pp), priced)

    return Scheduler(engine, time_us, int(held.cache_room / per_token) * d.attention_dp), held


def serve(
    d: Deployment,
    *,
    isl: int = 1024,
    osl: int = 1024,
    concurrency: int | None = None,
    rate: float | None = None,
    requests: Any = None,
    count: int | None = None,
    spread: float = 0.0,
    ramp_s: float = 0.0,
    seed: int = 0,
) -> Serving:
    """Return what users see of a deployment under a load; see `Model.serve`."""
    if not (isinstance(ramp_s, (int, float)) and 0 <= ramp_s < 1e6):
        raise ModelError(f"ramp_s must be seconds from 0 on, got {ramp_s!r}")
    if (concurrency is not None) + (rate is not None) + (requests is not None) > 1:
        raise ModelError("give one of concurrency=, rate= and requests=")
    if requests is not None:
        made = read_requests(requests) if isinstance(requests, (str, Path)) else _pairs(requests)
        asked = f"trace of {len(made)} requests"
    else:
        users = 1 if concurrency is None and rate is None else concurrency
        if users is not None and (isinstance(users, bool) or not isinstance(users, int) or users < 1):
            raise ModelError(f"concurrency must be a whole number from 1 on, got {users!r}")
        number = count if count is not None else 10 * (users or 64)
        made = make_requests(isl, osl, number, spread=spread, rate=rate, seed=seed)
        asked = f"rate {rate:g}/s" if users is None else f"concurrency {users}"
        asked += f", {isl} → {osl} tokens"
        concurrency = None if users is None else -(-users // d.dp)
    own = made[:: d.dp]
    scheduler, held = simulate_requests(d, own, concurrency=concurrency, ramp_s=ramp_s)
    return Serving(
        d, asked, tuple(sorted(scheduler.done, key=lambda r: r.arrival_us)), tuple(scheduler.segments),
        max(1e-9, scheduler.now_us / 1e6), held, scheduler.preemptions, scheduler.steps,
    )  # fmt: skip


def _pairs(requests: Any) -> list[Request]:
    try:
        found = [Request(float(t) * 1e6, int(p), int(o)) for t, p, o in requests]
    except (TypeError, ValueError):
        raise ModelError("requests are (seconds, prompt, output) triples or a JSONL file") from None
    if not found or any(r.prompt < 1 or r.output < 1 or not 0 <= r.arrival_us < 1e15 for r in found):
        raise ModelError("requests need at least one token each and times from 0 on")
    return sorted(found, key=lambda r: r.arrival_us)
