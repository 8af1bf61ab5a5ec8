"""Long loops priced by some of their rounds: what each further round adds is arithmetic.

    for k in range(10**13): …     is run as     k = 0, 1, … 31 and 10**13 - 32, … 10**13 - 1

The plan is run with a gap in each of its outermost loops. Its times are those of the whole plan, but for the
gaps, if the loops repeat themselves: around a gap all commands are later, by one and the same time, than a
period before. Time has no other origin, so that each period left out adds this time. What comes after must
have been released by the last rounds of the loop; `Shortened.end_ps` checks both.

A loop can be shortened if its index decides nothing but where regions begin, and if the blocks of each tile
that is written move on by one and the same distance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Any

import numpy as np

from megatile.core.expr import (
    Expr,
    Symbol,
    bounds,
    constant,
    expr,
    from_linear,
    linear,
    substitute,
    symbols,
    trips,
)
from megatile.plan import model as pm
from megatile.plan.counts import command_count
from megatile.plan.statements import engine_of, regions_of, write_of
from megatile.sim.launch_rows import LaunchRows
from megatile.sim.simulation import Simulation
from megatile.sim.state import NONE, RELEASE, Recorded

MANY_COMMANDS = 1 << 15
"""Commands up to which a plan is run as it is."""
KEPT_ROUNDS = (32, 256, 2048)
"""Rounds before the gap that are tried, one after another, until they repeat themselves."""
MAX_KEPT_COMMANDS = 1 << 21
"""Commands of a shortened plan; above that nothing is gained."""
MAX_PERIOD = 64
"""Rounds after which buffers and slots must come back to the same turn."""
LOCAL = (pm.Compute, pm.Free, pm.Loop)
REPEATING = (*LOCAL, pm.If, pm.Send, pm.Receive, pm.Collective, pm.Start)


@dataclass(frozen=True)
class Gap:
    """A loop without its middle rounds: how many it has, and how many are kept before and after the gap."""

    rounds: int
    before: int
    after: int
    period: int
    window: int
    """Rounds that decide about the next one: as many must repeat themselves."""
    local: bool = True
    """Whether units do not communicate in it."""
    parts: dict[int, int] = field(default_factory=dict)
    """By identity of a statement, its part: parts of a local loop share neither engines nor tiles."""

    @property
    def factor(self) -> Fraction:
        """How often the whole loop does what the shortened one does once."""
        return Fraction(self.rounds, self.before + self.after)

    def later(self, times: Any) -> int | None:
        """By how much a period is later than the one before, if that is one number around the gap.
        ``times`` has a row for each round that is kept."""
        checked = slice(self.before - self.window, self.before + self.window)
        moved = np.unique(times[checked] - np.roll(times, self.period, axis=0)[checked])
        return int(moved[0]) if len(moved) == 1 else None


@dataclass(eq=False)
class Shortened:
    """A plan with gaps in its loops, by stream, in order."""

    plan: pm.Plan
    gaps: list[list[Gap]]
    apart: bool
    """Whether its units have nothing to do with each other."""

    @cached_property
    def _known(self) -> dict[int, tuple[Gap, int]]:
        """By identity of a statement in a shortened loop, the gap and the part."""
        return {one: (gap, part) for gaps in self.gaps for gap in gaps for one, part in gap.parts.items()}

    def factors(self, statements: list[Any]) -> list[Fraction]:
        """By instruction, how often the whole plan does what this one does once."""
        known = {one: gap.factor for one, (gap, _) in self._known.items()}
        return [known.get(id(statement), Fraction(1)) for statement in statements]

    def end_ps(self, simulation: Simulation, launched: LaunchRows) -> int | None:
        """Return when the whole plan ends, from a recorded run of this one; None where it does not repeat
        itself."""
        rows, statements = simulation.records, simulation.code_tables.statements
        ends = np.maximum(rows[:, Recorded.end], rows[:, Recorded.arrived])
        if len(rows) == 0 or int(ends.max()) != simulation.arena.last:
            return None
        at, who, causes = rows[:, Recorded.pc], rows[:, Recorded.actor], rows[:, Recorded.cause]
        released = rows[:, Recorded.kind] == RELEASE  # of slots: what caused them counts
        while (through := (causes >= 0) & released[causes]).any():
            causes = np.where(through, causes[causes], causes)
        groups = [np.flatnonzero(~released)]
        if self.apart:
            order = groups[0][np.argsort(who[groups[0]], kind="stable")]
            groups = np.split(order, np.flatnonzero(np.diff(who[order])) + 1)
        numbers = self._numbers()
        number = np.array([numbers.get(id(statement), 0) for statement in statements])
        # What stands for the time that is added to each record, and those whose cause need not be known.
        shift, exempt = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=bool)
        last = 0
        for group in groups:
            added = self._added(rows, group, number[at[group]], statements, shift, exempt)
            cause = causes[group]
            known = np.where(cause >= 0, shift[cause], 0)
            if added is None or not (exempt[group] | (known == shift[group])).all():
                return None
            for mark, more in enumerate(added):
                last = max(last, int(ends[group[shift[group] == mark]].max(initial=0)) + more)
        return last

    def _numbers(self) -> dict[int, int]:
        """By identity of a statement, twice the number of gaps before it, one more in the loop of a gap."""
        found = {}
        for gaps, stream in zip(self.gaps, self.plan.streams, strict=True):
            within = {one for gap in gaps for one in gap.parts}
            passed = 0
            for statement in stream.body:
                cut = isinstance(statement, pm.Loop) and id(statement.body[0]) in within
                for one in pm.statements((statement,)):
                    found[id(one)] = 2 * passed + cut
                passed += cut
        return found

    def _added(
        self, rows: Any, group: Any, number: Any, statements: list[Any], shift: Any, exempt: Any
    ) -> list[int] | None:
        """Return the times by which these records are later in the whole plan; ``shift`` says whose is which;
        None where a loop does not repeat itself."""
        added, level = [0], 0
        for turn in range(0, int(number.max(initial=0)) + 1):
            mine = group[number == turn]
            if turn % 2 == 0:
                shift[mine] = level
                continue
            highest = level
            for part, gap, times in self._parts(rows, mine, statements):
                moved = gap.later(times)
                if moved is None:
                    return None
                more = added[level] + moved * ((gap.rounds - gap.before - gap.after) // gap.period)
                added += [] if more in added else [more]
                mark = added.index(more)
                shift[part[: gap.before]] = level
                shift[part[gap.before :]] = mark
                exempt[part[gap.before : gap.before + gap.window]] = True
                highest = mark if more > added[highest] else highest
            level = highest
        return added

    def _parts(self, rows: Any, mine: Any, statements: list[Any]) -> Iterator[tuple[Any, Gap, Any]]:
        """Yield the records of each part of a loop, a row for each round; its gap; and their times."""
        known = self._known
        found: dict[Any, list[Any]] = {}
        gaps: dict[Any, Gap] = {}
        order = mine[np.lexsort((mine, rows[mine, Recorded.pc], rows[mine, Recorded.actor]))]
        keys = rows[order][:, [Recorded.actor, Recorded.pc]]
        for same in np.split(order, np.flatnonzero(np.diff(keys, axis=0).any(axis=1)) + 1):
            if not len(same):
                continue
            who, at = rows[same[0], [Recorded.actor, Recorded.pc]].tolist()
            gap, number = known[id(statements[at])]
            key = (who, number) if gap.local else None
            gaps[key] = gap
            found.setdefault(key, []).append(same.reshape(gap.before + gap.after, -1))
        for key, blocks in found.items():
            part = np.concatenate(blocks, axis=1)
            times = [rows[part, column] for column in (Recorded.start, Recorded.end)]
            arrived = rows[part, Recorded.arrived]
            times.append(np.where(arrived != NONE, arrived, times[1]))
            yield part, gaps[key], np.concatenate(times, axis=1)


def shortened(plan: pm.Plan, ordered: bool = True) -> Iterator[Shortened]:
    """Yield the plan with gaps in its long loops, with more and more rounds kept; nothing where it is short
    or its loops must be run as they are. Without ``ordered`` only what it does is wanted, not when."""
    if command_count(plan) <= MANY_COMMANDS or any(t.offset is not None for t in plan.tiles):
        return
    together = plan.channels or plan.flags or plan.levels or any(t.shared for t in plan.tiles)
    apart = not together and pm.Collective not in plan.kinds
    for kept in KEPT_ROUNDS:
        streams, gaps = [], []
        for stream in plan.streams:
            body, found = _Shorten(plan, kept).body(stream.body)
            streams.append(replace(stream, body=body))
            gaps.append(found)
        short = replace(plan, streams=tuple(streams))
        alike = len({tuple((g.rounds, g.before, g.period) for g in one) for one in gaps}) == 1
        if not any(gaps) or command_count(short) > MAX_KEPT_COMMANDS or (ordered and not (apart or alike)):
            return
        yield Shortened(short, gaps, apart)


class _Shorten:
    """Leaves out rounds of the loops of a stream."""

    def __init__(self, plan: pm.Plan, kept: int) -> None:
        self.plan, self.kept = plan, kept
        every = [s for body in plan.bodies for s in body]
        self.written = {write.tile for s in every if (write := write_of(s)) is not None}
        self.declared = {tile.name for tile in plan.tiles}
        self.ranges: dict[str, tuple[int, int]] = {} if plan.levels else {"unit": (0, max(0, plan.units - 1))}
        for loop in every:
            if isinstance(loop, pm.Loop) and (rounds := trips(loop)):
                low, high = sorted((rounds[0], rounds[-1]))
                known = self.ranges.get(loop.index, (low, high))
                self.ranges[loop.index] = min(low, known[0]), max(high, known[1])

    def body(self, body: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Gap]]:
        made, gaps = [], []
        for given in body:
            statement = _flat(given) if isinstance(given, pm.Loop) else given
            gap = self.gap(statement) if isinstance(statement, pm.Loop) else None
            if gap is None:
                statement = given
            else:
                statement = _cut(statement, gap)
                inside = list(pm.statements(statement.body))
                parts = _parts_of(inside, self.written) if gap.local else [0] * len(inside)
                gaps.append(replace(gap, parts=dict(zip(map(id, inside), parts, strict=True))))
            made.append(statement)
        return tuple(made), gaps

    def gap(self, loop: pm.Loop) -> Gap | None:
        """Return the gap of a loop; None where it must be run as it is."""
        rounds, body = trips(loop), list(pm.statements(loop.body))
        if rounds is None or not all(isinstance(s, REPEATING) for s in body):
            return None
        period, reach = self.period(loop, body), self.reach(loop, body)
        if period is None or reach is None:
            return None
        window = period * -(-max(reach, period) // period)
        before = max(self.kept, window + period)
        after = before + (len(rounds) - 2 * before) % period
        if len(rounds) < before + after + period:
            return None
        return Gap(len(rounds), before, after, period, window, all(isinstance(s, LOCAL) for s in body))

    def period(self, loop: pm.Loop, body: list[Any]) -> int | None:
        """After how many rounds versions, slots and carried names come back to the same turn."""
        loops = [loop, *(s for s in body if isinstance(s, pm.Loop))]
        carries = [carry for one in loops for carry in one.carries]
        merges = [merge for s in body if isinstance(s, pm.If) for merge in s.merges]
        if len(carries) > 4 or any(isinstance(x, (pm.CarryInt, pm.MergeInt)) for x in (*carries, *merges)):
            return None
        turns = [t.versions for t in self.plan.tiles] + [c.slots for c in self.plan.channels]
        period = lcm(*turns, *range(1, len(carries) + 1))
        return period if period <= MAX_PERIOD else None

    def reach(self, loop: pm.Loop, body: list[Any]) -> int | None:
        """Return how many rounds back a command may meet the blocks of another; None where the index decides
        more than where blocks begin."""
        step, reach = constant(loop.step), 1
        starts: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        for s in body:
            if any(loop.index in symbols(e) for e in _deciding(s)):
                return None
            for region in regions_of(s):
                moves = any(loop.index in symbols(e) for e in region.start)
                if region.tile in self.declared and region.tile not in self.written:
                    continue
                if moves and region.tile not in self.declared:
                    return None
                axes = zip(region.start, region.shape, strict=True) if region.start else [(expr(0), expr(1))]
                for axis, (start, extent) in enumerate(axes):
                    terms, offset = linear(start)
                    slope = terms.pop(Symbol(loop.index), 0)
                    within = bounds(from_linear(terms, offset), self.ranges)
                    length = bounds(extent, self.ranges)
                    if slope and (within is None or length is None):
                        return None
                    if any(loop.index in symbols(term) for term in terms):
                        return None
                    low, high = within or (0, 0)
                    extents = (slope, low, high + (length or (0, 0))[1])
                    starts.setdefault((region.tile, axis), []).append(extents)
        for found in starts.values():
            slopes = {slope for slope, _, _ in found}
            if len(slopes) > 1:
                return None
            if (slope := slopes.pop()) != 0:
                span = max(high for _, _, high in found) - min(low for _, low, _ in found)
                reach = max(reach, -(-span // abs(slope * (step or 1))) + 1)
        return reach


def _flat(loop: pm.Loop) -> pm.Loop:
    """Merge directly nested loops into one."""
    inner = _flat(loop.body[0]) if len(loop.body) == 1 and isinstance(loop.body[0], pm.Loop) else None
    outer, turns = trips(loop), None if inner is None else trips(inner)
    if inner is None or not outer or not turns or loop.carries or inner.carries or inner.frees:
        return loop
    index, each = Symbol(loop.index), len(turns)
    values = {
        loop.index: index // each * outer.step + outer.start,
        inner.index: index % each * turns.step + turns.start,
    }
    body = tuple(_with(s, values) for s in inner.body)
    return replace(loop, start=expr(0), stop=expr(len(outer) * each), step=expr(1), body=body)


def _cut(loop: pm.Loop, gap: Gap) -> pm.Loop:
    """Return the loop with its rounds before and after the gap."""
    step, index = constant(loop.step) or 1, Symbol(loop.index)
    skipped = gap.rounds - gap.before - gap.after
    value = loop.start + (index + (index >= gap.before) * skipped) * step
    return replace(
        loop, start=expr(0), stop=expr(gap.before + gap.after), step=expr(1),
        body=tuple(_with(s, {loop.index: value}) for s in loop.body),
    )  # fmt: skip


def _with(part: Any, values: dict[str, Expr]) -> Any:
    """Return a statement, or a part of one, with integers replaced; always another object."""
    if isinstance(part, Expr):
        return part if symbols(part).isdisjoint(values) else substitute(part, values)
    if isinstance(part, tuple):
        return tuple(_with(one, values) for one in part)
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{f.name: _with(getattr(part, f.name), values) for f in fields(part) if f.init})
    return part


def _deciding(part: Any) -> Iterator[Expr]:
    """Yield the expressions of a statement but for those in its body and where its regions begin."""
    if isinstance(part, Expr):
        yield part
    elif isinstance(part, tuple):
        for one in part:
            yield from _deciding(one)
    elif is_dataclass(part) and not isinstance(part, type):
        for f in fields(part):
            if f.name not in ("body", "orelse") and not (isinstance(part, pm.Region) and f.name == "start"):
                yield from _deciding(getattr(part, f.name))


def _parts_of(inside: list[Any], written: set[str]) -> list[int]:
    """Return which statements of a local loop belong together: those that use one engine or one written
    tile."""
    part, owner = list(range(len(inside))), dict[str, int]()

    def root(i: int) -> int:
        while part[i] != i:
            i = part[i]
        return i

    for i, s in enumerate(inside):
        names = [f"tile {region.tile}" for region in regions_of(s) if region.tile in written]
        names += [f"engine {engine_of(s)}"] if isinstance(s, pm.Compute) else []
        for name in names:
            part[root(i)] = root(owner.setdefault(name, i))
    return [root(i) for i in range(len(inside))]
