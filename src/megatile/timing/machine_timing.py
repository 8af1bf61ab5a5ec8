"""Who does the work of a plan: the machine's own engines, or kernels that stand in for them.

A `Timing` says what it changes about a machine for the units of a scale, as a `MachineTiming`: which engines
move data and compute, what a message pays on each network, whether the host's control path is travelled. The
machine itself is never rewritten. ``Timing()`` changes nothing; what the transports of a plan change is in
``transports.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from megatile.core.cached import cached_in_owner
from megatile.core.errors import MegatileError
from megatile.hda import HDA
from megatile.hda.model import Engine, Network


class TimingError(MegatileError, ValueError):
    """A plan that cannot be timed on this machine; says why and what to do."""


class Origin(NamedTuple):
    """Where the times of a class of commands come from."""

    kind: str
    """``measured``, ``interpolated``, ``rule`` (follows from the machine's figures) or ``assumed``."""
    source: str


@dataclass(frozen=True)
class MachineTiming:
    """A machine as the commands of a plan see it."""

    engines: tuple[Engine, ...]
    networks: Mapping[str, Network] = field(default_factory=dict)
    """Networks on which messages pay something else than the machine file says, by name."""
    counted: frozenset[str] = frozenset()
    """Memories whose latency nothing waits for: it is part of what a message pays, or asked for in time."""
    control: bool = True
    """Whether a launch travels the control path."""
    roofline: bool = True
    """Whether operands cost the bandwidth of memories; not where kernels were measured with all they do."""
    side_by_side: bool = False
    """Whether messages to different peers share the links they leave through, instead of taking turns."""
    rules: Mapping[str, Callable[[Any], int]] = field(default_factory=dict)
    """Timing rules of operations in place of those in ``rules.py``; they also know the operands' extents."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Where times come from that do not follow from the machine's parts, by class of commands."""

    def with_engine(self, engine: Engine) -> MachineTiming:
        """Return the view in which ``engine`` moves the data; what launches it is counted elsewhere."""
        return replace(self, engines=(engine, *self.engines), control=False)


@dataclass(frozen=True)
class Timing:
    """The machine's own engines and control path do the work."""

    attention = "the peak rate of its engine, no kernel's"
    """What times attention commands, for the name of the model."""

    def view(self, hda: HDA, scale: str) -> MachineTiming:
        """Return what it changes; of plans with the same view one may use what was found out for the
        other."""
        return _plain(hda)


@cached_in_owner
def _plain(hda: HDA) -> MachineTiming:
    ahead = any(e.prefetch for e in hda.engines)
    return MachineTiming(
        hda.engines, counted=frozenset(m.name for m in hda.memories) if ahead else frozenset()
    )


def as_timing(timing: Timing | None) -> Timing:
    """Return what ``timing=`` of `simulate` and its neighbours means; None: the machine's own engines."""
    if timing is None:
        return Timing()
    if not isinstance(timing, Timing):
        raise TimingError(
            f"timing={timing!r} is not a timing",
            advice="give a Timing; transports of a plan need none",
        )
    return timing
