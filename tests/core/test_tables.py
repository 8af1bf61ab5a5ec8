"""``core/tables.py``: tables for people, all of one look."""

from __future__ import annotations

from megatile.trace import text_table


def test_tables() -> None:
    assert text_table(("a", "b"), [("x", 10)]) == "a   b\nx  10"
