"""One ``nest`` command: the iterations it runs over, its operands as blocks, its code as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from megatile.core.dtypes import itemsize
from megatile.core.elementwise import ATOMICS, OPERATION_NAMES, PUT
from megatile.core.expr import (
    ONE,
    WEAK,
    ZERO,
    Applied,
    Call,
    Const,
    Expr,
    Symbol,
    applied,
    bounds,
    known,
    linear,
    maximum,
    minimum,
    rebuild,
    simplify,
    symbols,
    unit,
    walk,
)
from megatile.core.expr.typing import Load
from megatile.core.operations import OPERATIONS
from megatile.ir import nodes as n
from megatile.ir.expr import Pick
from megatile.lowering.commands import banked, scattered
from megatile.lowering.errors import cannot
from megatile.lowering.regions import Axis, Block, inside, local_runs, product
from megatile.lowering.storage import Home
from megatile.lowering.streams import LoweringState, StreamScope
from megatile.lowering.units import NotStatic, Place, clamp, tidy
from megatile.plan import model as pm

FUNCTIONS = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid")
"""What an engine for special functions does."""


@dataclass(frozen=True)
class Number(Expr):
    """A whole number of the Plan inside elementwise code."""

    value: Expr
    dtype: str = "int"

    def text(self, outer: int = 0) -> str:
        return f"<{self.value}>"


@dataclass
class IterationScope:
    """The iterations of elementwise code, and what its variables stand for."""

    scope: StreamScope
    vars: tuple[tuple[str, Expr], ...] = ()
    values: dict[str, Expr] = field(default_factory=dict)
    kept: dict[str, Home] = field(default_factory=dict)
    """Variables that lie in a tile, one element per iteration."""
    guards: tuple[Expr, ...] = ()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.vars]

    @property
    def index(self) -> tuple[Expr, ...]:
        return tuple(Symbol(name) for name in self.names) or (ZERO,)

    def resolve(self, expr: Expr) -> Expr:
        """Return an expression with its variables put in; parts that the stream knows are ``Number``s."""
        if expr.dtype in ("int", "bool") and not isinstance(expr, Const):
            try:
                mine = {
                    k: v for k, v in self.scope.names.items() if k not in self.names and k not in self.values
                }
                return self.lifted(self.scope.place.whole(expr, mine | {v: Symbol(v) for v in self.names}))
            except NotStatic:
                pass
        if isinstance(expr, Symbol):
            found = self.values.get(expr.name, self.scope.values.get(expr.name))
            if found is None and expr.name in self.scope.names:  # a number with a type, as atomics give
                found = Call("cast", (Number(self.scope.names[expr.name]),), expr.dtype)
            if found is None:
                raise cannot(f"variable '{expr.name}'", self.scope.node)
            return found
        if isinstance(expr, Const):
            weak = expr.dtype in WEAK
            return expr if weak else Call("cast", (Const(expr.value, type(expr.value).__name__),), expr.dtype)
        if isinstance(expr, Load):
            return Load(expr.source, tuple(self.resolve(i) for i in expr.index), expr.dtype)
        if isinstance(expr, Pick):
            return Pick(self.resolve(expr.index), expr.row, expr.sets)
        if isinstance(expr, Applied):
            return applied(expr.operator, tuple(self.resolve(a) for a in expr.args), expr.dtype)
        raise cannot(f"'{expr}' in elementwise code", self.scope.node)

    def lifted(self, expr: Expr) -> Expr:
        """Return a whole number of the Plan, with the parts that do not depend on the iteration as one
        each."""
        if isinstance(expr, Const) or (isinstance(expr, Symbol) and expr.name in self.names):
            return expr
        if not symbols(expr) & set(self.names):
            return Number(expr)
        return expr.rebuilt(*(self.lifted(child) for child in expr.children()))


def whole(home: Home) -> Block:
    return Block(home, tuple(Axis(ZERO, Const(e), Const(e)) for e in home.extents))


def narrowed(iterations: IterationScope) -> IterationScope:
    """Return the same iterations without conditions ``i < n``: there are only so many. What others write
    behind the last one is then no part of the command."""
    extents, guards = dict(iterations.vars), []
    for guard in (part for whole in iterations.guards for part in _both(whole)):
        found = _limit(guard, iterations.names)
        if found is None:
            guards.append(guard)
        else:
            name, limit = found
            extents[name] = tidy(maximum(minimum(extents[name], limit), 0), iterations.scope.ranges)
    return replace(iterations, vars=tuple(extents.items()), guards=tuple(guards))


def _both(condition: Expr) -> list[Expr]:
    """Return the conditions that all must hold."""
    args: tuple[Expr, ...] = getattr(condition, "args", ())
    operator = getattr(condition, "operator", "")
    if operator in ("and", "&") and condition.dtype != "i32":
        return [part for arg in args for part in _both(arg)]
    if operator == "!=" and args[1] == ZERO and getattr(args[0], "operator", "") in COMPARISONS:
        return [args[0]]
    return [condition]


COMPARISONS = ("<", "<=", ">", ">=")


def _limit(condition: Expr, names: Sequence[str]) -> tuple[str, Expr] | None:
    """Return the iterations that a condition leaves of one variable, if it says just that."""
    operator = getattr(condition, "operator", "")
    if operator not in COMPARISONS:
        return None
    left, right = condition.args if operator[0] == "<" else reversed(condition.args)  # type: ignore[attr-defined]
    if left.dtype != "int" or right.dtype != "int":
        return None
    terms, offset = linear(left - right)
    mine = [t for t in terms if isinstance(t, Symbol) and t.name in names]
    if len(mine) != 1 or terms[mine[0]] != 1 or not all(t == mine[0] or isinstance(t, Number) for t in terms):
        return None
    limit: Expr = Const(-offset + (operator in ("<=", ">=")))
    for term, factor in terms.items():
        if isinstance(term, Number):
            limit = limit - term.value * factor
    return mine[0].name, simplify(limit)


class Command:
    """One ``nest``: its operands, numbers and code."""

    def __init__(self, iterations: IterationScope):
        self.iterations, self.scope = iterations, iterations.scope
        self.operands: list[Block] = []
        self.numbers: dict[Expr, str] = {}
        self.codes: dict[tuple[str, tuple[Expr, ...]], Load] = {}

    def operand(self, block: Block, index: tuple[Expr, ...], dtype: str | None = None) -> Load:
        if block not in self.operands:
            self.operands.append(block)
        return Load(f"@{self.operands.index(block)}", index, dtype or block.home.dtype)

    def all(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return an index with its loads as elements of operands."""
        return tuple(self.loads(i, bool(self.iterations.guards)) for i in index)

    def loads(self, expr: Expr, guarded: bool) -> Expr:
        """Return the expression with its loads as elements of operands."""
        if isinstance(expr, Load):
            index = tuple(self.loads(i, guarded) for i in expr.index)
            block, where = self.access(expr.source, index, guarded)
            return self.operand(block, where, expr.dtype)
        if isinstance(expr, Pick):
            return Pick(self.loads(expr.index, guarded), expr.row, expr.sets)
        if not isinstance(expr, Applied):
            return expr
        first, *others = expr.args
        lazy = expr.operator in ("select", "and", "or")
        args = (self.loads(first, guarded), *(self.loads(a, guarded or lazy) for a in others))
        return applied(expr.operator, args, expr.dtype)

    def access(
        self,
        name: str,
        index: tuple[Expr, ...],
        guarded: bool,
        slice_number: int = 0,
        peer: Place | None = None,
    ) -> tuple[Block, tuple[Expr, ...]]:
        """Return the block that holds the elements of all iterations, and their index in it; ``peer``: in its
        tile."""
        scope, regions = self.scope, self.scope.regions
        homes = scope.state.homes
        if name not in homes.table:
            home = homes.found[name]  # a tile of the stream's own
            found = [self.axis(i, home.extents[d], False, set()) for d, i in enumerate(index)]
            return Block(home, tuple(a for a, _ in found)), tuple(i for _, i in found)
        home = homes.home(name)
        regions.check(homes.table[name], home, n.Region(name, ()))
        lift = self.iterations.lifted
        origin = regions.origin(name, peer or scope.place)
        where = [
            _plus(lift(-low), i) if low != ZERO else i
            for low, i in zip(origin, self.local(home, index), strict=True)
        ]
        leads = regions.leads(home, scope.place, True)[slice_number]
        where = [*(lift(axis.start) for axis in leads), *where]
        used: set[str] = set()
        padded = homes.program.padded and home.tensor
        found = [self.axis(i, home.extents[d], guarded or padded, used) for d, i in enumerate(where)]
        return Block(home, tuple(a for a, _ in found)), tuple(i for _, i in found)

    def local(self, home: Home, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return an index by places in a home whose indices are no run."""
        if not home.scattered:
            if any(isinstance(i, Pick) for i in index):
                raise cannot("elementwise code of units whose elements are not contiguous", self.scope.node)
            return index
        regions, found = self.scope.regions, []
        for d, pick in enumerate(index):
            if not isinstance(pick, Pick):
                raise cannot(
                    f"'{home.name}', whose parts are not contiguous, by its own name", self.scope.node
                )
            low, _ = local_runs(pick, regions.held(home, d), self.scope.node)
            found.append(_plus(self.iterations.lifted(self.scope.whole(low)), pick.index))
        return tuple(found)

    def axis(self, index: Expr, length: int, guarded: bool, used: set[str]) -> tuple[Axis, Expr]:
        """Return one dimension: a run of elements where the index is a variable plus a number, else all of
        it."""
        terms, offset = linear(index)
        names = dict(self.iterations.vars)
        found = [t.name for t in terms if isinstance(t, Symbol) and t.name in names]
        plain = all(isinstance(t, (Number, Symbol)) for t in terms)
        if not plain or len(found) > 1 or (found and (terms[Symbol(found[0])] != 1 or found[0] in used)):
            return Axis(ZERO, Const(length), Const(length)), index
        base: Expr = Const(offset)
        for term, factor in terms.items():
            if isinstance(term, Number):
                base = base + term.value * factor
        base = simplify(base)
        extent = names[found[0]] if found else ONE
        used |= set(found)
        shown: Expr = Symbol(found[0]) if found else ZERO
        if not guarded or inside(base, extent, Const(length), self.scope.ranges):
            return Axis(base, extent, extent, kept=bool(found)), shown
        low = clamp(base, 0, length)
        high = clamp(base + extent, low, length)
        return Axis(low, simplify(high - low), extent, kept=bool(found), cut=True), _plus(
            shown, Number(base - low)
        )

    def emit(self, target: Block, index: tuple[Expr, ...], value: Expr, combine: str = "") -> None:
        iterations, scope = self.iterations, self.scope
        guards = [self.loads(g, True) for g in iterations.guards]
        shown = [i.name for i in index if isinstance(i, Symbol)]
        covered = sorted(shown) == sorted(v for v, e in iterations.vars if e != ONE or v in shown)
        simple = all(isinstance(i, Symbol) or i == ZERO for i in index)
        box = (
            covered
            and simple
            and not guards
            and not combine
            and not target.cut
            and all(
                axis.extent == (dict(iterations.vars)[i.name] if isinstance(i, Symbol) else ONE)
                for axis, i in zip(target.axes, index, strict=True)
            )
        )
        named = [t.name for i in index for t in linear(i)[0] if isinstance(t, Symbol)]
        exact = sorted(named) == sorted(v for v, e in iterations.vars if e != ONE or v in named)
        exact = exact and all(_runs(i) for i in index)
        operands = list(self.operands)
        word, remote = "w", target.at is not None and bool(operands)
        if not box:
            others = [b for b in operands if b != target]
            operands = [*others, target] if remote else [target, *others]
            word = f"a{operands.index(target)}"
        numbering = {f"@{i}": f"a{operands.index(b)}" for i, b in enumerate(self.operands)}
        places = ", ".join(self.text(i, numbering) for i in index)
        shown_value = self.text(value, numbering)
        if iterations.vars or guards:
            extents = [self.text(Number(e), numbering) for _, e in iterations.vars] or ["1"]
            conditions = "".join(f" if {self.text(g, numbering)}" for g in guards)
            every = f"{', '.join(iterations.names or ['_'])} in ({', '.join(extents)},)"
            shown_value = f"({shown_value} for {every}{conditions})"
        attributes: dict[str, Any] = {"code": f"{word}[{places}] = {shown_value}"} | {
            name: e for e, name in self.numbers.items()
        }
        if combine:
            attributes["combine"] = combine
        if scope.state.program.padded:
            attributes["padded"] = True
        if not box and (target.home.depth < scope.level.depth or target.at is not None):
            attributes["each"] = unit  # one unit after the other: all change the same tile
            if not combine and not (exact and not guards):
                attributes["combine"] = PUT  # of its region only elements that conditions or data tell
        work = _work((value, *guards), iterations.vars, scope.state)
        dtype = value.dtype if value.dtype not in WEAK and value.dtype != "bool" else "f32"
        reads = tuple(b.region() for b in operands)
        given = tuple(sorted(attributes.items()))
        # What changes another unit's elements travels there: the path begins at the first operand.
        moved = simplify(target.elements * itemsize(target.home.dtype)) if remote else ZERO
        touched = dict.fromkeys([(target, index), *self.accesses((value, *guards))])
        if not remote:
            loops = iterations.vars
            moved = banked(scope, [(b.home, i, loops) for b, i in touched], product(e for _, e in loops))
        atomics = self.in_a_row(target, index) if combine in ATOMICS and not remote else 0
        touched = dict.fromkeys(one for one in touched if not atomics or one != (target, index))
        fetched = 0 if remote else scattered(scope, touched, self.counts())
        done = pm.Work(ZERO if remote else simplify(work), moved, dtype, fetched, atomics)
        scope.emit(pm.Compute("nest", target.region(), reads, given, "dma" if remote else "vector", done))

    def counts(self) -> list[tuple[str, int]]:
        """Return the iterations of every loop; where they vary, the most."""
        found = []
        for name, extent in self.iterations.vars:
            most = bounds(simplify(extent), self.scope.ranges)
            found.append((name, max(1, int(most[1])) if most is not None else 1))
        return found

    def in_a_row(self, target: Block, index: tuple[Expr, ...]) -> int:
        """Return how many iterations change one element of the target; those that the data send there, as if
        they were spread evenly."""
        spread, named = 1, set[str]()
        for axis, at in zip(target.axes, index, strict=True):
            mine = symbols(at) & set(self.iterations.names)
            counts = [n for name, n in self.counts() if name in mine]
            if any(isinstance(part, Load) for part in walk(at)):
                spread *= min(prod(counts), known(axis.size) or 1)
            else:
                spread *= prod(n for name, n in self.counts() if name in mine - named)
                named |= mine
        return -(-prod(n for _, n in self.counts()) // max(1, spread))

    def accesses(self, values: Sequence[Expr]) -> list[tuple[Block, tuple[Expr, ...]]]:
        """Return the elements of operands in expressions."""
        loads = (part for value in values for part in walk(value) if isinstance(part, Load))
        return [(self.operands[int(load.source[1:])], load.index) for load in loads]

    def text(self, expr: Expr, numbering: dict[str, str]) -> str:
        def named(part: Expr) -> Expr:
            if isinstance(part, Number):
                value = simplify(part.value)
                if isinstance(value, Const):
                    return value
                return Symbol(self.numbers.setdefault(value, f"s{len(self.numbers)}"))
            if isinstance(part, Load):
                return Load(numbering.get(part.source, part.source), part.index, part.dtype)
            return part

        return rebuild(expr, named).text()


def _runs(index: Expr) -> bool:
    """Return whether an index is one of the iterations, moved by a number: a run of elements."""
    terms, _ = linear(index)
    return all(isinstance(t, Number) or (isinstance(t, Symbol) and terms[t] == 1) for t in terms)


def _plus(left: Expr, right: Expr) -> Expr:
    return simplify(applied("+", (left, right)))


def _work(values: tuple[Expr, ...], loops: Sequence[tuple[str, Expr]], state: LoweringState) -> Expr:
    """Return operations of the vector engine: at least one for each element; what does not change in the
    inner loops is done once in each round of the outer ones. Functions take as long as their own engine
    does."""
    depth = {name: number for number, (name, _) in enumerate(loops, 1)}
    counts, wait = [0] * (len(loops) + 1), False
    for value in values:
        for part in walk(value):
            if isinstance(part, Applied):
                name = OPERATION_NAMES.get(part.operator, part.operator)
                own = OPERATIONS[name].flops((1,)) if name in OPERATIONS else 1
                special = part.operator in FUNCTIONS
                cost, wait = state.facts.special[0] or own if special else own, wait or special
                counts[max((depth.get(s, 0) for s in symbols(part)), default=0)] += cost
    counts[-1] = max(1, counts[-1])
    counts[0] += state.facts.special[1] if wait else 0
    return sum((count * product(e for _, e in loops[:d]) for d, count in enumerate(counts) if count), ZERO)
