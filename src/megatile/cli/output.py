"""Printing for all commands: JSON, tables, errors."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperOption

from megatile.core.errors import MegatileError


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print warnings of the work as notes on stderr, each once."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    for text in dict.fromkeys(str(w.message) for w in said):
        print(f"note: {text}", file=sys.stderr)


class Command(TyperCommand):
    """A command that refuses an option given twice, unless it takes several values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in given:
            single = isinstance(option, TyperOption) and not option.multiple and not option.is_flag
            if single and given.count(option) > 1:
                raise MegatileError(
                    f"{option.opts[-1]} is given {given.count(option)} times",
                    advice=f"give it once ('{ctx.command_path} --help' says which options repeat)",
                )
        return list(super().parse_args(ctx, args))


class Commands(typer.Typer):
    """A group of `Command`."""

    def command(self, *args: Any, **settings: Any) -> Any:
        return super().command(*args, **{"cls": Command} | settings)


USER_FILES = ExitStack()
"""Files of the user that a command runs (`user_module`); closed when the command ends."""
JSON_SCHEMA = 1
"""Counts up when a key changes its name or meaning; new keys do not count."""


def print_json(kind: str, value: Any) -> None:
    """Stable JSON for scripts: an object that names its schema; a list stands under ``rows``.

    Keys are words joined by ``_``, and end in the unit of their number: ``time_us``, ``size_bytes``.
    """
    content = _plain(value if isinstance(value, Mapping) else {"rows": value})
    print(json.dumps({"schema": f"megatile.{kind}/{JSON_SCHEMA}"} | content, indent=2, ensure_ascii=False))


def _plain(value: Any) -> Any:
    """Return plain data with plain keys; what JSON has no number for (infinity) is null."""
    if isinstance(value, Mapping):
        return {str(key).replace(" ", "_"): _plain(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None, left: int = 1
) -> None:
    """Print a table for people; all columns but the first ``left`` are aligned to the right."""
    from megatile.core.tables import rich_table

    console().print(rich_table(headers, rows, title, left))


def read_names(text: str, otherwise: tuple[str, str]) -> list[str]:
    """``ring,tree``: names, at least one; else an error of this message and advice."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise MegatileError(otherwise[0], advice=otherwise[1])
    return names


def fail(problem: MegatileError) -> NoReturn:
    """One message on stderr: what, where, what to try."""
    print(f"error: {problem}", file=sys.stderr)
    sys.exit(1)


def console() -> Any:
    """Return a Rich console for tables and trees; wide enough for them when the output is a file."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 140)
