"""Integers whose value is not known while a kernel is read: a program id, a loop index, a runtime integer.

They compute as ints do. Where Python insists on a number (an index, a condition outside the reader's sight,
text), ``NeedsValue`` is raised; the reader answers it by unrolling the loop or by reading the kernel once per
unit.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any, NoReturn

from megatile.core.errors import MegatileError, Place, did_you_mean
from megatile.core.expr import Arithmetic, Expr, binary, constant, expr, symbols
from megatile.core.frames import place_of


class KernelError(MegatileError, ValueError):
    """A kernel that cannot be read."""


class NoBlockError(KernelError):
    """An access to elements that are no block of a tensor; ``offset`` is the byte at which they begin."""

    def __init__(self, message: str, offset: Expr, place: Place | None = None) -> None:
        super().__init__(message, place=place)
        self.offset = offset


class NeedsValue(KernelError):
    """Python needs the number behind a symbol."""

    def __init__(self, node: Expr, place: Place | None = None, why: str = "as a number"):
        names = ", ".join(sorted(symbols(node)))
        super().__init__(
            f"the value of '{node}' is needed {why} while the kernel is read, but it depends on {names}",
            place=place,
            advice="compute with it, or use tl.static_range for loops that must be unrolled",
        )
        self.node = node


class Sym(Arithmetic):
    """A symbolic integer."""

    __slots__ = ("expr", "reader")

    @staticmethod
    def operate(operator: str, left: Any, right: Any) -> Any:
        if not isinstance(left, (int, Sym)) or not isinstance(right, (int, Sym)):
            return NotImplemented
        reader = left.reader if isinstance(left, Sym) else right.reader  # type: ignore[union-attr]
        return wrap(binary(operator, to_expr(left), to_expr(right)), reader)

    def __eq__(self, other: Any) -> Any:
        return self.operate("==", self, other)

    def __ne__(self, other: Any) -> Any:
        return self.operate("!=", self, other)

    def __init__(self, value: Expr, reader: Any):
        self.expr, self.reader = value, reader

    def _need(self, why: str = "as a number") -> NoReturn:
        raise NeedsValue(self.expr, self.reader.here, why)

    def __bool__(self) -> bool:
        self._need("as a condition")

    __int__ = __float__ = _need

    def __index__(self) -> int:
        self._need("as an index")

    def __hash__(self) -> int:
        self._need("as a key")

    def __str__(self) -> str:
        self._need("as text")

    def __format__(self, spec: str) -> str:
        self._need("as text")

    def __repr__(self) -> str:
        return f"<{self.expr}>"

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __neg__(self) -> Any:
        return wrap(-self.expr, self.reader)

    def __pos__(self) -> Any:
        return self

    def __invert__(self) -> Any:
        return wrap(~self.expr, self.reader)

    def __truediv__(self, other: Any) -> Any:
        self._need("for a division with '/'; use '//'")


def wrap(value: Expr, reader: Any) -> Any:
    """Return an int where the value is known, else a ``Sym``."""
    known = constant(value)
    return known if known is not None else Sym(value, reader)


def to_expr(value: Any) -> Expr:
    return value.expr if isinstance(value, Sym) else expr(value)


class SymRange:
    """``range`` with symbolic bounds."""

    def __init__(self, start: Any, stop: Any, step: Any, reader: Any):
        self.start, self.stop, self.step, self.reader = start, stop, step, reader

    def bound(self) -> Expr:
        """Return the first bound that is not known."""
        return next(to_expr(v) for v in (self.stop, self.start, self.step) if isinstance(v, Sym))

    def __iter__(self) -> NoReturn:
        raise NeedsValue(self.bound(), self.reader.here, "to unroll a loop")


# --- Python's own errors in a ``tl`` kernel, at the user's line ---------------------------------------------


INSIDE = tuple(str(Path(__file__).parents[2] / folder) for folder in ("language", "core", "plan"))
"""Where functions live that kernels call; kernels may stand anywhere else."""
PYTHON_ERRORS = (TypeError, AttributeError, NameError, IndexError, KeyError, ZeroDivisionError)
"""What a mistake in a kernel may raise in Python itself."""


class PythonMistake(KernelError, TypeError):
    """A kernel that Python cannot run."""


def explained(error: Exception, place: Place | None, tl: Any) -> PythonMistake:
    """Return the error at the user's line: what happened, and what to try."""
    text = re.sub(r"\b(MockTl|Tl|Math)\.", "tl.", re.sub(r"\S*<locals>\.", "", str(error)))
    unknown = re.match(r"'(?:Mock)?Tl' object has no attribute '(\w+)'", text)
    if unknown:
        names = [name for name in dir(type(tl)) if not name.startswith("_")]
        advice = did_you_mean(unknown[1], names, what="functions")
        return PythonMistake(f"tl has no '{unknown[1]}'", place=place, advice=advice)
    kind = "" if isinstance(error, TypeError) else f"{type(error).__name__}: "
    return PythonMistake(f"{kind}{text}", place=place)


def raised_at(error: Exception) -> Place | None:
    """Return the line of the kernel at which an error was raised."""
    places = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(INSIDE)
    ]
    return place_of(*places[-1]) if places else None
