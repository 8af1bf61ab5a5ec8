"""Fit the constants of a machine's ``transports`` to measured collectives, and judge them on rows left out.

The fit minimises, over the logarithms of the constants,

    Σ over rows ρ(ln(predicted / measured) / 5 %) + Σ over constants ρ(ln(constant / prior) / (2 · spread))

with the soft absolute value ρ(r) = 2 (√(1 + r²) - 1), so that a few odd rows do not decide. The prior of a
constant is what the machine file has. Levenberg's and Marquardt's method; the covariance is that of the
linearised problem at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from megatile.hda.model import TransportFigures
from megatile.timing.collective_rule import Rule
from megatile.timing.fit import Score

ROW_SPREAD = 0.05
PRIOR_WEIGHT = 0.5
ROUNDS = 60


class Row(NamedTuple):
    """A measured collective: f16 unless it says otherwise, ``nbytes`` as nccl-tests counts them."""

    operation: str
    ranks: int
    nbytes: int
    us: float


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

    def put(self, protocols: dict[str, Any], value: float) -> None:
        for name in self.protocols:
            if name in protocols:
                whole = round(value) if self.field.endswith(("_ps", "_bytes")) else float(value)
                protocols[name] = replace(protocols[name], **{self.field: whole})


def with_values(figures: TransportFigures, constants: Sequence[Constant], values: Any) -> TransportFigures:
    """The figures with these constants."""
    protocols = dict(figures.protocols)
    for constant, value in zip(constants, values, strict=True):
        constant.put(protocols, min(value, 1.0) if constant.field.endswith("share") else value)
    return replace(figures, protocols=protocols)


@dataclass(frozen=True)
class TransportFit:
    """Fitted constants with their relative standard deviations, and the errors before and after."""

    figures: TransportFigures
    constants: tuple[Constant, ...]
    deviations: tuple[float, ...]
    before: Score
    after: Score


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
    """Minimise the sum of ρ over residuals; the point and its covariance."""
    x, damping = np.array(begin, float), 1e-3
    r = residuals(x)
    loss = _loss(r)
    for _ in range(ROUNDS):
        jacobian = _jacobian(residuals, x, r)
        weights = 1 / np.sqrt(1 + r * r)
        normal, slope = (jacobian.T * weights) @ jacobian, jacobian.T @ (weights * r)
        gained = 0.0
        while damping < 1e9:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-12), -slope)
            tried = x + np.clip(step, -1, 1)
            new = residuals(tried)
            if _loss(new) < loss:
                gained, x, r = loss - _loss(new), tried, new
                loss, damping = _loss(r), max(damping / 5, 1e-9)
                break
            damping *= 4
        if gained < 1e-6 * loss:
            break
    jacobian = _jacobian(residuals, x, r)
    weights = 1 / np.sqrt(1 + r * r)
    return x, np.linalg.pinv((jacobian.T * weights) @ jacobian)


def _loss(r: Any) -> float:
    return float(np.sum(2 * (np.sqrt(1 + r * r) - 1)))


def _jacobian(residuals: Callable[[Any], Any], x: Any, r: Any, step: float = 1e-4) -> Any:
    columns = [(residuals(x + step * unit) - r) / step for unit in np.eye(len(x))]
    return np.stack(columns, axis=1)
