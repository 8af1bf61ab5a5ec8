"""Serving: requests through an engine's scheduler, and what their users see.

Requests come in a closed loop (``concurrency`` users, each asks again when answered), by a Poisson process
(``rate``), or from a trace with a line ``{"timestamp": …, "prompt_len": …, "output_len": …}`` for each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from megatile.core.rows import data_frame
from megatile.core.tables import text_table
from megatile.models import aiconfigurator
from megatile.models.deployment import Deployment
from megatile.models.memory import Memory
from megatile.models.requests import listed_requests, make_requests, read_requests
from megatile.models.scheduler import Request, Segment
from megatile.models.schemes import ModelError
from megatile.models.workers import Load, serve_apart, serve_together

PERCENTILES = (50, 90, 99)
ITL_POINTS = 16
"""Gaps that stand for those of a run of steps."""


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
    prefill: Deployment | None = None
    """The deployment that prefills, where it is not the one that decodes."""

    def _of(self, values: Sequence[float]) -> dict[str, float]:
        found = {f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES} if len(values) else {}
        return {"mean": float(np.mean(values)) if len(values) else 0.0, **found}

    @property
    def ttft(self) -> dict[str, float]:
        """Time to the first token: mean and percentiles."""
        return self._of([(r.first_us - r.arrival_us) / 1e3 for r in self.requests])

    @property
    def tpot(self) -> dict[str, float]:
        """Per request (latency − TTFT) / (tokens − 1): mean and percentiles."""
        return self._of(
            [(r.end_us - r.first_us) / 1e3 / (r.output - 1) for r in self.requests if r.output > 1]
        )

    @property
    def latency(self) -> dict[str, float]:
        return self._of([(r.end_us - r.arrival_us) / 1e3 for r in self.requests])

    @property
    def itl(self) -> dict[str, float]:
        """Gaps between tokens, each counted once for every request that waits for it."""
        if not self.segments:
            return self._of([])
        first, last, steps, requests = (
            np.array([getattr(s, n) for s in self.segments], float)
            for n in ("first_us", "last_us", "steps", "requests")
        )
        # Steps of a run grow evenly from the first to the last: each run is so many points between them.
        at = (np.arange(ITL_POINTS) + 0.5) / ITL_POINTS
        gaps = ((first[:, None] + (last - first)[:, None] * at) / 1e3).ravel()
        weights = np.repeat(steps * requests / ITL_POINTS, ITL_POINTS)
        order = np.argsort(gaps)
        below = np.cumsum(weights[order])
        index = {p: int(np.searchsorted(below, below[-1] * p / 100)) for p in PERCENTILES}
        found = {f"p{p}": float(gaps[order][min(i, len(gaps) - 1)]) for p, i in index.items()}
        return {"mean": float((weights * gaps).sum() / weights.sum()), **found}

    @property
    def ttft_ms(self) -> float:
        return self.ttft["mean"]

    @property
    def tpot_ms(self) -> float:
        return self.tpot["mean"]

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of all replicas."""
        replicas = self.deployment.dp if self.prefill is None else 1
        return replicas * sum(r.output for r in self.requests) / self.duration_s

    @property
    def devices(self) -> int:
        return self.deployment.devices + (0 if self.prefill is None else self.prefill.devices)

    @property
    def tokens_per_s_device(self) -> float:
        return self.tokens_per_s / self.devices

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
        """Return one row for each measure."""
        measures = {
            "ttft_ms": self.ttft,
            "tpot_ms": self.tpot,
            "itl_ms": self.itl,
            "latency_ms": self.latency,
        }
        return [{"measure": name, **values} for name, values in measures.items()]

    def to_pandas(self) -> Any:
        """Return one row per request as a pandas DataFrame."""
        return data_frame(
            {"arrival_ms": r.arrival_us / 1e3, "prompt": r.prompt, "output": r.output,
             "ttft_ms": (r.first_us - r.arrival_us) / 1e3, "latency_ms": (r.end_us - r.arrival_us) / 1e3}
            for r in self.requests
        )  # fmt: skip

    def aiconfigurator_row(self) -> dict[str, Any]:
        """Return the result under aiconfigurator's column names; lengths are means of the requests."""
        isl, osl = (
            round(float(np.mean([getattr(r, n) for r in self.requests]))) for n in ("prompt", "output")
        )
        users = max(1, round(sum(r.end_us - r.arrival_us for r in self.requests) / 1e6 / self.duration_s))
        return aiconfigurator.row(
            self.deployment, isl, osl, users, self.ttft_ms, self.tpot_ms, self.memory.total
        )

    def __repr__(self) -> str:
        d = self.deployment
        times = f"TTFT {self.ttft_ms:.4g} ms, TPOT {self.tpot_ms:.4g} ms, {self.tokens_per_s:.5g} tokens/s"
        apart = "" if self.prefill is None else f", prefill apart ({self.prefill.words()})"
        return f"Serving({d.config.name} on {d.hda.name}, {d.words()}{apart}, {self.asked}: {times})"

    def __str__(self) -> str:
        head = ("measure", "mean", *(f"p{p}" for p in PERCENTILES))
        rows = [(r["measure"], *(f"{r[k]:.4g}" for k in head[1:] if k in r)) for r in self.rows()]
        lines = [
            repr(self), text_table(head, rows),
            f"{self.tokens_per_s:.5g} tokens/s, {self.tokens_per_s_device:.4g} a device, "
            f"{self.tokens_per_s_user:.4g} a user; {self.verdict}",
            self.deployment.engine.words(),
        ]  # fmt: skip
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


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
    prefix: float = 0.0,
    ramp_s: float = 0.0,
    seed: int = 0,
    prefill: Deployment | None = None,
) -> Serving:
    """Return what users see of a deployment under a load; see `Model.serve`."""
    if not (isinstance(ramp_s, (int, float)) and 0 <= ramp_s < 1e6):
        raise ModelError(f"ramp_s must be non-negative seconds, got {ramp_s!r}")
    if (concurrency is not None) + (rate is not None) + (requests is not None) > 1:
        raise ModelError("give one of concurrency=, rate= and requests=")
    replicas = d.dp if prefill is None else 1
    together, most = d.devices + (prefill.devices if prefill is not None else 0), d.hda.count("device")
    if together > most:
        raise ModelError(
            f"prefill and decode engines need {together} devices, '{d.hda.name}' has {most}",
            advice="fewer engines or smaller degrees",
        )
    if requests is not None:
        made = read_requests(requests) if isinstance(requests, (str, Path)) else listed_requests(requests)
        asked = f"trace of {len(made)} requests"
    else:
        users = 1 if concurrency is None and rate is None else concurrency
        if users is not None and (isinstance(users, bool) or not isinstance(users, int) or users < 1):
            raise ModelError(f"concurrency must be a positive integer, got {users!r}")
        number = count if count is not None else 10 * (users or 64)
        made = make_requests(isl, osl, number, spread=spread, rate=rate, prefix=prefix, seed=seed)
        asked = f"rate {rate:g}/s" if users is None else f"concurrency {users}"
        asked += f", {isl} → {osl} tokens"
        concurrency = None if users is None else -(-users // replicas)
    load = Load(deque(made[::replicas]), concurrency, ramp_s)
    found = serve_together(d, load) if prefill is None else serve_apart(prefill, d, load)
    begin, end = min(r.arrival_us for r in found.requests), max(r.end_us for r in found.requests)
    return Serving(
        d, asked, tuple(sorted(found.requests, key=lambda r: r.arrival_us)), found.segments,
        max(1e-9, (end - begin) / 1e6), found.memory, found.preemptions, found.steps, prefill,
    )  # fmt: skip
