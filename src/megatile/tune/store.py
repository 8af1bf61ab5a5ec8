"""Results of searches in one SQLite file, by the hash of plan, machine, objective and the code that times
plans: what was found once is not done again, whoever stopped it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import TracebackType

from megatile.core.errors import Place
from megatile.tune.work import TuneError

_SCHEMA = "CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, value REAL) WITHOUT ROWID"


class Store:
    """Values by key; without a path they are kept in memory."""

    def __init__(self, path: str | Path | None) -> None:
        self.path = path
        try:
            # Each result is there for good as soon as it is put; the next one need not wait for the disk.
            self._link = sqlite3.connect(
                ":memory:" if path is None else str(path), timeout=30, isolation_level=None
            )
            self._link.execute("PRAGMA synchronous = NORMAL")
            self._link.execute(_SCHEMA)
        except sqlite3.Error as problem:
            raise self._error(problem) from None

    def _error(self, problem: sqlite3.Error) -> TuneError:
        advice = "name a file of its own, in a folder that you may write to"
        return TuneError(f"results cannot be kept: {problem}", place=Place(str(self.path)), advice=advice)

    def get(self, key: str) -> float | None:
        try:
            found = self._link.execute("SELECT value FROM results WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as problem:
            raise self._error(problem) from None
        return None if found is None else float(found[0])

    def put(self, key: str, value: float) -> None:
        try:
            self._link.execute("INSERT OR REPLACE INTO results VALUES (?, ?)", (key, value))
        except sqlite3.Error as problem:
            raise self._error(problem) from None

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.close()
