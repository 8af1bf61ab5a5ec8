"""Printing for all commands: JSON, tables, errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from megatile.core.errors import MegatileError


def print_json(value: Any) -> None:
    """Stable JSON for scripts."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def fail(problem: MegatileError) -> NoReturn:
    """One message on stderr: what, where, what to try."""
    print(f"error: {problem}", file=sys.stderr)
    sys.exit(1)


def console() -> Any:
    """A Rich console for tables and trees; wide enough for them when the output is a file."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 140)
