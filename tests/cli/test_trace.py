"""``megatile trace``: shows, converts, draws, and refuses what is not a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from megatile.cli.trace import app
from megatile.trace import Trace, TraceBuilder, TraceError, read_trace, write_trace

run = CliRunner().invoke


def small() -> Trace:
    b = TraceBuilder("toy")
    send = b.add(
        unit="pe0", engine="dma.0", operation="send", start_ps=0, end_ps=900, bytes=64, source="k.py:3"
    )
    b.add(unit="pe1", engine="channel", operation="receive", start_ps=0, end_ps=1000, cause=send)
    return b.build()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_trace(small(), tmp_path / "run.json.gz")


def test_show(file: Path, tmp_path: Path) -> None:
    result = run(app, ["show", str(file), "--png", str(tmp_path / "a.png")])
    assert result.exit_code == 0
    assert "1 ns on toy, 2 units, 2 events" in result.stdout
    assert "k.py:3" in result.stdout
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_convert(file: Path, tmp_path: Path) -> None:
    assert run(app, ["convert", str(file), str(tmp_path / "b.jsonl")]).exit_code == 0
    assert read_trace(tmp_path / "b.jsonl") == small()
    assert run(app, ["convert", str(file), str(tmp_path / "b.png")]).exit_code == 0
    assert (tmp_path / "b.png").exists()


def test_what_is_not_a_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    result = run(app, ["show", str(tmp_path / "x.json")])
    assert isinstance(result.exception, TraceError)
    assert "not valid JSON" in str(result.exception)


def test_show_as_json(file: Path) -> None:
    result = run(app, ["show", str(file), "--json"])
    found = json.loads(result.stdout)
    assert (found["machine"], found["time_ps"], found["units"], found["events"]) == ("toy", 1000, 2, 2)
    assert found["operations"][0] == {
        "engine": "dma.0",
        "operation": "send",
        "events": 1,
        "time_ps": 900,
        "share": 0.45,
        "bytes": 64,
    }
    assert [step["time_ps"] for step in found["critical_path"]] == [900, 100]


def test_units_are_chosen(file: Path, tmp_path: Path) -> None:
    png = str(tmp_path / "a.png")
    assert run(app, ["show", str(file), "--png", png, "--units", "pe1"]).exit_code == 0
    assert isinstance(run(app, ["show", str(file), "--png", png, "--units", "pe7"]).exception, TraceError)
