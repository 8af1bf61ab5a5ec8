"""SQLite files of somebody else."""

from __future__ import annotations

import gc
import os
import sqlite3
from pathlib import Path

import pytest

from megatile.core.sqlite import open_table

SCHEMA = "CREATE TABLE t (a)"


@pytest.mark.parametrize("name", ["pipe", "noise", "other", "a" * 300, "a\0b", "", "none/b"])
def test_what_is_no_database_is_refused_at_once_and_not_left_open(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "noise").write_bytes(b"no database" * 100)
    open_table(tmp_path / "other", "CREATE TABLE s (a)").close()
    count = _open_files()
    gc.disable()
    try:
        with pytest.raises(sqlite3.Error):
            open_table(tmp_path / name, SCHEMA, create=False)
        assert _open_files() == count
    finally:
        gc.enable()


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def test_a_new_file_has_the_table(tmp_path: Path) -> None:
    open_table(tmp_path / "t", SCHEMA).close()
    assert open_table(tmp_path / "t", SCHEMA, create=False).execute("SELECT * FROM t").fetchall() == []


def test_a_file_that_cannot_be_made_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.Error):
        open_table(tmp_path / ("a" * 252), SCHEMA)  # its journal would have too long a name
    assert not os.listdir(tmp_path)
