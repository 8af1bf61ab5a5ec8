"""Waits and signals between the regions of streams that have been written.

Where a region of a further level begins, the stream of the unit above has a `Started`. Each becomes a signal
``go``, on which the instances wait, and their ``done``, on which later commands wait that touch the same, at
the finest grain that is safe (``flags.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from megatile.core.errors import Place as Source
from megatile.core.expr import ONE, ZERO, Const, Expr, unit
from megatile.lowering.flags import Phase, earliest, guarded, touched
from megatile.lowering.streams import LoweringState, Stream
from megatile.lowering.units import Ranges
from megatile.plan import model as pm


@dataclass(frozen=True, eq=False)
class Started:
    """The instances of a region begin."""

    number: int
    """In the names of its flags."""
    stream: Stream
    ranges: Ranges
    owner: str | None
    """The level whose units have its flags."""
    above: Expr
    """The unit above an instance."""
    rounds: int
    """Counters of each flag: where a condition may leave rounds out, every round has its own."""
    turn: Expr
    """The round that an instance belongs to."""
    index: Expr
    """The round that the unit above is in."""
    each: int
    """Instances of one round."""
    in_loop: bool
    conditions: tuple[Expr, ...]
    simple: bool
    """Whether it starts no regions of its own."""
    phase: int
    after: tuple[int, ...]
    """The phases whose tiles it touches."""
    source: Source | None


@dataclass(frozen=True)
class Meeting:
    """Units meet before the next statement, if there is one."""

    barrier: pm.Collective


def place_waits(state: LoweringState) -> None:
    """Put the flags, signals and waits between regions into the streams of a Plan."""
    for stream in state.first.streams:
        order = _Order(state, stream)
        order.write(stream.out)
        stream.out = order.out


class _Order:
    """A stream as it is written again, with what it has to wait for."""

    def __init__(self, state: LoweringState, stream: Stream):
        self.state, self.stream = state, stream
        self.out: list[Any] = []
        self.pending: list[Phase | pm.Collective] = []
        """Regions before that may still be at work, and meetings after them."""
        self.around: list[tuple[list[Any], list[Phase | pm.Collective]]] = []
        """Both of the loops and branches that are being written, outermost first."""
        self.busy = False
        """Whether there is any statement yet."""

    @property
    def is_first(self) -> bool:
        return self.stream.level is self.state.first

    def write(self, body: list[Any] | tuple[Any, ...]) -> None:
        for s in body:
            if isinstance(s, Started):
                self.start(s)
            elif isinstance(s, Meeting):
                self.pending.append(s.barrier)
            elif isinstance(s, pm.Loop) and _starts(s):
                self.emit(replace(s, body=self.inner(s.body)))
            elif isinstance(s, pm.If) and _starts(s):
                self.emit(replace(s, body=self.inner(s.body), orelse=self.inner(s.orelse)))
            else:
                self.emit(s)

    def inner(self, body: list[Any] | tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the body of a loop, branch or region, which ends when all that begins in it has ended."""
        with self.inside() as out:
            self.write(body)
            out += map(_wait_of, self.pending)
        return tuple(out)

    @contextmanager
    def inside(self) -> Iterator[list[Any]]:
        outer = self.out, self.pending
        self.around.append(outer)
        self.out, self.pending = [], []
        try:
            yield self.out
        finally:
            self.out, self.pending = outer
            self.around.pop()

    def emit(self, statement: Any) -> None:
        """Write a statement after what it has to wait for."""
        ranges = {"unit": (0, self.stream.level.instances - 1)}
        found = self.settled([statement], ranges, self.stream.units) if self.pending else None
        self.out += [statement] if found is None else found
        self.busy = True

    def settled(
        self, body: list[Any], ranges: Ranges, units: Any, after: tuple[int, ...] | None = None
    ) -> list[Any] | None:
        """Return statements with waits for regions before (those ``after`` which they come, if it is known);
        None: all of these were waited for here."""
        if not all(isinstance(one, Phase) and one.fine for one in self.pending):
            self.flush()
        phases = [p for p in self.pending if isinstance(p, Phase) and (after is None or p.number in after)]
        if not phases:
            return None
        found, whole = guarded(body, phases, ranges, units)
        self.out += [phase.wait for phase in whole]
        self.busy = self.busy or bool(whole)
        self.pending = [phase for phase in self.pending if phase not in whole]
        return found

    def flush(self) -> None:
        """Wait for all regions before, also for those before the loops and branches that this is in."""
        for out, pending in (*self.around, (self.out, self.pending)):
            out += map(_wait_of, pending)
            self.busy = self.busy or bool(pending)
            pending.clear()

    def start(self, region: Started) -> None:
        """Let the instances of a region go, and wait for them later."""
        state, stream = self.state, region.stream
        go, done = f"go_{region.number}", f"done_{region.number}"
        theirs, mine = (region.turn, region.index) if region.rounds > 1 else (ZERO, ZERO)
        order = _Order(state, stream)
        if not region.simple:  # instances of its own regions wait where it does
            self.flush()
            order.busy = self.busy or region.in_loop
        body = list(order.inner(stream.out))
        touches = touched(pm.statements(tuple(body)), region.ranges) if region.simple else None
        plain = touches is not None and self.is_first
        plain = plain and not (self.around or region.conditions or stream.level.communicates)
        if plain:
            body = self.settled(body, region.ranges, stream.units, region.after) or body
        else:
            self.flush()
        waits = self.busy or region.in_loop
        if waits:
            state.declared.flags[go] = pm.Flag(go, region.rounds, region.owner)
            count = ONE if region.rounds > 1 else region.turn + 1
            body.insert(0, pm.Wait(go, count, theirs, source=region.source))
        state.declared.flags[done] = pm.Flag(done, region.rounds, region.owner)
        body.append(pm.Signal(done, region.above, theirs, source=region.source))
        for condition in reversed(region.conditions):
            body = [pm.If(condition, tuple(body))]
        stream.out = body
        if waits:
            place = len(self.out)
            if touches is not None and self.is_first:  # before commands that do not concern it: they overlap
                place = earliest(self.out, touches, state.first.total)
            self.out.insert(place, pm.Signal(go, unit, mine, source=region.source))
            self.busy = True
        ended = Const(region.each) if region.rounds > 1 else (region.index + 1) * region.each
        wait = pm.Wait(done, ended, mine, source=region.source)
        parents = stream.units // stream.level.total
        self.pending.append(
            Phase(wait, state, stream.units, parents, region.owner, region.above, stream.out, touches, plain,
                  region.phase)
        )  # fmt: skip


def _starts(statement: pm.Loop | pm.If) -> bool:
    """Return whether a region or meeting begins in a loop or branch."""
    return any(isinstance(s, (Started, Meeting)) for s in pm.statements((statement,)))


def _wait_of(one: Phase | pm.Collective) -> Any:
    return one.wait if isinstance(one, Phase) else one
