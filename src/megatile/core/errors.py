"""One hierarchy of errors: what happened, where, what to try.

    raise MegatileError("unit 'GBps' is unknown", place=Place("a.yaml", 3), advice="write GB/s")

prints as ``a.yaml:3: unit 'GBps' is unknown (try: write GB/s)``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Any

MAX_LINE_CHARS = 2000
"""Longest line of a message; a value from a file may have megabytes."""


@dataclass(frozen=True)
class Place:
    """A position in something the user wrote: a source file, a YAML file, a text.

    ``path`` is the way to the value inside a document (``networks.nvlink.bandwidth``);
    ``snippet`` is the line itself, shown with a caret under ``column`` (counted from 1).
    """

    file: str | None = None
    line: int | None = None
    column: int | None = None
    path: str | None = None
    snippet: str | None = None

    def __str__(self) -> str:
        where = self.file or ""
        if self.line is not None:
            where = f"{where or 'line '}{':' if where else ''}{self.line}"
        if self.path:
            where = f"{where}: {self.path}" if where else self.path
        return where

    def caret(self) -> str:
        """Return the source line with a caret under the column, or the empty string."""
        if not self.snippet:
            return ""
        line = self.snippet.rstrip("\n")
        if not self.column:
            return f"    {line}"
        return f"    {line}\n    {' ' * (self.column - 1)}^"


class Remark(str):
    """A sentence about something the user wrote, with its place."""

    place: Place | None

    def __new__(cls, message: str, place: Place | None, advice: str) -> Remark:
        found = super().__new__(cls, f"{f'{place}: ' if place else ''}{message} (try: {advice})")
        found.place = place
        return found


class MegatileError(Exception):
    """The root of every error megatile raises for a user's mistake."""

    def __init__(self, message: str, *, place: Place | None = None, advice: str | None = None):
        super().__init__(message, place, advice)
        self.message = message
        self.place = place
        self.advice = advice

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross processes whole, whatever arguments their class takes."""
        return _restored, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        where = str(self.place) if self.place else ""
        text = f"{where}: {self.message}" if where else self.message
        if self.advice:
            text += f" (try: {self.advice})"
        caret = self.place.caret() if self.place else ""
        return "\n".join(map(_shortened, (f"{text}\n{caret}" if caret else text).split("\n")))


def _restored(kind: type[MegatileError], args: tuple[Any, ...], state: dict[str, Any]) -> MegatileError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def _shortened(line: str) -> str:
    """Return a line of a message without the middle of what is too long to read."""
    left_out = len(line) - MAX_LINE_CHARS
    if left_out <= 0:
        return line
    half = MAX_LINE_CHARS // 2
    return f"{line[:half]}… ({left_out} characters left out) …{line[-half:]}"


class QuantityError(MegatileError, ValueError):
    """A number with a unit that cannot be read, or of the wrong kind."""


class ArithmeticSyntaxError(MegatileError, ValueError):
    """An expression outside the small arithmetic that machine files may use."""


class MachineError(MegatileError, ValueError):
    """A machine description that cannot be loaded."""


class InstanceError(MegatileError, ValueError):
    """Scale views that contradict each other or the machine."""


class RouteError(MegatileError, ValueError):
    """A question about units or links that the machine cannot answer."""


class MissingDescriptionError(MegatileError):
    """The machine description lacks something that this use needs."""


def did_you_mean(name: str, known: Iterable[str], *, what: str = "") -> str:
    """Return advice for an unknown name: the nearest known one, or the list of all.

    >>> did_you_mean("deivce", ["device", "block"])
    "did you mean 'device'?"
    >>> did_you_mean("H100", ["dgx-h100", "v100-8"])
    "did you mean 'dgx-h100'?"
    """
    names = sorted({str(k) for k in known})
    plain = str(name).lower()
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.8)
    close = close or [other for other in names if other.lower() == plain]
    if not close and len(plain) >= 3:  # the shortest name that has it as a word, or anywhere
        having = [other for other in names if plain in other.lower()]
        words = [other for other in having if plain in re.split(r"[^a-z0-9]+", other.lower())]
        close = sorted(words or having, key=len)
    close = close or difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    if not names:
        return f"there are no {what or 'names'} here"
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"{what + ' there are' if what else 'known'}: {shown}"


def how_to_give(value: object, otherwise: str) -> str:
    """Return advice where ``value`` is not a program: a function that makes one is called first.

    >>> def gemm(M, N): ...
    >>> how_to_give(gemm, "decorate the function with @T.program")
    'call it first: gemm(M=…, N=…)'
    """
    code = getattr(value, "__code__", None)
    kernel = any("Tensor" in str(kind) for kind in getattr(value, "__annotations__", {}).values())
    if not isinstance(code, CodeType) or kernel:
        return otherwise
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return f"call it first: {code.co_name}({', '.join(f'{name}=…' for name in names)})"
