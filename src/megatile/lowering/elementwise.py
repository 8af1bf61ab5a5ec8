"""Elementwise code as ``nest`` commands: one for each statement that stores, over all iterations.

Conditions become conditions of the command, variables are put in where they are used (or kept in a tile of
the iterations, where something in between changes what they were made of), loops inside stay loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from megatile.core.elementwise import ATOMICS
from megatile.core.expr import (
    ZERO,
    Const,
    Expr,
    Symbol,
    applied,
    bounds,
    known,
    logical_not,
    simplify,
    symbols,
    walk,
)
from megatile.core.expr.typing import Load
from megatile.ir import nodes as n
from megatile.lowering.elements import Command, IterationScope, Number, narrowed, whole
from megatile.lowering.errors import cannot
from megatile.lowering.loops import loop_scope
from megatile.lowering.regions import Block
from megatile.lowering.streams import NUMBERS, RULES, StreamScope
from megatile.lowering.units import Place, split_number
from megatile.plan import model as pm

# --- statements -----------------------------------------------------------------------------------


def statement(scope: StreamScope, node: n.Node) -> None:
    """Elementwise code, or a store or atomic of one unit outside of it."""
    _body(IterationScope(scope), (node,))


def let(scope: StreamScope, node: n.Let) -> None:
    """Keep a variable that is not a whole number known to the stream."""
    iterations = IterationScope(scope)
    value = iterations.resolve(node.value)
    if not any(isinstance(part, Load) for part in walk(value)) and scope.state.facts.assigned_once(node.name):
        scope.values[node.name] = value
        return
    if node.value.dtype in ("float", "bool"):
        raise cannot(f"variable '{node.name}', a Python number that changes,", node)
    dtype = "i32" if node.value.dtype == "int" else node.value.dtype
    home = scope.state.variables.get(node.name)
    if home is None:
        home = scope.state.variables[node.name] = scope.state.scratch(scope, (1,), dtype, node.name)
    _store(iterations, whole(home), (ZERO,), value)
    scope.values[node.name] = Load(home.name, (ZERO,), dtype)
    scope.names.pop(node.name, None)


def read_number(scope: StreamScope, value: Expr, bound: int, word: str) -> Expr:
    """Return a whole number that an expression on data gives."""
    name, iterations = scope.state.declared.name(word), IterationScope(scope)
    home = scope.state.scratch(scope, (1,), "i32", word)
    _store(iterations, whole(home), (ZERO,), iterations.resolve(value))
    return scope.read(name, pm.Region(home.name), bound)


NUMBERS["data"] = read_number


def fill(scope: StreamScope, node: n.Fill) -> None:
    """Give every element of a region a value that is only known at run time."""
    for target in scope.regions.blocks(node.to, True):
        iterations = _over(scope, target)
        _store(iterations, target, iterations.index, iterations.resolve(node.value))


def atomic_region(scope: StreamScope, node: n.AtomicRegion) -> None:
    target = scope.regions.block(node.to, True, scope.peer_of(node, node.dst))
    source = scope.regions.block(node.source)
    if source.cut:
        raise cannot("an atomic of a region over the edge of a tensor", node)
    if target.cut:
        source = source.inner(target)
    iterations, pairs = _over(scope, target), dict(source.matched(target))
    names = {there: Symbol(iterations.names[i]) for i, there in enumerate(target.kept_axes)}
    index = tuple(names[pairs[d]] if d in pairs else ZERO for d in range(len(source.axes)))
    places = tuple(names.get(d, ZERO) for d in range(len(target.axes)))
    command = Command(iterations)
    command.emit(target, places, command.operand(source, index), node.op)


def _over(scope: StreamScope, target: Block) -> IterationScope:
    return IterationScope(
        scope, tuple((f"i{d}", target.axes[a].extent) for d, a in enumerate(target.kept_axes))
    )


def is_elementwise(node: n.ScaleRegion) -> bool:
    """Return whether the code of the units of a region is elementwise, so that all can run at once."""
    return all(
        isinstance(
            m, (n.Let, n.Store, n.If, n.Parallel, n.View, n.Alloc, n.Check, n.Print, n.Hint, n.Barrier)
        )
        or (isinstance(m, n.Atomic) and m.result is None)
        or (isinstance(m, n.Loop) and m.kind != "bounded")
        for m in n.walk(node.body)
    )


def elementwise_units(
    scope: StreamScope, node: n.ScaleRegion, total: int, counts: list[int], group: tuple[int, int]
) -> None:
    """Run all units of a region at once: their number is an iteration."""
    name = f"{node.scale}_{scope.state.declared.fresh()}"
    place = Place(scope.place.launch, (*scope.place.path, *split_number(Symbol(name), counts)))
    _body(IterationScope(scope.inside(place, group), ((name, Const(total)),)), node.body)


def _do_parallel(iterations: IterationScope, node: n.Parallel, rest: tuple[n.Node, ...]) -> None:
    every = (*iterations.vars, *zip(node.vars, map(iterations.scope.whole, node.extents), strict=True))
    _body(replace(iterations, vars=every, values=dict(iterations.values)), node.body)


def _body(iterations: IterationScope, body: tuple[n.Node, ...]) -> None:
    for at, node in enumerate(body):
        iterations.scope.node = node
        _RULES[type(node)](iterations, node, body[at + 1 :])


def _do_store(iterations: IterationScope, node: n.Store | n.Atomic, rest: tuple[n.Node, ...]) -> None:
    """A store at a larger scale writes all slices below the unit; mostly there is just its own."""
    atomic, scope = isinstance(node, n.Atomic), iterations.scope
    if isinstance(node, n.Atomic) and (node.result is not None or node.op not in ATOMICS):
        raise cannot("an atomic whose old value is used", node)
    _keep_before(iterations, node.target, rest)
    index = tuple(iterations.resolve(i) for i in node.index)
    value = iterations.resolve(node.value)
    guarded, iterations = bool(iterations.guards), narrowed(iterations)
    slices = len(scope.regions.leads(scope.state.homes.home(node.target), scope.place, True))
    for place in range(1 if atomic else slices):
        command = Command(iterations)
        peer = scope.peer_of(node, getattr(node, "dst", None))
        target, where = command.access(node.target, command.all(index), guarded, place, peer)
        target = target if peer is None else replace(target, at=scope.owner(target.home, peer))
        command.emit(target, where, command.loads(value, guarded), getattr(node, "op", ""))


def _do_let(iterations: IterationScope, node: n.Let, rest: tuple[n.Node, ...]) -> None:
    value = iterations.resolve(node.value)
    if node.name in iterations.kept:
        _store(iterations, whole(iterations.kept[node.name]), iterations.index, value)
        return
    if iterations.guards and node.name in iterations.values:
        for guard in iterations.guards:
            value = applied("select", (guard, value, iterations.values[node.name]), node.value.dtype)
    iterations.values[node.name] = value


def _do_if(iterations: IterationScope, node: n.If, rest: tuple[n.Node, ...]) -> None:
    condition = iterations.resolve(node.condition)
    changed = {
        iterations.scope.state.homes.table[r.source].base
        for m in n.walk((*node.body, *node.orelse))
        for kind, r in n.regions(m)
        if kind != "read" and r.source in iterations.scope.state.homes.table
    }
    used = {_base(iterations, part.source) for part in walk(condition) if isinstance(part, Load)}
    if used & changed:
        condition = _keep(iterations, condition, "bool")
    number = condition.value if isinstance(condition, Number) else condition
    decided = known(number) if isinstance(condition, (Number, Const)) else None
    for body, guard in ((node.body, condition), (node.orelse, _negated(condition))):
        if not body or (decided is not None and bool(decided) != (body is node.body)):
            continue
        guards = iterations.guards if decided is not None else (*iterations.guards, guard)
        inner = replace(iterations, guards=guards, values=dict(iterations.values))
        _body(inner, body)
        for name in set(inner.values) & {m.name for m in n.walk(body) if isinstance(m, n.Let)}:
            iterations.values[name] = inner.values[name]


def _negated(condition: Expr) -> Expr:
    return (
        Number(logical_not(condition.value))
        if isinstance(condition, Number)
        else applied("not", (condition,), "bool")
    )


def _do_loop(iterations: IterationScope, node: n.Loop, rest: tuple[n.Node, ...]) -> None:
    changed = {m.name for m in n.walk(node.body) if isinstance(m, n.Let)}
    for name in sorted(changed & set(iterations.values)):
        value = iterations.values[name]
        kept = _keep(iterations, value, {"int": "i32", "float": "f32"}.get(value.dtype, value.dtype))
        assert isinstance(kept, Load)
        iterations.kept[name] = iterations.scope.state.homes.found[kept.source]
        iterations.values[name] = kept
    iterations.scope.node = node
    scope = iterations.scope
    limits: tuple[Expr, ...] = ()
    ends = [scope.static(e) for e in (node.start, node.stop)]
    if any(e is not None and symbols(e) & set(iterations.names) for e in ends):
        node, limits = _widest(iterations, node)
    with loop_scope(scope, node) as inner:
        guards = (*iterations.guards, *limits)
        _body(replace(iterations, scope=inner, values=dict(iterations.values), guards=guards), node.body)


def _widest(iterations: IterationScope, node: n.Loop) -> tuple[n.Loop, tuple[Expr, ...]]:
    """Return a loop that iterations run unequally often: as often as any, each under its own limits."""
    scope = iterations.scope
    ranges = scope.ranges | {v: (0, size - 1) for v, e in iterations.vars if (size := known(e))}
    low, high = (bounds(simplify(scope.whole(e)), ranges) for e in (node.start, node.stop))
    if low is None or high is None or known(scope.whole(node.step)) != 1:
        raise cannot("a loop that iterations run unequally often, without a bound", node)
    var = Symbol(node.var)
    limits = (
        applied(">=", (Number(var), iterations.lifted(scope.whole(node.start))), "bool"),
        applied("<", (Number(var), iterations.lifted(scope.whole(node.stop))), "bool"),
    )
    return replace(node, start=Const(low[0]), stop=Const(high[1])), limits


_RULES: dict[type[n.Node], Callable[[IterationScope, Any, tuple[n.Node, ...]], None]] = {
    n.Store: _do_store,
    n.Atomic: _do_store,
    n.Let: _do_let,
    n.If: _do_if,
    n.Loop: _do_loop,
    n.Parallel: _do_parallel,
    n.Alloc: lambda iterations, node, rest: RULES[type(node)](iterations.scope, node),
    **dict.fromkeys((n.View, n.Check, n.Print, n.Hint, n.Barrier), lambda iterations, node, rest: None),
}


# --- variables in tiles ---------------------------------------------------------------------------


def _base(iterations: IterationScope, name: str) -> str:
    table = iterations.scope.state.homes.table
    return table[name].base if name in table else name


def _keep_before(iterations: IterationScope, target: str, rest: tuple[n.Node, ...]) -> None:
    """Variables made of what a store changes, and used later, get their value now."""
    base = _base(iterations, target)
    later = {s for m in n.walk(rest) for e in n.expressions(m) for s in symbols(e)}
    for name in sorted(later & set(iterations.values)):
        value = iterations.values[name]
        if any(isinstance(p, Load) and _base(iterations, p.source) == base for p in walk(value)):
            dtype = {"int": "i32", "float": "f32"}.get(value.dtype, value.dtype)
            iterations.values[name] = _keep(iterations, value, dtype)


def _keep(iterations: IterationScope, value: Expr, dtype: str) -> Expr:
    """Return a value of every iteration, in a tile of its own."""
    extents = [known(e) for _, e in iterations.vars]
    if None in extents:
        raise cannot(
            "a variable of elementwise code whose extents are known only at run time", iterations.scope.node
        )
    home = iterations.scope.state.scratch(iterations.scope, tuple(e or 0 for e in extents) or (1,), dtype)
    _store(replace(iterations, guards=()), whole(home), iterations.index, value)
    return Load(home.name, iterations.index, dtype)


def _store(iterations: IterationScope, target: Block, index: tuple[Expr, ...], value: Expr) -> None:
    """Store the value of every iteration in an element of a block; ``index`` counts in its tile's axes."""
    command = Command(iterations)
    places = list(index) if len(index) == len(target.axes) else []
    if not places:
        names = iter(index)
        places = [next(names) if axis.kept else ZERO for axis in target.axes]
    command.emit(target, tuple(places), command.loads(value, bool(iterations.guards)))
