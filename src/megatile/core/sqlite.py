"""Open SQLite files from untrusted sources."""

from __future__ import annotations

import sqlite3


def table_only(link: sqlite3.Connection, statement: str, create: bool = True) -> None:
    """Make the table of a ``CREATE TABLE`` statement (with ``create``), and check that the file has this one.

    A view, a computed column or a trigger of the same name would run forever when it is read.
    """
    name = statement.split()[2]
    if create:
        link.execute(statement.replace("TABLE", "TABLE IF NOT EXISTS", 1))
    listed = "SELECT name, sql FROM sqlite_master WHERE tbl_name = ? AND type <> 'index'"
    if dict(link.execute(listed, (name,))) != {name: statement}:
        raise sqlite3.DatabaseError(f"the file holds no table '{name}' of megatile")
