"""Launches, from what was asked for to what came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from megatile.core.errors import MegatileError
from megatile.hda import HDA
from megatile.sim.data import Assumed, Scalars
from megatile.sim.launch_rows import LaunchRows, TensorNumbers
from megatile.sim.paths import CacheKey
from megatile.sim.record import Record
from megatile.sim.simulation import NEVER, Simulation
from megatile.sim.symmetry import BESIDE, TimedUnits
from megatile.timing.faults import Faults
from megatile.timing.machine_timing import Timing
from megatile.timing.resources import Resources
from megatile.trace import Trace

if TYPE_CHECKING:
    from megatile.sim.data_runs import LaunchData

PREPARED, SUBMITTED, RUNNING = "prepared", "submitted", "running"
DONE, FAILED, CANCELLED = "done", "failed", "cancelled"
"""The states of a launch, in the order in which it goes through them; it ends in one of the last three."""

TIMES = ("plan", "hda", "name", "number", "submit_ps", "end_ps", "begin_ps", "present", "_state")
"""What is left of a launch without its records."""


class SessionError(MegatileError, ValueError):
    """A session that cannot go on, or is asked for something it does not have."""


@dataclass(eq=False, repr=False)
class Launch:
    """A plan on a machine: how it is launched, its state, and what came out.

    `Session.wait` gives the `Result` of a launch that was submitted. ``dataclasses.replace`` gives the same
    launch before it began.
    """

    plan: Any
    """A `Plan`; None: work of a known time that is not a plan, as installs are."""
    hda: HDA
    timing: Timing = field(default_factory=Timing)
    faults: Faults = field(default_factory=Faults)
    engine: str | None = None
    installed: bool = False
    """Whether its queues are there already; if not, their install is part of its time."""
    control: bool = True
    """Whether the host launches it; not so in captured graphs."""
    contended: bool = True
    """Whether commands wait for what others use; if not, the time is a lower bound."""
    scalars: Scalars = field(default_factory=lambda: Assumed(None))
    turns: bool = False
    """Whether it waits for earlier launches on its units, instead of running beside them."""
    submit_ps: int = 0
    """When it was submitted or, if later, launches before it (``after``) have ended."""
    after: tuple[Launch, ...] = ()
    """Launches that must end before it begins."""
    uses: frozenset[Any] | None = None
    """Parts of the machine that it uses (None: all of it)."""
    devices: tuple[int, ...] = ()
    """The devices for which a host has submitted it."""
    known: Launch | None = None
    """An earlier launch that had the machine for itself; without others beside it, this one takes as long."""
    addresses: Mapping[str, Any] | None = None
    """By tile, what tells its memory from others, of tensors that outlive it (None: their names do)."""
    caches: tuple[TensorNumbers, Mapping[CacheKey, bytes]] | None = None
    """What caches hold when it begins, if it is to be timed alone (None: nothing)."""
    crowded: bool = False
    """Whether launches beside it use the engines of its units."""
    name: str = ""
    number: int = 0
    worker: Any = None
    """The `Worker` that has submitted it."""

    end_ps: int | None = field(init=False, default=None)
    """When it ended, up to now."""
    begin_ps: int = field(init=False, default=0)
    """What a library's kernels spend before the first command, counted from the submission."""
    timed_by: str = field(init=False, default="")
    outputs: Mapping[str, Any] | None = field(init=False, default=None)
    result: Any = field(init=False, default=None)
    """The `Result` of a session's launch that has ended."""
    present: Any = field(init=False, default=None)
    """The units that took part."""
    trace: Trace | None = field(init=False, default=None)
    """The events of one without a plan."""
    record: Record | None = field(init=False, default=None)
    passed_ps: int = field(init=False, default=0)
    """How far time had come after its submission when it ended: a library may end later or earlier."""
    repeatable: bool = field(init=False, default=True)
    """Whether it had a machine for itself, so that it can be recorded when that is asked for."""
    like: Launch | None = field(init=False, default=None)
    """An earlier launch whose times it has."""
    untimed: bool = field(init=False, default=False)
    """Whether it is to be timed alone, with what caches hold when time passes."""
    error: MegatileError | None = field(init=False, default=None)
    followers: tuple[Launch, ...] = field(init=False, default=())
    """Launches that wait for its end."""
    simulation: Simulation | None = field(init=False, default=None)
    """The engine that had the launch for itself, with all it recorded."""
    engine_rows: LaunchRows | None = field(init=False, default=None)
    """Its rows in the engine, as long as that has it."""
    data: LaunchData | None = field(init=False, default=None)
    """Its execution on data, until it has ended."""
    idle: bool = field(init=False, default=False)
    """Whether it is known to have an idle machine for itself."""
    units: TimedUnits = field(init=False, default=BESIDE)
    """Which units are timed."""
    _state: str = field(init=False, default=PREPARED)
    _resources: Resources | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.name = self.name or self.plan.name
        self.choices: dict[Any, list[int]] = {}
        self.messages: dict[str, dict[int, int]] = {}
        self.leaves: Mapping[CacheKey, bytes] = {}
        """What caches hold after it, if it had the machine for itself."""

    def __repr__(self) -> str:
        return f"Launch({self.number}: {self.name}, {self.state})"

    @property
    def resources(self) -> Resources:
        """The machine as the plan sees it; plans that need more units than there are are refused. What was
        found out about the last machine is cached with the plan."""
        if self._resources is None or self._resources.crowded < self.crowded:
            key, how = (Resources, self.crowded), (self.faults, self.installed, self.timing, self.control)
            last = self.plan.cached.get(key)
            if last is None or last[0].hda is not self.hda or last[1] != how:
                made = Resources(
                    self.hda, self.plan, self.faults, installed=self.installed, timing=self.timing,
                    control=self.control,
                )  # fmt: skip
                made.crowded |= self.crowded
                self.plan.cached[key] = last = made, how
            self._resources = last[0]
        return self._resources

    @resources.setter
    def resources(self, given: Resources) -> None:
        self._resources = given

    @property
    def until_ps(self) -> int:
        """When it is over, where that is known: it is not in the engine."""
        if self.known is None or self.untimed or self.engine_rows is not None:
            return NEVER
        return self.submit_ps + self.known.passed_ps

    @property
    def alone_key(self) -> tuple[Any, ...]:
        """What its time depends on alone, beside what caches hold."""
        given = None if self.addresses is None else tuple(sorted(self.addresses.items()))
        return id(self.resources), self.turns, self.control, given

    def meets(self, other: Launch) -> bool:
        """Return whether it may have to do with one that was submitted before it and has not ended."""
        if self.uses is None or other.uses is None:
            return True
        apart = other.until_ps <= self.submit_ps or self.until_ps <= other.submit_ps
        return not apart and not self.uses.isdisjoint(other.uses)

    @property
    def state(self) -> str:
        """``prepared``, ``submitted``, ``running``, ``done``, ``failed`` or ``cancelled``."""
        begun = self._state == SUBMITTED and self.worker.session.has_begun(self)
        return RUNNING if begun else self._state

    @property
    def over(self) -> bool:
        """Whether nothing more happens to it that could be waited for."""
        return self.end_ps is not None or self._state == CANCELLED

    @property
    def took_ps(self) -> int:
        """Picoseconds from its submission to its end."""
        return 0 if self.end_ps is None else self.end_ps - self.submit_ps

    @property
    def unit_count(self) -> int:
        """On how many units it ran."""
        return self.plan.units if self.plan is not None and self.plan.levels else len(self.present)

    def end(self, took_ps: int) -> None:
        """End it so long after its submission."""
        self.end_ps = self.submit_ps + took_ps
        self._state = DONE if self.error is None else FAILED

    def set_times(self, spent_ps: int, passed_ps: int) -> None:
        """End it, when its commands have taken so long, but not before a library's launch by the host."""
        self.passed_ps, self.timed_by = passed_ps, str(self.units)
        took = self.resources.whole_ps(spent_ps, self.control)
        self.begin_ps = max(0, took - spent_ps)
        self.end(took)

    def take_times(self, known: Launch) -> None:
        """Take over what came out of a launch like it, except for data."""
        self.passed_ps = known.passed_ps
        self.like, self.begin_ps, self.choices = known, known.begin_ps, known.choices
        self.messages, self.timed_by, self.present = known.messages, known.timed_by, known.present

    def alone(self, **changes: Any) -> Launch:
        """Return the same launch before it began, on a machine that it has for itself."""
        alone: dict[str, Any] = {"submit_ps": 0, "turns": False, "crowded": False, "after": (), "uses": None}
        made = replace(self, worker=None, known=None, **alone, **changes)
        if not changes.keys() - {"caches"} and self._resources is not None and not self._resources.crowded:
            made.resources = self._resources  # a session's have tensors that last
        return made

    def copied(self, **changes: Any) -> Launch:
        """Return a copy with other fields, of a prepared launch to submit it, of one that has ended to keep
        its times. Quicker than ``dataclasses.replace``."""
        made, fields = Launch.__new__(Launch), self.__dict__.copy()
        fields.update(changes)
        made.__dict__ = fields
        return made

    # records

    @property
    def recorded_commands(self) -> int:
        """How many commands of it are kept."""
        kept = self.record if self.like is None else self.like.record
        return 0 if kept is None else len(kept.rows)

    def times_only(self) -> Launch:
        """Return what the history keeps of it when there are too many records."""
        made = Launch.__new__(Launch)
        made.__dict__ = {name: self.__dict__[name] for name in TIMES}
        made.repeatable = False
        return made
