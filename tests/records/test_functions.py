"""``records/functions.py``: functions over tables as plain Python."""

from __future__ import annotations

import ast

from megatile.sim import plain


def test_no_function_of_the_engine_knows_the_array() -> None:
    for path, text in plain.FUNCTIONS.sources:
        named = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Subscript)]
        raw = [n.lineno for n in named if isinstance(n.value, ast.Name) and n.value.id == "s"]
        assert not raw, f"{path}: {raw}"
