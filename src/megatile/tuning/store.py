"""Results of searches in one SQLite file, by the hash of plan, machine, objective and the code that times
plans: a search that was stopped resumes where it was."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megatile.core.errors import Place
from megatile.core.sqlite import open_table
from megatile.tuning.work import TuneError

_SCHEMA = "CREATE TABLE results (key TEXT PRIMARY KEY, value REAL) WITHOUT ROWID"


@contextmanager
def _keeping(path: str | Path | None) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as problem:
        advice = "name a new file in a writable folder"
        raise TuneError(
            f"results cannot be stored: {problem}", place=Place(str(path)), advice=advice
        ) from None


class Store:
    """Values by key; without a path they are kept in memory."""

    def __init__(self, path: str | Path | None) -> None:
        self.path = path
        with _keeping(path):
            # Each result is there for good as soon as it is put; the next one need not wait for the disk.
            self._link = open_table(path or ":memory:", _SCHEMA, isolation_level=None)
            self._link.execute("PRAGMA synchronous = NORMAL")

    def get(self, key: str) -> float | None:
        with _keeping(self.path):
            found = self._link.execute("SELECT value FROM results WHERE key = ?", (key,)).fetchone()
        return None if found is None else float(found[0])

    def put(self, key: str, value: float) -> None:
        with _keeping(self.path):
            self._link.execute("INSERT OR REPLACE INTO results VALUES (?, ?)", (key, value))

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()
