"""A walk over the statements of a Program as they will be written, without writing any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.program import Program
from megatile.lower.streams import RULES, Frame, PlanDraft

Rule = Callable[[Frame, Any], None]
LEAVES = (
    n.Copy, n.Gemm, n.Fill, n.Reduce, n.Cumsum, n.Store, n.Parallel, n.AtomicRegion, n.Barrier, n.Signal,
    n.Wait, n.Collective,
)  # fmt: skip
"""Statements that change nothing that those after them are written by."""


def survey(
    program: Program,
    machine: HDA,
    rules: Mapping[type[n.Node], Rule],
    inside: Callable[[list[Frame], n.Collective], None],
) -> None:
    """Call the rule of every statement that has one, in the frame in which it will be written; ``inside`` for
    collectives of units inside one instance."""
    draft = PlanDraft(program, machine)
    wanted = tuple(rules)

    def region(frame: Frame, node: n.Scale) -> None:
        if any(isinstance(inner, wanted) for inner in n.walk(node.body)):
            RULES[n.Scale](frame, node)

    draft.rules = {**RULES, **dict.fromkeys(LEAVES, _nothing), n.Scale: region, **rules}
    draft.inside, draft.surveys = inside, True
    draft.run()


def _nothing(frame: Frame, node: n.Node) -> None:
    """Not asked for."""


def annotated(program: Program, change: Mapping[int, Mapping[str, Any]]) -> Program:
    """The Program with other fields of statements, by their ``id``."""

    def body(nodes: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        return tuple(map(statement, nodes))

    def statement(node: n.Node) -> n.Node:
        new = n.with_bodies(node, body)
        return replace(new, **change[id(node)]) if id(node) in change else new

    return replace(program, body=body(program.body)) if change else program
