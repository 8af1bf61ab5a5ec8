"""Files that several processes use at one time: caches, performance databases, stores of searches.

Four processes at once write and read one file; each must find whole values only, and nobody's are lost.
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.patience import patience
from tests.tuning.factories import adding
from tests.tuning.shared import FAST, kept

import megatile as mt
from megatile.core.cached import read_cached, write_cached
from megatile.timing.database import Database, Measurement

PROCESSES = 4
if "fork" not in multiprocessing.get_all_start_methods():
    pytest.skip("needs a system that can fork", allow_module_level=True)


def race(work: Callable[..., None], *arguments: Any) -> None:
    """``work(number, *arguments)`` in four processes that begin together; all must end well."""
    context = multiprocessing.get_context("fork")
    begin = context.Barrier(PROCESSES)

    def run(number: int) -> None:
        begin.wait(patience(60))
        work(number, *arguments)

    processes = [context.Process(target=run, args=(number,)) for number in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(patience(60))
    assert [process.exitcode for process in processes] == [0] * PROCESSES


def _cache(number: int, path: Path) -> None:
    for turn in range(100):
        assert write_cached(path, bytes([number]) * (1000 + turn))
        found = read_cached(path)
        assert found is not None
        assert len(set(found)) == 1
        assert len(found) >= 1000


def test_a_cached_file_is_always_whole(tmp_path):
    (tmp_path / "cache").mkdir(mode=0o700)
    race(_cache, tmp_path / "cache" / "entry")
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["entry"]


def _measure(number: int, path: Path) -> None:
    for turn in range(20):
        with Database(path) as database:
            row = {"m": 1 + turn, "n": 1 + number, "k": 64}
            database.add([Measurement("dgx-h100", "gemm", "bf16", "", row, 1.0 + turn, "race")])
            assert len(list(database.rows())) > turn


def test_no_row_of_a_performance_database_is_lost(tmp_path):
    race(_measure, tmp_path / "perf.sqlite")
    with Database(tmp_path / "perf.sqlite") as database:
        assert len(list(database.rows())) == 20 * PROCESSES


def _search(number: int, path: Path) -> None:
    choices = {"parts": [8, 16, 32], "passes": [1, 2 + number]}
    found = mt.tune(adding, choices, store=path, workers=1, **FAST)
    assert found.best is not None


def test_searches_share_a_store(tmp_path):
    race(_search, tmp_path / "together")
    for number in range(PROCESSES):
        _search(number, tmp_path / "in turn")
    assert kept(tmp_path / "together") == kept(tmp_path / "in turn") != {}


def test_nobody_reads_the_wall_clock():
    """It jumps, on suspended and on badly set computers; waits and limits are of monotonic clocks."""
    wall = re.compile(r"\btime\.time(_ns)?\(|datetime\.(now|utcnow|today)\(|import time\b.*\bas\b")
    source = Path(mt.__file__).parent
    found = [path for path in source.rglob("*.py") if wall.search(path.read_text(encoding="utf-8"))]
    assert found == []
