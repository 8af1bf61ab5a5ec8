"""``cost/stream_counts.py``: how often a stream issues its commands, without running it."""

from collections import Counter
from typing import Any

from megatile.core.expr import unit
from megatile.cost.stream_counts import Walk
from megatile.plan.build import PlanBuilder


class Counting(Walk):
    def __init__(self, stream: Any) -> None:
        self.times = Counter[str]()
        super().__init__(stream)

    def command(self, s: Any, known: Any, times: Any) -> None:
        self.times[s.operation] += int(times.sum())


def test_loops_and_branches_that_depend_on_the_unit_are_counted_exactly() -> None:
    b = PlanBuilder("counted", scale="device", units=5)
    x = b.tile("x", (8,), "f32", memory="hbm")
    with b.loop(0, unit + 1, index="k") as loop:
        b.compute("add", x, [x, x])
        with b.when(loop.index < 2):
            b.compute("mul", x, [x, x])
    b.compute("sub", x, [x, x])
    (stream,) = b.finish().streams
    rounds = [unit_number + 1 for unit_number in range(5)]
    assert Counting(stream).times == {"add": sum(rounds), "mul": sum(min(2, r) for r in rounds), "sub": 5}


def test_more_rounds_than_are_looked_at_count_without_their_index() -> None:
    class Few(Counting):
        MAX_ROWS = 8

    b = PlanBuilder("long", scale="device", units=2)
    x = b.tile("x", (8,), "f32", memory="hbm")
    with b.loop(0, 1000, index="k") as loop:
        b.compute("add", x, [x, x])
        with b.when(loop.index < 2):
            b.compute("mul", x, [x, x])
    (stream,) = b.finish().streams
    assert Few(stream).times == {"add": 2000}, "what depends on the index is left out"
