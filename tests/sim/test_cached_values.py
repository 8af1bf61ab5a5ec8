"""Values of expressions are cached while the loops they depend on stand still: loops take as long as what
they stand for, written out."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.toys import toy

from megatile.core.expr import eq, maximum, minimum, ne, select, table, unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.sim import plain, simulate

UNITS, OUTER, INNER = 3, 4, 3


def width(u: Any, i: Any, j: Any) -> Any:
    """Some of it changes in every round, some in those of the outer loop, some never."""
    return ((u * 5 + 2) % 4 + (i * 3 + u) % 7 * 2 + (j + (i * 3 + u) % 7) % 5) % 31 + 1


def work(b: PlanBuilder, x: Any, size: Any) -> None:
    part = x[0:size]
    b.compute("exp", part, [part])
    b.compute("add", part, [part, part])


def looped() -> Plan:
    b = PlanBuilder("looped", scale="core", units=UNITS)
    x = b.tile("x", (64,), "f32", memory="local")
    for _ in range(2):  # loops beside each other count their own rounds
        with b.loop(0, OUTER) as outer:
            work(b, x, width(unit, outer.index, 0))
            with b.loop(outer.index % 2, INNER) as inner:
                work(b, x, width(unit, outer.index, inner.index))
            with b.loop(0, INNER) as inner:
                work(b, x, width(unit, inner.index, outer.index))
    return b.finish()


def written_out() -> Plan:
    b = PlanBuilder("written out", scale="core", units=UNITS)
    x = b.tile("x", (64,), "f32", memory="local")
    for u in range(UNITS):
        with b.stream(range(u, u + 1)):
            for i in [*range(OUTER)] * 2:
                work(b, x, width(u, i, 0))
                for j in range(i % 2, INNER):
                    work(b, x, width(u, i, j))
                for j in range(INNER):
                    work(b, x, width(u, j, i))
    return b.finish()


@pytest.mark.parametrize("engine", ["plain", "compiled"])
def test_loops_take_as_long_as_what_they_stand_for(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []

    def counted(s: Any, at: int, frame: int, top: int) -> Any:
        computed.append(at)
        return compute(s, at, frame, top)

    compute = plain.engine().compute
    monkeypatch.setattr(plain.engine(), "compute", counted)
    hda = toy(UNITS)
    one, other = (simulate(plan, machine=hda, engine=engine) for plan in (looped(), written_out()))
    assert [(e.unit, e.start_ps, e.end_ps) for e in one.trace] == [
        (e.unit, e.start_ps, e.end_ps) for e in other.trace
    ]
    if engine == "plain":
        rounds = UNITS * 2 * OUTER * (1 + 2 * INNER)
        assert 0 < len(computed) < 8 * rounds, "every round names its width more often than that"


OPERATIONS: dict[str, Any] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "//": lambda a, b: a // b,
    "%": lambda a, b: a % b, "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b, "<": lambda a, b: (a < b) * 3,
    "<=": lambda a, b: (a <= b) * 3, ">": lambda a, b: (a > b) * 3, ">=": lambda a, b: (a >= b) * 3,
}  # fmt: skip
WORDS: dict[str, tuple[Any, Any]] = {
    "==": (lambda a, b: eq(a, b) * 3, lambda a, b: 3 * (a == b)),
    "!=": (lambda a, b: ne(a, b) * 3, lambda a, b: 3 * (a != b)),
    "min": (minimum, min),
    "max": (maximum, max),
    "select": (lambda a, b: select(a < b, a + 4, b), lambda a, b: a + 4 if a < b else b),
    "table": (lambda a, b: table((5, 1, 4), a + b), lambda a, b: (5, 1, 4)[min(max(a + b, 0), 2)]),
}


@pytest.mark.parametrize("name", [*OPERATIONS, *WORDS])
def test_every_operator_counts_as_in_python(name: str) -> None:
    """Loops of as many rounds as an operator gives of the indices of two loops around."""
    written, meant = WORDS.get(name) or (OPERATIONS[name], OPERATIONS[name])
    b = PlanBuilder("counted", scale="core", units=1)
    x = b.tile("x", (1,), "f32", memory="local")
    with b.loop(-3, 6) as i, b.loop(1, 5) as j, b.loop(0, maximum(0, written(i.index, j.index))):
        b.compute("add", x, [x, x])
    wanted = sum(max(0, meant(i, j)) for i in range(-3, 6) for j in range(1, 5))
    trace = simulate(b.finish(), machine=toy(1)).trace
    assert len(trace) == wanted


def test_a_loop_may_carry_a_number_alone() -> None:
    b = PlanBuilder("doubled", scale="core", units=1)
    x = b.tile("x", (1,), "f32", memory="local")
    with b.loop(0, 4, n=1) as loop:
        with b.loop(0, loop.n):
            b.compute("add", x, [x, x])
        loop.next(n=loop.n * 2)
    assert len(simulate(b.finish(), machine=toy(1)).trace) == 1 + 2 + 4 + 8
