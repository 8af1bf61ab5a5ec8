"""Search over divisions and loads of a model: which serve within limits, and which of them are best.

Every candidate has a bound first: a decode step without any prefill is the least time per token, a prefill
alone the least time to the first. Candidates that cannot keep a limit, or that are worse in all respects than
one that was simulated, are not simulated.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from megatile.core.cached import cached
from megatile.core.files import exists, read_text, write_text
from megatile.core.rows import data_frame
from megatile.core.stopped import StopWatch, first_done, kill_workers
from megatile.core.tables import text_table
from megatile.hda import HDA, machine as find_machine
from megatile.models import aiconfigurator
from megatile.models.batch import Batch
from megatile.models.config import ModelConfig
from megatile.models.deployment import Deployment, deployment
from megatile.models.memory import memory
from megatile.models.requests import make_requests
from megatile.models.schemes import ModelError, require_whole
from megatile.models.serving import serve
from megatile.models.step import step_us

TOGETHER = 8
"""Candidates that an executor gets at a time; after each batch those left are compared with what is known."""
MAX_STORE_BYTES = 64 << 20
"""Bytes of a file of earlier results that are read."""
DEGREES = ("tp", "pp", "ep", "attention_dp")
BEATEN = "another is better in all (bound)"


class Candidate(NamedTuple):
    """A division of the model and a number of users of one replica."""

    tp: int
    pp: int
    ep: int
    attention_dp: int
    concurrency: int

    @property
    def devices(self) -> int:
        return self.tp * self.pp * self.attention_dp


@dataclass(frozen=True, repr=False)
class ModelSearch:
    """What a search found: one row per candidate, with limits, verdict and times."""

    config: ModelConfig
    hda: HDA
    isl: int
    osl: int
    asked: str
    options: tuple[tuple[str, Any], ...]
    found: tuple[dict[str, Any], ...]

    @property
    def model(self) -> str:
        return self.config.name

    @property
    def machine(self) -> str:
        return self.hda.name

    def rows(self) -> list[dict[str, Any]]:
        """Return simulated candidates within the limits, most tokens per second and device first."""
        kept = [row for row in self.found if row["verdict"] == "ok"]
        return sorted(kept, key=lambda row: -row["tokens_per_s_device"])

    def pareto(self) -> list[dict[str, Any]]:
        """Return the rows that no other beats both in tokens per second of a device and in those of a
        user."""
        kept: list[dict[str, Any]] = []
        for row in self.rows():
            if not kept or row["tpot_ms"] < kept[-1]["tpot_ms"]:
                kept.append(row)
        return kept

    @property
    def best(self) -> dict[str, Any] | None:
        """The row with the most tokens per second and device, if any candidate meets the limits."""
        rows = self.rows()
        return rows[0] if rows else None

    def to_csv(self, path: str | Path) -> Path:
        """Write all candidates as CSV."""
        text = StringIO()
        names = list(dict.fromkeys(name for row in self.found for name in row))
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(self.found)
        return write_text(path, text.getvalue())

    def to_aiconfigurator(self, path: str | Path) -> Path:
        """Write the candidates within the limits under aiconfigurator's column names."""
        rows = []
        for r in self.rows():
            d = deployment(self.config, self.hda, **{n: r[n] for n in DEGREES}, **dict(self.options))
            users = r["concurrency"]
            held = memory(d, requests=users, context=self.isl + self.osl)
            rows.append(
                aiconfigurator.row(d, self.isl, self.osl, users, r["ttft_ms"], r["tpot_ms"], held.total)
            )
        return aiconfigurator.write_csv(path, rows)

    def plot(self, path: str | Path) -> Path:
        """Draw candidates within the limits and their Pareto front into an image (format by its suffix)."""
        from megatile.report.canvas import new_figure, save
        from megatile.report.plots import draw_lines

        rows, front = self.rows(), self.pareto()
        if not rows:
            raise ModelError("no division meets the limits: nothing to draw", advice="relax ttft or tpot")
        figure = new_figure(7, 4.5, constrained_layout=True)
        axes = figure.subplots()
        axes.scatter(*_rates(rows), s=12, alpha=0.5, label="within the limits")
        users, devices = _rates(front)
        points = {"Pareto front": list(zip(users, devices, strict=True))}
        draw_lines(axes, points, xlabel="tokens/s a user", ylabel="tokens/s a device")
        for row, user, device in zip(front, users, devices, strict=True):
            degrees = ", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in DEGREES if row[name] > 1)
            text = f"{degrees or 'tp 1'}, {row['concurrency']} users"
            axes.annotate(text, (user, device), xytext=(4, 4), textcoords="offset points", fontsize=6)
        axes.legend(fontsize=8)
        title = f"{self.model} on {self.machine}, {self.asked}"
        axes.set_title(title, fontsize=8)
        return save(figure, path, title)

    def to_pandas(self) -> Any:
        """Return all candidates as a pandas DataFrame."""
        return data_frame(self.found)

    def __repr__(self) -> str:
        kept = f"{len(self.rows())} of {len(self.found)} meet the limits"
        if beaten := sum(row["verdict"] == BEATEN for row in self.found):
            kept += f"; {beaten} left out, each worse in all than one of these"
        return f"ModelSearch({self.model} on {self.machine}, {self.asked}: {kept})"

    def __str__(self) -> str:
        head = (*DEGREES, "concurrency", "ttft_ms", "tpot_ms", "tokens_per_s_user", "tokens_per_s_device")
        rows = [[_cell(row[name]) for name in head] for row in self.pareto()]
        if not rows:
            reasons = Counter(row["verdict"].partition(": ")[0] for row in self.found)
            said = ", ".join(f"{count} × {reason}" for reason, count in reasons.most_common())
            advice = "larger limits, fewer users, a narrower dtype or more devices"
            return f"{self!r}\nno division meets the limits: {said} (try: {advice})"
        return f"{self!r}\nPareto front:\n{text_table([name.replace('_', ' ') for name in head], rows)}"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _rates(rows: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Return tokens per second of a user and of a device."""
    return [row["tokens_per_s_user"] for row in rows], [row["tokens_per_s_device"] for row in rows]


def candidates(config: ModelConfig, hda: HDA, concurrencies: Sequence[int]) -> Iterator[Candidate]:
    """Yield divisions that are powers of two, for every number of users."""
    most = hda.count("device")
    powers = [1 << n for n in range(most.bit_length()) if 1 << n <= most]
    for tp in powers:
        for pp in (p for p in powers if p <= 4):
            for adp in powers if config.experts else (1,):
                for ep in (e for e in powers if e in (1, tp * adp)) if config.experts else (1,):
                    if tp * pp * adp <= most and not (adp > 1 and ep == 1):
                        yield from (Candidate(tp, pp, ep, adp, users) for users in concurrencies)


class _Job(NamedTuple):
    """What a worker needs to simulate a candidate."""

    config: ModelConfig
    hda: HDA
    isl: int
    osl: int
    candidate: Candidate
    options: tuple[tuple[str, Any], ...]
    spread: float = 0.0

    def deployment(self) -> Deployment:
        degrees = {name: getattr(self.candidate, name) for name in DEGREES}
        return deployment(self.config, self.hda, **degrees, **dict(self.options))


def _simulate(job: _Job) -> dict[str, float]:
    """Return what `serve` says of a candidate; a function of a module, so that any executor may run it."""
    users = job.candidate.concurrency
    found = serve(job.deployment(), isl=job.isl, osl=job.osl, concurrency=users, spread=job.spread)
    return {
        "ttft_ms": found.ttft["p50"], "tpot_ms": found.tpot_ms, "tokens_per_s_user": found.tokens_per_s_user,
        "tokens_per_s_device": found.tokens_per_s_device,
    }  # fmt: skip


class _Limits(NamedTuple):
    ttft_ms: float
    tpot_ms: float


def search(
    config: ModelConfig,
    machine: str | HDA,
    *,
    isl: int = 1024,
    osl: int = 1024,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    concurrencies: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256),
    spread: float = 0.0,
    executor: Executor | None = None,
    store: str | Path | None = None,
    **options: Any,
) -> ModelSearch:
    """Return the divisions and loads that keep limits of TTFT and TPOT; see `Model.search`."""
    hda = machine if isinstance(machine, HDA) else find_machine(machine)
    require_whole(isl=isl, osl=osl)
    if not isinstance(concurrencies, (Sequence, range)) or isinstance(concurrencies, (str, bytes)):
        raise ModelError(
            f"concurrencies must be a list, got {concurrencies!r}", advice="concurrencies=(8, 32)"
        )
    for users in concurrencies:
        require_whole(concurrency=users)
    make_requests(isl, osl, 1, spread=spread)  # checks the spread
    if not (executor is None or hasattr(executor, "map")):
        raise ModelError(f"{executor!r} is no executor", advice="one of concurrent.futures")
    if not isinstance(store, (str, Path, type(None))):
        raise ModelError(f"store must be a file, got {store!r}")
    for name, value in (("ttft_ms", ttft_ms), ("tpot_ms", tpot_ms)):
        if value is not None and not (isinstance(value, (int, float)) and value > 0):
            raise ModelError(
                f"{name} must be positive, got {value!r}", advice=f"give milliseconds as a number: {name}=500"
            )
    for name in options:
        if name in (*DEGREES, "ttft", "tpot"):
            found = "the search tries its degrees" if name in DEGREES else f"did you mean {name}_ms=500?"
            raise ModelError(f"search has no argument '{name}'", advice=found)
    deployment(config, hda, **options)  # an option that is wrong for every candidate is an error
    infinite = float("inf")
    limits = _Limits(ttft_ms or infinite, tpot_ms or infinite)
    known = _read_store(store)
    rows: list[dict[str, Any]] = []
    waiting: list[tuple[float, float, _Job, dict[str, Any]]] = []
    for candidate in candidates(config, hda, concurrencies):
        job = _Job(config, hda, isl, osl, candidate, tuple(sorted(options.items())), spread)
        row: dict[str, Any] = {**candidate._asdict(), "devices": candidate.devices}
        bound = _bound(job, limits)
        if isinstance(bound, str):
            rows.append({**row, "verdict": bound})
        else:
            waiting.append((*bound, job, row))
    waiting.sort(key=lambda one: -one[1])
    rows += _simulated(waiting, limits, known, store, executor)
    named = (("TTFT", ttft_ms), ("TPOT", tpot_ms))
    asked = f"{isl} → {osl} tokens" + "".join(f", {n} ≤ {limit:g} ms" for n, limit in named if limit)
    return ModelSearch(config, hda, isl, osl, asked, tuple(sorted(options.items())), tuple(rows))


def _bound(job: _Job, limits: _Limits) -> tuple[float, float] | str:
    """Return the least TPOT and the most tokens per second and device, or why a candidate is left out."""
    try:
        d = job.deployment()
    except ModelError as problem:
        return f"not possible: {problem.message}"
    users = job.candidate.concurrency
    if users < d.attention_dp * d.pp:
        return "not possible: fewer users than groups"
    if not memory(d, requests=1, context=job.isl + job.osl).fits:
        return "does not fit memory"
    step = step_us(d, Batch.from_groups([(users, 1, job.isl)]).share(d.pp)) / 1e3
    prefill = step_us(d, Batch.from_groups([(1, job.isl, 0)])) / 1e3
    if step > limits.tpot_ms:
        return "TPOT above the limit (bound)"
    if prefill > limits.ttft_ms:
        return "TTFT above the limit (bound)"
    return step, users * 1e3 / step / job.candidate.devices


def _simulated(
    waiting: list[tuple[float, float, _Job, dict[str, Any]]],
    limits: _Limits,
    known: dict[str, dict[str, float]],
    store: str | Path | None,
    executor: Executor | None,
) -> list[dict[str, Any]]:
    """Return the rows of candidates in the order of bounds, simulated unless others beat their bound."""
    rows: list[dict[str, Any]] = []
    while waiting:
        batch, waiting = waiting[:TOGETHER], waiting[TOGETHER:]
        left = []
        for tpot, rate, job, row in batch:
            if any(
                r["verdict"] == "ok" and r["tpot_ms"] <= tpot and r["tokens_per_s_device"] >= rate
                for r in rows
            ):
                rows.append({**row, "verdict": BEATEN})
            else:
                left.append((job, row))
        new = [job for job, _ in left if _key(job) not in known]
        found = list(map(_simulate, new)) if executor is None else _on_workers(executor, new)
        fresh = {_key(job): result for job, result in zip(new, found, strict=True)}
        known.update(fresh)
        _write_store(store, fresh)
        for job, row in left:
            result = known[_key(job)]
            late = result["ttft_ms"] > limits.ttft_ms or result["tpot_ms"] > limits.tpot_ms
            rows.append({**row, **result, "verdict": "above a limit" if late else "ok"})
    return rows


def _on_workers(executor: Executor, jobs: list[_Job]) -> list[dict[str, float]]:
    """Return what `_simulate` says of jobs; one error for workers that cannot be started, or are lost."""
    if not isinstance(executor, ProcessPoolExecutor):
        return list(executor.map(_simulate, jobs))
    advice = "memory may be short: give fewer workers; with the same store= the search goes on where it was"
    try:
        futures = [executor.submit(_simulate, job) for job in jobs]
        waiting, stopped = set(futures), StopWatch()
        while waiting:
            waiting -= first_done(executor, waiting, stopped)
        return [future.result() for future in futures]
    except BrokenProcessPool:
        raise ModelError("a worker was killed", advice=advice) from None
    except BrokenExecutor as problem:
        raise ModelError(str(problem), advice=advice) from None
    except OSError as problem:
        kill_workers(executor)
        why = problem.strerror or problem
        raise ModelError(f"workers cannot be started: {why}", advice="give fewer workers") from None


def _key(job: _Job) -> str:
    """Return what tells a candidate's result from others in a store."""
    own = [job.isl, job.osl, job.spread, list(job.candidate), list(map(list, job.options))]
    return json.dumps([job.config.name, job.hda.name, _digest(job.config, job.hda), *own])


@cached()
def _digest(config: ModelConfig, hda: HDA) -> str:
    """Return what tells models and machines of one name apart."""
    text = f"{config!r} {json.dumps(hda.to_dict(), sort_keys=True, default=str)}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read_store(store: str | Path | None) -> dict[str, dict[str, float]]:
    if store is None or not exists(store):
        return {}
    found = {}
    for line in read_text(store, MAX_STORE_BYTES, ModelError).splitlines():
        try:
            key, result = json.loads(line)
            found[str(key)] = {str(name): float(value) for name, value in result.items()}
        except (ValueError, TypeError, AttributeError):
            continue  # a line that was cut off when the search was stopped
    return found


def _write_store(store: str | Path | None, fresh: dict[str, dict[str, float]]) -> None:
    if store is None or not fresh:
        return
    try:
        with open(store, "a", encoding="utf-8") as file:
            file.writelines(json.dumps([key, result]) + "\n" for key, result in fresh.items())
    except OSError as problem:
        raise ModelError(f"cannot write '{store}': {problem.strerror}") from None
