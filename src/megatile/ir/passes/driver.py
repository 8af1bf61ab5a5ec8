"""Running passes, and rebuilding statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from megatile.core.errors import MegatileError, did_you_mean
from megatile.core.expr import Expr
from megatile.ir import nodes as n
from megatile.ir.nodes import Dim, Node, Region
from megatile.ir.program import Program, same_names
from megatile.ir.verify import VerificationError, verify


class Pass(Protocol):
    """A change of a Program that keeps its meaning. One of a user's may have a field ``after``: the name of
    the pass that it follows (``resolve_views`` if it has none)."""

    @property
    def name(self) -> str: ...

    def apply(self, program: Program) -> Program: ...


class PassError(MegatileError, ValueError):
    """A pass that cannot be run, or that leaves no Program behind."""


@dataclass(frozen=True)
class Step:
    """The Program after a pass; as text, that of the Program."""

    name: str
    program: Program

    def __str__(self) -> str:
        return str(self.program)


def steps(program: Program, passes: Iterable[Pass]) -> Iterator[Step]:
    """Yield the Program after each pass, verified where more than annotations has changed."""
    for one in passes:
        after = one.apply(program)
        if not isinstance(after, Program):
            raise PassError(
                f"pass '{one.name}' returns {type(after).__name__}, not a Program",
                advice="return dataclasses.replace(program, body=...)",
            )
        if after is not program and not same_names(program, after):
            try:
                verify(after)
            except VerificationError as error:
                error.message = f"after pass '{one.name}': {error.message}"
                raise
        program = after
        yield Step(one.name, program)


def inserted(passes: Sequence[Pass], more: Iterable[Pass]) -> list[Pass]:
    """Return passes with a user's among them, each after the one that its ``after`` names."""
    result = list(passes)
    if not isinstance(more, Iterable):
        raise PassError(f"passes={more!r} is not a list of passes", advice="passes=[…]")
    for one in more:
        name, after = getattr(one, "name", None), getattr(one, "after", "resolve_views")
        if not isinstance(name, str) or not callable(getattr(one, "apply", None)) or isinstance(one, type):
            raise PassError(
                f"{one!r} is not a pass", advice="a frozen dataclass with a 'name' and 'apply(program)'"
            )
        names = [p.name for p in result]
        if name in names:
            raise PassError(f"there is already a pass '{name}'", advice="another name")
        if after not in names:
            raise PassError(
                f"pass '{name}' should run after '{after}', which is not a pass",
                advice=did_you_mean(str(after), names, what="passes"),
            )
        result.insert(names.index(after) + 1, one)
    return result


def rewrite_nodes(body: tuple[Node, ...], change: Callable[[Node], Node | None]) -> tuple[Node, ...]:
    """Return every statement changed, inner ones first; None removes one."""
    result = []
    for node in body:
        new = change(n.with_bodies(node, lambda part: rewrite_nodes(part, change)))
        if new is not None:
            result.append(new)
    same = len(result) == len(body) and all(new is old for new, old in zip(result, body, strict=True))
    return body if same else tuple(result)


def rewrite_expressions(node: Node, change: Callable[[Expr], Expr]) -> Node:
    """Return the statement with ``change`` applied to the expressions that stand in it (not in its body)."""
    new = {}
    for name in n.EXPRESSION_FIELDS[type(node)]:
        value = getattr(node, name)
        changed = _change(value, change)
        if changed is not value:
            new[name] = changed
    return replace(node, **new) if new else node


def _change(value: Any, change: Callable[[Expr], Expr]) -> Any:
    """Return the value with its expressions changed; itself where none is."""
    if isinstance(value, Expr):
        return change(value)
    if isinstance(value, Region):
        dims = _change(value.dims, change)
        return value if dims is value.dims else replace(value, dims=dims)
    if isinstance(value, Dim):
        start, extent, limits = (_change(part, change) for part in (value.start, value.extent, value.limits))
        same = start is value.start and extent is value.extent and limits is value.limits
        return value if same else replace(value, start=start, extent=extent, limits=limits)
    if isinstance(value, tuple):
        parts_of = tuple(_change(v, change) for v in value)
        return value if all(new is old for new, old in zip(parts_of, value, strict=True)) else parts_of
    return value
