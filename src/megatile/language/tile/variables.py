"""What Python variables of a kernel are while it is read: numbers, values of the run, carried round loops, or
out of scope."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from megatile.core.errors import MegatileError, Place
from megatile.core.expr import Expr, Symbol
from megatile.language.common.hooks import UnboundVariableError, Undefined
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.scalars import Value, as_expr
from megatile.language.tile.tiles import Ref, Tile


class Carried(Value):
    """A variable at the start of a loop body; remembers whether the body reads it before it assigns it."""

    __slots__ = ("before", "read")

    def __init__(self, name: str, before: Any):
        super().__init__(Symbol(name, as_expr(before).dtype))
        self.before = before
        self.read = False

    @property
    def variable(self) -> Symbol:
        assert isinstance(self._expr, Symbol)
        return self._expr

    @property
    def expr(self) -> Expr:
        self.read = True
        return self._expr


class OutOfScope(Undefined):
    """A variable after the loop or branch that gave it a value known only inside."""

    __slots__ = ()

    def _error(self) -> MegatileError:
        return UnboundVariableError(
            f"'{self._name}' changes in a loop or branch and is used after it",
            place=self._place,
            advice="give it a number before the loop, use it inside, or keep it in a tile",
        )


@dataclass
class OpenLoop:
    """A loop whose body is being read, and what its variables were at the start of the body."""

    names: tuple[str, ...] = ()
    start: list[Any] = field(default_factory=list)
    scales: int = 0
    unrolled: bool = False
    left_early: bool = False
    """Whether a statement of the body leaves it before its end."""


class NeedsLoop(BaseException):
    """A loop being unrolled is left on a value known only at run time: it must stay a loop."""


def is_symbolic(value: Any) -> bool:
    return isinstance(value, Value)


def is_scalar(value: Any) -> bool:
    return isinstance(value, (int, float, bool)) or (
        isinstance(value, Value) and not (isinstance(value, Ref) and not value.is_element)
    )


def is_plain(value: Any) -> bool:
    return isinstance(value, (int, float, bool, str, type(None)))


def either(name: str, before: Any, left: Any, right: Any, place: Place | None) -> Any:
    """Return what a variable means after a branch that does not give it one scalar on both sides.

    A tile made on one side keeps its name (it may be used in a later branch of the same kind, and reading
    it where nothing was written is found at run time); a number set on one side only has no value.
    """
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Undefined):
            return Undefined(name, place) if is_scalar(other) or is_plain(other) else other
    if isinstance(left, Tile) and isinstance(right, Tile):
        raise ProgramError(
            f"'{name}' names one tile or the other, depending on a value known only at run time",
            place=place, advice="use the tile inside each branch",
        )  # fmt: skip
    return Undefined(name, place)
