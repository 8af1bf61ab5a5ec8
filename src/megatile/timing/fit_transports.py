"""Fit the constants of a machine's ``transports`` to measured collectives, and judge them on rows left out.

`fit_measurements` is ``megatile machine fit``: constants of the protocols that a library takes for the rows.

The fit minimises, over the logarithms of the constants,

    Σ over rows ρ(ln(predicted / measured) / 5 %) + Σ over constants ρ(ln(constant / prior) / (2 · spread))

with the soft absolute value ρ(r) = 2 (√(1 + r²) - 1), so that a few odd rows do not decide. The prior of a
constant is what the machine file has. SciPy finds the least (`scipy.optimize.least_squares`, loss
``soft_l1``); the covariance is that of the linearised problem there.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from megatile.hda import HDA
from megatile.hda.model import ProtocolFigures, TransportFigures
from megatile.timing.collective_choice import choose, rule_of, times_ps
from megatile.timing.collective_rule import PEERS, PREFIX, Rule, Way
from megatile.timing.database import DatabaseError, Measurement
from megatile.timing.fit import Score, drawn
from megatile.timing.measurements import CAPTURED

ROW_SPREAD = 0.05
"""Relative noise of a measured row."""
PRIOR_WEIGHT = 0.5
"""Weight of a constant's shipped value against one measured row."""
MIN_ROWS = 6
"""Fewer rows cannot say anything about constants, with a third of them held out."""
STRANGE, ABSURD = 2.0, 10.0
"""Times that are longer or shorter than the machine's by these factors: was it another machine?"""
SPREADS = {"share": 0.1, "far_share": 0.05}
"""How far a constant may be from the machine file's, as a standard deviation of its logarithm; 0.5 else."""
FREE = ("start_ps", "step_ps", "first_ps", "next_ps", "share", "copy_rate", "fill",
        "far_step_ps", "far_share", "far_fill")  # fmt: skip
"""What is fitted of a protocol, where the machine file has it."""
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", *PEERS)


class Row(NamedTuple):
    """A measured collective: f16 unless it says otherwise, ``nbytes`` as nccl-tests counts them."""

    operation: str
    ranks: int
    nbytes: int
    us: float
    graph: bool = False
    """Whether it ran in a captured graph."""


@dataclass(frozen=True)
class Constant:
    """A constant to fit: a field of one or several protocols, and how far it may be from its prior (as a
    standard deviation of its logarithm)."""

    field: str
    protocols: tuple[str, ...]
    spread: float = 0.5

    @property
    def name(self) -> str:
        return f"{self.protocols[0]}.{self.field.removesuffix('_ps')}"

    def of(self, figures: TransportFigures) -> float:
        return float(getattr(figures.protocols[self.protocols[0]], self.field))

    def quantity(self, figures: TransportFigures) -> dict[str, Any]:
        """Return the value with its unit, for scripts."""
        units = {"ps": (1e-6, "us"), "rate": (1e-9, "GB/s"), "share": (100, "%")}
        scale, unit = units.get(self.field.rpartition("_")[2], (1, ""))
        return {"value": float(f"{scale * self.of(figures):.6g}"), "unit": unit}

    def put(self, protocols: dict[str, Any], value: float) -> None:
        for name in self.protocols:
            if name in protocols:
                whole = round(value) if self.field.endswith(("_ps", "_bytes")) else float(value)
                protocols[name] = replace(protocols[name], **{self.field: whole})


def with_values(figures: TransportFigures, constants: Sequence[Constant], values: Any) -> TransportFigures:
    """Return the figures with these constants."""
    protocols = dict(figures.protocols)
    for constant, value in zip(constants, values, strict=True):
        constant.put(protocols, min(value, 1.0) if constant.field.endswith("share") else value)
    return replace(figures, protocols=protocols)


@dataclass(frozen=True)
class TransportFit:
    """Fitted constants with their relative standard deviations, and the errors before and after: of the rows
    that were fitted, and of those held out."""

    figures: TransportFigures
    constants: tuple[Constant, ...]
    deviations: tuple[float, ...]
    before: Score
    after: Score
    held_before: Score | None = None
    held_after: Score | None = None


Predict = Callable[[Rule, Sequence[Row]], Any]
"""Microseconds of rows by a rule, with the library's own choice."""


def errors(rule: Rule, rows: Sequence[Row], predict: Predict) -> Any:
    """Relative errors of predicted times."""
    return predict(rule, rows) / np.array([row.us for row in rows]) - 1


def fit_rows(
    rule: Rule, rows: Sequence[Row], constants: Sequence[Constant], predict: Predict
) -> TransportFit:
    """Fit the constants to rows."""
    prior = np.log([constant.of(rule.figures) for constant in constants])
    spreads = np.array([constant.spread for constant in constants])
    measured = np.log([row.us for row in rows])

    def at(x: Any) -> Rule:
        return replace(rule, figures=with_values(rule.figures, constants, np.exp(x)))

    def residuals(x: Any) -> Any:
        apart = (np.log(predict(at(x), rows)) - measured) / ROW_SPREAD
        return np.concatenate([apart, PRIOR_WEIGHT * (x - prior) / spreads])

    found, covariance = minimise_residuals(residuals, prior)
    fitted = at(found)
    return TransportFit(
        fitted.figures,
        tuple(constants),
        tuple(float(v) for v in np.sqrt(np.diag(covariance))),
        Score.of(errors(rule, rows, predict)),
        Score.of(errors(fitted, rows, predict)),
    )


def minimise_residuals(residuals: Callable[[Any], Any], begin: Any) -> tuple[Any, Any]:
    """Return the point that minimises the sum of ρ over residuals, and its covariance."""
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise DatabaseError("fitting needs scipy", advice="pip install 'megatile[perf]'") from None
    found = least_squares(residuals, begin, loss="soft_l1", method="dogbox", x_scale="jac", diff_step=1e-3)
    return found.x, np.linalg.pinv(found.jac.T @ found.jac)


def fit_measurements(
    hda: HDA,
    measurements: Sequence[Measurement],
    *,
    library: str = "",
    env: Mapping[str, Any] | None = None,
    held_out: float = 1 / 3,
    devices: Collection[str] = (),
) -> TransportFit:
    """Fit the constants that measured collectives depend on. Which rows are held out follows from their
    shapes, so that it does not change from run to run. ``devices`` are the names in the log: if they, or the
    times, are those of another machine, warn; times that differ by a factor of ten are refused."""
    rule = rule_of(hda, library)
    if not rule.figures.protocols:
        raise DatabaseError(f"machine '{hda.name}' has no transports to fit", advice="use one that has some")
    rows = [
        Row(m.operation, m.shape["ranks"], m.shape["bytes"], m.time_us, m.implementation == CAPTURED)
        for m in measurements
        if m.operation in COLLECTIVES and m.shape["ranks"] > 1
    ]
    if len(rows) < MIN_ROWS:
        raise DatabaseError(f"{len(rows)} rows of collectives are too few to fit: at least {MIN_ROWS}")
    most = hda.count("device")
    if (ranks := max(row.ranks for row in rows)) > most:
        raise DatabaseError(f"the log has {ranks} ranks, machine '{hda.name}' only {most} devices")
    check_machine(hda, rule, rows, devices, env)
    apart = np.array([drawn(str(row[:3])) < held_out for row in rows])
    if apart.all() or not apart.any():
        apart = np.arange(len(rows)) % 3 == 1
    fitted, held = (
        [row for row, out in zip(rows, apart, strict=True) if out == kept] for kept in (False, True)
    )

    def predict(rule: Rule, rows: Sequence[Row]) -> Any:
        return predicted_us(rule, rows, env)

    found = fit_rows(rule, fitted, free_constants(rule, fitted, env), predict)
    after = replace(rule, figures=found.figures)
    scores = (Score.of(errors(each, held, predict)) for each in (rule, after))
    return replace(found, held_before=next(scores), held_after=next(scores))


MODEL = re.compile(r"(?<![a-z0-9])(?:gb|mi|[abhlv])\d{2,4}[a-z]?(?![a-z0-9])")
"""A model of a GPU, such as h100, l20, gb200 and mi300x."""


def check_machine(
    hda: HDA, rule: Rule, rows: Sequence[Row], devices: Collection[str], env: Mapping[str, Any] | None
) -> None:
    """Warn of rows that were measured on another machine; refuse absurd ones."""
    known = set(MODEL.findall(f"{hda.name} {hda.spec.description or ''}".lower()))
    for device in devices:
        models = set(MODEL.findall(device.lower()))
        if known and models and not models & known:
            warnings.warn(
                f"the log is of '{device}', machine '{hda.name}' has {', '.join(sorted(known))}", stacklevel=3
            )
    ratio = float(np.exp(np.median(np.log([row.us for row in rows]) - np.log(predicted_us(rule, rows, env)))))
    if max(ratio, 1 / ratio) > STRANGE:
        said = f"the times of the log are {ratio:.2g} times those of machine '{hda.name}'"
        if max(ratio, 1 / ratio) > ABSURD:
            raise DatabaseError(said, advice="name the machine that was measured with -m")
        warnings.warn(f"{said}: was it measured on another machine?", stacklevel=3)


def predicted_us(rule: Rule, rows: Sequence[Row], env: Mapping[str, Any] | None = None) -> Any:
    """Return microseconds of rows with the library's own choice."""
    found = np.zeros(len(rows))
    ranks, sizes = (np.array([row[i] for row in rows]) for i in (1, 2))
    for kind, graph in {(row.operation, row.graph) for row in rows}:
        here = np.array([(row.operation, row.graph) == (kind, graph) for row in rows])
        found[here] = times_ps(rule, kind, ranks[here], sizes[here], graph=graph, env=env) / 1e6
    return np.maximum(found, 1e-6)


def free_constants(rule: Rule, rows: Sequence[Row], env: Mapping[str, Any] | None = None) -> list[Constant]:
    """Return the constants of the protocols that the library takes for rows."""
    used: dict[str, None] = {}
    for row in rows:
        way = choose(rule, row.operation, row.ranks, row.nbytes, graph=row.graph, env=env)
        used[protocol_name(way, row.operation)] = None
    known = {name: rule.figures.protocols[name] for name in used if name in rule.figures.protocols}
    over_nodes = max(rule.fabric.nodes(row.ranks) for row in rows) > 1
    return [
        Constant(field, (name,), SPREADS.get(field, 0.5))
        for name, figures in known.items()
        for field in FREE
        if getattr(figures, field) and (over_nodes or not field.startswith("far_"))
    ]


def protocol_name(way: Way, operation: str) -> str:
    """Return the member of ``protocols`` that a way uses."""
    named = {"in_network": "NVLS", "in_network_tree": "NVLSTree"}.get(way.algorithm)
    prefix = PREFIX.get(way.algorithm, "")
    return named or f"{'pairs_' if prefix == 'peer_' and operation not in PEERS else prefix}{way.protocol}"


def protocol_text(figures: ProtocolFigures) -> Iterator[str]:
    """Yield the figures of a protocol as a machine file writes them."""
    for key, value in vars(figures).items():
        if value in (None, 0) or (key.endswith("share") and value == 1.0):
            continue
        if key.endswith("_ps"):
            yield f"{key.removesuffix('_ps')}: {value / 1e6:.3g} us"
        elif key.endswith("_bytes"):
            unit = next((k for k in (("MiB", 1 << 20), ("KiB", 1 << 10)) if value % k[1] == 0), ("B", 1))
            yield f"{key}: {value // unit[1]} {unit[0]}"
        elif key.endswith("share"):
            yield f"{key}: {100 * value:.3g} %"
        elif key == "copy_rate":
            yield f"{key}: {float(f'{value / 1e9:.3g}'):g} GB/s"
        else:
            yield f"{key}: {value:.3g}"


def machine_text(name: str, base: str, library: str, found: TransportFit, source: str) -> str:
    """Return a machine file that extends ``base`` with fitted constants, each with its deviation."""
    lines = [f"name: {json.dumps(name)}", f"extends: {json.dumps(base)}", "transports:", "  device:"]
    lines += [f"    {library}:", "      protocols:"]
    deviations = dict(zip(found.constants, found.deviations, strict=True))
    for protocol in dict.fromkeys(c.protocols[0] for c in found.constants):
        mine = {c: d for c, d in deviations.items() if c.protocols[0] == protocol}
        figures = ", ".join(protocol_text(found.figures.protocols[protocol]))
        spread = ", ".join(f"{c.name.partition('.')[2]} ± {d:.0%}" for c, d in mine.items())
        lines += [
            f"        {json.dumps(protocol)}: {{{figures},",
            f"          source: {json.dumps(f'{source}; {spread}')}}}",
        ]
    return "\n".join(lines) + "\n"
