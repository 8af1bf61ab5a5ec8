"""The engine asks Python for figures of the machine while it runs: once each, and errors come out whole."""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any

import pytest
from tests.sim.shared import everything
from tests.sim.toys import toy

from megatile.sim import plain, simulate, state


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
