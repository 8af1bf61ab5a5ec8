"""Loops and branches of a stream: the numbers they carry, and the tiles that loops fill anew each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from megatile.core.expr import Expr, Symbol, bounds, known, logical_not, simplify
from megatile.ir import nodes as n
from megatile.lowering.errors import cannot
from megatile.lowering.streams import StreamScope, Turn
from megatile.plan import model as pm


@contextmanager
def loop_scopes(scopes: list[StreamScope], node: n.Loop) -> Iterator[list[StreamScope]]:
    """A loop of the stream that units run together; what is lowered in the scopes given becomes its body."""
    scope = scopes[0]
    start, stop, step = (scope.whole(e) for e in (node.start, node.stop, node.step))
    number = known(step)
    if number is None:
        raise cannot("a loop whose step is not a number", node)
    ends = [start, stop, step]
    if any([f.whole(e) for e in (node.start, node.stop, node.step)] != ends for f in scopes[1:]):
        raise cannot("a loop that units run together, but not equally often", node)
    ranges = dict(scope.ranges)
    ranges.pop(node.var, None)
    low, high = (bounds(simplify(e), scope.ranges) for e in (start, stop - 1))
    if low is not None and high is not None and number > 0:
        ranges[node.var] = (low[0], max(low[0], high[1]))
    turns, limits = scope.turns, [known(e) for e in (start, stop)]
    if None not in limits:
        turns = (*turns, Turn(node.var, start, number, len(range(limits[0] or 0, limits[1] or 0, number))))
    fresh = set(node.fresh) if node.kind == "pipelined" and node.stages > 1 else scope.fresh
    carried = [v for v in assigned(node.body) if v != node.var]
    inners, named = [], []
    for one in scopes:
        inner = one.inside(one.place, one.group)
        names = {v: Symbol(scope.state.declared.name(v)) for v in carried if v in one.names}
        inner.names |= {node.var: Symbol(node.var)} | names
        inner.ranges, inner.turns, inner.fresh, inner.looped = dict(ranges), turns, fresh, True
        inners.append(inner)
        named.append(names)
    with scope.stream.inner() as body:
        yield inners
    carries = tuple(
        pm.CarryInt(symbol.name, one.names[v], inner.names[v])
        for one, inner, names in zip(scopes, inners, named, strict=True)
        for v, symbol in names.items()
    )
    scope.node = node
    if body or carries:
        scope.emit(pm.Loop(node.var, start, stop, tuple(body), step, carries))
    for one, names in zip(scopes, named, strict=True):
        one.names |= names


@contextmanager
def loop_scope(scope: StreamScope, node: n.Loop) -> Iterator[StreamScope]:
    """The same for one unit."""
    with loop_scopes([scope], node) as inners:
        yield inners[0]


Run = Callable[[list[StreamScope], tuple[n.Node, ...]], None]


def branch(scopes: list[StreamScope], node: n.If, condition: Expr, run: Run) -> None:
    """Write a branch that units take together: ``run`` lowers the body of either side."""
    decided = known(condition)
    if decided is not None:
        run(scopes, node.body if decided else node.orelse)
        return
    stream, sides = scopes[0].stream, []
    for body, when in ((node.body, condition), (node.orelse, logical_not(condition))):
        inners = [f.inside(f.place, f.group) for f in scopes]
        for inner in inners:
            inner.conditions = (*inner.conditions, when)
        with stream.inner() as out:
            run(inners, body)
        sides.append((tuple(out), inners))
    merges = []
    for at, scope in enumerate(scopes):
        for name in dict.fromkeys([*assigned(node.body), *assigned(node.orelse)]):
            then, orelse = (inners[at].names.get(name) for _, inners in sides)
            if then is None or orelse is None:
                scope.names.pop(name, None)
            elif then != orelse:
                merges.append(pm.MergeInt(scope.state.declared.name(name), then, orelse))
                scope.names[name] = Symbol(merges[-1].name)
            else:
                scope.names[name] = then
            values = [inners[at].values.get(name) for _, inners in sides]
            if values[0] is not None and values[0] == values[1]:
                scope.values[name] = values[0]
    scopes[0].node = node
    if sides[0][0] or sides[1][0] or merges:
        scopes[0].emit(pm.If(condition, sides[0][0], sides[1][0], tuple(merges)))


def assigned(body: tuple[n.Node, ...]) -> list[str]:
    """Return variables that a body gives values to, in order."""
    names = [
        getattr(m, "result" if isinstance(m, n.Atomic) else "name", None)
        for m in n.own_statements(body)
        if isinstance(m, (n.Let, n.ReadScalar, n.Atomic))
    ]
    return list(dict.fromkeys(v for v in names if v is not None))
