"""Run the command line in this process and look at what it printed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from megatile.cli.main import main


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def megatile(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["megatile", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return Result(int(stopped.value.code or 0), out, err)

    return run
