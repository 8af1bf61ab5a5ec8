"""``cli/main.py``: ``megatile``."""

from __future__ import annotations


def test_help_teaches(megatile):
    assert "megatile machine show dgx-h100" in " ".join(megatile("--help").out.split())
    assert "nodes=4" in megatile("machine", "show", "--help").out
