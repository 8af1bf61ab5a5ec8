"""Errors of kernels."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from types import FrameType
from typing import Any

from megatile.core.errors import MegatileError, Place, did_you_mean
from megatile.language.common.transform import HOOKS


class ProgramError(MegatileError, ValueError):
    """A kernel that has no meaning; found while building."""


class ProgramWarning(UserWarning):
    """Valid code that is probably a mistake."""


# --- Python's own errors in a kernel, in the words of the language ------------------------------------------


PYTHON_ERRORS = (NameError, ArithmeticError, TypeError, ValueError, AttributeError, IndexError, KeyError)
"""What a user's mistake may raise while a kernel is read."""

WORDS: dict[str, Any] = {}
"""What ``T`` offers, by name; ``megatile.language`` fills it."""
Explained = tuple[str, "str | None"]
Rule = Callable[["re.Match[str]"], Explained]
_REWRITTEN = re.compile(r"__outer\.<locals>\.__inner\.(<locals>\.)?")


def translated(error: Exception, place: Place | None, tiles: Iterable[str]) -> ProgramError:
    """Return the error at the user's line: what happened, and what to try."""
    message, advice = _explained(error, list(tiles))
    return ProgramError(message, place=place, advice=advice)


def _explained(error: Exception, tiles: list[str]) -> Explained:
    if isinstance(error, NameError):
        return _unknown_name(error, tiles)
    if isinstance(error, ZeroDivisionError):
        return "division by zero while building", "check the sizes the kernel is built with"
    text = _REWRITTEN.sub("", str(error))
    for pattern, rule in _RULES.items():
        found = re.search(pattern, text)
        if found:
            return rule(found)
    return (
        f"{type(error).__name__}: {text}",
        "Python runs this line while building, with names for what is not known yet",
    )


def _unknown_name(error: NameError, tiles: list[str]) -> Explained:
    name = getattr(error, "name", None) or str(error).split("'")[1]
    hint = did_you_mean(name, tiles, what="tiles")
    if not hint.startswith("did you mean"):
        hint = f"define '{name}' before the kernel, or bind it with 'as'"
    return f"'{name}' is not defined", hint


def _word(function: str) -> str:
    """Return how a user writes a function that Python names: ``T.alloc``, or the helper's own name."""
    name = function.removesuffix(".__init__").rpartition(".")[2].rstrip("_")
    return f"T.{name}" if name in WORDS else name


def _parameters(word: str) -> list[str]:
    """Return the arguments of a word of the language; none of a helper, whose signature is the user's own."""
    return list(inspect.signature(WORDS[word[2:]]).parameters) if word.startswith("T.") else []


def _unknown_word(found: re.Match[str]) -> Explained:
    hint = did_you_mean(found[1], WORDS)
    near = hint.startswith("did you mean")
    return f"there is no T.{found[1]}", hint if near else "dir(T) lists the words of the language"


def _unknown_keyword(found: re.Match[str]) -> Explained:
    word = _word(found[1])
    parameters = _parameters(word)
    near = get_close_matches(found[2], parameters, n=1, cutoff=0.7)
    hint = f"did you mean '{near[0]}'?" if near else f"its arguments are {', '.join(parameters)}"
    return f"{word} has no argument '{found[2]}'", hint if parameters else f"see how '{word}' is defined"


def _wrong_arguments(found: re.Match[str]) -> Explained:
    word = _word(found[1])
    parameters = _parameters(word)
    hint = f"write {word}({', '.join(parameters)})" if parameters else f"see how '{word}' is defined"
    return f"{word} {found[2]}", hint


def _unknown_attribute(found: re.Match[str]) -> Explained:
    known = found[1] in WORDS
    hint = "tiles have shape, global_shape, bound, dtype and ndim"
    return f"a tile has no '.{found[1]}'", f"write T.{found[1]}(...)" if known else hint


def _unpacking(found: re.Match[str]) -> Explained:
    given = f"{found[2]} values" if found[2] else "more values"
    return f"{found[1]} names for {given}", "give as many names as there are values (extents of the launch)"


_RULES: dict[str, Rule] = {
    r"^module 'megatile\.language' has no attribute '(\w+)'": _unknown_word,
    r"^([\w.<>]+)\(\) got an unexpected keyword argument '(\w+)'": _unknown_keyword,
    r"^([\w.<>]+)\(\) (missing .* argument.*|takes .* given)$": _wrong_arguments,
    r"^'(?:Tile|Ref)' object has no attribute '(\w+)'": _unknown_attribute,
    r"^(?:not enough|too many) values to unpack \(expected (\d+)(?:, got (\d+))?\)": _unpacking,
}


# --- The user's frames: where a word of the language was written, and what is in sight there ----------------


def names_in_kernel() -> dict[str, Any]:
    """Return the variables of the kernel being read, the innermost first."""
    found: dict[str, Any] = {}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if HOOKS in frame.f_code.co_freevars:
            for name, value in frame.f_locals.items():
                if not name.startswith("__"):
                    found.setdefault(name, value)
        frame = frame.f_back
    return found
