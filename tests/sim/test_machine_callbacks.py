"""The engine asks Python for figures of the machine while it runs: once each, and errors come out whole."""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any

import pytest
from tests.sim.toys import toy

from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.sim import plain, simulate, state
from megatile.sim.data import Assumed
from megatile.sim.queries import MachineQueries
from megatile.sim.simulation import Simulation
from megatile.timing import Resources

ENGINES = pytest.mark.parametrize("engine", ["plain", "compiled"])


def everything(rounds: int = 3, units: int = 4) -> Plan:
    """Copies, work, messages, signals, collectives and values that are read."""
    b = PlanBuilder("everything", scale="core", units=units)
    x = b.tile("x", (8, 64), "f32", memory="local", role="inout")
    y = b.tile("y", (64,), "f32", memory="local", versions=2)
    n = b.tile("n", (1,), "i32", memory="local", role="input")
    c = b.channel("c", source=(unit - 1) % units, slot_bytes=256, memory="local")
    flag, group = b.flag("flag"), b.group("all")
    times = b.read_scalar(n, 9, "times")
    with b.loop(0, rounds) as loop:
        b.copy(y, x[loop.index % 8, 0:64], fresh=True)
        b.compute("exp", y, [y])
        b.send(c, y, to=(unit + 1) % units)
        b.receive(c, (64,), "f32", into=y)
        b.signal(flag, to=(unit + 1) % units)
        b.wait(flag, loop.index + 1)
    with b.loop(0, times):
        b.barrier(group)
    return b.finish()


def started(plan: Plan, engine: str, scalars: Any) -> Simulation:
    simulation = Simulation(engine=engine)
    simulation.add(plan, Resources(toy(4), plan), scalars)
    return simulation


def test_an_instruction_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    done: Counter[str] = Counter()
    for name in ("do_copy", "do_work", "do_read", "do_signal", "do_rendezvous"):
        function = getattr(plain.engine(), name)

        def counted(*arguments: Any, name: str = name, function: Any = function) -> Any:
            done[name] += 1
            return function(*arguments)

        monkeypatch.setattr(plain.engine(), name, counted)
    simulate(everything(3), machine=toy(4), engine="plain", assume={"times": 2})
    assert done == {"do_copy": 12, "do_work": 12, "do_read": 4, "do_signal": 12, "do_rendezvous": 8}


@ENGINES
def test_few_questions_are_asked_however_many_units_there_are(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[int] = Counter()
    answer = MachineQueries.answer

    def counted(self: MachineQueries, question: int, of: list[int]) -> int:
        asked[question] += 1
        return answer(self, question, of)

    monkeypatch.setattr(MachineQueries, "answer", counted)
    found = []
    for units in (4, 40):
        asked.clear()
        simulate(everything(3, units), machine=toy(units), engine=engine, assume={"times": 2})
        found.append(dict(asked))
    assert found[0] == found[1]
    assert sum(found[0].values()) < 12


@ENGINES
@pytest.mark.parametrize("error", [ValueError("no such value"), KeyboardInterrupt()])
def test_an_error_in_an_answer_comes_out_whole_and_ends_the_run(engine: str, error: BaseException) -> None:
    def scalars(*_: Any) -> int:
        raise error

    simulation = started(everything(), engine, scalars)
    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            simulation.run()
        assert raised.value is error
    assert not plain.FUNCTIONS.answering
    assert started(everything(), engine, Assumed({"times": 1})).run() is not None


def test_the_engine_returns_for_five_reasons() -> None:
    """`run` returns what `issue` does, or one of these; commands give these, GO_ON or HELD_UP."""
    returned = {name for name in ("FINISHED", "PAUSED", "ENDED", "BUDGET", "STOPPED") if hasattr(state, name)}
    named = {
        node.id
        for path, text in plain.FUNCTIONS.sources
        for function in ast.parse(text).body
        if isinstance(function, ast.FunctionDef) and function.name in ("run", "issue")
        for statement in ast.walk(function)
        if isinstance(statement, ast.Return) and statement.value is not None
        for node in ast.walk(statement.value)
        if isinstance(node, ast.Name) and node.id.isupper()
    }
    assert named == returned | {"GO_ON"}
