"""Elementwise code as ``nest`` commands: one for each statement that stores, over all iterations.

Conditions become conditions of the command, variables are put in where they are used (or kept in a tile of
the iterations, where something in between changes what they were made of), loops inside stay loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
from megatile.lowering.elements import Command, Number, Scope, narrowed, whole
from megatile.lowering.errors import cannot
from megatile.lowering.loops import loop_frame
from megatile.lowering.regions import Block
from megatile.lowering.streams import NUMBERS, RULES, StreamScope
from megatile.lowering.units import Place, split_number
from megatile.plan import model as pm

# --- statements -----------------------------------------------------------------------------------


def statement(frame: StreamScope, node: n.Node) -> None:
    """Elementwise code, or a store or atomic of one unit outside of it."""
    _body(Scope(frame), (node,))


def let(frame: StreamScope, node: n.Let) -> None:
    """A variable that is no whole number known to the stream."""
    scope = Scope(frame)
    value = scope.resolve(node.value)
    if not any(isinstance(part, Load) for part in walk(value)) and frame.draft.facts.once(node.name):
        frame.values[node.name] = value
        return
    if node.value.dtype in ("float", "bool"):
        raise cannot(f"variable '{node.name}', a Python number that changes,", node)
    dtype = "i32" if node.value.dtype == "int" else node.value.dtype
    home = frame.draft.variables.get(node.name)
    if home is None:
        home = frame.draft.variables[node.name] = frame.draft.scratch(frame, (1,), dtype, node.name)
    _store(scope, whole(home), (ZERO,), value)
    frame.values[node.name] = Load(home.name, (ZERO,), dtype)
    frame.names.pop(node.name, None)


def read_number(frame: StreamScope, value: Expr, bound: int, word: str) -> Expr:
    """A whole number that an expression on data gives."""
    name, scope = frame.draft.declared.name(word), Scope(frame)
    home = frame.draft.scratch(frame, (1,), "i32", word)
    _store(scope, whole(home), (ZERO,), scope.resolve(value))
    return frame.read(name, pm.Region(home.name), bound)


NUMBERS["data"] = read_number


def fill(frame: StreamScope, node: n.Fill) -> None:
    """Every element of a region gets a value that is only known at run time."""
    for target in frame.regions.blocks(node.to, True):
        scope = _over(frame, target)
        _store(scope, target, scope.index, scope.resolve(node.value))


def atomic_region(frame: StreamScope, node: n.AtomicRegion) -> None:
    target = frame.regions.block(node.to, True, frame.peer_of(node, node.dst))
    source = frame.regions.block(node.source)
    if source.cut:
        raise cannot("an atomic of a region over the edge of a tensor", node)
    if target.cut:
        source = source.inner(target)
    scope, pairs = _over(frame, target), dict(source.matched(target))
    names = {there: Symbol(scope.names[i]) for i, there in enumerate(target.kept)}
    index = tuple(names[pairs[d]] if d in pairs else ZERO for d in range(len(source.axes)))
    places = tuple(names.get(d, ZERO) for d in range(len(target.axes)))
    command = Command(scope)
    command.emit(target, places, command.operand(source, index), node.op)


def _over(frame: StreamScope, target: Block) -> Scope:
    return Scope(frame, tuple((f"i{d}", target.axes[a].extent) for d, a in enumerate(target.kept)))


def is_elementwise(node: n.ScaleRegion) -> bool:
    """Whether the code of the units of a region is elementwise, so that all can run at once."""
    return all(
        isinstance(
            m, (n.Let, n.Store, n.If, n.Parallel, n.View, n.Alloc, n.Check, n.Print, n.Hint, n.Barrier)
        )
        or (isinstance(m, n.Atomic) and m.result is None)
        or (isinstance(m, n.Loop) and m.kind != "bounded")
        for m in n.walk(node.body)
    )


def elementwise_units(
    frame: StreamScope, node: n.ScaleRegion, total: int, counts: list[int], group: tuple[int, int]
) -> None:
    """All units of a region at once: their number is an iteration."""
    name = f"{node.scale}_{frame.draft.declared.fresh()}"
    place = Place(frame.place.launch, (*frame.place.path, *split_number(Symbol(name), counts)))
    _body(Scope(frame.inside(place, group), ((name, Const(total)),)), node.body)


def _do_parallel(scope: Scope, node: n.Parallel, rest: tuple[n.Node, ...]) -> None:
    every = (*scope.vars, *zip(node.vars, map(scope.frame.whole, node.extents), strict=True))
    _body(replace(scope, vars=every, values=dict(scope.values)), node.body)


def _body(scope: Scope, body: tuple[n.Node, ...]) -> None:
    for at, node in enumerate(body):
        scope.frame.node = node
        _RULES[type(node)](scope, node, body[at + 1 :])


def _do_store(scope: Scope, node: n.Store | n.Atomic, rest: tuple[n.Node, ...]) -> None:
    """A store at a larger scale writes all slices below the unit; mostly there is just its own."""
    atomic, frame = isinstance(node, n.Atomic), scope.frame
    if isinstance(node, n.Atomic) and (node.result is not None or node.op not in ("add", "max", "min")):
        raise cannot("an atomic whose old value is used", node)
    _keep_before(scope, node.target, rest)
    index = tuple(scope.resolve(i) for i in node.index)
    value = scope.resolve(node.value)
    guarded, scope = bool(scope.guards), narrowed(scope)
    slices = len(frame.regions.leads(frame.draft.homes.home(node.target), frame.place, True))
    for place in range(1 if atomic else slices):
        command = Command(scope)
        peer = frame.peer_of(node, getattr(node, "dst", None))
        target, where = command.access(node.target, command.all(index), guarded, place, peer)
        target = target if peer is None else replace(target, at=frame.owner(target.home, peer))
        command.emit(target, where, command.loads(value, guarded), getattr(node, "op", ""))


def _do_let(scope: Scope, node: n.Let, rest: tuple[n.Node, ...]) -> None:
    value = scope.resolve(node.value)
    if node.name in scope.kept:
        _store(scope, whole(scope.kept[node.name]), scope.index, value)
        return
    if scope.guards and node.name in scope.values:
        for guard in scope.guards:
            value = applied("select", (guard, value, scope.values[node.name]), node.value.dtype)
    scope.values[node.name] = value


def _do_if(scope: Scope, node: n.If, rest: tuple[n.Node, ...]) -> None:
    condition = scope.resolve(node.condition)
    changed = {
        scope.frame.draft.homes.table[r.source].base
        for m in n.walk((*node.body, *node.orelse))
        for kind, r in n.regions(m)
        if kind != "read" and r.source in scope.frame.draft.homes.table
    }
    used = {_base(scope, part.source) for part in walk(condition) if isinstance(part, Load)}
    if used & changed:
        condition = _keep(scope, condition, "bool")
    number = condition.value if isinstance(condition, Number) else condition
    decided = known(number) if isinstance(condition, (Number, Const)) else None
    for body, guard in ((node.body, condition), (node.orelse, _negated(condition))):
        if not body or (decided is not None and bool(decided) != (body is node.body)):
            continue
        guards = scope.guards if decided is not None else (*scope.guards, guard)
        inner = replace(scope, guards=guards, values=dict(scope.values))
        _body(inner, body)
        for name in set(inner.values) & {m.name for m in n.walk(body) if isinstance(m, n.Let)}:
            scope.values[name] = inner.values[name]


def _negated(condition: Expr) -> Expr:
    return (
        Number(logical_not(condition.value))
        if isinstance(condition, Number)
        else applied("not", (condition,), "bool")
    )


def _do_loop(scope: Scope, node: n.Loop, rest: tuple[n.Node, ...]) -> None:
    changed = {m.name for m in n.walk(node.body) if isinstance(m, n.Let)}
    for name in sorted(changed & set(scope.values)):
        value = scope.values[name]
        kept = _keep(scope, value, {"int": "i32", "float": "f32"}.get(value.dtype, value.dtype))
        assert isinstance(kept, Load)
        scope.kept[name] = scope.frame.draft.homes.found[kept.source]
        scope.values[name] = kept
    scope.frame.node = node
    frame = scope.frame
    limits: tuple[Expr, ...] = ()
    ends = [frame.static(e) for e in (node.start, node.stop)]
    if any(e is not None and symbols(e) & set(scope.names) for e in ends):
        node, limits = _widest(scope, node)
    with loop_frame(frame, node) as inner:
        guards = (*scope.guards, *limits)
        _body(replace(scope, frame=inner, values=dict(scope.values), guards=guards), node.body)


def _widest(scope: Scope, node: n.Loop) -> tuple[n.Loop, tuple[Expr, ...]]:
    """A loop that iterations run unequally often: as often as any, each under its own limits."""
    frame = scope.frame
    ranges = frame.ranges | {v: (0, (known(e) or 1) - 1) for v, e in scope.vars}
    low, high = (bounds(simplify(frame.whole(e)), ranges) for e in (node.start, node.stop))
    if low is None or high is None or known(frame.whole(node.step)) != 1:
        raise cannot("a loop that iterations run unequally often, without a bound", node)
    var = Symbol(node.var)
    limits = (
        applied(">=", (Number(var), scope.lifted(frame.whole(node.start))), "bool"),
        applied("<", (Number(var), scope.lifted(frame.whole(node.stop))), "bool"),
    )
    return replace(node, start=Const(low[0]), stop=Const(high[1])), limits


_RULES: dict[type[n.Node], Callable[[Scope, Any, tuple[n.Node, ...]], None]] = {
    n.Store: _do_store,
    n.Atomic: _do_store,
    n.Let: _do_let,
    n.If: _do_if,
    n.Loop: _do_loop,
    n.Parallel: _do_parallel,
    n.Alloc: lambda scope, node, rest: RULES[type(node)](scope.frame, node),
    **dict.fromkeys((n.View, n.Check, n.Print, n.Hint, n.Barrier), lambda scope, node, rest: None),
}


# --- variables in tiles ---------------------------------------------------------------------------


def _base(scope: Scope, name: str) -> str:
    table = scope.frame.draft.homes.table
    return table[name].base if name in table else name


def _keep_before(scope: Scope, target: str, rest: tuple[n.Node, ...]) -> None:
    """Variables made of what a store changes, and used later, get their value now."""
    base = _base(scope, target)
    later = {s for m in n.walk(rest) for e in n.expressions(m) for s in symbols(e)}
    for name in sorted(later & set(scope.values)):
        value = scope.values[name]
        if any(isinstance(p, Load) and _base(scope, p.source) == base for p in walk(value)):
            dtype = {"int": "i32", "float": "f32"}.get(value.dtype, value.dtype)
            scope.values[name] = _keep(scope, value, dtype)


def _keep(scope: Scope, value: Expr, dtype: str) -> Expr:
    """A value of every iteration, in a tile of its own."""
    extents = [known(e) for _, e in scope.vars]
    if None in extents:
        raise cannot(
            "a variable of elementwise code whose extents are known only at run time", scope.frame.node
        )
    home = scope.frame.draft.scratch(scope.frame, tuple(e or 0 for e in extents) or (1,), dtype)
    _store(replace(scope, guards=()), whole(home), scope.index, value)
    return Load(home.name, scope.index, dtype)


def _store(scope: Scope, target: Block, index: tuple[Expr, ...], value: Expr) -> None:
    """The value of every iteration to an element of a block; ``index`` counts in its tile's axes."""
    command = Command(scope)
    places = list(index) if len(index) == len(target.axes) else []
    if not places:
        names = iter(index)
        places = [next(names) if axis.kept else ZERO for axis in target.axes]
    command.emit(target, tuple(places), command.loads(value, bool(scope.guards)))
