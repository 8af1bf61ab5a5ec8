"""Python's own errors in a ``tl`` kernel, at the user's line."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

from megatile.core.errors import Place, did_you_mean
from megatile.core.frames import place_of
from megatile.language.kernel.symbols import KernelError

INSIDE = tuple(str(Path(__file__).parents[2] / folder) for folder in ("language", "core", "plan"))
"""Where functions live that kernels call; kernels may stand anywhere else."""
PYTHON_ERRORS = (TypeError, AttributeError, NameError, IndexError, KeyError, ZeroDivisionError)
"""What a mistake in a kernel may raise in Python itself."""


class PythonMistake(KernelError, TypeError):
    """A kernel that Python cannot run."""


def explained(error: Exception, place: Place | None, tl: Any) -> PythonMistake:
    """The error at the user's line: what happened, and what to try."""
    text = re.sub(r"\b(MockTl|Tl|Math)\.", "tl.", re.sub(r"\S*<locals>\.", "", str(error)))
    unknown = re.match(r"'(?:Mock)?Tl' object has no attribute '(\w+)'", text)
    if unknown:
        names = [name for name in dir(type(tl)) if not name.startswith("_")]
        advice = did_you_mean(unknown[1], names, what="functions")
        return PythonMistake(f"tl has no '{unknown[1]}'", place=place, advice=advice)
    kind = "" if isinstance(error, TypeError) else f"{type(error).__name__}: "
    return PythonMistake(f"{kind}{text}", place=place)


def raised_at(error: Exception) -> Place | None:
    """The line of the kernel at which an error was raised."""
    places = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(INSIDE)
    ]
    return place_of(*places[-1]) if places else None
