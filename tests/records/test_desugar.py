"""``records/desugar.py``: records in functions become accesses to one array."""

from __future__ import annotations

import ast

import numpy as np
import pytest

from megatile.records import desugar
from megatile.sim import plain
from megatile.sim.arena import LAYOUT, Arena
from megatile.sim.state import Queue


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
        ("return SendRow.of(s.code[i]).to", "return s[s[{code}] + i * 11 + 4]"),
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
