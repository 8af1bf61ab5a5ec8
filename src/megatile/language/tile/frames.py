"""The user's frames: where a word of the language was written, and what is in sight there."""

from __future__ import annotations

import functools
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from megatile.core.errors import MegatileError, Place
from megatile.language.common.transform import HOOKS

F = TypeVar("F", bound=Callable[..., Any])
PACKAGE = str(Path(__file__).parents[2])


def _frames() -> Iterator[FrameType]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


def caller() -> Place | None:
    """The line outside the package that called it."""
    for frame in _frames():
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE):
            line = linecache.getline(file, frame.f_lineno)
            column = len(line) - len(line.lstrip()) + 1
            return Place(file, frame.f_lineno, column, snippet=line or None)
    return None


def names_in_kernel() -> dict[str, Any]:
    """The variables of the kernel being read, the innermost first."""
    found: dict[str, Any] = {}
    for frame in _frames():
        if HOOKS in frame.f_code.co_freevars:
            for name, value in frame.f_locals.items():
                if not name.startswith("__"):
                    found.setdefault(name, value)
    return found


def without_frames(function: F) -> F:
    """The function as users call it: its errors show their line, not the inside of the package."""

    @functools.wraps(function)
    def outermost(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except MegatileError as error:
            raise error.with_traceback(None) from None

    return outermost  # type: ignore[return-value]
