"""One HTML page about the steps of a deployment: timeline, memory, roofline, what-if, measured neighbours.

The page is a template (``page.html``) and one JSON object; nothing is loaded from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from megatile.core.files import write_text
from megatile.hda import HDA
from megatile.hda.parameters import figures, scaled
from megatile.models.deployment import Deployment
from megatile.models.forward import operators
from megatile.models.memory import layer_token_bytes
from megatile.models.neighbours import MACHINE, neighbours
from megatile.models.operators import WORD, Operator
from megatile.models.prices import prices
from megatile.models.schemes import SCHEMES
from megatile.models.step import StepTime
from megatile.timing.formulas import NUMBERS, device_of
from megatile.timing.products import gemm_scheme

FACTORS = (0.5, 1.0, 2.0, 4.0)
"""Factors of each slider that are predicted; between them the page interpolates logarithms."""


def write_page(path: str | Path, steps: Mapping[str, StepTime]) -> Path:
    """Write the page of steps of one deployment, by name."""
    text = (files("megatile.models") / "page.html").read_text(encoding="utf-8")
    data = json.dumps(page_data(steps), ensure_ascii=False, allow_nan=False).replace("</", "<\\/")
    return write_text(path, text.replace("{{DATA}}", data, 1))


def page_data(steps: Mapping[str, StepTime]) -> dict[str, Any]:
    """Return all that the page shows."""
    first = next(iter(steps.values()))
    d = first.deployment
    parts = _parts(d.hda)
    return {
        "title": f"{d.config.name} on {d.hda.name}", "division": d.words(), "engine": d.engine.words(),
        "notes": list(d.config.notes), "factors": FACTORS, "sliders": [name for name, _ in parts],
        "steps": {name: _step(step, parts) for name, step in steps.items()},
        "memory": {"rows": steps[max(steps, key=lambda n: steps[n].memory.total)].memory.rows(),
                   "capacity": first.memory.capacity},
        "roofs": _roofs(d),
    }  # fmt: skip


def _step(step: StepTime, parts: list[tuple[str, tuple[str, ...]]]) -> dict[str, Any]:
    rows = step.rows()
    for row, (operator, _) in zip(rows, step.timed, strict=False):
        flops, moved = work(step.deployment, operator)
        row |= {"flops": flops, "bytes": moved, "block": operator.block}
        row |= {"source": step.origins[operator.name].source, "communicates": operator.communicates}
    rows[-1] |= {"block": 0, "source": step.origins["host"].source, "communicates": False}
    longest = max(step.timed, key=lambda timed: timed.time_us).operator
    return {
        "batch": str(step.batch), "time_ms": step.time_ms, "error": step.error, "rows": rows,
        "host_us": step.host_us, "grid": _grid(step, parts), "longest": longest.name,
        "neighbours": [
            {**n._asdict(), "error": n.error if n.error == n.error else None,
             "predicted_us": n.predicted_us if n.error == n.error else None}
            for n in neighbours(longest, step.deployment.library)
        ],
        "measured_on": MACHINE,
    }  # fmt: skip


def _parts(hda: HDA) -> list[tuple[str, tuple[str, ...]]]:
    """Return the sliders with the figures that each multiplies: memory, tensor engine, networks."""
    level = hda.level(hda.scale("device").level)
    memory = [m.name for m in hda.memories if m.level == level.name and not m.cache]
    tensor = [e.name for e in hda.engines if e.kind == "tensor"]
    above = {lv.name for lv in hda.levels if lv.position > level.position}
    networks = [n.name for n in hda.networks if n.level in above]
    known = figures(hda)
    named = {
        "memory bandwidth": [f"memory.{n}.bandwidth" for n in memory],
        "tensor throughput": [f"engines.{n}.throughput" for n in tensor],
        "network bandwidth": [f"networks.{n}.bandwidth" for n in networks],
    }
    kept = ((name, tuple(f for f in those if f in known)) for name, those in named.items())
    return [(name, those) for name, those in kept if those]


def _grid(step: StepTime, parts: list[tuple[str, tuple[str, ...]]]) -> list[float]:
    """Return the microseconds of all kernels for every combination of factors, the last slider fastest."""
    d, own = step.deployment, operators(step.deployment, step.batch)
    found = []
    for factors in product(FACTORS, repeat=len(parts)):
        changes = {f: x for (_, those), x in zip(parts, factors, strict=True) for f in those if x != 1}
        hda = scaled(d.hda, changes) if changes else d.hda
        priced = prices(hda, d.library)
        found.append(sum(o.repeat * priced.time_us(o) for o in own))
    return found


def _roofs(d: Deployment) -> dict[str, Any]:
    device = device_of(d.hda, d.library, True, NUMBERS)
    kinds = dict.fromkeys(gemm_scheme(device, kind).compute for kind in ("bf16", d.dtype))
    peaks = {kind: device.rate(kind) * device.units for kind in kinds}
    return {"peaks": peaks, "bandwidth": device.bandwidth}


def work(d: Deployment, o: Operator) -> tuple[float, float]:
    """Return floating-point operations and bytes of one execution of a kernel; of a collective bytes only."""
    x, weight = dict(o.extents), SCHEMES[o.dtype].bits / 8 if o.dtype in SCHEMES else float(WORD)
    if o.kernel in ("gemm", "grouped_gemm"):
        groups = min(x.get("groups", 1), x["m"])
        moved = groups * x["n"] * x["k"] * weight + x["m"] * (x["n"] + x["k"]) * WORD
        return 2.0 * x["m"] * x["n"] * x["k"], moved
    if o.kernel in ("attention", "mla"):
        return _attention_work(d, o, x)
    if o.kernel == "moe":
        rows = x["tokens"] * x["topk"] / x["expert_parallel"]
        each = (3 if d.config.gated else 2) * x["hidden"] * x["inner"] / x["tensor_parallel"]
        met = min(x["experts"] / x["expert_parallel"], rows)
        return 2.0 * rows * each, met * each * weight + 2.0 * rows * x["hidden"] * WORD
    return 0.0, float(x.get("bytes", 0))


def _attention_work(d: Deployment, o: Operator, x: dict[str, int]) -> tuple[float, float]:
    seen = x["context"] + (x["queries"] + 1) / 2
    if x.get("window"):
        seen = min(seen, x["window"])
    latent = o.kernel == "mla" and x["queries"] == 1
    widths = 2 * x["kv_lora"] + x["rope"] if latent else 2 * x.get("head_dim", d.config.head_dim)
    queries = x["batch"] * x["queries"]
    cached = x["batch"] * (x["context"] + x["queries"]) * layer_token_bytes(d)
    moved = cached + queries * x["heads"] * widths * WORD
    return 2.0 * queries * x["heads"] * seen * widths, moved
