"""What a verdict says: findings with their estimated gains, as text, data and HTML."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from html import escape
from typing import Any

from megatile.core.quantities import format_time
from megatile.core.times import HasTime

MIN_GAIN = 0.05
"""The smallest share of the time that a remedy must save to be a finding."""
LIMIT = 0.85
"""The share of the time from which on what works is called the bound of a program."""
MAX_SHOWN = 4
"""Findings that are printed."""
_NO_REMEDY = (
    f"  none of the remedies tried saves {MIN_GAIN:.0%}",
    "  next: search tile sizes and stages together (megatile tune, mt.tune); see which machine parameter "
    "matters (--what-helps, result.what_helps())",
)


class Kind(Enum):
    """What a rule finds. The value is how much a saved second counts where findings are ranked."""

    CAUSE = 1.0
    """A mistake in a line, with its remedy."""
    SEARCH = 0.63
    """Other arguments or sizes of tiles: that they are faster does not say why."""
    INEXACT = 0.38
    """A remedy that changes results."""
    ADVICE = 0.25
    """What any program could get."""
    CALLER = 0.08
    """What is up to the caller: the launch, the types of tensors."""


@dataclass(frozen=True, repr=False)
class Finding(HasTime):
    """One cause of lost time, and a remedy that was timed again."""

    name: str
    """The rule: ``block order``, ``pipeline stages``, …"""
    bottleneck: str
    reason: str
    source: str
    """``file:line`` of the statement that it is about, or nothing."""
    step: str
    """What to do next."""
    base_ps: int
    time_ps: int
    """The estimated time after the remedy."""
    how: str
    """What was timed again to estimate it."""
    bound: bool = False
    """Whether the remedy was idealised: the gain is an upper bound."""
    kind: Kind = Kind.CAUSE

    @property
    def gain(self) -> float:
        """How many times faster the program would be."""
        return self.base_ps / max(1, self.time_ps)

    @property
    def saved(self) -> float:
        """The share of the time that is saved."""
        return 1 - self.time_ps / max(1, self.base_ps)

    def __repr__(self) -> str:
        return f"Finding({self.name}: {'at most ' if self.bound else ''}{self.gain:.2f}×, {self.step})"

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name, "bottleneck": self.bottleneck, "reason": self.reason, "source": self.source,
            "next_step": self.step, "time_us": self.time_ps / 1e6, "gain": self.gain,
            "estimated_by": self.how, "upper_bound": self.bound,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """Bottleneck, reason, next step and gain."""
        where = f" ({self.source})" if self.source else ""
        most = "at most " if self.bound else ""
        return [
            f"{self.bottleneck}{where}",
            f"  why: {self.reason}",
            f"  next: {self.step}",
            f"  estimated gain: {most}{self.gain:.2f}×, {format_time(self.base_ps)} -> "
            f"{format_time(self.time_ps)} ({self.how})",
        ]


@dataclass(frozen=True)
class Verdict(HasTime):
    """The findings of one simulation, the largest estimated gain first."""

    program: str
    machine: str
    time_ps: int
    findings: tuple[Finding, ...]
    bound_by: str
    """What the time is spent on, judged by the busiest parts."""
    retimed: int
    """How many changed programs, Plans and machines were timed."""
    untried: tuple[str, ...] = ()
    """Rules that were not tried, as re-timing would have taken too long."""
    share: float = 0.0
    """The share of the time in which the busiest part works."""
    waits: str = ""
    """What takes most of the critical path, where nothing is busy for half of the time."""

    @property
    def balanced(self) -> bool:
        """Whether no remedy helps and some resource is busy for half of the time."""
        return not self.findings and not self.waits

    def as_dict(self) -> dict[str, Any]:
        return {
            "program": self.program, "machine": self.machine, "time_us": self.time_ps / 1e6,
            "balanced": self.balanced, "bound_by": self.bound_by, "retimed": self.retimed,
            "waits_for": self.waits, "untried": list(self.untried),
            "findings": [one.as_dict() for one in self.findings],
        }  # fmt: skip

    def __str__(self) -> str:
        lines = []
        if self.balanced:
            if self.share >= LIMIT:
                lines.append(f"verdict: bounded by {self.bound_by.removeprefix('busiest: ')}")
            else:
                lines.append(f"verdict: no single bottleneck ({self.bound_by})")
            lines += _NO_REMEDY
        elif not self.findings:
            lines.append(f"verdict: nothing is busy for half of the time ({self.bound_by})")
            lines += [f"  most of the critical path: {self.waits}", *_NO_REMEDY]
        for number, one in enumerate(self.findings[:MAX_SHOWN]):
            first, *rest = one.lines()
            lines += [f"{'also' if number else 'verdict'}: {first}", *rest]
        if len(self.findings) > MAX_SHOWN:
            names = ", ".join(one.name for one in self.findings[MAX_SHOWN:])
            lines.append(f"also, with smaller gains: {names}")
        if self.untried:
            lines.append(f"not tried, to save time: {', '.join(self.untried)}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        names = ", ".join(f"{one.name} {one.gain:.2f}×" for one in self.findings)
        names = names or ("balanced" if self.balanced else f"mostly {self.waits}")
        return f"Verdict({self.program} on {self.machine}: {names})"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"
