"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
FILE = """
import pytest, megatile as mt, megatile.language as T

def copied(n, apart=True):
    @T.program
    def kernel(A: T.Tensor((n,), "f32"), B: T.Tensor((n,), "f32")):
        with T.Kernel(block=2, threads=32) as b:
            t = T.alloc_shared((n // 2,), "f32")
            T.copy(t, A[b * (n // 2)])
            T.copy(B[b * (n // 2) if apart else 0], t)
    return kernel

@pytest.mark.megatile(machine="hgx-a100", max_us=50)
def test_right():
    return copied(64)

@pytest.mark.megatile(max_us=0.001)
def test_slow():
    return copied(64)

@pytest.mark.megatile
def test_race():
    return copied(64, apart=False)

@pytest.mark.megatile(races=False)
def test_not_run():
    return copied(64), (64,), (64,)

@pytest.mark.megatile
def test_nothing():
    pass

@pytest.mark.megatile(limit=3)
def test_misspelt():
    return copied(64)

@pytest.mark.megatile(machine="dgx-h10")
def test_unknown_machine():
    return copied(64)

def test_plain(megatile_machine):
    assert megatile_machine in ("dgx-h100", "mi300x-8")
"""
FAILED = {
    "test_slow[dgx-h100]": "more than max_us=0.001",
    "test_slow[mi300x-8]": "more than max_us=0.001",
    "test_race[dgx-h100]": "test_it.py:10",
    "test_race[mi300x-8]": "test_it.py:10",
    "test_nothing[dgx-h100]": "returns a tile program or a Plan, not NoneType",
    "test_nothing[mi300x-8]": "returns a tile program or a Plan, not NoneType",
    "test_misspelt[dgx-h100]": "the marker is megatile(machine=, max_us=, races=True)",
    "test_misspelt[mi300x-8]": "the marker is megatile(machine=, max_us=, races=True)",
    "test_unknown_machine[dgx-h10]": "dgx-h100",
}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str | None]]:
    folder = tmp_path_factory.mktemp("marked")
    (folder / "test_it.py").write_text(FILE)
    plugin = ["-p", "no:megatile", "-p", "megatile.cli.pytest_plugin", "-p", "no:cacheprovider"]
    machines = ["--megatile-machine", "dgx-h100", "--megatile-machine", "mi300x-8"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, *machines, "--junitxml=out.xml", "test_it.py"],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    found: dict[str, str | None] = {}
    for case in ElementTree.parse(folder / "out.xml").iter("testcase"):
        failure = case.find("failure")
        found[str(case.get("name"))] = None if failure is None else f"{failure.get('message')} {failure.text}"
    return done.stdout, found


def test_marked_tests_are_checked_on_their_machine(outcome: tuple[str, dict[str, str | None]]) -> None:
    failed = {name: text for name, text in outcome[1].items() if text is not None}
    assert failed.keys() == FAILED.keys()
    for name, words in FAILED.items():
        assert words in str(failed[name])
    passed = {"test_right[hgx-a100]", "test_plain[dgx-h100]", "test_not_run[mi300x-8]"}
    assert passed <= outcome[1].keys() - failed.keys()


def test_times_are_listed_without_tracebacks(outcome: tuple[str, dict[str, str | None]]) -> None:
    text = outcome[0]
    assert "megatile: predicted times of 5 tests" in text
    assert "(at most 50)  test_it.py::test_right[hgx-a100] on hgx-a100" in text
    assert "src/megatile" not in text
    assert "another exception" not in text


def test_the_wheel_names_the_plugin() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points.pytest11]\nmegatile = "megatile.cli.pytest_plugin"' in text
