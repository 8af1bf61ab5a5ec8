"""Fit the free constants of a machine's ``kernels`` to measured times, and judge them on times left out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from megatile.core.progress import tell
from megatile.hda import HDA
from megatile.hda.model import KernelFigures
from megatile.timing.database import DatabaseError, Measurement
from megatile.timing.formulas import OPERATIONS, Device

FREE = {
    "gemm": ("share", "bandwidth", "start_us", "split_us", "exposed"),
    "gemm_f8": ("share", "bandwidth", "start_us", "split_us", "exposed"),
    "quantise": ("bandwidth", "wave_us"),
    "prefill": ("softmax", "bandwidth", "start_us", "wave_us"),
    "decode": ("softmax", "bandwidth", "start_us", "wave_us", "split_us"),
    "moe": ("share", "bandwidth", "start_us", "wave_us", "exposed"),
    "moe_f8": ("share", "bandwidth", "start_us", "wave_us", "exposed"),
    "moe_f8_tensor": ("share", "bandwidth", "start_us", "wave_us", "exposed"),
    "dispatch": ("share", "start_us", "wave_us"),
    "combine": ("share", "start_us", "wave_us"),
}
"""What is fitted of a kernel; a constant that it does not have (no split) is left out."""
SHARES = ("share", "bandwidth", "exposed")
MIN_ROWS = 10
ROUNDS, STEPS = 3, 150


class Score(NamedTuple):
    """Relative errors of predicted times: how large, and to which side."""

    rows: int
    median: float
    p90: float
    bias: float

    @classmethod
    def of(cls, errors: Any) -> Score:
        sizes = np.abs(errors)
        return cls(
            len(errors), *(float(x) for x in (np.median(sizes), np.quantile(sizes, 0.9), np.median(errors)))
        )


@dataclass(frozen=True)
class Fit:
    """Fitted figures by kernel, and the errors on rows that the fit did not see."""

    machine: str
    operation: str
    dtype: str
    figures: dict[str, KernelFigures]
    fitted_rows: int
    before: Score
    after: Score

    def lines(self) -> list[str]:
        """The figures as members of ``kernels`` in a machine file."""
        return [
            f"{{{', '.join(f'{key}: {value}' for key, value in _values(k).items())}}}"
            for k in self.figures.values()
        ]


def machine_file(name: str, machine: str, fits: Sequence[Fit], source: str) -> str:
    """A machine file that extends a machine with fitted figures."""
    heads = [f"name: {json.dumps(name)}", f"extends: {json.dumps(machine)}", "kernels:"]
    kernels = [f"  - {line[:-1]}, source: {json.dumps(source)}}}" for fit in fits for line in fit.lines()]
    return "\n".join((*heads, *kernels)) + "\n"


def _values(kernel: KernelFigures) -> dict[str, str]:
    values = {"name": kernel.name, "share": _text("share", kernel.share), "rows": str(kernel.rows)}
    for field in ("columns", "bandwidth", "exposed", "softmax", "start_us", "wave_us", "split_us"):
        if getattr(kernel, field):
            values[field.removesuffix("_us")] = _text(field, getattr(kernel, field))
    return values


def _text(field: str, value: float) -> str:
    if field in SHARES:
        return f"{100 * value:.4g} %"
    return f"{value:.4g} us" if field.endswith("_us") else f"{value:.4g}"


def fit(hda: HDA, measurements: Sequence[Measurement], *, held_out: float = 0.2) -> list[Fit]:
    """Fit the kernels that the measurements time, one fit for each operation, element type and kernel.

    Which rows are held out follows from their shapes, so that it does not change from run to run.
    """
    groups: dict[tuple[str, str, tuple[str, ...]], list[Measurement]] = {}
    for m in measurements:
        operation = OPERATIONS.find(m.operation)
        kernels = operation.kernels(operation.shape(m.shape), m.dtype)
        if kernels:
            groups.setdefault((m.operation, m.dtype, kernels), []).append(m)
    if not groups:
        raise DatabaseError("there is nothing to fit: no measurements of gemm, attention or experts")
    return [_fit(hda, *key, rows, held_out) for key, rows in sorted(groups.items())]


def _fit(
    hda: HDA, operation: str, dtype: str, kernels: tuple[str, ...], rows: list[Measurement], held_out: float
) -> Fit:
    if len(rows) < MIN_ROWS:
        raise DatabaseError(
            f"{len(rows)} rows of {operation} in {dtype} are too few to fit: at least {MIN_ROWS}"
        )
    apart = np.array([_draw(row) < held_out for row in rows])
    found = OPERATIONS.find(operation)
    shapes = [found.shape(row.shape) for row in rows]
    columns = {name: np.array([s[name] for s in shapes], float) for name in found.extents}
    times = np.array([row.time_us for row in rows])
    base = {name: replace(Device.of(hda).kernel(name), name=name) for name in kernels}
    free = [(n, f) for n in kernels for f in FREE[n] if getattr(base[n], f)]

    def errors(figures: dict[str, KernelFigures], chosen: Any) -> Any:
        part = {name: column[chosen] for name, column in columns.items()}
        return found.formula(Device.of(hda, figures), part, dtype) / times[chosen] - 1

    def with_values(values: Any) -> dict[str, KernelFigures]:
        figures = dict(base)
        for (name, field), value in zip(free, values, strict=True):
            bounded = min(float(value), 1.0) if field in SHARES else float(value)
            change: dict[str, Any] = {field: bounded}
            figures[name] = replace(figures[name], **change)
        return figures

    def loss(values: Any) -> float:
        return float(np.mean(np.abs(np.log1p(errors(with_values(values), ~apart)))))

    begin = np.array([getattr(base[name], field) for name, field in free])
    values = minimise(loss, begin, f"fitting {operation} {dtype}")
    figures = with_values(values)
    judged = apart if apart.any() else ~apart  # nothing held out: judged on what was fitted
    before, after = (Score.of(errors(f, judged)) for f in (base, figures))
    return Fit(hda.name, operation, dtype, figures, int((~apart).sum()), before, after)


def _draw(row: Measurement) -> float:
    """From 0 to 1, by the shape alone."""
    return drawn(f"{row.operation} {row.dtype} {sorted(row.shape.items())}")


def drawn(text: str) -> float:
    """A number from 0 to 1 that a text determines, as if drawn at random."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32


def minimise(loss: Callable[[Any], float], begin: Any, what: str = "fitting") -> Any:
    """Nelder and Mead's simplex over the logarithms of positive values, begun anew where it ended."""
    best = np.log(begin)
    for turn in range(ROUNDS):
        tell(what, turn, ROUNDS)
        best = _simplex(lambda x: loss(np.exp(x)), best)
    return np.exp(best)


def _simplex(loss: Callable[[Any], float], begin: Any) -> Any:
    points = [begin, *(begin + 0.15 * unit for unit in np.eye(len(begin)))]
    scored = sorted(((loss(p), i, p) for i, p in enumerate(points)), key=lambda s: s[:2])
    for number in range(len(points), len(points) + STEPS):
        worst, middle = scored[-1], np.mean([p for _, _, p in scored[:-1]], axis=0)
        new = _step(loss, middle, worst[2], scored[0][0], scored[-2][0], worst[0])
        if new is not None:
            scored[-1] = (new[0], number, new[1])
        else:
            centre = scored[0][2]
            shrunk = [centre + 0.5 * (p - centre) for _, _, p in scored[1:]]
            scored[1:] = [(loss(p), number + i, p) for i, p in enumerate(shrunk)]
        scored.sort(key=lambda s: s[:2])
    return scored[0][2]


def _step(
    loss: Callable[[Any], float], middle: Any, worst: Any, least: float, next_worst: float, most: float
) -> tuple[float, Any] | None:
    """Reflect the worst point, and go further or less far; None: nothing there is better."""
    reflected = middle + (middle - worst)
    value = loss(reflected)
    if value < least:
        further = middle + 2 * (middle - worst)
        longer = loss(further)
        return (longer, further) if longer < value else (value, reflected)
    if value < next_worst:
        return value, reflected
    nearer = middle + 0.5 * ((reflected if value < most else worst) - middle)
    shorter = loss(nearer)
    return (shorter, nearer) if shorter < min(value, most) else None
