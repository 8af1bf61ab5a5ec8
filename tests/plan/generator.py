"""Random plans with a NumPy oracle: a plan is a chain of phases, each of which changes tile ``x`` of every
unit.

Every phase knows what it means for the array of all units' tiles (``oracle``), written without any of the
plan's machinery. Values are small integers, so sums are exact whatever their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from megatile.core.expr import eq, member, select, table, unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan


@dataclass
class Setting:
    """What phases build with."""

    builder: PlanBuilder
    x: Any
    units: int
    columns: int
    slots: int
    draw: Any
    local: str

    def channel(self, name: str, source: Any, slots: int | None = None, **options: Any) -> Any:
        return self.builder.channel(
            name,
            source=source,
            slots=slots or self.slots,
            slot_bytes=4 * self.columns,
            memory=self.local,
            **options,
        )

    def tile(self, name: str, versions: int = 1) -> Any:
        return self.builder.tile(name, (self.columns,), "f32", memory=self.local, versions=versions)


Oracle = Callable[[np.ndarray], np.ndarray]
PHASES: dict[str, Callable[[Setting], Oracle]] = {}


def phase(function: Callable[[Setting], Oracle]) -> Callable[[Setting], Oracle]:
    PHASES[function.__name__] = function
    return function


@phase
def scale_and_add(s: Setting) -> Oracle:
    factor = s.draw(st.integers(-2, 2))
    constant = s.tile("constant")
    doubled = s.tile("doubled", versions=s.draw(st.integers(1, 2)))
    s.builder.compute("fill", constant, value=factor)
    s.builder.compute("mul", doubled, [s.x, constant], fresh=True)
    s.builder.compute("add", s.x, [doubled, constant])
    return lambda x: x * factor + factor


@phase
def add_unit_number(s: Setting) -> Oracle:
    number = s.tile("number")
    s.builder.compute("fill", number, value=unit * 3)
    s.builder.compute("add", s.x, [s.x, number])
    return lambda x: x + 3 * np.arange(len(x))[:, None]


@phase
def shift(s: Setting) -> Oracle:
    n, by = s.units, s.draw(st.integers(0, s.units))
    ring = s.channel("ring", (unit - by) % n)
    s.builder.send(ring, s.x, to=(unit + by) % n)
    message = s.builder.receive(ring, (s.columns,), "f32")
    if s.draw(st.booleans()):
        s.builder.compute("add", s.x, [s.x, message])
        return lambda x: x + np.roll(x, by, axis=0)
    s.builder.copy(s.x, message)
    return lambda x: np.roll(x, by, axis=0)


@phase
def permute(s: Setting) -> Oracle:
    order = s.draw(st.permutations(range(s.units)))
    back = [order.index(u) for u in range(s.units)]
    exchange = s.channel("exchange", table(back, unit))
    s.builder.send(exchange, s.x, to=table(list(order), unit))
    s.builder.receive(exchange, (s.columns,), "f32", into=s.x)
    return lambda x: x[back]


@phase
def ring_all_reduce(s: Setting) -> Oracle:
    """The naive ring: forward what came last, add it up. Carries a slot and a sum."""
    n, b = s.units, s.builder
    # Everyone holds one slot while it asks for the next: with one slot that is a deadlock.
    ring = s.channel("ring", (unit - 1) % n, slots=max(2, s.slots))
    first, total = s.tile("first"), s.tile("total", versions=2)
    b.copy(first, s.x)
    with b.loop(0, n - 1, current=first, sum=first) as loop:
        b.send(ring, loop.current, to=(unit + 1) % n)
        message = b.receive(ring, (s.columns,), "f32")
        b.compute("add", total, [loop.sum, message], fresh=True)
        loop.next(current=message, sum=total)
    b.copy(s.x, loop.sum)
    return lambda x: np.broadcast_to(x.sum(axis=0), x.shape)


@phase
def halves(s: Setting) -> Oracle:
    """An If with two branches and a merge."""
    b, limit = s.builder, s.draw(st.integers(0, s.units))
    then, orelse = s.tile("then"), s.tile("orelse")
    with b.when(unit < limit) as branch:
        b.compute("neg", then, [s.x])
    with branch.otherwise():
        b.compute("add", orelse, [s.x, s.x])
    b.copy(s.x, branch.merge(then, orelse))
    return lambda x: np.where(np.arange(len(x))[:, None] < limit, -x, 2 * x)


@phase
def chain(s: Setting) -> Oracle:
    """A prefix sum along the units: each waits for the one before."""
    b, n = s.builder, s.units
    line = s.channel("line", unit - 1)
    with b.when(unit > 0):
        message = b.receive(line, (s.columns,), "f32")
        b.compute("add", s.x, [s.x, message])
    with b.when(unit < n - 1):
        b.send(line, s.x, to=unit + 1)
    return lambda x: np.cumsum(x, axis=0)


@phase
def pairs(s: Setting) -> Oracle:
    """Neighbours exchange; who has no partner keeps its own."""
    b, n = s.builder, s.units
    partner = unit ^ 1
    link = s.channel("link", select(partner < n, partner, -1))
    with b.when(partner < n):
        b.send(link, s.x, to=partner)
        b.receive(link, (s.columns,), "f32", into=s.x)

    def oracle(x: np.ndarray) -> np.ndarray:
        swapped = [u ^ 1 if u ^ 1 < len(x) else u for u in range(len(x))]
        return x[swapped]

    return oracle


@phase
def loop_of_integers(s: Setting) -> Oracle:
    """A trip count that depends on the unit, and a carried integer that fills the tile."""
    b, n = s.builder, s.units
    mark = s.tile("mark")
    with b.loop(0, unit + 1, value=1) as loop:
        loop.next(value=loop.value * 2 - 1 + loop.index)
    b.compute("fill", mark, value=loop.value)
    b.compute("add", s.x, [s.x, mark])
    values = []
    for u in range(n):
        value = 1
        for k in range(u + 1):
            value = value * 2 - 1 + k
        values.append(value)
    return lambda x: x + np.asarray(values, dtype=np.float64)[:, None]


@phase
def get_after_barrier(s: Setting) -> Oracle:
    b, n, by = s.builder, s.units, s.draw(st.integers(0, s.units - 1))
    everyone = b.group("everyone")
    got = s.tile("got")
    b.barrier(everyone)
    b.copy(got, s.x.at((unit + by) % n))
    b.barrier(everyone)
    b.copy(s.x, got)
    return lambda x: np.roll(x, -by, axis=0)


@phase
def put_and_signal(s: Setting) -> Oracle:
    b, n = s.builder, s.units
    inbox = s.tile("inbox")
    flag = b.flag(b.fresh("arrived"))
    b.copy(inbox.at((unit + 1) % n), s.x)
    b.signal(flag, to=(unit + 1) % n)
    b.wait(flag, 1)
    b.compute("add", s.x, [s.x, inbox])
    return lambda x: x + np.roll(x, 1, axis=0)


@phase
def data_dependent(s: Setting) -> Oracle:
    """Add one as many times as the tile's own first element says (made small and not negative before)."""
    b = s.builder
    low, high, one = s.tile("low"), s.tile("high"), s.tile("one")
    for tile, value in ((low, 0), (high, 3), (one, 1)):
        b.compute("fill", tile, value=value)
    b.compute("clamp", s.x, [s.x, low, high])
    times = b.read_scalar(s.x[0:1], bound=3)
    with b.loop(0, times):
        b.compute("add", s.x, [s.x, one])

    def oracle(x: np.ndarray) -> np.ndarray:
        small = np.clip(x, 0, 3)
        return small + small[:, :1]

    return oracle


@phase
def first_come(s: Setting) -> Oracle:
    """Receive from both neighbours in whatever order; the sum does not depend on it."""
    b, n = s.builder, s.units
    source = select(eq(member, 0), (unit - 1) % n, (unit + 1) % n)
    both = s.channel("both", source, members=("W", "E"))
    b.send(both, s.x, to=(unit + 1) % n, member="W")
    b.send(both, s.x, to=(unit - 1) % n, member="E")
    for _ in range(2):
        message, _chosen = b.receive_any(both, (s.columns,), "f32")
        b.compute("add", s.x, [s.x, message])
    return lambda x: x + np.roll(x, 1, axis=0) + np.roll(x, -1, axis=0)


@phase
def network_sum(s: Setting) -> Oracle:
    """A reduction done by the network, per group of two."""
    b = s.builder
    groups = b.group(b.fresh("pairs"), unit // 2)
    b.collective("all_reduce", groups, s.x, s.x)

    def oracle(x: np.ndarray) -> np.ndarray:
        result = x.copy()
        for start in range(0, len(x), 2):
            result[start : start + 2] = x[start : start + 2].sum(axis=0)
        return result

    return oracle


@dataclass(frozen=True)
class Case:
    """A plan, its inputs and the outputs it must give."""

    plan: Plan
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    phases: tuple[str, ...]


ALL = tuple(sorted(PHASES))
# Phases whose time does not depend on data and whose messages are taken in a fixed order.
REGULAR = tuple(p for p in ALL if p not in ("data_dependent", "first_come", "network_sum"))


@st.composite
def cases(
    draw: Any,
    *,
    phases: tuple[str, ...] = ALL,
    most_units: int = 6,
    most_phases: int = 4,
    scale: str = "pe",
    memory: str = "hbm",
    local: str = "tcm",
) -> Case:
    """Random plans at a scale, with tile ``x`` in ``memory`` and everything else in ``local``."""
    units, columns = draw(st.integers(1, most_units)), draw(st.integers(1, 6))
    builder = PlanBuilder("random", scale=scale, units=units)
    x = builder.tile("x", (columns,), "f32", memory=memory, role="inout")
    setting = Setting(builder, x, units, columns, draw(st.integers(1, 3)), draw, local)
    names = draw(st.lists(st.sampled_from(phases), min_size=1, max_size=most_phases))
    oracles = [PHASES[name](setting) for name in names]
    seed = draw(st.integers(0, 999))
    start = np.random.default_rng(seed).integers(-3, 4, (units, columns)).astype(np.float32)
    value: np.ndarray = start.astype(np.float64)
    for oracle in oracles:
        value = oracle(value)
    return Case(builder.finish(), {"x": start}, {"x": value.astype(np.float32)}, tuple(names))
