"""A command is declared once: text, reader, names, checks and deadlock reports know it without being told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from megatile.core.errors import Place
from megatile.core.expr import ONE, Expr
from megatile.plan import parse
from megatile.plan.check import check
from megatile.plan.execute import Executor
from megatile.plan.model import Compute, Plan, PlanError, Region, Wait
from megatile.plan.spec import ARGUMENT, KEYWORD, TARGET, part
from megatile.plan.statements import COMMANDS
from megatile.sim import simulate
from megatile.sim.stream_table import StreamTable

TEXT = """plan("new", scale="pe", grid=(2,))
x = tile(f32, (4,), memory="tcm", role="inout")
ready = flag(members=1)
with units((0, 2, 1)):
    signal(ready, to=1 - unit)
    for k in range(0, 2, 1):
        x[k:+1] <- zero(ready)
"""


@dataclass(frozen=True)
class Zero:
    """Fill ``write`` with zeros; ``value`` is what ``flag`` must have reached before."""

    word: ClassVar[str] = "zero"
    write: Region = part("region", TARGET, role="writes")
    flag: str = part("word", ARGUMENT, role="flag")
    value: Expr = part("expr", KEYWORD, ONE)
    source: Place | None = None


class WithZero(Executor):
    def step_zero(self, cohort, instruction):
        write = self.access(cohort, instruction, self.written(cohort, instruction), True)
        for at in range(len(cohort)):
            write.one(at)[...] = 0
        return self.issued(cohort)


@pytest.fixture(autouse=True)
def _zero(monkeypatch):
    monkeypatch.setitem(COMMANDS, "zero", Zero)
    monkeypatch.setattr(parse, "check_fields", lambda plan: None)  # which goes by the declared union


def test_text_and_data():
    plan = Plan.from_text(TEXT)
    assert str(plan) == TEXT
    assert plan.streams[0].body[1].body[0].value == ONE
    check(plan)
    run = WithZero(plan, {"x": np.ones((2, 4), "f4")})
    run.run()
    assert np.array_equal(run.outputs()["x"], [[0, 0, 1, 1]] * 2)


def on_zero(self, s):
    self.on_wait(Wait(s.flag, s.value, source=s.source))
    self.on_compute(Compute("fill", s.write, source=s.source))


def test_time(monkeypatch):
    monkeypatch.setattr(StreamTable, "on_zero", on_zero, raising=False)
    plan = Plan.from_text(TEXT)
    (stream,) = plan.streams
    signal, loop = stream.body
    filled = replace(loop, body=(Wait("ready", ONE), Compute("fill", loop.body[0].write)))
    alike = replace(plan, streams=(replace(stream, body=(signal, filled)),))
    assert simulate(plan, machine="ahbm").time_ps == simulate(alike, machine="ahbm").time_ps > 0


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("x[k:+1]", "x[j:+1]", "'j' is not an integer"),
        ("x[k:+1]", "y", "no tile 'y'"),
        ("x[k:+1]", "x[k:+1, 0:+1]", "1 dimensions, not 2"),
        ("x[k:+1]", "x[k:+4]", "has no elements"),
        ("zero(ready)", "zero(red)", "no flag 'red'"),
        ("zero(ready)", "zero(ready, much=2)", "'zero' has no 'much='"),
        ("zero(ready)", "zero()", "missing"),
    ],
)
def test_mistakes(before, after, message):
    with pytest.raises(PlanError, match=message):
        check(Plan.from_text(TEXT.replace(before, after)))
