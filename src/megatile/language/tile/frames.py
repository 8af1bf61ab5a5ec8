"""The user's frames: where a word of the language was written, and what is in sight there."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from megatile.core.errors import MegatileError
from megatile.language.common.transform import HOOKS

F = TypeVar("F", bound=Callable[..., Any])


def names_in_kernel() -> dict[str, Any]:
    """The variables of the kernel being read, the innermost first."""
    found: dict[str, Any] = {}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if HOOKS in frame.f_code.co_freevars:
            for name, value in frame.f_locals.items():
                if not name.startswith("__"):
                    found.setdefault(name, value)
        frame = frame.f_back
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
