"""Reads a kernel once, with symbolic ids, into the statements of a stream.

A loop's body is read until it is known which variables it carries, and once more to see that it reads the
same: a body with hidden state (a list that grows, a counter) does not, and is unrolled. Where a number is
needed that only a loop decides, that loop is unrolled; where it depends on the unit, ``NeedsValue`` reaches
the caller, who reads unit by unit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from megatile.core.errors import Place
from megatile.core.expr import (
    ONE,
    Expr,
    Symbol,
    bounds,
    expr,
    logical_not,
    ne,
    select,
    symbols,
    table,
)
from megatile.language.common.hooks import Hooks, Jump, LoopContext, Returned, State, Undefined, ends_loop
from megatile.language.kernel.blocks import RawMemory
from megatile.language.kernel.symbols import KernelError, NeedsValue, Sym, SymRange, to_expr, wrap
from megatile.language.kernel.values import (
    BUILTINS,
    Pointer,
    TileRef,
    depends_only_on,
    hashable,
    is_truth,
    same_value,
    symbolic_value,
)
from megatile.plan.build import PlanBuilder
from megatile.plan.model import CarryInt, CarryTile, If, Loop, MergeInt, MergeTile

SEEN_DEPTH = 3
"""How deep the objects are looked into that a loop body can see."""


class CannotStage(Exception):
    """The loop cannot be kept as a loop; the reason is only of use for deciding to unroll."""


class Reader(Hooks):
    """The hooks behind ``tl``: see the module's text. ``ranges`` bounds the symbols known so far."""

    def __init__(self, plan: PlanBuilder, units: int):
        super().__init__()
        self.plan = plan
        self.ranges: dict[str, tuple[int, int]] = {"unit": (0, units - 1)}
        self.units = units
        self.depth = 0
        self.largest_message = 0
        self.raw = RawMemory()
        self.branches = 0

    # --- values ----------------------------------------------------------------------------------

    def at(self, place: Place) -> None:
        self.here = self.plan.place = place

    def call(self, place: Place, function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        self.here = self.plan.place = place
        special = BUILTINS.get(function) if hashable(function) else None
        if special is not None and not keywords and any(symbolic_value(a) for a in arguments):
            return special(self, *arguments)
        return super().call(place, function, *arguments, **keywords)

    def getitem(self, place: Place, container: Any, index: Any) -> Any:
        if isinstance(index, Sym) and isinstance(container, (list, tuple, range)):
            values = list(container)
            if values and all(isinstance(v, int) for v in values):
                return wrap(table(values, index.expr), self)
        return container[index]

    def formatted(self, place: Place, value: Any) -> Any:
        if isinstance(value, (Sym, TileRef)):
            self.here = place
            return str(value)
        return value

    def compare_two(self, place: Place, word: str, left: Any, right: Any) -> Any:
        self.here = place
        return super().compare_two(place, word, left, right)

    def boolean(self, place: Place, word: str, operands: tuple[Callable[[], Any], ...]) -> Any:
        """Known operands decide at once; the rest becomes an expression."""
        symbolic: list[Expr] = []
        value: Any = None
        for operand in operands:
            value = operand()
            if isinstance(value, Sym):
                symbolic.append(ne(value.expr, 0) if not is_truth(value.expr) else value.expr)
            elif self.truth(place, value) != (word == "and"):
                return value
        if not symbolic:
            return value
        total = symbolic[0]
        for other in symbolic[1:]:
            total = total & other if word == "and" else total | other
        return wrap(total, self)

    def truth(self, place: Place, value: Any) -> bool:
        self.here = place
        return bool(value)

    def not_(self, place: Place, value: Any) -> Any:
        return wrap(logical_not(value.expr), self) if isinstance(value, Sym) else super().not_(place, value)

    def choose(self, place: Place, condition: Any, then: Callable[[], Any], orelse: Callable[[], Any]) -> Any:
        if not isinstance(condition, Sym):
            return super().choose(place, condition, then, orelse)
        sides = (lambda: ((then(),), None)), (lambda: ((orelse(),), None))
        (value,), _ = self.if_(place, condition, *sides, ("chosen",), ())
        return value

    def assert_(self, place: Place, condition: Any, message: Callable[[], Any]) -> None:
        """Assertions about the unit's number are tried on every unit; those about runtime values are left
        out.
        """
        if not isinstance(condition, Sym):
            super().assert_(place, condition, message)  # noqa: PT009
        elif symbols(condition.expr) == {"unit"}:
            for number in range(self.units):
                if not condition.expr.evaluate({"unit": number}):
                    raise KernelError(f"assertion fails for unit {number}", place=place)

    # --- branches --------------------------------------------------------------------------------

    def if_(
        self,
        place: Place,
        condition: Any,
        then: Callable[..., Any],
        orelse: Callable[..., Any],
        names: tuple[str, ...],
        state: State,
    ) -> tuple[State, Jump | None]:
        if not isinstance(condition, Sym):
            return super().if_(place, condition, then, orelse, names, state)
        with self.collect(branches=1) as body:
            first, jump = then(*state)
        with self.collect(branches=1) as other:
            second, other_jump = orelse(*state)
        if type(jump) is not type(other_jump) or (jump is not other_jump and not isinstance(jump, Returned)):
            raise NeedsValue(condition.expr, place, "because only one branch jumps")
        merges: list[MergeTile | MergeInt] = []
        merged = tuple(
            self.merge_values(condition, place, name, a, b, merges)
            for name, a, b in zip(names, first, second, strict=True)
        )
        if isinstance(jump, Returned) and isinstance(other_jump, Returned):
            value = self.merge_values(condition, place, "returned", jump.value, other_jump.value, merges)
            jump = Returned(value, jump.place)
        if body or other or merges:
            self.plan.add(If(condition.expr, tuple(body), tuple(other), tuple(merges), place))
        return merged, jump

    def merge_values(
        self, condition: Sym, place: Place, name: str, a: Any, b: Any, merges: list[MergeTile | MergeInt]
    ) -> Any:
        """Return one value for what the two branches left in a variable."""
        if same_value(a, b):
            return a
        if isinstance(a, Undefined) or isinstance(b, Undefined):
            return Undefined(name, place)
        if isinstance(a, (int, Sym)) and isinstance(b, (int, Sym)):
            return self.merge_ints(condition, name, to_expr(a), to_expr(b), merges)
        if isinstance(a, TileRef) and isinstance(b, TileRef) and a.kind == b.kind:
            merged = self.plan.fresh(name)
            merges.append(MergeTile(merged, a.name, b.name))
            return a.renamed(merged)
        if isinstance(a, Pointer) and isinstance(b, Pointer) and a.tensor is b.tensor:
            offset = self.merge_ints(condition, name, to_expr(a.offset), to_expr(b.offset), merges)
            return Pointer(a.tensor, offset, self)
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            pairs = zip(a, b, strict=True)
            return tuple(self.merge_values(condition, place, name, x, y, merges) for x, y in pairs)
        raise NeedsValue(condition.expr, place, f"because '{name}' differs in kind between the branches")

    def merge_ints(
        self, condition: Sym, name: str, a: Expr, b: Expr, merges: list[MergeTile | MergeInt]
    ) -> Any:
        if depends_only_on(a, self.ranges) and depends_only_on(b, self.ranges):
            return wrap(select(condition.expr, a, b), self)
        merged = self.plan.fresh(name)
        merges.append(MergeInt(merged, a, b))
        limits = bounds(a, self.ranges), bounds(b, self.ranges)
        if limits[0] and limits[1]:
            self.ranges[merged] = (min(limits[0][0], limits[1][0]), max(limits[0][1], limits[1][1]))
        return Sym(Symbol(merged), self)

    # --- loops -----------------------------------------------------------------------------------

    def for_(
        self,
        place: Place,
        iterable: Any,
        body: Callable[..., Any],
        names: tuple[str, ...],
        state: State,
        context: LoopContext,
    ) -> tuple[State, Jump | None]:
        concrete = isinstance(iterable, range)
        if not (isinstance(iterable, SymRange) or (concrete and bool(iterable[1:]))):
            return super().for_(place, iterable, body, names, state, context)
        mark, ranges, seen = self.mark(), dict(self.ranges), Snapshot(context.captures())
        try:
            return self.stage(place, iterable, body, names, state, context, seen), None
        except (CannotStage, NeedsValue) as error:
            own = isinstance(error, CannotStage) or bool(symbols(error.node) - set(ranges))
            self.restore(mark)
            self.ranges = ranges
            seen.restore()
            if not concrete and own:
                reason = str(error) if isinstance(error, CannotStage) else "its index is needed as a number"
                raise NeedsValue(iterable.bound(), place, f"to unroll this loop ({reason})") from error
            if not own:
                raise
        return super().for_(place, iterable, body, names, state, context)

    def mark(self) -> Any:
        plan = self.plan
        return dict(plan.tiles), dict(plan._counts), dict(plan.flags), len(plan.body), self.raw.mark()

    def restore(self, mark: Any) -> None:
        plan = self.plan
        plan.tiles, plan._counts, plan.flags = dict(mark[0]), dict(mark[1]), dict(mark[2])
        del plan.body[mark[3] :]
        self.raw.restore(mark[4])

    @contextmanager
    def collect(self, loops: int = 0, branches: int = 0) -> Iterator[list[Any]]:
        """The statements of a body that is so many loops and branches deeper."""
        before = self.depth, self.branches
        self.depth, self.branches = self.depth + loops, self.branches + branches
        try:
            with self.plan.collect() as body:
                yield body
        finally:
            self.depth, self.branches = before

    def stage(
        self,
        place: Place,
        iterable: Any,
        body: Callable[..., Any],
        names: tuple[str, ...],
        state: State,
        context: LoopContext,
        seen: Snapshot,
    ) -> State:
        """Read the body into a ``Loop``; ``CannotStage`` if it does not read the same every time."""
        mark, ranges = self.mark(), dict(self.ranges)
        carried: set[int] = set()
        previous: Any = None
        for _ in range(2 * len(names) + 4):
            self.restore(mark)
            self.ranges = dict(ranges)
            index, limits = self.index_of(iterable)
            inside = [self.carry_in(names[i], v) if i in carried else v for i, v in enumerate(state)]
            with self.collect(loops=1) as statements:
                out, jump = body(index, *inside)
            if ends_loop(jump):
                raise CannotStage("it is left by a jump")
            if seen.changed():
                raise CannotStage("its body changes an object")
            if self.raw.retyped != mark[4][2]:
                raise CannotStage("its body uses memory with changing types")
            more = self.changed(names, state, inside, out, context) - carried
            if more:
                carried |= more
                previous = None
                continue
            carries = [self.carry(names[i], state[i], inside[i], out[i]) for i in sorted(carried)]
            reading = (tuple(statements), tuple(c for c, _ in carries))
            if previous is None:
                previous = reading
                continue
            if previous != reading:
                raise CannotStage("its body reads differently every time")
            self.deepen_versions(mark, reading[1])
            start, stop, step = limits
            self.plan.add(Loop(index.expr.name, start, stop, reading[0], step, reading[1], (), place))
            after = dict(zip(sorted(carried), (value for _, value in carries), strict=True))
            return tuple(after.get(i, value) for i, value in enumerate(state))
        raise CannotStage("its variables keep changing")

    def index_of(self, iterable: Any) -> tuple[Any, tuple[Expr, Expr, Expr]]:
        start, stop, step = (to_expr(v) for v in (iterable.start, iterable.stop, iterable.step))
        symbol = Symbol(self.plan.fresh("k"))
        low, high = bounds(start, self.ranges), bounds(stop - ONE, self.ranges)
        if low and high:
            self.ranges[symbol.name] = (min(low[0], high[0]), max(low[1], high[1]))
        return Sym(symbol, self), (start, stop, step)

    def changed(
        self, names: tuple[str, ...], state: State, inside: list[Any], out: State, context: LoopContext
    ) -> set[int]:
        """Return variables that an iteration hands on: changed ones, and new ones that are read after the
        loop."""
        result: set[int] = set()
        for i, (before, now) in enumerate(zip(inside, out, strict=True)):
            if isinstance(state[i], Undefined):
                if names[i] in context.live and isinstance(now, (TileRef, Sym, int)):
                    result.add(i)
            elif not same_value(before, now):
                result.add(i)
        return result

    def carry_in(self, name: str, init: Any) -> Any:
        """Return what a carried variable is inside the loop."""
        if isinstance(init, TileRef):
            return init.renamed(self.plan.fresh(name))
        if isinstance(init, Pointer):
            return Pointer(init.tensor, Sym(Symbol(self.plan.fresh(name)), self), self)
        if isinstance(init, (int, Sym)):
            return Sym(Symbol(self.plan.fresh(name)), self)
        if isinstance(init, Undefined):
            return init
        raise CannotStage(f"'{name}' cannot be carried")

    def carry(self, name: str, init: Any, inside: Any, out: Any) -> tuple[CarryTile | CarryInt, Any]:
        """Return the carry statement and the variable's value after the loop."""
        if isinstance(init, Undefined):
            return self.carry_new(name, out)
        if isinstance(inside, TileRef):
            if not isinstance(out, TileRef) or out.kind != inside.kind:
                raise CannotStage(f"'{name}' changes its shape or kind")
            return CarryTile(inside.name, init.name, out.name), inside
        if isinstance(inside, Pointer):
            if not isinstance(out, Pointer) or out.tensor is not inside.tensor:
                raise CannotStage(f"'{name}' points elsewhere")
            symbol = to_expr(inside.offset)
            assert isinstance(symbol, Symbol)
            return CarryInt(symbol.name, to_expr(init.offset), to_expr(out.offset)), inside
        if not isinstance(out, (int, Sym)):
            raise CannotStage(f"'{name}' does not stay an integer")
        return CarryInt(inside.expr.name, to_expr(init), to_expr(out)), inside

    def carry_new(self, name: str, out: Any) -> tuple[CarryTile | CarryInt, Any]:
        """Return a variable that gets its first value in the loop and is read after it."""
        if isinstance(out, TileRef):
            none = self.plan.tile(f"{name}_none", out.shape, out.dtype, memory=out.space)
            after = out.renamed(self.plan.fresh(name))
            return CarryTile(after.name, none.name, out.name), after
        symbol = Symbol(self.plan.fresh(name))
        return CarryInt(symbol.name, expr(0), to_expr(out)), Sym(symbol, self)

    def deepen_versions(self, mark: Any, carries: tuple[CarryTile | CarryInt, ...]) -> None:
        """Tiles handed on through several variables live for several iterations."""
        tiles = [c for c in carries if isinstance(c, CarryTile)]
        chained = sum(1 for c in tiles if c.next in {d.name for d in tiles} and c.next != c.name)
        for name, tile in list(self.plan.tiles.items()):
            if chained and name not in mark[0]:
                self.plan.tiles[name] = replace(tile, versions=tile.versions + chained)


class Snapshot:
    """What lists, dictionaries, sets and plain objects among some variables held before a loop body, which
    might change them: to compare and to put back."""

    def __init__(self, variables: dict[str, Any]):
        self._saved: list[tuple[Any, Any]] = []
        self._known: set[int] = set()
        for value in variables.values():
            self._add(value, SEEN_DEPTH)

    def _add(self, value: Any, depth: int) -> None:
        if depth == 0 or id(value) in self._known:
            return
        contents = _contents(value)
        if contents is None:
            return
        self._known.add(id(value))
        if not isinstance(value, tuple):
            self._saved.append((value, contents))
        for inner in contents.values() if isinstance(contents, dict) else contents:
            self._add(inner, depth - 1)

    def changed(self) -> bool:
        return any(not _same(_contents(value), contents) for value, contents in self._saved)

    def restore(self) -> None:
        for value, contents in self._saved:
            held = value if isinstance(value, (list, deque, dict, set)) else vars(value)
            held.clear()
            if isinstance(held, (list, deque)):
                held.extend(contents)
            else:
                held.update(contents)


def _contents(value: Any) -> Any:
    if isinstance(value, (list, deque, set, tuple)):
        return list(value)
    if isinstance(value, dict):
        return dict(value)
    ours = type(value).__module__.startswith(("megatile.", "numpy", "builtins", "functools"))
    if ours or isinstance(value, type) or not hasattr(value, "__dict__"):
        return None
    return dict(vars(value)) if not callable(value) else None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(a[k] is b[k] for k in a)
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
