"""Simplify expressions and control flow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import is_

from megatile.core.expr import Const, simplify, trips
from megatile.ir import nodes as n
from megatile.ir.passes.driver import rewrite_expressions, rewrite_nodes
from megatile.ir.program import Program


@dataclass(frozen=True)
class Normalise:
    """Simplify expressions and control flow.

    ``x[k * 4 + k * 4 :: 2 + 2]`` → ``x[k * 8 :: 4]``; ``if 1 < 2: s`` → ``s``; an empty loop disappears.
    """

    name: str = "normalise"

    def apply(self, program: Program) -> Program:
        body = _settle(rewrite_nodes(program.body, lambda node: rewrite_expressions(node, simplify)))
        return program if body == program.body else replace(program, body=body)


def _settle(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
    """Decided branches and empty loops."""
    result: list[n.Node] = []
    for node in body:
        if isinstance(node, n.If) and isinstance(node.condition, Const):
            result += _settle(node.body if node.condition.value else node.orelse)
        elif isinstance(node, n.Loop) and _never_runs(node):
            continue
        else:
            result.append(n.with_bodies(node, _settle))
    same = len(result) == len(body) and all(map(is_, result, body))
    return body if same else tuple(result)


def _never_runs(node: n.Loop) -> bool:
    rounds = trips(node)
    return rounds is not None and not rounds and rounds.step > 0
