"""Running passes, and rebuilding statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from megatile.core.expr import Expr
from megatile.ir import nodes as n
from megatile.ir.nodes import Dim, Node, Region
from megatile.ir.program import Program
from megatile.ir.verify import verify


class Pass(Protocol):
    """A change of a Program that keeps its meaning."""

    @property
    def name(self) -> str: ...

    def apply(self, program: Program) -> Program: ...


@dataclass(frozen=True)
class Step:
    """The Program after a pass; as text, that of the Program."""

    name: str
    program: Program

    def __str__(self) -> str:
        return str(self.program)


def steps(program: Program, passes: Iterable[Pass]) -> Iterator[Step]:
    """The Program after each pass, verified."""
    for one in passes:
        program = one.apply(program)
        verify(program)
        yield Step(one.name, program)


def rewrite_nodes(body: tuple[Node, ...], change: Callable[[Node], Node | None]) -> tuple[Node, ...]:
    """Every statement changed, inner ones first; None removes one."""
    result = []
    for node in body:
        new = change(n.with_bodies(node, lambda part: rewrite_nodes(part, change)))
        if new is not None:
            result.append(new)
    return tuple(result)


def rewrite_expressions(node: Node, change: Callable[[Expr], Expr]) -> Node:
    """The statement with ``change`` applied to the expressions that stand in it (not in its body)."""
    new = {}
    for f in fields(node):
        if f.name in ("span", "body", "orelse"):
            continue
        value = getattr(node, f.name)
        changed = _change(value, change)
        if changed is not value:
            new[f.name] = changed
    return replace(node, **new) if new else node


def _change(value: Any, change: Callable[[Expr], Expr]) -> Any:
    if isinstance(value, Expr):
        return change(value)
    if isinstance(value, Region):
        return Region(value.source, tuple(_change(d, change) for d in value.dims), value.along)
    if isinstance(value, Dim):
        extent = None if value.extent is None else change(value.extent)
        limits = None if value.limits is None else (change(value.limits[0]), change(value.limits[1]))
        return Dim(change(value.start), extent, value.anchored, limits)
    if isinstance(value, tuple):
        return tuple(_change(v, change) for v in value)
    return value
