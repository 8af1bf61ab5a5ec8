"""``algorithm=`` of a collective names one that there is, and that does that collective."""

from __future__ import annotations

from megatile.core.errors import did_you_mean
from megatile.ir import nodes as n
from megatile.ir.program import Program
from megatile.targets.interpret.errors import RunError
from megatile.targets.interpret.group import word_of

OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "gather_view": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "scatter_view": "reduce_scatter",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
}
"""Kinds of a Program's collective, as the planner calls them."""


def check_algorithms(program: Program) -> None:
    """The result does not depend on the algorithm; a name nothing could lower is refused all the same."""
    for node in n.walk(program.body):
        if isinstance(node, n.Collective) and node.algorithm is not None:
            _check(node, node.algorithm)


def _check(node: n.Collective, name: str) -> None:
    from megatile.collectives.registry import algorithms, find_algorithm

    place = node.span.place() if node.span else None
    fitting = sorted(k for k, a in algorithms().items() if OPERATIONS[node.kind] in a.operations)
    if ":" not in name and name not in algorithms():
        raise RunError(
            f"{word_of(node)}: there is no algorithm '{name}'", place=place,
            advice=did_you_mean(name, fitting, what="algorithms"),
        )  # fmt: skip
    if OPERATIONS[node.kind] not in find_algorithm(name).operations:
        raise RunError(
            f"{word_of(node)}: the algorithm '{name}' does another collective", place=place,
            advice=f"one of {', '.join(fitting)}",
        )  # fmt: skip
