"""A measured trace of GPU kernels (Kineto, as ``torch.profiler`` writes it) beside a predicted step."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from megatile.core.errors import Place
from megatile.core.files import parse_json, read_text, write_text
from megatile.core.tables import text_table
from megatile.models.operators import Operator
from megatile.models.schemes import ModelError

MAX_TRACE_BYTES = 2 << 30
"""Bytes of a Kineto trace that are read, unpacked."""
KINDS = (
    ("all_reduce", r"all_?reduce|cross_device_reduce|one_?shot|two_?shot"), ("all_gather", r"all_?gather"),
    ("reduce_scatter", r"reduce_?scatter"), ("send_recv", r"send_?recv"),
    ("moe", r"moe|grouped|expert|topk.?gating"), ("attention", r"flash|fmha|attention|mla|paged|xqa"),
    ("gemm", r"gemm|nvjet|cutlass|xmma|cublas|matmul|marlin|splitk"),
)  # fmt: skip
"""Kernels by the names that libraries give them, the first that fits; all others are element-wise."""
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of events on a device."""
SAME = {"mla": "attention", "grouped_gemm": "moe", "moe_dispatch": "moe", "moe_combine": "moe"}
"""Predicted kernels that measured names do not tell apart."""


class GpuKernel(NamedTuple):
    """A kernel of a measured trace, in microseconds from its first."""

    name: str
    kind: str
    start_us: float
    time_us: float


def read_kernels(path: str | Path) -> list[GpuKernel]:
    """Return the kernels of a Chrome trace with device events (``.json`` or ``.json.gz``), in order."""
    place = Place(str(path))
    try:
        document = parse_json(read_text(path, MAX_TRACE_BYTES, ModelError, unpack=True))
    except ValueError as problem:
        if isinstance(problem, ModelError):
            raise
        raise ModelError(f"is not JSON: {problem}", place=place) from None
    rows = document.get("traceEvents") if isinstance(document, dict) else document
    found = []
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict) or row.get("ph") != "X" or str(row.get("cat")).lower() not in GPU:
            continue
        start, time = row.get("ts"), row.get("dur")
        if isinstance(start, (int, float)) and isinstance(time, (int, float)) and time >= 0:
            name = str(row.get("name"))
            found.append(GpuKernel(name, kind_of(name), float(start), float(time)))
    if not found:
        raise ModelError(
            "holds no kernels of a device", place=place,
            advice="profile with ProfilerActivity.CUDA and export_chrome_trace",
        )  # fmt: skip
    found.sort(key=lambda kernel: kernel.start_us)
    return [kernel._replace(start_us=kernel.start_us - found[0].start_us) for kernel in found]


def kind_of(name: str) -> str:
    """Return what a kernel does, by its name."""
    lower = name.lower()
    return next((kind for kind, pattern in KINDS if re.search(pattern, lower)), "elementwise")


class Beside(NamedTuple):
    """A predicted step and the kernels of measured ones."""

    timed: tuple[tuple[Operator, float], ...]
    """Operators of the step with their microseconds."""
    host_us: float
    kernels: tuple[GpuKernel, ...]
    steps: int

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each kind of kernel: count and microseconds of a step, measured and
        predicted."""
        kinds: dict[str, dict[str, float]] = {}

        def add(kind: str, column: str, count: float, time_us: float) -> None:
            row = kinds.setdefault(
                kind, dict.fromkeys(("measured", "measured_us", "predicted", "predicted_us"), 0.0)
            )
            row[column] += count
            row[f"{column}_us"] += time_us

        for k in self.kernels:
            add(k.kind, "measured", 1 / self.steps, k.time_us / self.steps)
        for o, time in self.timed:
            add(SAME.get(o.kernel, o.kernel), "predicted", o.repeat * o.kernels, time)
        order = sorted(kinds, key=lambda kind: -max(kinds[kind]["measured_us"], kinds[kind]["predicted_us"]))
        found: list[dict[str, Any]] = [{"kernel": kind, **kinds[kind]} for kind in order]
        last = max(k.start_us + k.time_us for k in self.kernels) / self.steps
        gaps = last - sum(k.time_us for k in self.kernels) / self.steps
        return [*found, {"kernel": "gaps, host", "measured": 0.0, "measured_us": gaps, "predicted": 0.0,
                         "predicted_us": self.host_us}]  # fmt: skip

    def __str__(self) -> str:
        rows = [
            (r["kernel"], f"{r['measured']:.4g}", f"{r['measured_us']:.4g}", f"{r['predicted']:.4g}",
             f"{r['predicted_us']:.4g}", _ratio(r["predicted_us"], r["measured_us"]))
            for r in self.rows()
        ]  # fmt: skip
        measured, predicted = (sum(r[name] for r in self.rows()) for name in ("measured_us", "predicted_us"))
        rows.append(("step", "", f"{measured:.4g}", "", f"{predicted:.4g}", _ratio(predicted, measured)))
        head = ("kernel", "measured", "µs", "predicted", "µs", "predicted / measured")
        return text_table(head, rows)

    def write(self, path: str | Path) -> Path:
        """Write both as one Chrome trace for ui.perfetto.dev: two processes that begin together."""
        names = [
            {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
            for pid, name in ((1, "predicted"), (2, "measured"))
        ]
        events = [
            {"ph": "X", "name": name, "cat": kind, "pid": pid, "tid": 0, "ts": start, "dur": time}
            for pid, kernels in ((1, self._predicted()), (2, iter(self.kernels)))
            for name, kind, start, time in kernels
        ]
        return write_text(path, json.dumps({"traceEvents": [*names, *events]}))

    def _predicted(self) -> Iterator[GpuKernel]:
        """Yield the predicted kernels one after the other, layer by layer."""
        now = self.host_us
        yield GpuKernel("host", "host", 0.0, now)
        blocks: dict[int, list[Any]] = {}
        for number, timed in enumerate(self.timed):
            blocks.setdefault(timed[0].block or -number - 1, []).append(timed)
        for block in blocks.values():
            for _ in range(block[0][0].repeat):
                for o, time in block:
                    yield GpuKernel(o.name, o.kernel, now, time / o.repeat)
                    now += time / o.repeat


def _ratio(predicted: float, measured: float) -> str:
    return f"{predicted / measured:.2f}" if measured > 0 and predicted > 0 else ""


def beside(
    timed: tuple[tuple[Operator, float], ...], host_us: float, path: str | Path, steps: int = 1
) -> Beside:
    """Return a step beside the kernels of a measured trace that holds so many steps."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ModelError(f"steps must be a positive integer, got {steps!r}")
    return Beside(timed, host_us, tuple(read_kernels(path)), steps)
