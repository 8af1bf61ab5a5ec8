"""Threads by number: statements that name them run as one loop over all threads of the block, in step.

    x = T.get_thread_binding(); C[x] = A[x] + B[x]
    ->  for thread_x in T.Parallel(threads), statement by statement: C[thread_x] = ...

Tiles that each thread has for itself (``alloc_local``, ``alloc_var``) get leading dimensions of threads.
A kernel that names no threads is left as it is: its local tiles belong to the block.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from megatile.core.expr import Expr, rebuild, symbols
from megatile.core.expr import Symbol as Var
from megatile.core.expr import expr as integer
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.ir.passes.driver import rewrite_expressions, rewrite_nodes

if TYPE_CHECKING:
    from megatile.compat.tilelang.buffers import KernelState

_LANES = (n.Store, n.Atomic, n.Let, n.If, n.Loop, n.Check, n.Print)


def thread_variables(threads: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(f"thread_{axis}" for axis in "xyz"[: len(threads)])


def with_threads(body: tuple[n.Node, ...], state: KernelState) -> tuple[n.Node, ...]:
    """The statements, with those that depend on the thread in loops over the threads."""
    names = thread_variables(state.threads)
    if not any(symbols(e) & set(names) for node in n.walk(body) for e in n.expressions(node)):
        return body
    return _Threads(names, state).body(_private(body, names, state))


def _private(body: tuple[n.Node, ...], names: tuple[str, ...], state: KernelState) -> tuple[n.Node, ...]:
    """Tiles of each thread get dimensions of threads, and every access its own index there."""
    private = state.private
    own = tuple(Var(name) for name in names)

    def load(expr: Expr) -> Expr:
        if isinstance(expr, Load) and expr.source in private:
            return replace(expr, index=(*own, *expr.index))
        return expr

    def region(value: n.Region) -> n.Region:
        if value.source not in private:
            return value
        every = tuple(n.Dim(integer(0), integer(extent)) for extent in state.threads)
        return replace(value, dims=(*every, *value.dims))

    def change(node: n.Node) -> n.Node:
        node = rewrite_expressions(node, lambda e: rebuild(e, load))
        if isinstance(node, n.Alloc) and node.name in private:
            return replace(node, shape=(*state.threads, *node.shape))
        if isinstance(node, (n.Store, n.Atomic)) and node.target in private:
            return replace(node, index=(*own, *node.index))
        if isinstance(node, n.Fill):
            return replace(node, to=region(node.to))
        return node

    return rewrite_nodes(body, change)


class _Threads:
    def __init__(self, names: tuple[str, ...], state: KernelState):
        self.names = names
        self.extents = tuple(integer(extent) for extent in state.threads)
        self.varying = set(names)

    def body(self, body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        return tuple(new for node in body for new in self.statement(node))

    def statement(self, node: n.Node) -> tuple[n.Node, ...]:
        own = any(symbols(e) & self.varying for e in n.expressions(node))
        if isinstance(node, n.Let) and own:
            self.varying.add(node.name)
            return (self.wrapped(node),)
        inside = list(n.walk((node,)))
        if not own and not any(symbols(e) & self.varying for m in inside for e in n.expressions(m)):
            return (node,)
        if all(isinstance(m, _LANES) for m in inside):
            return (self.wrapped(node),)
        parts = {name: self.body(part) for name, part in n.bodies(node)}
        return (replace(node, **parts),)  # type: ignore[arg-type]

    def wrapped(self, node: n.Node) -> n.Node:
        return n.Parallel(self.names, self.extents, (node,), in_step=True, span=node.span)
