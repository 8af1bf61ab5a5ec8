"""The door for SGLang's simulator: a predictor of step times, and tables for its replay predictor.

    predictor = mt.model("Llama-3.1-70B").predictor(machine="dgx-h100", tp=8)
    predictor.predict_infer_time(batch)          # seconds; batch.reqs have extend_length, past_kv_length
    predictor.write_replay_table("table.json", read_batches("TP0.schedule_batch.jsonl"))

`InferTimePredictor` has the methods of ``sglang_simulator.time_predictor.InferTimePredictor`` and counts as
one where that package is installed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from megatile.core.errors import Place
from megatile.core.files import parse_json, read_text, write_text
from megatile.core.tables import text_table
from megatile.models.batch import Batch
from megatile.models.deployment import Deployment
from megatile.models.schemes import ModelError
from megatile.models.step import step_us

MAX_BATCHES_BYTES = 1 << 30
"""Bytes of a JSONL file of batches that are read."""
Pairs = Sequence[tuple[int, int]]
"""(new, cached) tokens of every request of a step."""


class RecordedBatch(NamedTuple):
    """A step that an engine ran: its requests, and its seconds if they were measured."""

    pairs: tuple[tuple[int, int], ...]
    seconds: float | None = None


class InferTimePredictor:
    """Predicts the seconds of a forward pass over a scheduled batch."""

    def __init__(self, deployment: Deployment):
        self.deployment = deployment
        self._steps, self._seconds = 0, 0.0
        with suppress(ImportError):
            from sglang_simulator.time_predictor.base import InferTimePredictor as Base

            Base.register(type(self))

    def predict_infer_time(self, batch: Any) -> float:
        """Return the seconds of one step; an empty batch takes none, one that cannot be −1."""
        pairs = [(int(r.extend_length), int(r.past_kv_length)) for r in batch.reqs]
        try:
            seconds = self.seconds(pairs) if pairs else 0.0
        except ModelError:
            return -1.0
        self._steps, self._seconds = self._steps + 1, self._seconds + seconds
        return seconds

    def seconds(self, pairs: Pairs) -> float:
        """Return the seconds of a step over (new, cached) tokens of each request."""
        return step_us(self.deployment, Batch.of(pairs)) / 1e6

    def get_metrics(self) -> dict[str, float]:
        return {"steps": self._steps, "predicted_seconds": self._seconds}

    def reset_metrics(self) -> None:
        self._steps, self._seconds = 0, 0.0

    def replay_table(self, batches: Iterable[RecordedBatch | Pairs]) -> dict[str, float]:
        """Return the seconds of batches as SGLang's replay predictor looks them up: by their sorted pairs."""
        found = {}
        for one in batches:
            pairs = sorted(one.pairs if isinstance(one, RecordedBatch) else one)
            found[json.dumps([list(pair) for pair in pairs])] = self.seconds(pairs)
        return found

    def write_replay_table(self, path: str | Path, batches: Iterable[RecordedBatch | Pairs]) -> Path:
        """Write the table as JSON."""
        return write_text(path, json.dumps(self.replay_table(batches), indent=1) + "\n")

    def compare(self, batches: Iterable[RecordedBatch]) -> Replayed:
        """Return predicted beside measured seconds of recorded steps."""
        rows = [(one, self.seconds(one.pairs)) for one in batches if one.seconds is not None]
        if not rows:
            raise ModelError("no batch has a measured time", advice='"iter_latency" on each line')
        return Replayed(tuple(rows))

    def __repr__(self) -> str:
        d = self.deployment
        return f"InferTimePredictor({d.config.name} on {d.hda.name}, {d.words()})"


class Replayed(NamedTuple):
    """Recorded steps with their predicted seconds."""

    steps: tuple[tuple[RecordedBatch, float], ...]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for decode and one for other steps: count, seconds together, median error of a
        step."""
        found = []
        for name, decode in (("decode", True), ("prefill", False)):
            own = [(b, s) for b, s in self.steps if b.seconds and all(n == 1 for n, _ in b.pairs) == decode]
            if own:
                errors = sorted(abs(s / (b.seconds or 1.0) - 1) for b, s in own)
                found.append({
                    "steps": name, "count": len(own), "measured_s": sum(b.seconds or 0.0 for b, _ in own),
                    "predicted_s": sum(s for _, s in own), "median_error": errors[len(errors) // 2],
                })  # fmt: skip
        return found

    def __str__(self) -> str:
        rows = [
            (r["steps"], r["count"], f"{r['measured_s']:.4g}", f"{r['predicted_s']:.4g}",
             f"{r['median_error']:.1%}")
            for r in self.rows()
        ]  # fmt: skip
        return text_table(("steps", "count", "measured s", "predicted s", "median error"), rows)


def read_batches(path: str | Path) -> list[RecordedBatch]:
    """Return the steps of a JSONL file: lines of SGLang's ``schedule_batch.jsonl`` (``request_infos`` with
    ``extend_input_len`` and ``prefix_indices_len``, ``iter_latency`` in seconds), or lists of pairs."""
    found = []
    for number, line in enumerate(read_text(path, MAX_BATCHES_BYTES, ModelError).splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(_batch(parse_json(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise ModelError(
                f"is not a batch: {problem!s}", place=Place(str(path), number),
                advice="[[new, cached], …], or request_infos with extend_input_len, prefix_indices_len",
            ) from None  # fmt: skip
    if not found:
        raise ModelError("holds no batches", place=Place(str(path)))
    return found


def _batch(row: Any) -> RecordedBatch:
    if isinstance(row, list):
        return RecordedBatch(tuple(_tokens(new, cached) for new, cached in row))
    pairs = tuple(_tokens(i["extend_input_len"], i["prefix_indices_len"]) for i in row["request_infos"])
    seconds = row.get("iter_latency")
    if seconds is not None and not 0 < float(seconds) < math.inf:
        raise ValueError(f"iter_latency must be positive seconds, got {seconds!r}")
    return RecordedBatch(pairs, None if seconds is None else float(seconds))


def _tokens(new: Any, cached: Any) -> tuple[int, int]:
    if type(new) is not int or type(cached) is not int:
        raise ValueError(f"numbers of tokens must be integers, got {new!r}, {cached!r}")
    return new, cached
