"""Reads a kernel: Python's control flow on run-time values becomes statements of the Program.

Control flow on plain Python values happens while building, as written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from megatile.core.errors import Place
from megatile.core.expr import Expr, Symbol
from megatile.ir import nodes as n
from megatile.ir.expr import has_loads
from megatile.language.common.hooks import CONTINUE, Hooks, Jump, LoopContext, Returned, State, Undefined
from megatile.language.tile.builder import LargerScale, ProgramBuilder
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.loops import ParallelRange, SerialRange
from megatile.language.tile.scalars import Value, as_expr, operate
from megatile.language.tile.tiles import Ref, Tile

_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_Result = tuple[State, "Jump | None"]


class Carried(Value):
    """A variable at the start of a loop body; remembers whether the body reads it before it assigns it."""

    __slots__ = ("before", "read")

    def __init__(self, name: str, before: Any):
        super().__init__(Symbol(name, as_expr(before).dtype))
        self.before = before
        self.read = False

    @property
    def expr(self) -> Expr:
        self.read = True
        return self._expr


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, Value)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (int, float, bool)) or (
        isinstance(value, Value) and not (isinstance(value, Ref) and not value.is_element)
    )


class Reader(Hooks):
    """The hooks of the rewriter for the tile language; statements go to ``builder``."""

    def __init__(self, builder: ProgramBuilder):
        super().__init__()
        self.builder = builder

    def _here(self, place: Place) -> None:
        self.here = place
        self.builder.place = place

    def at(self, place: Place) -> None:
        self._here(place)

    def call(self, place: Place, function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        self.builder.place = place
        result = super().call(place, function, *arguments, **keywords)
        self.builder.place = place  # an error inside keeps the place where it happened
        return result

    def getitem(self, place: Place, container: Any, index: Any) -> Any:
        if isinstance(container, Tile):
            self._here(place)
        return super().getitem(place, container, index)

    def setitem(self, place: Place, container: Any, index: Any, value: Any) -> None:
        self._here(place)
        super().setitem(place, container, index, value)

    def assign(self, place: Place, name: str, value: Any) -> Any:
        if isinstance(value, Tile):
            self.builder.rename(value, name)
        elif isinstance(value, Value) and self._reads(value):
            self._here(place)
            variable = self.builder.variable(name)
            self.builder.emit(n.Let, name=variable, value=value.expr)
            return Value(Symbol(variable, value.dtype))
        return value

    def _reads(self, value: Value) -> bool:
        """Elements are read where the assignment stands, not where the variable is used later."""
        if isinstance(value, Ref):
            return value.is_element and bool(self.builder.parallel)
        return not isinstance(value, Carried) and has_loads(value.expr)

    # --- conditions -------------------------------------------------------------------------------

    def compare(self, place: Place, words: tuple[str, ...], operands: tuple[Callable[[], Any], ...]) -> Any:
        values = [operand() for operand in operands]
        if not any(_is_symbolic(v) for v in values):
            return super().compare(place, words, tuple(map(_given, values)))
        self._here(place)
        result: Any = True
        for word, left, right in zip(words, values, values[1:], strict=False):
            if word not in _COMPARISONS:
                one = super().compare_two(place, word, left, right)
            else:
                one = operate(word, left, right)
            result = one if result is True else operate("and", result, one)
        return result

    def boolean(self, place: Place, word: str, operands: tuple[Callable[[], Any], ...]) -> Any:
        result: Any = None
        for number, operand in enumerate(operands):
            value = operand()
            if number == 0:
                result = value
            elif _is_symbolic(result) or _is_symbolic(value):
                self._here(place)
                result = operate(word, result, value)
            else:
                result = value
            if not _is_symbolic(result) and bool(result) != (word == "and"):
                return result
        return result

    def not_(self, place: Place, value: Any) -> Any:
        return operate("not", value) if _is_symbolic(value) else not value

    def choose(self, place: Place, condition: Any, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
        if not _is_symbolic(condition):
            return super().choose(place, condition, then, orelse)
        self._here(place)
        return operate("select", condition, then(), orelse())

    def assert_(self, place: Place, condition: Any, message: Callable[[], Any]) -> None:
        if not _is_symbolic(condition):
            if not condition:
                raise ProgramError(f"assertion failed while building: {message()}", place=place)
            return
        self._here(place)
        self.builder.emit(n.Check, condition=as_expr(condition), text=str(message()))

    # --- branches ---------------------------------------------------------------------------------

    def if_(
        self, place: Place, condition: Any, then: Callable[..., Any], orelse: Callable[..., Any],
        names: tuple[str, ...], state: State,
    ) -> _Result:  # fmt: skip
        if not _is_symbolic(condition):
            return super().if_(place, condition, then, orelse, names, state)
        self._here(place)
        return self._at_top(lambda: self._branch(place, condition, then, orelse, names, state))

    def _at_top(self, read: Callable[[], _Result]) -> _Result:
        """At the top of a kernel a loop or branch belongs to the dispatched scale, unless it holds larger
        regions."""
        if self.builder.scales:
            return read()
        before = self.builder.snapshot()
        self.builder.open_implied()
        try:
            return read()
        except LargerScale:
            self.builder.restore(before)
            return read()

    def _branch(
        self, place: Place, condition: Any, then: Callable[..., Any], orelse: Callable[..., Any],
        names: tuple[str, ...], state: State,
    ) -> _Result:  # fmt: skip
        self._here(place)
        test = as_expr(condition)
        self.builder.check_expr(test)
        span = self.builder.span()
        results, parts, jumps = [], [], []
        for branch in (then, orelse):
            with self.builder.body() as body:
                after, jump = branch(*state)
            results.append(after)
            parts.append(body)
            jumps.append(jump)
        leaving = self._common_jump(jumps, place)
        merged = tuple(
            self._merge(name, before, left, right, parts, span)
            for name, before, left, right in zip(names, state, results[0], results[1], strict=True)
        )
        self.builder.append(n.If(test, tuple(parts[0].nodes), tuple(parts[1].nodes), span=span))
        return merged, leaving

    def _merge(self, name: str, before: Any, left: Any, right: Any, parts: list[Any], span: Any) -> Any:
        """The value of a variable after a branch: the same on both sides, or a variable set on each."""
        if left is right or (_is_plain(left) and _is_plain(right) and left == right):
            return left
        if not (_is_scalar(left) and _is_scalar(right)):
            return _either(name, before, left, right, self.here)
        dtype = operate("select", Value(Symbol("c", "bool")), left, right).dtype
        variable = self.builder.variable(name)
        for part, value in zip(parts, (left, right), strict=True):
            part.nodes.append(n.Let(variable, as_expr(value), span=span))
        return Value(Symbol(variable, dtype))

    def _common_jump(self, jumps: list[Jump | None], place: Place) -> Jump | None:
        """Both sides end the body the same way (``if c: continue`` followed by more), or neither leaves
        it."""
        first, second = jumps
        if first is second and first in (None, CONTINUE):
            return first
        returns = [j for j in jumps if isinstance(j, Returned) and j.value is None]
        if len(returns) == 2:
            return first
        self._refuse_jump(first or second, place)
        return None

    def _refuse_jump(self, jump: Jump | None, place: Place) -> None:
        if jump is not None and jump is not CONTINUE:
            raise ProgramError(
                f"'{jump.word}' under a condition known only at run time", place=place,
                advice="put the statements that follow under 'if' or 'else' instead",
            )  # fmt: skip

    # --- loops ------------------------------------------------------------------------------------

    def for_(
        self, place: Place, iterable: Any, body: Callable[..., Any], names: tuple[str, ...], state: State,
        context: LoopContext,
    ) -> _Result:  # fmt: skip
        if isinstance(iterable, ParallelRange):
            if len(context.targets) == len(iterable.extents):
                iterable = replace(iterable, names=_named(context.targets, iterable.names))
            return self._parallel(place, iterable, body, names, state)
        if isinstance(iterable, SerialRange):
            if len(context.targets) == 1:
                iterable = replace(iterable, name=_named(context.targets, (iterable.name,))[0])
            return self._at_top(lambda: self._serial(place, iterable, body, names, state))
        if isinstance(iterable, Value):
            raise ProgramError("a number cannot be looped over", place=place, advice="for k in T.serial(n)")
        return super().for_(place, iterable, body, names, state, context)

    def while_(
        self, place: Place, test: Callable[..., Any], body: Callable[..., Any], names: tuple[str, ...],
        state: State, context: LoopContext,
    ) -> _Result:  # fmt: skip
        if _is_symbolic(test(*state)):
            raise ProgramError(
                "'while' on a value known only at run time", place=place,
                advice="loop a bounded number of times with T.serial(...) and put the condition in an 'if'",
            )  # fmt: skip
        return super().while_(place, test, body, names, state, context)

    def _serial(
        self, place: Place, loop: SerialRange, body: Callable[..., Any], names: tuple[str, ...], state: State
    ) -> _Result:
        self._here(place)
        bounds = tuple(as_expr(v) for v in (loop.start, loop.stop, loop.step))
        for bound in bounds:
            self.builder.check_expr(bound)
        span = self.builder.span()
        variable = self.builder.fresh(loop.name or "i")
        start = self._carry(names, state)
        carried = [c for c in start if isinstance(c, Carried)]
        with self.builder.body(variable, *(c._expr.name for c in carried)) as inner:  # type: ignore[attr-defined]
            after, jump = body(Value(Symbol(variable)), *start)
            self._refuse_jump(jump, place)
            final = tuple(
                self._step(name, *values) for name, *values in zip(names, state, start, after, strict=True)
            )
        for one in carried:
            if one.read:
                name = one._expr.name  # type: ignore[attr-defined]
                self.builder.bodies[-1].nodes.append(n.Let(name, as_expr(one.before), span=span))
                self.builder.bodies[-1].variables.add(name)
        start_, stop, step = bounds
        node = n.Loop(loop.kind, variable, start_, stop, step, loop.stages, tuple(inner.nodes), span=span)
        self.builder.append(node)
        return final, None

    def _carry(self, names: tuple[str, ...], state: State) -> list[Any]:
        return [
            Carried(self.builder.fresh(name), value) if _is_scalar(value) else value
            for name, value in zip(names, state, strict=True)
        ]

    def _step(self, name: str, before: Any, start: Any, after: Any) -> Any:
        """What a variable is after the loop; one read and assigned in the body is carried round it."""
        if not isinstance(start, Carried):
            swapped = isinstance(start, Tile) and isinstance(after, Tile) and after is not start
            if swapped and after.name in self.builder.tiles and not self._made_here(after):
                raise ProgramError(
                    f"'{name}' names another tile in the next iteration, but a loop body is read once",
                    advice="allocate one tile with a leading dimension of 2 and index it with k % 2",
                )
            return after
        if after is start:
            return start if start.read else before
        if not start.read:
            return after
        if not _is_scalar(after):
            raise ProgramError(f"'{name}' changes its kind in a loop", advice="keep it a number")
        variable = start._expr
        self.builder.emit(n.Let, name=variable.name, value=as_expr(after))  # type: ignore[attr-defined]
        return Value(variable)

    def _made_here(self, tile: Tile) -> bool:
        made = {
            m.name
            for b in self.builder.bodies[-1:]
            for m in n.walk(tuple(b.nodes))
            if isinstance(m, (n.Alloc, n.View))
        }
        return tile.name in made

    def _parallel(
        self,
        place: Place,
        loop: ParallelRange,
        body: Callable[..., Any],
        names: tuple[str, ...],
        state: State,
    ) -> _Result:
        self._here(place)
        if self.builder.parallel:
            raise ProgramError("T.Parallel inside T.Parallel", advice="write one T.Parallel over all indices")
        if not self.builder.scales:
            self.builder.open_implied()
        span = self.builder.span()
        variables = tuple(self.builder.fresh(w) for w in loop.names)
        items = [Value(Symbol(v)) for v in variables]
        with self.builder.body(*variables) as inner:
            self.builder.parallel = list(variables)
            _, jump = body(items[0] if len(items) == 1 else tuple(items), *state)
            self._refuse_jump(jump, place)
            self.builder.parallel = []
        extents = tuple(as_expr(e) for e in loop.extents)
        self.builder.append(n.Parallel(variables, extents, tuple(inner.nodes), span=span))
        return state, None


def _named(targets: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """The user's names of loop variables, but for ``_``."""
    return tuple(t if t.strip("_") else n for t, n in zip(targets, names, strict=True))


def _given(value: Any) -> Callable[[], Any]:
    return lambda: value


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, float, bool, str, type(None)))


def _either(name: str, before: Any, left: Any, right: Any, place: Place | None) -> Any:
    """What a variable means after a branch that does not give it one scalar on both sides.

    A tile made on one side keeps its name (it may be used in a later branch of the same kind, and reading
    it where nothing was written is found at run time); a number set on one side only has no value.
    """
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Undefined):
            return Undefined(name, place) if _is_scalar(other) or _is_plain(other) else other
    if isinstance(left, Tile) and isinstance(right, Tile):
        raise ProgramError(
            f"'{name}' names one tile or the other, depending on a value known only at run time",
            place=place, advice="use the tile inside each branch",
        )  # fmt: skip
    return Undefined(name, place)
