"""Long work says how far it has come, to those who ask."""

from __future__ import annotations

import io
import sys

from megatile.collectives.planner import collective, predict
from megatile.core.progress import listening, shown, tell


def test_only_listeners_get_progress() -> None:
    heard: list[tuple[str, int, int]] = []
    tell("nobody", 0, 1)
    with listening(lambda *said: heard.append(said)):
        tell("a", 0, 2)
        with listening(lambda *said: None):
            tell("b", 1, 2)
    tell("c", 2, 2)
    assert heard == [("a", 0, 2)]


def test_a_prediction_moves_within_one_size() -> None:
    heard: list[tuple[str, int, int]] = []
    asked = {"machine": "dgx-h100", "nbytes": 4096, "algorithm": "fastest"}
    plain = predict("all_reduce", **asked)
    assert predict("all_reduce", **asked, progress=lambda *said: heard.append(said)) == plain
    assert {text.split()[0] for text, _, _ in heard} == {"pricing", "simulating"}
    assert all(0 <= done < of for _, done, of in heard)
    assert len(heard) > 10
    assert collective("all_reduce", **asked, progress=True) == plain.plan


def test_a_terminal_sees_bars(monkeypatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with shown("work") as advance:
        tell("first part", 1, 3)
        advance()
    assert "first part" in screen.getvalue()
    monkeypatch.setattr(sys, "stderr", quiet := io.StringIO())
    with shown("work") as advance:
        tell("first part", 1, 3)
        advance()
    assert quiet.getvalue() == ""
