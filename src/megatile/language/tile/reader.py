"""Reads a kernel: Python's control flow on run-time values becomes statements of the Program.

Control flow on plain Python values happens while building, as written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from megatile.core.errors import MegatileError, Place
from megatile.core.expr import Symbol
from megatile.ir import nodes as n
from megatile.ir.expr import has_loads
from megatile.language.common.hooks import (
    BREAK,
    CONTINUE,
    Hooks,
    Jump,
    LoopContext,
    Returned,
    State,
)
from megatile.language.common.transform import HOOKS
from megatile.language.tile.builder import LargerScale, ProgramBuilder, located
from megatile.language.tile.errors import PYTHON_ERRORS, ProgramError, translated
from megatile.language.tile.loops import (
    MAX_WHILE_ITERATIONS,
    Bounded,
    ParallelRange,
    PersistentRange,
    SerialRange,
)
from megatile.language.tile.scalars import Value, as_expr, operate
from megatile.language.tile.tiles import Ref, Tile
from megatile.language.tile.variables import (
    Carried,
    NeedsLoop,
    OpenLoop,
    OutOfScope,
    either,
    is_plain,
    is_scalar,
    is_symbolic,
)

_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_Result = tuple[State, "Jump | None"]


MAX_UNROLLED_ROUNDS = 1 << 16
"""Rounds of a Python ``range`` that a program may unroll; more take minutes to read."""


class Reader(Hooks):
    """The hooks of the rewriter for the tile language; statements go to ``builder``."""

    def __init__(self, builder: ProgramBuilder):
        super().__init__()
        self.builder = builder
        self.loops: list[OpenLoop] = []
        self.calls = 0
        """How many of the user's own functions are being read inside each other."""

    def at(self, place: Place) -> None:
        self.here = self.builder.place = place

    def call(self, place: Place, function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        self.builder.place = place
        followed = self.follows(function) or HOOKS in getattr(
            getattr(function, "__code__", None), "co_freevars", ()
        )
        self.calls += followed
        try:
            result = super().call(place, function, *arguments, **keywords)
        except MegatileError as error:
            if followed:
                self._called(error, place)
            raise
        except PYTHON_ERRORS as error:
            if not followed:
                raise
            problem = translated(error, self.builder.place, self.builder.tiles)
            raise self._called(problem, place).with_traceback(None) from None
        self.calls -= followed
        self.builder.place = place  # an error inside keeps the place where it happened
        return result

    def _called(self, error: MegatileError, place: Place) -> MegatileError:
        """An error inside a helper also says which line called it."""
        located(error, self.builder.place)
        if error.place is not None and str(error.place) != str(place):
            error.message = f"{error.message} [called at {place}]"
            error.args = (error.message, error.place, error.advice)
        return error

    def getitem(self, place: Place, container: Any, index: Any) -> Any:
        if isinstance(container, Tile):
            self.at(place)
        return super().getitem(place, container, index)

    def setitem(self, place: Place, container: Any, index: Any, value: Any) -> None:
        self.at(place)
        super().setitem(place, container, index, value)

    def assign(self, place: Place, name: str, value: Any) -> Any:
        if isinstance(value, Tile):
            self.builder.rename(value, name)
        elif isinstance(value, Value) and self._reads(value):
            return self._named(place, value, name)
        return value

    def assign_part(self, place: Place, name: str, value: Any) -> Any:
        if isinstance(value, Tile):
            self.builder.rename(value, name)
        return value

    def part(self, place: Place, names: tuple[str | None, ...], value: Any) -> Any:
        if not isinstance(value, Value) or not self.stores(names):
            return value
        if isinstance(value, Ref) and not value.is_element:
            return value
        return self._named(place, value, "part") if has_loads(value.expr) else value

    def stores(self, names: tuple[str | None, ...]) -> bool:
        """Return whether assigning to names, or elements (None), changes a tile."""
        return None in names

    def _named(self, place: Place, value: Value, name: str) -> Value:
        """Return a variable with the value that an expression has here."""
        self.at(place)
        variable = self.builder.variable(name)
        self.builder.emit(n.Let, name=variable, value=value.expr)
        return Value(Symbol(variable, value.dtype))

    def _reads(self, value: Value) -> bool:
        """Elements are read where the assignment stands, not where the variable is used later."""
        if isinstance(value, Ref):
            return value.is_element and bool(self.builder.parallel)
        return not isinstance(value, Carried) and has_loads(value.expr)

    # --- conditions -------------------------------------------------------------------------------

    def compare_two(self, place: Place, word: str, left: Any, right: Any) -> Any:
        if word not in _COMPARISONS or not (is_symbolic(left) or is_symbolic(right)):
            return super().compare_two(place, word, left, right)
        self.at(place)
        return operate(word, left, right)

    def boolean(self, place: Place, word: str, operands: tuple[Callable[[], Any], ...]) -> Any:
        result = operands[0]()
        for operand in operands[1:]:
            if is_symbolic(result):
                self.at(place)
                result = operate(word, result, operand())
            elif bool(result) != (word == "and"):
                return result
            else:
                result = operand()
        return result

    def truth(self, place: Place, value: Any) -> bool:
        """Of the test of a ``while``, which is unrolled as long as Python knows it; others are known here."""
        self.at(place)
        if is_symbolic(value):
            raise NeedsLoop
        return bool(value)

    def not_(self, place: Place, value: Any) -> Any:
        return operate("not", value) if is_symbolic(value) else not value

    def choose(self, place: Place, condition: Any, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
        if not is_symbolic(condition):
            return super().choose(place, condition, then, orelse)
        self.at(place)
        return operate("select", condition, then(), orelse())

    def assert_(self, place: Place, condition: Any, message: Callable[[], Any]) -> None:
        if not is_symbolic(condition):
            if not condition:
                raise ProgramError(f"assertion failed while building: {message()}", place=place)
            return
        self.at(place)
        self.builder.emit(n.Check, condition=as_expr(condition), text=str(message()))

    # --- branches ---------------------------------------------------------------------------------

    def if_(
        self, place: Place, condition: Any, then: Callable[..., Any], orelse: Callable[..., Any],
        names: tuple[str, ...], state: State,
    ) -> _Result:  # fmt: skip
        if not is_symbolic(condition):
            return super().if_(place, condition, then, orelse, names, state)
        self.at(place)
        return self._at_top(lambda: self._branch(place, condition, then, orelse, names, state))

    def _at_top(self, read: Callable[[], _Result]) -> _Result:
        """At the top of a kernel a loop or branch belongs to the dispatched scale, unless it holds larger
        regions."""

        def at_dispatched() -> _Result:
            self.builder.open_implied()
            return read()

        return read() if self.builder.scales else self._or_else(at_dispatched, LargerScale, read)

    def _or_else(
        self, read: Callable[[], _Result], problem: type[BaseException], again: Callable[[], _Result]
    ) -> _Result:
        """Return what ``read`` gives; where that raises the problem, all is put back and ``again`` reads
        it."""
        before, loops, calls = self.builder.snapshot(), list(self.loops), self.calls
        try:
            return read()
        except problem:
            self.builder.restore(before)
            self.loops, self.calls = loops, calls
            return again()

    def _branch(
        self, place: Place, condition: Any, then: Callable[..., Any], orelse: Callable[..., Any],
        names: tuple[str, ...], state: State,
    ) -> _Result:  # fmt: skip
        self.at(place)
        test = as_expr(condition)
        self.builder.check_expr(test)
        span = self.builder.span()
        sides = []
        for branch in (then, orelse):
            with self.builder.body() as body:
                sides.append((body, *branch(*state)))
        parts, results, jumps = map(list, zip(*sides, strict=True))
        leaving, survivor = self._leave(jumps, parts, names, results, place)
        merged = tuple(
            self._merge(name, before, left, right, parts, span)
            if survivor is None
            else self._survive(name, before, (left, right)[survivor], parts[survivor], span)
            for name, before, left, right in zip(names, state, results[0], results[1], strict=True)
        )
        if isinstance(leaving, Returned) and survivor is None:
            left, right = (j.value for j in jumps if isinstance(j, Returned))
            leaving = Returned(self._merge("result", None, left, right, parts, span), place)
        self.builder.append(n.If(test, tuple(parts[0].nodes), tuple(parts[1].nodes), span=span))
        return merged, leaving

    def _merge(self, name: str, before: Any, left: Any, right: Any, parts: list[Any], span: Any) -> Any:
        """Return the value of a variable after a branch: the same on both sides, or a variable set on
        each."""
        if left is right or (is_plain(left) and is_plain(right) and left == right):
            return left
        if not (is_scalar(left) and is_scalar(right)):
            return either(name, before, left, right, self.here)
        values = as_expr(left), as_expr(right)
        if isinstance(left, Value) and values[0] == values[1]:
            return left
        if not all(self.builder.is_known(v, part.variables) for v, part in zip(values, parts, strict=True)):
            return OutOfScope(name, None)
        dtype = operate("select", Value(Symbol("c", "bool")), left, right).dtype
        variable = self.builder.variable(name)
        for part, value in zip(parts, values, strict=True):
            part.nodes.append(n.Let(variable, value, span=span))
        return Value(Symbol(variable, dtype))

    def _survive(self, name: str, before: Any, value: Any, part: Any, span: Any) -> Any:
        """Return the value of a variable after a branch where only one side continues."""
        if value is before or not isinstance(value, Value) or not is_scalar(value):
            return value
        if not self.builder.is_known(value.expr, part.variables):
            return OutOfScope(name, None)
        variable = self.builder.variable(name)
        part.nodes.append(n.Let(variable, value.expr, span=span))
        return Value(Symbol(variable, value.dtype))

    # --- jumps ------------------------------------------------------------------------------------

    def _leave(
        self, jumps: list[Jump | None], parts: list[Any], names: tuple[str, ...], results: list[State],
        place: Place,
    ) -> tuple[Jump | None, int | None]:  # fmt: skip
        """Return the jump that both sides of a branch make, and the only side that goes on, if it is one.

        A side that jumps elsewhere than the other gets a statement that does so when the program runs.
        """
        first, second = jumps
        if first is second or (isinstance(first, Returned) and isinstance(second, Returned)):
            return first, None
        on = jumps.index(None) if None in jumps else jumps.index(CONTINUE) if CONTINUE in jumps else 1
        self._emit_jump(jumps[1 - on], parts[1 - on], dict(zip(names, results[1 - on], strict=True)), place)
        return jumps[on], on

    def _emit_jump(self, jump: Jump | None, part: Any, values: dict[str, Any], place: Place) -> None:
        assert jump is not None
        builder, loop = self.builder, self.loops[-1] if self.loops else None
        if loop is not None and loop.unrolled:
            raise NeedsLoop
        if builder.parallel:
            self._refuse_jump(jump, place, "in T.Parallel", "put what follows under 'if' or 'else' instead")
        if isinstance(jump, Returned):
            if self.calls or jump.value is not None:
                self._refuse_jump(jump, place, "in a function that a kernel calls", "return at its end")
            builder.leave_kernel(f"'{jump.word}' under a condition known only at run time")
            part.nodes.append(n.Return(span=builder.span()))
            return
        if loop is None or loop.scales != len(builder.scales):
            self._refuse_jump(
                jump,
                place,
                "of a loop around the T.Scale it is in",
                "put what follows under 'if' instead",
            )
        assert loop is not None
        for name, start in zip(loop.names, loop.start, strict=True):
            value = values.get(name, start)
            if value is not start and isinstance(start, Carried) and is_scalar(value):
                part.nodes.append(n.Let(start.variable.name, as_expr(value), span=builder.span()))
                start.read = True
        loop.left_early = True
        part.nodes.append((n.Break if jump is BREAK else n.Continue)(span=builder.span()))

    def _refuse_jump(self, jump: Jump, place: Place, where: str, advice: str) -> NoReturn:
        raise ProgramError(
            f"'{jump.word}' {where}, under a condition known only at run time", place=place, advice=advice
        )

    # --- loops ------------------------------------------------------------------------------------

    def for_(
        self, place: Place, iterable: Any, body: Callable[..., Any], names: tuple[str, ...], state: State,
        context: LoopContext,
    ) -> _Result:  # fmt: skip
        if isinstance(iterable, ParallelRange):
            if len(context.targets) == len(iterable.extents):
                iterable = replace(iterable, names=_named(context.targets, iterable.names))
            return self._parallel(place, iterable, body, names, state)
        if isinstance(iterable, PersistentRange):
            tiles, inner = iterable, body
            iterable = tiles.flat()
            body = lambda number, *rest: inner(tiles.coordinates(number), *rest)  # noqa: E731
        if isinstance(iterable, SerialRange):
            if len(context.targets) == 1:
                iterable = replace(iterable, name=_named(context.targets, (iterable.name,))[0])
            return self._at_top(lambda: self._serial(place, iterable, body, names, state, context))
        if isinstance(iterable, Value):
            raise ProgramError("a number cannot be looped over", place=place, advice="for k in T.serial(n)")
        if isinstance(iterable, range) and iterable[MAX_UNROLLED_ROUNDS:]:
            raise ProgramError(
                f"{iterable} would be unrolled, more than {MAX_UNROLLED_ROUNDS} rounds", place=place,
                advice="T.serial(n) makes a loop of the program",
            )  # fmt: skip
        return self._unrolled(
            lambda: super(Reader, self).for_(place, iterable, body, names, state, context),
            lambda: self._as_serial(place, iterable, body, names, state, context),
        )

    def _unrolled(self, unroll: Callable[[], _Result], stage: Callable[[], _Result]) -> _Result:
        """A loop over Python values is unrolled, unless leaving it depends on a run-time value."""

        def unrolled() -> _Result:
            self.loops.append(OpenLoop(unrolled=True))
            result = unroll()
            self.loops.pop()
            return result

        return self._or_else(unrolled, NeedsLoop, stage)

    def _as_serial(
        self, place: Place, iterable: Any, body: Callable[..., Any], names: tuple[str, ...], state: State,
        context: LoopContext,
    ) -> _Result:  # fmt: skip
        if not isinstance(iterable, range):
            raise ProgramError(
                "a loop over Python values is left under a condition known only at run time", place=place,
                advice="loop over T.serial(n) or range(n)",
            )  # fmt: skip
        loop = SerialRange("serial", iterable.start, iterable.stop, iterable.step, name="i")
        return self.for_(place, loop, body, names, state, context)

    def while_(
        self, place: Place, test: Callable[..., Any], body: Callable[..., Any], names: tuple[str, ...],
        state: State, context: LoopContext,
    ) -> _Result:  # fmt: skip
        def stage() -> _Result:
            loop = SerialRange("bounded", 0, MAX_WHILE_ITERATIONS, name="turn")

            def turn(_: Value, *start: Any) -> _Result:
                self.at(place)
                condition = test(*start)
                if isinstance(condition, Bounded):
                    loop.stop = condition.most
                self.at(place)
                if is_symbolic(condition):
                    span = self.builder.span()
                    stops = as_expr(operate("not", condition))
                    self.builder.append(n.If(stops, (n.Break(span=span),), span=span))
                    self.loops[-1].left_early = True
                elif not condition:
                    return start, BREAK
                return body(*start)

            return self._at_top(lambda: self._serial(place, loop, turn, names, state, context))

        unroll = super().while_
        return self._unrolled(lambda: unroll(place, test, body, names, state, context), stage)

    def _serial(
        self, place: Place, loop: SerialRange, body: Callable[..., Any], names: tuple[str, ...], state: State,
        context: LoopContext,
    ) -> _Result:  # fmt: skip
        self.at(place)
        for bound in (loop.start, loop.stop, loop.step):
            self.builder.check_expr(as_expr(bound))
        span = self.builder.span()
        variable = self.builder.fresh(loop.name or "i")
        start = self._carry(names, state)
        carried = [c for c in start if isinstance(c, Carried)]
        opened = OpenLoop(names, start, len(self.builder.scales))
        self.loops.append(opened)
        with self.builder.body(variable, *(c.variable.name for c in carried)) as inner:
            after, jump = body(Value(Symbol(variable)), *start)
            final = tuple(
                self._step(name, old, first, last, opened.left_early or name in context.live)
                for name, old, first, last in zip(names, state, start, after, strict=True)
            )
            if jump is not None and jump is not CONTINUE:
                self._emit_jump(jump, inner, {}, place)
        self.loops.pop()
        for one in carried:
            if one.read:
                name = one.variable.name
                self.builder.bodies[-1].nodes.append(n.Let(name, as_expr(one.before), span=span))
                self.builder.bodies[-1].variables.add(name)
        first, stop, step = (as_expr(v) for v in (loop.start, loop.stop, loop.step))
        node = n.Loop(loop.kind, variable, first, stop, step, loop.stages, tuple(inner.nodes), span=span)
        self.builder.append(node)
        return tuple(self._outside(name, v) for name, v in zip(names, final, strict=True)), None

    def _outside(self, name: str, value: Any) -> Any:
        """Return what a variable is outside the loop that set it."""
        known = not isinstance(value, Value) or self.builder.is_known(value.expr, ranks=False)
        return value if known else OutOfScope(name, None)

    def _carry(self, names: tuple[str, ...], state: State) -> list[Any]:
        return [
            Carried(self.builder.fresh(name), value)
            if is_scalar(value) and self.builder.is_known(as_expr(value))
            else value
            for name, value in zip(names, state, strict=True)
        ]

    def _step(self, name: str, before: Any, start: Any, after: Any, kept: bool) -> Any:
        """Return what a variable is after the loop; one read and assigned in the body is carried round it,
        and so is one that is read after the loop (``kept``)."""
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
        known = is_scalar(after) and self.builder.is_known(as_expr(after))
        if not start.read and not (kept and known):
            return after
        if not is_scalar(after):
            raise ProgramError(f"'{name}' changes its kind in a loop", advice="keep it a number")
        start.read = True
        self.builder.emit(n.Let, name=start.variable.name, value=as_expr(after))
        return Value(start.variable)

    def _made_here(self, tile: Tile) -> bool:
        inside = n.walk(tuple(self.builder.bodies[-1].nodes))
        return any(isinstance(m, (n.Alloc, n.View)) and m.name == tile.name for m in inside)

    def _parallel(
        self,
        place: Place,
        loop: ParallelRange,
        body: Callable[..., Any],
        names: tuple[str, ...],
        state: State,
    ) -> _Result:
        self.at(place)
        if self.builder.parallel:
            raise ProgramError("T.Parallel inside T.Parallel", advice="write one T.Parallel over all indices")
        self.builder.open_implied()
        variables = tuple(self.builder.fresh(w) for w in loop.names)
        items, extents = [Value(Symbol(v)) for v in variables], tuple(as_expr(e) for e in loop.extents)
        with self.builder.inside(n.Parallel, *variables, vars=variables, extents=extents):
            self.builder.parallel = list(variables)
            _, jump = body(items[0] if len(items) == 1 else tuple(items), *state)
            if jump is not None and jump is not CONTINUE:
                self._refuse_jump(jump, place, "in T.Parallel", "T.serial runs one iteration after the other")
            self.builder.parallel = []
        return state, None


def _named(targets: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the user's names of loop variables, but for ``_``."""
    return tuple(t if t.strip("_") else n for t, n in zip(targets, names, strict=True))
