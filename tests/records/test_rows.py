"""Rows of the engine's tables by field, and the functions of the engine without them."""

from __future__ import annotations

import ast

import numpy as np
import pytest
from tests.sim.toys import toy

from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.records import desugar
from megatile.records.rows import NONE, Row, Words, show
from megatile.sim import plain
from megatile.sim.arena import LAYOUT, Arena
from megatile.sim.data import Assumed
from megatile.sim.instructions import Receive, Send
from megatile.sim.simulation import Simulation
from megatile.sim.state import Access, CommandRow, PathRow, Queue
from megatile.timing import Resources


def test_a_field_is_a_column_of_the_class_and_an_integer_of_a_row() -> None:
    rows = np.arange(2 * Queue.width)
    assert rows.reshape(2, -1)[1, Queue.slots] == Queue.width + 2
    queue = Queue(rows, Queue.width)
    assert (queue.sent, queue.slots) == (Queue.width, Queue.width + 2)
    queue.slots += 5
    assert rows[Queue.width + 2] == Queue.width + 7
    assert queue.at(-1).sent == 0


def test_operands_follow_those_that_kinds_have_in_common() -> None:
    row = Send.row(kind=Send.KIND, channel=3, to=5)
    assert Send(row).to == 5
    assert Receive.of(Send(row)).channel == 3
    assert Send(row).region == NONE


def test_what_is_no_field_is_refused() -> None:
    with pytest.raises(TypeError, match="Send has no field 'too', only kind, figures, channel, per, to"):
        Send.row(too=1)
    with pytest.raises(TypeError, match="Wrong: no field can be called 'width'"):
        type("Wrong", (Row,), {"__annotations__": {"width": "int"}})


def test_rows_that_end_with_words_and_those_with_room() -> None:
    assert Access.width == len(Access.fields) - 1
    assert CommandRow.width == 40
    access = Access(np.arange(20), 2)
    assert isinstance(access.bounds, Words)
    assert access.bounds[1] == 2 + Access.width + 1
    assert access.bounds.at(2)[0] == 2 + Access.width + 2


def test_totals_and_rows_of_an_arena() -> None:
    arena = Arena()
    arena.clock = 7
    arena.append("queues", Queue.row(sent=3, taken=1, slots=2))
    assert arena.clock == 7
    assert arena.queues[0].taken == 1
    assert show(arena.queues[0]).startswith("Queue(sent=3, taken=1, slots=2, ring=-1")


def test_a_row_of_a_simulation_can_be_shown() -> None:
    b = PlanBuilder("p", scale="core", units=3)
    x = b.tile("x", (8,), "f32", memory="local")
    b.copy(x.at((unit + 1) % 3), x)
    simulation, plan = Simulation(), b.finish()
    simulation.add(plan, Resources(toy(3), plan), Assumed(None))
    simulation.run()
    assert show(simulation.arena.units[1]).startswith("UnitRow(now=0, pc=2, state=10,")
    path = simulation.arena.paths[0]
    assert isinstance(path, PathRow)
    assert path.rate > 1e9


def without_rows(text: str) -> str:
    source = f"@jit\n{text}\n@jit\ndef of(s: State, i: int) -> Queue:\n    return s.queues[i]\n"
    (_, function), _ = desugar.functions([("", source)], desugar.Names(plain.FUNCTIONS.names, LAYOUT))
    return "\n".join(ast.unparse(function).splitlines()[2:])


def place(name: str) -> int:
    return Arena.fields[name].at


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("s.clock += 1", f"s[{place('clock')}] += 1"),
        ("q = s.queues[i]; q.slots = q.sent", "q = s[{queues}] + i * 14\ns[q + 2] = s[q]"),
        ("q = of(s, i); q.taken -= NONE", "q = of(s, i)\ns[q + 1] -= -1"),
        (
            "s.queues[i].update(taken=i, sent=0)",
            "s[s[{queues}] + i * 14 + 1] = i\ns[s[{queues}] + i * 14] = 0",
        ),
        ("return s.lists[i + 1]", "return s[s[{lists}] + i + 1]"),
        ("return s.queues[0].sent", "return s[s[{queues}]]"),
        ("return s.pending[i].bounds[1]", "return s[s[{pending}] + i * s[{width}] + 9 + 1]"),
        ("return Send.of(s.code[i]).to", "return s[s[{code}] + i * 11 + 4]"),
        ("return s.paths[i].rate", "return load_float(s, s[{paths}] + i * 15 + 11)"),
        ("return s.queues.size", f"return s[{place('queues') + len(LAYOUT.tables)}]"),
    ],
)
def test_functions_without_rows(line: str, expected: str) -> None:
    for name in ("queues", "lists", "pending", "code", "paths"):
        expected = expected.replace(f"{{{name}}}", str(place(name)))
    expected = expected.replace("{width}", str(LAYOUT.widths["pending"]))
    text = "def f(s: State, i: int) -> int:\n    " + line.replace("; ", "\n    ")
    assert [part.strip() for part in without_rows(text).splitlines()] == expected.splitlines()


@pytest.mark.parametrize("wrong", ["s.queues[i].nothing", "s.nothing", "i.sent", "s.queues[i][2]", "s[i]"])
def test_what_no_row_has_is_refused_with_its_line(wrong: str) -> None:
    with pytest.raises(SyntaxError, match="f, line 3"):
        without_rows(f"def f(s: State, i: int) -> int:\n    return {wrong}")


def test_fields_that_are_set_together_do_not_need_each_other() -> None:
    queue = Queue(np.zeros(Queue.width, dtype=np.int64))
    queue.update(sent=3, taken=1)
    assert (queue.sent, queue.taken) == (3, 1)
    with pytest.raises(SyntaxError, match=r"f, line 4: q\.update"):
        without_rows(
            "def f(s: State, i: int) -> None:\n    q = s.queues[i]\n    q.update(sent=1, taken=q.sent)"
        )


def test_no_function_of_the_engine_knows_the_array() -> None:
    for path, text in plain.FUNCTIONS.sources:
        named = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Subscript)]
        raw = [n.lineno for n in named if isinstance(n.value, ast.Name) and n.value.id == "s"]
        assert not raw, f"{path}: {raw}"
