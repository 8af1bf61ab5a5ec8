"""Open SQLite files from untrusted sources."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

from megatile.core.files import exists, open_at_once


def open_table(path: str | Path, statement: str, create: bool = True, **options: Any) -> sqlite3.Connection:
    """Open a file that holds the table of a ``CREATE TABLE`` statement; ``create`` makes it where it lacks.

    A view, a computed column or a trigger of the same name would run forever when it is read.
    """
    new = create and str(path) != ":memory:" and not exists(path)
    if str(path) != ":memory:":
        _check_regular(path)
    link = sqlite3.connect(str(path), timeout=30, **options)
    try:
        name = statement.split()[2]
        if create:
            link.execute(statement.replace("TABLE", "TABLE IF NOT EXISTS", 1))
        listed = "SELECT name, sql FROM sqlite_master WHERE tbl_name = ? AND type <> 'index'"
        if dict(link.execute(listed, (name,))) != {name: statement}:
            raise sqlite3.DatabaseError(f"the file holds no table '{name}' of megatile")
    except BaseException:
        link.close()  # now, not when the collector comes by
        if new and exists(path) and not os.path.getsize(path):
            os.unlink(path)
        raise
    return link


def _check_regular(path: str | Path) -> None:
    """Refuse what SQLite would wait for: pipes and devices, and files of ``/proc`` that block when read."""
    try:
        state = os.stat(path)
        regular = stat.S_ISREG(state.st_mode)
        if regular and not state.st_size:
            with open_at_once(path) as file:
                regular = file.read(1) == b""
    except FileNotFoundError:
        return  # SQLite makes it, or says why not
    except (OSError, ValueError) as problem:
        raise sqlite3.DatabaseError(getattr(problem, "strerror", None) or str(problem)) from None
    if not regular:
        raise sqlite3.DatabaseError("it is not a regular file")
