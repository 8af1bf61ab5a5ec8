"""The engine asks Python for figures of the machine while it runs: once each, and errors come out whole."""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any

import pytest
from tests.sim.shared import ENGINES, everything
from tests.sim.toys import toy

from megatile.sim import plain, simulate, state
from megatile.sim.instructions import InstructionRow, SignalRow
from megatile.sim.stream_table import StreamTable
from megatile.sim.table import CodeTables
from megatile.timing.machine_timing import TimingError


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


def test_the_engine_returns_for_five_reasons() -> None:
    """`run` returns what `issue` does, or one of these; commands give these, GO_ON or BLOCKED."""
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


@ENGINES
@pytest.mark.parametrize("kind", [63, -1], ids=["command", "control flow"])
def test_an_instruction_that_the_engine_does_not_know_is_an_error(
    engine: str, kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit = StreamTable.emit

    def emit_unknown(table: StreamTable, statement: Any, row: Any, **operands: int) -> int:
        pc = emit(table, statement, row, **operands)
        if row is SignalRow:
            table.code_tables.code[pc][InstructionRow.kind] = kind
        return pc

    monkeypatch.setattr(StreamTable, "emit", emit_unknown)
    with pytest.raises(TimingError, match=f"no function for instructions of kind {kind}, as at Signal"):
        simulate(everything(3), machine=toy(4), engine=engine, assume={"times": 2})


@ENGINES
def test_a_copy_whose_ends_are_not_known_is_an_error(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sharing` would not see the links that it uses."""
    monkeypatch.setattr(CodeTables, "ends", lambda *_: ())
    with pytest.raises(TimingError, match="an instruction copies whose ends are not known"):
        simulate(everything(3), machine=toy(4), engine=engine, assume={"times": 2})
