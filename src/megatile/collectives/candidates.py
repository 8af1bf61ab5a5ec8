"""What the planner compares, and how it explains its choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from megatile.collectives.job import Job
from megatile.core.quantities import format_bytes, format_time
from megatile.plan.model import Collective, Plan, statements
from megatile.trace import text_table

Key = tuple[str, str]
"""The label and protocol that tell a candidate from others."""


@dataclass(frozen=True)
class Candidate:
    """One algorithm with its options on one protocol; prices include what is spent once per collective."""

    algorithm: str
    options: tuple[tuple[str, Any], ...] = ()
    protocol: str = "Simple"
    price_ps: int | None = None
    time_ps: int | None = None
    why_not: str | None = None
    note: str = ""

    @property
    def label(self) -> str:
        shown = ", ".join(f"{k}={v}" for k, v in self.options)
        return f"{self.algorithm}({shown})" if shown else self.algorithm

    @property
    def key(self) -> Key:
        return self.label, self.protocol


IN_NETWORK = "switches do part of the reduction or broadcast"


ESTIMATED = "NCCL estimates "
BY_ESTIMATES = "NCCL chooses the lowest of its own estimates; 'time' is what megatile predicts"


def in_network(plan: Plan) -> bool:
    """Return whether a plan lets the network reduce or broadcast."""
    return any(
        isinstance(s, Collective) and s.kind != "barrier"
        for stream in plan.streams
        for s in statements(stream.body)
    )


@dataclass(frozen=True)
class Explanation:
    """The candidates, the fastest first, then those that could not be used and why."""

    job: Job
    machine: str
    candidates: tuple[Candidate, ...]
    network_reduces: bool = False
    """Whether part of the chosen plan's work is done by the network itself."""
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> Candidate:
        return self.candidates[0]

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return the candidates as plain data."""
        return [
            {
                "algorithm": c.algorithm,
                "options": dict(c.options),
                "protocol": c.protocol,
                "price_ps": c.price_ps,
                "time_ps": c.time_ps,
                "note": c.why_not or self._note(c),
            }
            for c in self.candidates
        ]

    def _note(self, candidate: Candidate) -> str:
        best = self.chosen.time_ps
        if candidate is self.chosen:
            return ", ".join(filter(None, ("chosen", candidate.note)))
        if candidate.time_ps is not None or best is None:
            return candidate.note
        above = candidate.price_ps is not None and candidate.price_ps >= best
        return "no faster even without contention" if above else "not simulated"

    def __str__(self) -> str:
        job = self.job
        head = (
            f"{job.operation} of {format_bytes(job.nbytes)} ({job.dtype}) over {job.ranks} {job.scale}s "
            f"of {self.machine}: {self.chosen.label}"
        )
        head += f"\n{IN_NETWORK}" if self.network_reduces else ""
        head += "".join(f"\n{note}" for note in self.notes)
        estimated = any(c.note.startswith(ESTIMATED) for c in self.candidates)
        head += f"\n{BY_ESTIMATES}" if estimated else ""
        rows = [
            (
                c.label,
                c.protocol if c.why_not is None else "",
                format_time(c.price_ps) if c.price_ps is not None else "",
                format_time(c.time_ps) if c.time_ps is not None else "",
                c.why_not or self._note(c),
            )
            for c in self.candidates
        ]
        titles = ("algorithm", "protocol", "at least", "time", "note")
        shown = [at for at in range(len(titles)) if any(row[at] for row in rows)]
        table = text_table([titles[at] for at in shown], [[row[at] for at in shown] for row in rows])
        return f"{head}\n{table}"
