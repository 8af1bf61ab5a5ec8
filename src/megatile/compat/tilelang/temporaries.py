"""Numbers of a thread that each iteration of ``T.Parallel`` sets before it reads them.

x = T.alloc_var(T.int32)                     x is one element of a block's tile,
for i in T.Parallel(n): x = i; A[i] = x      here a number of the iteration
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from megatile.compat.tilelang.buffers import Buffer
from megatile.core.expr import Expr, Symbol, rebuild
from megatile.core.expr.typing import cast
from megatile.ir import nodes as n
from megatile.ir.expr import Load, loads
from megatile.ir.passes.driver import rewrite_expressions, rewrite_nodes
from megatile.language.tile.builder import current


def with_temporaries(body: tuple[n.Node, ...], private: Iterable[Buffer]) -> tuple[n.Node, ...]:
    """Keep private tiles of one element in variables, where nothing reads them but iterations of
    ``T.Parallel`` that have set them."""
    single = {tile.name for tile in private if tile.shape == (1,)}
    if not single:
        return body
    read = Counter(name for node in n.walk(body) for name in _read(node))
    inside: Counter[str] = Counter()
    candidates: dict[str, int] = {}
    for loop in n.each(n.Parallel, body):
        for name in single & {m.target for m in loop.body if isinstance(m, n.Store)}:
            if not loop.in_step and _set_first(name, loop.body):
                inside[name] += sum(_read(m).count(name) for m in n.walk(loop.body))
                candidates[name] = candidates.get(name, 0) + 1
    chosen = {name for name in candidates if inside[name] == read[name]}
    if not chosen:
        return body

    def changed(node: n.Node) -> n.Node:
        if not isinstance(node, n.Parallel) or node.in_step:
            return node
        mine = chosen & {m.target for m in node.body if isinstance(m, n.Store)}
        return replace(node, body=_as_variables(node.body, mine)) if mine else node

    return rewrite_nodes(body, changed)


def _read(node: n.Node) -> list[str]:
    """Return the names that a statement reads, without those of its body."""
    found = {load.source for e in n.expressions(node) for load in loads(e)}
    return [*found | {region.source for kind, region in n.regions(node) if kind != "write"}]


def _set_first(name: str, body: tuple[n.Node, ...]) -> bool:
    """Return whether every iteration sets a number before anything else is done with it."""
    known = False
    for node in body:
        inside = list(n.walk((node,)))
        if not known and any(name in _read(m) for m in inside):
            return False
        if any(name in _changed(m) and not isinstance(m, n.Store) for m in inside):
            return False
        if not known and any(name in _changed(m) for m in inside):
            known = isinstance(node, n.Store)
            if not known:
                return False
    return known


def _changed(node: n.Node) -> list[str]:
    target = [node.target] if isinstance(node, (n.Store, n.Atomic)) else []
    return target + [region.source for kind, region in n.regions(node) if kind != "read"]


def _as_variables(body: tuple[n.Node, ...], names: set[str]) -> tuple[n.Node, ...]:
    builder = current()
    held = {name: (builder.variable(name), builder.tiles[name].dtype) for name in sorted(names)}

    def value(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.source in held:
            return Symbol(*held[expr.source])
        return expr

    def changed(node: n.Node) -> n.Node:
        node = rewrite_expressions(node, lambda e: rebuild(e, value))
        if not isinstance(node, n.Store) or node.target not in held:
            return node
        variable, dtype = held[node.target]
        return n.Let(variable, cast(node.value, dtype), span=node.span)

    return rewrite_nodes(body, changed)
