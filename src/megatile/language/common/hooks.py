"""The hooks that rewritten kernels call, with Python's own meaning. Subclasses change what they need to.

With this class itself a rewritten function does what the original does; that is how the rewriter is tested.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from megatile.core.errors import MegatileError, Place
from megatile.language.common.rewrite import bind, can_rewrite

State = tuple[Any, ...]


class UnboundVariableError(MegatileError, NameError):
    """A variable used before it has a value (on some path)."""

    __str__ = MegatileError.__str__


class Jump:
    """How a body function was left: by ``break`` or ``continue``; see also ``Returned``."""

    def __init__(self, word: str):
        self.word = word

    def __repr__(self) -> str:
        return self.word


BREAK, CONTINUE = Jump("break"), Jump("continue")


class Returned(Jump):
    """Left by ``return value``."""

    def __init__(self, value: Any, place: Place | None = None):
        super().__init__("return")
        self.value, self.place = value, place


def ends_loop(jump: Jump | None) -> bool:
    """Return whether a body left this way is the last of its loop."""
    return jump is BREAK or isinstance(jump, Returned)


def after_loop(jump: Jump | None) -> Jump | None:
    """Return the jump that goes on outside the loop."""
    return jump if isinstance(jump, Returned) else None


class Undefined:
    """A variable without a value. Any use of it is an error that names the variable."""

    __slots__ = ("_name", "_place")

    def __init__(self, name: str, place: Place | None):
        self._name, self._place = name, place

    def _error(self) -> MegatileError:
        return UnboundVariableError(
            f"'{self._name}' has no value here", place=self._place, advice="assign it before, on every path"
        )

    def _complain(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error()

    def __repr__(self) -> str:
        return f"<{self._name} without a value>"

    __getattr__ = __call__ = __iter__ = __len__ = __getitem__ = __setitem__ = _complain
    __bool__ = __int__ = __index__ = __float__ = __add__ = __radd__ = __sub__ = __rsub__ = _complain
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _complain
    __mod__ = __rmod__ = __pow__ = __neg__ = __lt__ = __le__ = __gt__ = __ge__ = __matmul__ = _complain
    __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __invert__ = __format__ = _complain


@dataclass(frozen=True)
class LoopContext:
    """What a loop's hooks may want to know: names read after the loop, objects its body can see, its own
    variables."""

    live: tuple[str, ...]
    captures: Callable[[], dict[str, Any]]
    targets: tuple[str, ...] = ()


_BINARY = {
    "+": operator.iadd,
    "-": operator.isub,
    "*": operator.imul,
    "/": operator.itruediv,
    "//": operator.ifloordiv,
    "%": operator.imod,
    "**": operator.ipow,
    "@": operator.imatmul,
    "&": operator.iand,
    "|": operator.ior,
    "^": operator.ixor,
    "<<": operator.ilshift,
    ">>": operator.irshift,
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "is": operator.is_,
    "is not": operator.is_not,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}


class Hooks:
    """Python's meaning for every hook of ``rewrite.py``."""

    BREAK, CONTINUE = BREAK, CONTINUE

    def __init__(self) -> None:
        self.here: Place | None = None

    # --- places and values ------------------------------------------------------------------------

    def at(self, place: Place) -> None:
        """Note that the statement at ``place`` begins."""
        self.here = place

    def undefined(self, place: Place, name: str) -> Any:
        return Undefined(name, place)

    def assign(self, place: Place, name: str, value: Any) -> Any:
        return value

    def part(self, place: Place, names: tuple[str | None, ...], value: Any) -> Any:
        """Return one of several values that are assigned together, to these names and to elements (None)."""
        return value

    def assign_part(self, place: Place, name: str, value: Any) -> Any:
        """One of several names that are assigned together."""
        return value

    def declare(self, place: Place, name: str, value: Any, annotation: Callable[[], Any], given: bool) -> Any:
        """``name: annotation = value``; without a value, ``value`` is what the name means so far."""
        return self.assign(place, name, value) if given else value

    def augment(self, place: Place, word: str, left: Any, right: Any) -> Any:
        return _BINARY[word](left, right)

    def getitem(self, place: Place, container: Any, index: Any) -> Any:
        return container[index]

    def setitem(self, place: Place, container: Any, index: Any, value: Any) -> None:
        container[index] = value

    def augment_item(self, place: Place, word: str, container: Any, index: Any, value: Any) -> None:
        self.setitem(place, container, index, _BINARY[word](self.getitem(place, container, index), value))

    def slice_(self, place: Place, start: Any, stop: Any, step: Any) -> slice:
        return slice(start, stop, step)

    def formatted(self, place: Place, value: Any) -> Any:
        return value

    def call(self, place: Place, function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        """Call; functions written by the user are rewritten too, so helpers may contain control flow."""
        self.here = place
        if self.follows(function):
            function = bind(function, self)
        try:
            return function(*arguments, **keywords)
        finally:
            self.here = place

    def follows(self, function: Any) -> bool:
        """Return whether a called function is to be rewritten as well."""
        if isinstance(function, types.MethodType):
            function = function.__func__
        if not isinstance(function, types.FunctionType):
            return False
        library = (function.__module__ or "").startswith(("megatile.", "numpy", "torch"))
        # Modules of the library that hold kernels say so.
        return (not library or "KERNEL_HELPERS" in function.__globals__) and can_rewrite(function)

    # --- conditions -------------------------------------------------------------------------------

    def compare(self, place: Place, words: tuple[str, ...], operands: tuple[Callable[[], Any], ...]) -> Any:
        if len(words) == 1:
            return self.compare_two(place, words[0], operands[0](), operands[1]())
        values = [operands[0]()]

        def one(word: str, operand: Callable[[], Any]) -> Any:
            values.append(operand())
            return self.compare_two(place, word, *values[-2:])

        pairs = zip(words, operands[1:], strict=True)
        return self.boolean(place, "and", tuple(partial(one, *pair) for pair in pairs))

    def compare_two(self, place: Place, word: str, left: Any, right: Any) -> Any:
        return _COMPARE[word](left, right)

    def boolean(self, place: Place, word: str, operands: tuple[Callable[[], Any], ...]) -> Any:
        value: Any = None
        for operand in operands:
            value = operand()
            if self.truth(place, value) != (word == "and"):
                return value
        return value

    def truth(self, place: Place, value: Any) -> bool:
        return bool(value)

    def not_(self, place: Place, value: Any) -> Any:
        return not self.truth(place, value)

    def choose(self, place: Place, condition: Any, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
        return then() if self.truth(place, condition) else orelse()

    def assert_(self, place: Place, condition: Any, message: Callable[[], Any]) -> None:
        if not self.truth(place, condition):
            raise AssertionError(message())

    # --- control flow -----------------------------------------------------------------------------

    def returned(self, place: Place, value: Any) -> Returned:
        return Returned(value, place)

    def context(
        self, place: Place, live: tuple[str, ...], captures: Callable[[], dict[str, Any]],
        targets: tuple[str, ...] = (),
    ) -> LoopContext:  # fmt: skip
        return LoopContext(live, captures, targets)

    def if_(
        self,
        place: Place,
        condition: Any,
        then: Callable[..., Any],
        orelse: Callable[..., Any],
        names: tuple[str, ...],
        state: State,
    ) -> tuple[State, Jump | None]:
        return (then if self.truth(place, condition) else orelse)(*state)

    def for_(
        self,
        place: Place,
        iterable: Any,
        body: Callable[..., Any],
        names: tuple[str, ...],
        state: State,
        context: LoopContext,
    ) -> tuple[State, Jump | None]:
        for item in iterable:
            state, jump = body(item, *state)
            if ends_loop(jump):
                return state, after_loop(jump)
        return state, None

    def while_(
        self,
        place: Place,
        test: Callable[..., Any],
        body: Callable[..., Any],
        names: tuple[str, ...],
        state: State,
        context: LoopContext,
    ) -> tuple[State, Jump | None]:
        while self.truth(place, test(*state)):
            state, jump = body(*state)
            if ends_loop(jump):
                return state, after_loop(jump)
        return state, None
