"""Whose lines a report shows: programs of this process and a folder that the user names, no other file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.report.test_page import data_of

import megatile as mt
from megatile.core.errors import MegatileError
from megatile.plan.build import PlanBuilder
from megatile.plan.model import Plan
from megatile.report.page import page
from megatile.trace import TraceBuilder


def trace_of(*sources: str) -> Any:
    b = TraceBuilder("toy")
    for at, source in enumerate(sources):
        b.add(unit="u", engine="dma", operation="copy", start_ps=at, end_ps=at + 1, source=source)
    return b.build()


def lines_of(source: str, folder: str | Path | None = None) -> list[str]:
    found = data_of(page(trace_of(source), title="t", sources=folder))["sources"]
    return [text for file in found for _, text, _ in file["lines"] if text]


def test_a_file_that_a_trace_names_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("password\n")
    assert lines_of(f"{secret}:1") == []
    assert lines_of("/proc/self/environ:1") == []
    assert lines_of(f"{secret}:0") == lines_of(f"{secret}:{'9' * 5000}") == []


def test_a_folder_that_the_user_names_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "src"
    inside.mkdir()
    (inside / "k.py").write_text("one\ntwo\n")
    (tmp_path / "secret.txt").write_text("password\n")
    os.symlink(tmp_path / "secret.txt", inside / "link.py")
    os.symlink("loop.py", inside / "loop.py")
    monkeypatch.chdir(tmp_path)
    for name in (inside / "k.py", "k.py", "src/k.py", "../src/k.py"):
        assert lines_of(f"{name}:2", "src") == ["one", "two"], name
    for name in (
        "link.py",
        "loop.py",
        "../secret.txt",
        tmp_path / "secret.txt",
        "src",
        "/proc/self/environ",
        "a\0",
    ):
        assert lines_of(f"{name}:1", "src") == [], name


def test_a_source_that_is_too_large_leaves_its_lines_out(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text("x = 1\n" * 200_000)
    found = data_of(page(trace_of(f"{tmp_path / 'k.py'}:7"), title="t", sources=tmp_path))
    assert [line[:2] for line in found["sources"][0]["lines"]] == [[7, ""]]
    (tmp_path / "k.py").write_text("x = 1\n")
    assert lines_of(f"{tmp_path / 'k.py'}:1", tmp_path) == ["x = 1"]


def plan_here() -> Plan:
    b = PlanBuilder("mine", scale="block", units=1)
    x, y = (b.tile(name, (1024,), "f32", memory="shared") for name in "xy")
    b.compute("add", x, [y, y])  # the line that the page shows
    return b.finish()


def test_lines_of_a_plan_made_in_this_process_are_shown() -> None:
    result = mt.simulate(plan_here(), machine="dgx-h100")
    found = data_of(page(result.trace, title="t"))["sources"]
    assert any("the line that the page shows" in text for file in found for _, text, _ in file["lines"])


def test_lines_of_a_tile_program_are_shown() -> None:
    from tests.tuning.factories import gemm

    result = mt.simulate(gemm(), machine="dgx-h100")
    names = {
        file["name"]
        for file in data_of(page(result.trace, title="t"))["sources"]
        if any(x[1] for x in file["lines"])
    }
    assert names == {"factories.py"}


def test_sources_must_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(MegatileError, match="there is no folder"):
        mt.simulate(plan_here(), machine="dgx-h100").report(tmp_path / "o.html", sources=tmp_path / "none")
