"""Iterations of T.Parallel must not depend on each other: accesses to watch, and what they may not do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from megatile.ir import nodes as n
from megatile.ir.expr import Expr, loads
from megatile.targets.interpret.errors import DependenceError
from megatile.targets.interpret.places import Name


@dataclass(frozen=True)
class Touch:
    """One watched access: numbers of the elements, and of the iterations that touch them."""

    kind: str
    name: str
    storage: int
    elements: np.ndarray
    iterations: np.ndarray


def watched(node: n.Parallel, names: dict[str, Name]) -> set[int]:
    """Accesses (by id) to a tile the loop writes whose indices differ from those written.

    With equal indices an iteration touches only what it writes itself.
    """
    stores: list[tuple[Any, str, tuple[Expr, ...]]] = []
    reads: list[tuple[Any, str, tuple[Expr, ...]]] = []
    for inner in n.walk(node.body):
        if isinstance(inner, n.Store):
            stores.append((inner, inner.target, inner.index))
        for expr in n.expressions(inner):
            reads += [(load, load.source, load.index) for load in loads(expr)]
    found: set[int] = set()
    for one, target, index in stores:
        for other, source, other_index in [*stores, *reads]:
            if other is one or names[target].base != names[source].base:
                continue
            if target != source or index != other_index:
                found |= {id(one), id(other)}
    return found


def check_unique(name: str, shape: tuple[int, ...], elements: np.ndarray) -> None:
    """No element is written by two iterations of one statement."""
    values, counts = np.unique(elements, return_counts=True)
    if (counts > 1).any():
        element = np.unravel_index(values[counts > 1][0], shape)
        raise DependenceError(
            f"several iterations of T.Parallel write '{name}{[int(e) for e in element]}'",
            advice="every iteration writes its own element; use T.atomic_add, T.reduce_sum or T.serial to "
            "combine",
        )


def check_independent(touches: list[Touch], extents: tuple[int, ...]) -> None:
    """No iteration touches an element that another one writes."""
    for write in (t for t in touches if t.kind == "write"):
        order = np.argsort(write.elements, kind="stable")
        elements, by = write.elements[order], write.iterations[order]
        for other in (t for t in touches if t.storage == write.storage):
            at = np.minimum(np.searchsorted(elements, other.elements), len(elements) - 1)
            clash = (elements[at] == other.elements) & (by[at] != other.iterations)
            if clash.any():
                raise _dependence(other, extents, int(by[at][clash][0]), int(other.iterations[clash][0]))


def _dependence(touch: Touch, extents: tuple[int, ...], writer: int, other: int) -> DependenceError:
    first, second = (tuple(int(i) for i in np.unravel_index(x, extents)) for x in (writer, other))
    verb = "reads" if touch.kind == "read" else "also writes"
    return DependenceError(
        f"iteration {second} of T.Parallel {verb} an element of '{touch.name}' that iteration {first} writes",
        advice="iterations of T.Parallel run in any order: use T.serial, or write to a second tile",
    )
