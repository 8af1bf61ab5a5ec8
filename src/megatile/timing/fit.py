"""Fit the free constants of a machine's ``kernels`` to measured times, and judge them on times left out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from megatile.core.progress import tell
from megatile.hda import HDA
from megatile.hda.model import KernelFigures
from megatile.timing.database import DatabaseError, Measurement
from megatile.timing.engine_rules import OFFERED
from megatile.timing.formulas import OPERATIONS, Device

FREE = {
    "gemm": ("share", "bandwidth", "start_us", "split_us", "exposed", "issue_us"),
    "quantise": ("bandwidth", "start_us", "wave_us"),
    "prefill": ("share", "softmax", "bandwidth", "start_us", "wave_us"),
    "decode": ("share", "softmax", "bandwidth", "start_us", "wave_us", "split_us", "exposed"),
    "mla": ("share", "bandwidth", "start_us", "wave_us", "split_us", "exposed"),
    "moe": ("share", "bandwidth", "start_us", "split_us", "passes", "exposed"),
    "dispatch": ("share", "start_us", "wave_us", "split_us"),
    "combine": ("share", "start_us", "wave_us", "split_us"),
}
"""What is fitted of a kernel, by the first word of its name. A constant that it does not have (no split) is
left out, and so is a share of 100 %."""
SHARES = ("share", "bandwidth", "exposed", "passes")
MIN_ROWS = 10
"""Rows that a fit needs."""
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
        """Return the figures as members of ``kernels`` in a machine file."""
        return [figure_line(k) for k in self.figures.values()]


def figure_line(kernel: KernelFigures) -> str:
    """Return figures as a member of ``kernels`` in a machine file."""
    return f"{{{', '.join(f'{key}: {value}' for key, value in _values(kernel).items())}}}"


def machine_file(name: str, machine: str, fits: Sequence[Fit], source: str) -> str:
    """Return a machine file that extends a machine with fitted figures."""
    text = [f"name: {json.dumps(name)}", f"extends: {json.dumps(machine)}"]
    every = [figures for fit in fits for figures in fit.figures.values()]
    tokens = [figures for figures in every if figures.name in OFFERED["deepep"]]
    text += ["transports:", "  device:", "    deepep:", "      protocols:"] if tokens else []
    for k in tokens:
        written = {"start": k.start_us, "step": k.wave_us, "peer": k.split_us or 0.0}
        times = "".join(f"{key}: {value:.4g} us, " for key, value in written.items() if value)
        text.append(
            f"        {k.name}: {{{times}share: {_text('share', k.share)}, source: {json.dumps(source)}}}"
        )
    kernels = [figure_line(k) for k in every if k not in tokens]
    text += ["kernels:"] if kernels else []
    text += [f"  - {line[:-1]}, source: {json.dumps(source)}}}" for line in kernels]
    return "\n".join(text) + "\n"


def _values(kernel: KernelFigures) -> dict[str, str]:
    values = {"name": kernel.name, "share": _text("share", kernel.share), "rows": str(kernel.rows)}
    for field in (
        "columns",
        "bandwidth",
        "exposed",
        "softmax",
        "start_us",
        "wave_us",
        "split_us",
        "passes",
        "issue_us",
    ):
        if getattr(kernel, field) and (field, getattr(kernel, field)) != ("passes", 1.0):
            values[field.removesuffix("_us")] = _text(field, getattr(kernel, field))
    return values | ({} if kernel.packed else {"packed": "false"})


def _text(field: str, value: float) -> str:
    if field in SHARES:
        return f"{100 * value:.4g} %"
    return f"{value:.4g} us" if field.endswith("_us") else f"{value:.4g}"


def fit(
    hda: HDA, measurements: Sequence[Measurement], *, held_out: float = 0.2, library: str | None = None
) -> list[Fit]:
    """Fit the kernels that the measurements time, one fit for each operation, element type and kernel.

    Which rows are held out follows from their shapes, so that it does not change from run to run.
    ``library`` is the framework that called the kernels.
    """
    return [p.judged(held_out) for p in problems(hda, measurements, library)]


def problems(hda: HDA, measurements: Sequence[Measurement], library: str | None = None) -> list[Problem]:
    """Return the fits to make: the rows of each operation, element type and kernel."""
    device = Device.of(hda, library=library)
    groups: dict[tuple[str, str, tuple[str, ...]], list[Measurement]] = {}
    for m in measurements:
        operation = OPERATIONS.find(m.operation)
        kernels = operation.kernels(device, operation.shape(m.shape), m.dtype)
        if kernels:
            groups.setdefault((m.operation, m.dtype, kernels), []).append(m)
    if not groups:
        raise DatabaseError("there is nothing to fit: no measurements of gemm, attention or experts")
    return [Problem(device, *key, tuple(rows)) for key, rows in sorted(groups.items())]


@dataclass(frozen=True)
class Problem:
    """Measured rows of one operation, element type and kernel, and the constants that are free."""

    device: Device
    operation: str
    dtype: str
    kernels: tuple[str, ...]
    rows: tuple[Measurement, ...]

    @cached_property
    def base(self) -> dict[str, KernelFigures]:
        """The figures of the machine file, by kernel."""
        device = self.device
        return {n: replace(device.kernel(n), name=device.found(n) or n) for n in self.kernels}

    @cached_property
    def free(self) -> list[tuple[str, str]]:
        """Kernels and the fields of theirs that are fitted."""
        stems = [(n, FREE[n.partition("_")[0]]) for n in self.kernels]
        found = [(n, f) for n, fields in stems for f in fields if getattr(self.base[n], f)]
        return [(n, f) for n, f in found if not self._is_given(n, f)]

    def _is_given(self, name: str, field: str) -> bool:
        """Return whether rows cannot tell a constant: a share of 100 %, a start that the host or a second
        kernel hides."""
        figures = self.base[name]
        main = self.kernels[0]
        hidden = self.base[main].issue_us or (len(self.kernels) > 1 and name == main)
        return (field == "share" and figures.share == 1) or (field == "start_us" and bool(hidden))

    @cached_property
    def _columns(self) -> tuple[dict[str, Any], Any]:
        found = OPERATIONS.find(self.operation)
        shapes = [found.shape(row.shape) for row in self.rows]
        columns = {name: np.array([s[name] for s in shapes], float) for name in found.extents}
        return columns, np.array([row.time_us for row in self.rows])

    def errors(self, figures: dict[str, KernelFigures], chosen: Any = slice(None)) -> Any:
        """Return signed relative errors of the rows chosen, with these figures."""
        columns, times = self._columns
        part = {name: column[chosen] for name, column in columns.items()}
        device = replace(self.device, figures=figures)
        return OPERATIONS.find(self.operation).formula(device, part, self.dtype) / times[chosen] - 1

    def fitted(self, chosen: Any = slice(None)) -> dict[str, KernelFigures]:
        """Return the figures that fit the rows chosen best."""

        def with_values(values: Any) -> dict[str, KernelFigures]:
            figures = dict(self.base)
            for (name, field), value in zip(self.free, values, strict=True):
                change: dict[str, Any] = {field: min(float(value), 1.0) if field in SHARES else float(value)}
                figures[name] = replace(figures[name], **change)
            return figures

        def loss(values: Any) -> float:
            return float(np.mean(np.abs(np.log1p(self.errors(with_values(values), chosen)))))

        begin = np.array([getattr(self.base[name], field) for name, field in self.free])
        return with_values(minimise(loss, begin, f"fitting {self.operation} {self.dtype}"))

    def left_out(self, labels: Sequence[Any]) -> Any:
        """Return errors of rows, each group of equal labels predicted by a fit to the others."""
        marks, errors = np.asarray(labels), np.empty(len(self.rows))
        for label in np.unique(marks):
            here = marks == label
            errors[here] = self.errors(self.fitted(~here), here)
        return errors

    def judged(self, held_out: float) -> Fit:
        """Return a fit to all rows but a part, with its errors on that part."""
        if len(self.rows) < MIN_ROWS:
            raise DatabaseError(
                f"{len(self.rows)} rows of {self.operation} in {self.dtype} are too few to fit: "
                f"at least {MIN_ROWS}"
            )
        apart = np.array([_draw(row) < held_out for row in self.rows])
        figures = self.fitted(~apart)
        judged = apart if apart.any() else ~apart  # nothing held out: judged on what was fitted
        before, after = (Score.of(self.errors(f, judged)) for f in (self.base, figures))
        rows = int((~apart).sum())
        return Fit(self.device.hda.name, self.operation, self.dtype, figures, rows, before, after)


def _draw(row: Measurement) -> float:
    """From 0 to 1, by the shape alone."""
    return drawn(f"{row.operation} {row.dtype} {sorted(row.shape.items())}")


def drawn(text: str) -> float:
    """Return a number from 0 to 1 that a text determines, as if drawn at random."""
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
