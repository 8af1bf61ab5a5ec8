"""Where in the user's own files a call comes from, and the lines of those files."""

from __future__ import annotations

import functools
import linecache
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from megatile.core.cached import cached
from megatile.core.errors import MegatileError, Place

PACKAGE = str(Path(__file__).parents[1])
INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
"""Folders of Python's own modules and of installed packages."""
F = TypeVar("F", bound=Callable[..., Any])
_SOURCES: dict[str, list[str]] = {}


def record_source(file: str) -> None:
    """Keep the lines of a file whose code this process runs or reads as a program."""
    _SOURCES[file] = linecache.getlines(file)


def recorded_source(file: str) -> list[str] | None:
    """Return the lines of a recorded file; None for every other file."""
    return _SOURCES.get(file)


def frame_outside(*inside: str) -> FrameType | None:
    """Return the nearest caller in a file whose name does not begin like one of these (like the package's, if
    none is given)."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(inside or PACKAGE):
        frame = frame.f_back
    return frame


def caller(*inside: str) -> Place | None:
    """Return its line."""
    frame = frame_outside(*inside, __file__) if inside else frame_outside()
    return None if frame is None else place_of(frame.f_code.co_filename, frame.f_lineno)


def raised_at(error: BaseException) -> Place | None:
    """Return the last line of a user's file that an exception came through, None if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    found = [f for f in frames if not f.filename.startswith((PACKAGE, "<"))]
    own = [f for f in found if not f.filename.startswith(INSTALLED)] or found
    return Place(own[-1].filename, own[-1].lineno) if own else None


@cached(most=4096)
def place_of(file: str, line: int) -> Place:
    record_source(file)
    text = linecache.getline(file, line)
    return Place(file, line, len(text) - len(text.lstrip()) + 1, snippet=text or None)


def without_frames(function: F) -> F:
    """Return the function as users call it: its errors show their line, not the inside of the package."""

    @functools.wraps(function)
    def outermost(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except MegatileError as error:
            raise error.with_traceback(None) from None

    return outermost  # type: ignore[return-value]
