"""A measured figure with its error bar, how one is found (the shortest of several runs, the spread), and all
of them as a machine file that extends the shipped one of this computer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from megatile.core.quantities import format_bytes, format_rate, format_time
from megatile.hda import HDA
from megatile.hda.document import parse_document
from megatile.hda.probe import probed

MIN_SAMPLE_SECONDS = 50e-6
"""Seconds that a sample takes at least: shorter work is repeated."""


@dataclass(frozen=True)
class Sample:
    """Seconds of a piece of work, found in so many runs."""

    seconds: float
    error: float
    """As a share of it."""
    runs: int

    def less(self, seconds: float, parts: float = 1) -> Sample:
        """Without what is known to take so long, and of one of its equal parts."""
        rest = max(self.seconds - seconds, self.seconds / 100)
        return Sample(rest / parts, self.error * self.seconds / rest, self.runs)


@dataclass(frozen=True)
class Figure:
    """One figure of a machine: where it stands in the machine file, its value with a unit, its error bar."""

    name: str
    """``memory.ram.bandwidth``; a name without dots has no place in the machine file."""
    value: float
    unit: str
    error: float
    runs: int
    how: str

    @property
    def text(self) -> str:
        """The value as the machine file writes it."""
        if self.unit == "s":
            return f"{self.value * 1e9:.4g} ns"
        if self.unit == "B":
            return f"{max(1, round(self.value / 1024))} KiB"
        return f"{self.value / 1e9:.4g} G{self.unit}"

    @property
    def shown(self) -> str:
        """The value for people."""
        if self.unit == "s":
            return format_time(self.value * 1e12)
        return format_bytes(self.value) if self.unit == "B" else format_rate(self.value, self.unit)

    @property
    def source(self) -> str:
        return f"measured: {self.how}; ± {100 * self.error:.1f} % ({self.runs} runs)"

    def json(self) -> dict[str, Any]:
        return {
            "name": self.name, "value": self.value, "unit": self.unit, "relative_error": self.error,
            "runs": self.runs, "origin": "measured", "how": self.how,
        }  # fmt: skip


def rate(name: str, amount: float, unit: str, sample: Sample, how: str) -> Figure:
    """Return so much work in the time of a sample."""
    return Figure(name, amount / sample.seconds, unit, sample.error, sample.runs, how)


def duration(name: str, sample: Sample, how: str) -> Figure:
    return Figure(name, sample.seconds, "s", sample.error, sample.runs, how)


def sampled(values: Iterable[float]) -> Sample:
    """Return what measured seconds say: the shortest, for others only lengthen them; half are within the
    error."""
    found = list(values)
    best = max(min(found), 1e-12)
    return Sample(best, max(0.0, statistics.median(found) / best - 1), len(found))


def timed(call: Callable[[], object], runs: int) -> list[float]:
    """Return seconds of a call of one thread, in its own time: others who use the computer hardly count."""
    clock = time.thread_time
    call()
    begun = clock()
    call()
    times = max(1, round(MIN_SAMPLE_SECONDS / max(clock() - begun, 1e-7)))
    found = []
    for _ in range(runs):
        begun = clock()
        for _ in range(times):
            call()
        found.append((clock() - begun) / times)
    return found


def described(name: str, figures: Sequence[Figure]) -> str:
    """Return the machine file: what the operating system says as parameters, what was measured with its
    source."""
    parts: dict[str, Any] = {}
    others = []
    for figure in figures:
        if "." in figure.name:
            _place(parts, figure)
        else:
            others.append(f"# {figure.name}: {figure.shown}, {figure.source}")
    lines = [
        "# This computer as 'megatile measure' found it. The rest is as in the shipped machine 'cpu'.",
        *others,
        yaml.safe_dump(
            {"name": name, "extends": "cpu", "description": "this computer, measured"}, sort_keys=False
        ),
        yaml.safe_dump({"parameters": probed("cpu")}, default_flow_style=None, width=120, sort_keys=False),
        yaml.safe_dump(parts, default_flow_style=False, sort_keys=False, width=160, allow_unicode=True),
    ]
    return "\n".join(lines)


def _place(parts: dict[str, Any], figure: Figure) -> None:
    """``memory.ram.bandwidth`` into the member ``ram`` of ``memory``, with its source."""
    section, *path = figure.name.split(".")
    members = parts.setdefault(section, {} if section == "control" else [])
    if section == "control":
        members = members.setdefault(path.pop(0), [])
    name, key, *dtype = path
    member = next((m for m in members if m["name"] == name), None)
    if member is None:
        members.append(member := {"name": name})
    source = member.pop("source", {})
    if dtype:
        member.setdefault(key, {})[dtype[0]] = figure.text
        said = source.get(key, "measured: ")
        source[key] = f"{said}{', ' * (key in source)}{dtype[0]} ± {100 * figure.error:.1f} % ({figure.how})"
    else:
        member[key], source[key] = figure.text, figure.source
    member["source"] = source


def machine_of(text: str) -> HDA:
    return HDA.from_document(parse_document(text), {})
