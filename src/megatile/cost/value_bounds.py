"""Bounds on a plan's work where integers that it reads decide it.

    for k in range(a, n):          at least no iterations, at most those from 0 to the bound of n
    if n > 3: work                 at least nothing, at most both branches

What else such an integer decides (which unit, which elements, whether there is a message) has neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from megatile.core.expr import Expr, bounds, expr, symbols
from megatile.core.expr.simplify import from_linear, linear
from megatile.plan.model import Plan, PlanError
from megatile.plan.statements import (
    Compute,
    Free,
    If,
    Loop,
    ReadScalar,
    Region,
    Statement,
    Work,
    int_flows,
    statements,
)
from megatile.sim.data import Assumed


class Undecided(PlanError):
    """An integer that is read decides something that has no least or most."""


def extreme(plan: Plan, assume: Mapping[str, Any], most: bool) -> Plan:
    """Return the plan with the most, or the least, that the integers it reads allow; ``assume`` gives some of
    them. Raises ``Undecided`` where there is no such thing."""
    return replace(
        plan, streams=tuple(replace(s, body=_Extreme(plan, assume, most).body(s.body)) for s in plan.streams)
    )


class _Extreme:
    def __init__(self, plan: Plan, assume: Mapping[str, Any], most: bool) -> None:
        self.most, self.plan = most, plan
        everything = [s for body in plan.bodies for s in body]
        reads = [s for s in everything if isinstance(s, ReadScalar)]
        self.ranges: dict[str, tuple[int, int]] = {"unit": (0, plan.units - 1)} if not plan.levels else {}
        self.ranges |= {s.name: (0, s.bound) for s in reads}
        self.ranges |= {s.name: Assumed(assume).range(s) for s in reads if s.name in assume}
        self.open = {s.name for s in reads} - set(assume)
        flows: dict[str, set[str]] = {}
        for s in everything:
            decides = symbols(s.condition) if isinstance(s, If) else frozenset()
            for flow in int_flows(s):
                flows.setdefault(flow.name, set()).update(decides, *map(symbols, flow.values))
        while more := {name for name, used in flows.items() if used & self.open} - self.open:
            self.open |= more

    def body(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(new for statement in body for new in self.statement(statement))

    def statement(self, s: Any) -> Iterator[Statement]:
        if isinstance(s, Loop):
            yield self.loop(s)
        elif isinstance(s, If):
            inner = replace(s, body=self.body(s.body), orelse=self.body(s.orelse))
            if not self.decided(s.condition):
                yield inner
            elif s.merges or not all(isinstance(i, (Compute, Free, If, Loop)) for i in statements((s,))):
                raise self.undecided(s, s.condition)
            elif self.most:
                yield from (*inner.body, *inner.orelse)
        elif isinstance(s, ReadScalar):
            yield s
        else:
            yield self.part(s, s)

    def loop(self, s: Loop) -> Loop:
        used = s.start, s.stop, s.step
        if any(map(self.decided, used)):
            step = bounds(s.step, self.ranges)
            if step is None or step[0] != step[1]:
                raise self.undecided(s, s.step)
            forward = (step[0] > 0) == self.most
            s = replace(s, start=self.value(s, s.start, not forward), stop=self.value(s, s.stop, forward))
        return replace(s, body=self.body(s.body))

    def part(self, s: Any, value: Any) -> Any:
        """Return a command, or a part of one: how much it works on has a least and a most, what else is
        decided has not."""
        if isinstance(value, Expr):
            if self.decided(value):
                raise self.undecided(s, value)
            return value
        if isinstance(value, Work):
            most = self.most
            return replace(
                value, flops=self.value(s, value.flops, most), bytes=self.value(s, value.bytes, most)
            )
        if isinstance(value, Region):
            starts = [
                e for e in (*value.start, *(() if value.at is None else (value.at,))) if self.decided(e)
            ]
            if starts and not (self.most and value.at is None):
                raise self.undecided(s, starts[0])
            return replace(value, shape=tuple(self.value(s, e, self.most) for e in value.shape))
        if isinstance(value, tuple):
            return tuple(self.part(s, item) for item in value)
        if is_dataclass(value) and not isinstance(value, type):
            changed = {f.name: self.part(s, getattr(value, f.name)) for f in fields(value) if f.init}
            return replace(value, **changed)
        return value

    def decided(self, value: Expr) -> bool:
        return not self.open.isdisjoint(symbols(value))

    def value(self, s: Any, value: Expr, most: bool) -> Expr:
        """Return the greatest (or least) that the expression can be; what does not depend on what is read
        stays."""
        if not self.decided(value):
            return value
        terms, offset = linear(value)
        kept = {}
        for atom, factor in terms.items():
            if not self.decided(atom):
                kept[atom] = factor
                continue
            found = bounds(atom, self.ranges)
            if found is None:
                raise self.undecided(s, value)
            offset += factor * found[most == (factor > 0)]
        return expr(from_linear(kept, offset))

    def undecided(self, s: Any, value: Expr) -> Undecided:
        name = min(symbols(value) & self.open)
        return Undecided(
            f"the value read into '{name}' changes more than the amount of work of plan '{self.plan.name}'",
            place=getattr(s, "source", None),
            advice=f"bound one case: assume={{'{name}': …}}",
        )
