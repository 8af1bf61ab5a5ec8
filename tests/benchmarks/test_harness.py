"""The benchmark runner: what it prints, writes and returns."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = """
from harness import Row, at_most, bench, growth, ratio_at_least, ratio_at_most

@bench("alpha")
def alpha():
    yield Row("load", 0.010, "s", bar=at_most(0.050))
    yield Row("rate", 200.0, "events/s", 100.0, "SimPy", ratio_at_least(5))
    yield from growth("grow", lambda n: float(n), 10, "", bar=ratio_at_most(12))

@bench("beta", needs=["no_such_module"])
def beta():
    raise AssertionError("must be skipped")
"""


@pytest.fixture
def harness() -> ModuleType:
    return importlib.import_module("harness")


@pytest.fixture
def run(harness: ModuleType) -> ModuleType:
    return importlib.import_module("run")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bench_one.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.setitem(sys.modules, "bench_one", ModuleType("bench_one"))
    return tmp_path


def test_a_table_per_file_and_a_clear_miss(
    run: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(["--folder", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = [line.split() for line in lines]
    assert ["load", "10", "ms", "<=", "50", "ms", "ok"] in words
    assert ["rate", "200", "events/s", "100", "events/s", "SimPy", "2", "ratio", ">=", "5", "MISSED"] in words
    assert "skipped beta: no_such_module not installed" in lines
    assert "3 of 4 bars met" in lines
    assert "MISSED bench_one: rate: ratio 2, bar ratio >= 5" in lines


def test_growth_compares_with_the_size_before(harness: ModuleType) -> None:
    bar = harness.ratio_at_most(12)
    small, middle, large = harness.growth("f", lambda n: float(n * n), 10, "", bar=bar)
    assert (small.name, small.ratio, small.ok) == ("f, n = 10", None, None)
    assert (middle.rival_name, middle.ratio, middle.ok) == ("n = 10", 100, False)
    assert (large.name, large.ratio) == ("f, n = 1_000", 100)


@pytest.mark.parametrize(
    ("make", "limit", "met", "unmet"),
    [
        ("at_most", 2.0, 2.0, 2.1),
        ("at_least", 2.0, 2.0, 1.9),
        ("ratio_at_most", 1.2, 12.0, 12.1),
        ("ratio_at_least", 5.0, 50.0, 49.0),
    ],
)
def test_bars(harness: ModuleType, make: str, limit: float, met: float, unmet: float) -> None:
    bar = getattr(harness, make)(limit)
    assert harness.Row("a", met, "s", 10.0, bar=bar).ok is True
    assert harness.Row("a", unmet, "s", 10.0, bar=bar).ok is False


def test_a_ratio_bar_needs_a_rival(harness: ModuleType) -> None:
    with pytest.raises(ValueError, match="needs a rival"):
        harness.Row("a", 1.0, bar=harness.ratio_at_most(2))


def test_only_selects(run: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run.main(["--folder", str(folder), "--only", "alpha"])
    assert "beta" not in capsys.readouterr().out
    run.main(["--folder", str(folder), "--only", "nothing"])
    assert "0 of 0 bars met" in capsys.readouterr().out


def test_json(run: ModuleType, folder: Path) -> None:
    run.main(["--folder", str(folder), "--json", str(folder / "rows.json")])
    document = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
    assert document["missed"] == 1
    assert [row["ratio"] for row in document["rows"]] == [None, 2, None, 10, 10]
    assert {row["file"] for row in document["rows"]} == {"bench_one"}


@pytest.mark.parametrize("text", ["1 / 0", "from harness import *\n@bench('c')\ndef c():\n    1 / 0"])
def test_a_crash_is_reported_and_the_rest_still_runs(
    run: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (folder / "bench_a.py").write_text(text, encoding="utf-8")
    assert run.main(["--folder", str(folder)]) == 1
    printed = capsys.readouterr()
    assert "ZeroDivisionError" in printed.err
    assert "CRASHED bench_a" in printed.out
    assert "3 of 4 bars met" in printed.out


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "s", "12.3 ms"),
        (3e-10, "s", "3e-10 s"),
        (3 * 2**20, "B", "3 MiB"),
        (1234567, "", "1,234,567"),
    ],
)
def test_quantity(harness: ModuleType, value: float, unit: str, text: str) -> None:
    assert harness.quantity(value, unit) == text


def test_measuring(harness: ModuleType) -> None:
    assert 0 < harness.best_of(lambda: sum(range(1000)), repeat=2) < 10
    assert harness.peak_memory(lambda: bytearray(5_000_000)) >= 5_000_000
    assert harness.fresh_interpreter("import time\ntime.sleep(0.05)", repeat=1) >= 0.05
