"""Remove jumps from control flow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from megatile.core.errors import MegatileError
from megatile.core.expr import Const, Symbol, applied, known, simplify
from megatile.ir import nodes as n
from megatile.ir.program import Program

_JUMPS = (n.Break, n.Continue, n.Return)


class JumpError(MegatileError):
    """A loop whose jumps cannot become conditions."""


@dataclass(frozen=True)
class RemoveJumps:
    """Turn ``break``, ``continue``, ``return`` and ``while`` into conditions and counted loops.

    ``for k in serial(0, 8, 1): if c: break; s`` →
    ``broken_1 = 0; for k in serial(0, 8, 1): if broken_1 == 0: if c: broken_1 = 1 else: s``.

    A ``while`` becomes loops of 1, 2, 4, … turns, and a number that must be 0 at the end.
    """

    name: str = "remove_jumps"

    def apply(self, program: Program) -> Program:
        if not any(isinstance(node, _JUMPS) for node in n.walk(program.body)):
            return program
        return replace(program, body=_Jumps().body(program.body))


class _Jumps:
    def __init__(self) -> None:
        self.count = 0

    def body(self, body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        """Return a region's body: a ``return`` ends it."""
        if not any(isinstance(m, n.Return) for m in _own(body)):
            return self.block(body, None, None)
        done = self.fresh("returned")
        return (n.Let(done, Const(0)), *self.block(body, None, done))

    def fresh(self, word: str) -> str:
        self.count += 1
        return f"{word}_{self.count}"

    def block(self, body: tuple[n.Node, ...], broken: str | None, done: str | None) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        for at, node in enumerate(body):
            if isinstance(node, _JUMPS):
                flag = {n.Break: broken, n.Return: done}.get(type(node))
                if flag is not None:
                    result.append(n.Let(flag, Const(1), span=node.span))
                return tuple(result)
            if isinstance(node, n.ScaleRegion):
                result.append(replace(node, body=self.body(node.body)))
            elif isinstance(node, n.Loop):
                result += self.loop(node, done)
            elif isinstance(node, n.If):
                inner, rest = self.branch(node, body[at + 1 :], broken, done)
                result.append(inner)
                if rest:
                    return tuple(result)
            else:
                result.append(node)
                continue
            leaves = done is not None and any(isinstance(m, n.Return) for m in _own((node,)))
            if leaves and at + 1 < len(body):
                rest_of = self.block(body[at + 1 :], broken, done)
                result.append(n.If(_is_zero(done or ""), rest_of, span=node.span))
                return tuple(result)
        return tuple(result)

    def branch(
        self, node: n.If, rest: tuple[n.Node, ...], broken: str | None, done: str | None
    ) -> tuple[n.Node, bool]:
        """A branch that may jump takes what follows it into the sides that do not."""
        jumps = any(isinstance(m, _JUMPS) for m in _own(node.body + node.orelse, True))
        more = rest if jumps else ()
        return n.with_bodies(node, lambda body: self.block((*body, *more), broken, done)), jumps

    def loop(self, node: n.Loop, done: str | None) -> list[n.Node]:
        inner = _own(node.body, True)
        leaves = done is not None and any(isinstance(m, n.Return) for m in inner)
        if not leaves and not any(isinstance(m, n.Break) for m in inner):
            return [replace(node, body=self.block(node.body, None, done))]
        broken = self.fresh("broken")
        body = self.block(node.body, broken, done)
        if leaves and done is not None:
            body = (n.If(_is_zero(done), body),)
        guarded = n.If(_is_zero(broken), body, span=node.span)
        start: list[n.Node] = [n.Let(broken, Const(0))]
        if node.kind != "bounded":
            return [*start, replace(node, body=(guarded,))]
        return [*start, *self.turns(replace(node, body=(guarded,)), broken)]

    def turns(self, node: n.Loop, broken: str) -> list[n.Node]:
        """A ``while``: loops of 1, 2, 4, … turns until one ends it. Trip counts are known when a loop begins,
        and turns that are left over are empty."""
        width = self.fresh("turns")
        most = known(node.stop)
        if most is None:
            raise JumpError(
                "a 'while' loop whose bound is not a number", place=node.place,
                advice="T.bounded(condition, n) with a number n",
            )  # fmt: skip
        doubled = simplify(
            applied("*", (Symbol(width), applied("*", (_is_zero(broken), Const(2)), "int")), "int")
        )
        inner = replace(node, kind="serial", stop=Symbol(width))
        again = n.Loop(
            "serial", self.fresh("doubling"), Const(0), Const((most + 1).bit_length()), span=node.span,
            body=(inner, n.Let(width, doubled)),
        )  # fmt: skip
        ended = n.ReadScalar(self.fresh("while_goes_on"), _is_zero(broken), 0, span=node.span)
        return [n.Let(width, Const(1)), again, ended]


def _is_zero(name: str) -> Any:
    return applied("==", (Symbol(name), Const(0)), "bool")


def _own(body: tuple[n.Node, ...], in_loop: bool = False) -> list[n.Node]:
    """Return the statements of a body through branches (and loops, unless jumps of loops are meant)."""
    every = list(n.walk(body, (n.ScaleRegion,)))
    if not in_loop:
        return every
    return [*n.walk(body, (n.ScaleRegion, n.Loop)), *(m for m in every if isinstance(m, n.Return))]
