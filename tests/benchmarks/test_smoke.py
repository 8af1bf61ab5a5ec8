"""Every benchmark runs: all files at small sizes, as ``make bench`` starts them."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
FILES = sorted(path.stem for path in FOLDER.glob("bench_*.py"))
PROCESSES = {"bench_collectives", "bench_compile", "bench_launch", "bench_shared", "bench_tune"}
"""Files that start processes; the others share one."""


def run(*arguments: str, json_file: Path) -> tuple[str, dict]:
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(FOLDER / "run.py"),
        "--smoke",
        "--json",
        str(json_file),
        *arguments,
    ]
    done = subprocess.run(command, cwd=json_file.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout, json.loads(json_file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("names", [*([name] for name in sorted(PROCESSES)), sorted({*FILES} - PROCESSES)])
def test_every_benchmark_runs(names: list[str], tmp_path: Path) -> None:
    page = FOLDER.parent / "docs" / "fidelity.md"
    before = page.stat().st_mtime_ns
    printed, document = run(*(f"--only={name}" for name in names), json_file=tmp_path / "rows.json")
    assert {row["file"] for row in document["rows"]} == {
        name for name in names if f"\n{name.removeprefix('bench_')}\nskipped" not in printed
    }
    assert not document["missed"]
    assert all(row["ok"] is None for row in document["rows"])
    assert page.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("text", "bar"),
    [
        ("processor : 0\nflags\t\t: fpu avx512f avx512_bf16\n\nprocessor : 1\nflags : fpu\n", 1.0),
        ("processor : 0\nFeatures : fp asimd bf16 i8mm\n", 1.0),
        ("processor : 0\nflags : fpu avx2\n", 50.0),
        ("", 50.0),
    ],
)
def test_the_bar_of_bf16_depends_on_the_processor(text: str, bar: float, tmp_path: Path) -> None:
    bench_compile = importlib.import_module("bench_compile")
    (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
    assert bench_compile.bf16_bar(bench_compile.cpu_flags(tmp_path / "cpuinfo")) == bar
    assert bench_compile.cpu_flags(tmp_path / "none") == set()
