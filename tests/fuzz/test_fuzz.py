"""A short sample of the fuzzer, and the inputs that once broke something."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.fuzz.kinds import KINDS
from tests.fuzz.run import attempt, fuzz, make

SAMPLE = {"command_line": 12, "yaml": 40, "plan_text": 40, "plan_json": 40}
BROKE = [
    ("ccl", 91),
    ("ccl", 456),
    ("ccl", 2319),
    ("plan_json", 643),
    ("plan_json", 200461),
    ("plan_text", 387),
    ("plan_text", 408),
    ("tile_program", 121),
    ("tile_program", 200001),
    ("tile_program", 350),
    ("tile_program", 441),
    ("tile_program", 533),
    ("tl_kernel", 13),
    ("tl_kernel", 30),
    ("tl_kernel", 470),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_every_kind(kind: str) -> None:
    for number in range(10_000_000, 10_000_000 + SAMPLE.get(kind, 25)):
        assert attempt(kind, make(kind, 1, number), 60) is None, f"--seed 1 --replay {kind}:{number}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "number", "seed"), [(*broke, 0) for broke in BROKE] + [("yaml", 9338, 7)])
def test_what_broke_once(kind: str, number: int, seed: int) -> None:
    assert attempt(kind, make(kind, seed, number), 60) is None


def test_inputs_depend_on_seed_kind_and_number_only() -> None:
    for kind in KINDS:
        assert make(kind, 3, 17) == make(kind, 3, 17)
    assert make("yaml", 3, 17) != make("yaml", 4, 17)


def test_a_run_goes_on_where_the_last_one_stopped(tmp_path: Path, monkeypatch, capsys) -> None:
    seen: list[int] = []
    for kept in ("limit_memory", "gc.freeze", "gc.set_threshold"):  # those of this process
        monkeypatch.setattr(f"tests.fuzz.run.{kept}", lambda *_: None)
    monkeypatch.setattr("tests.fuzz.run.make", lambda kind, seed, number: number)
    monkeypatch.setattr("tests.fuzz.run.attempt", lambda kind, value, *_: seen.append(value) or wrong(value))
    assert fuzz(["yaml"], 0, 3, None, tmp_path / "s.json") == 0
    assert fuzz(["yaml"], 0, 60, None, tmp_path / "s.json") == 1
    assert seen[1:4] + seen[5:] == list(range(63))
    assert fuzz(["yaml"], 0, None, None, tmp_path / "s.json", 63) == 0
    assert len(seen) == 66
    entry = json.loads((tmp_path / "s.json").read_text())["0"]["yaml"]
    assert entry == {"inputs": 63, "findings": {"7": "seven"}}
    assert "63 inputs      1 findings" in capsys.readouterr().out


def wrong(value: int) -> str | None:
    return "seven" if value == 7 else None


@pytest.mark.parametrize("error", [ValueError("x"), MemoryError(), RecursionError(), AssertionError("no")])
def test_what_is_not_a_clear_error_is_a_finding(monkeypatch, error: Exception) -> None:
    def run(value: object) -> None:
        raise error

    monkeypatch.setitem(KINDS, "yaml", type(KINDS["yaml"])(KINDS["yaml"].make, run))
    assert str(attempt("yaml", "")).startswith(type(error).__name__)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_file_left_open_is_a_finding(monkeypatch) -> None:
    left: list[int] = []

    def opening(value: object) -> None:
        left.append(os.open(__file__, os.O_RDONLY))

    monkeypatch.setitem(KINDS, "yaml", type(KINDS["yaml"])(KINDS["yaml"].make, opening))
    assert attempt("yaml", "") == "leaves 1 files open"
    os.close(left[0])


def test_a_hang_is_a_finding(monkeypatch) -> None:
    def run(value: object) -> None:
        while True:
            pass

    monkeypatch.setitem(KINDS, "yaml", type(KINDS["yaml"])(KINDS["yaml"].make, run))
    assert str(attempt("yaml", "", 1)).startswith("hang")
