"""Predicted attention beside published measurements, as a section of docs/fidelity.md; building plans."""

from __future__ import annotations

from collections.abc import Iterator

import fidelity_attention as fidelity
from harness import Bar, Row, bench, best_of
from megatile.attention.plans import Problem, attention_plan


@bench("published speed-ups of Hamilton attention")
def speedups() -> Iterator[Row]:
    compared = list(fidelity.compare())
    for row in compared:
        yield Row(row.name, row.ours, row.unit, row.published, "published", _bar(row))
    fidelity.write_page(compared)


def _bar(row: fidelity.Compared) -> Bar | None:
    """The side of the 15 % that is nearer."""
    if not row.scored:
        return None
    above = row.ours > row.published
    return Bar(1 + fidelity.ALLOWED if above else 1 - fidelity.ALLOWED, on_ratio=True, at_most=above)


@bench("building plans of attention")
def building() -> Iterator[Row]:
    for ranks in (8, 32):
        problem = Problem(ranks * 512, causal=True)

        def build(ranks: int = ranks, problem: Problem = problem) -> object:
            return attention_plan("hamilton", problem, ranks=ranks)

        yield Row(f"plan of {ranks} ranks", best_of(build, 1), "s")
