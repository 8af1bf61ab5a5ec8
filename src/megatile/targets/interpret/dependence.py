"""Iterations of T.Parallel must not depend on each other: accesses to watch, and what they may not do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from megatile.core.expr import Expr
from megatile.ir import nodes as n
from megatile.ir.expr import loads
from megatile.targets.interpret.errors import DependenceError, RunError
from megatile.targets.interpret.places import Name


@dataclass(frozen=True)
class Wording:
    """How a conflict is reported: ``several`` of them, and ``one`` (with its number in the braces)."""

    error: type[RunError]
    several: str
    one: str
    advice: str


ITERATIONS = Wording(
    DependenceError,
    several="several iterations of T.Parallel write",
    one="iteration {} of T.Parallel",
    advice="iterations of T.Parallel run in any order: every one writes its own element; use T.serial, "
    "T.atomic_add, T.reduce_sum, or a second tile",
)


@dataclass(frozen=True)
class Touch:
    """One watched access: numbers of the elements, and of the iterations that touch them."""

    kind: str
    name: str
    storage: int
    elements: np.ndarray
    iterations: np.ndarray


def watched(node: n.Parallel | n.Scale, names: dict[str, Name]) -> set[int]:
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


def check_unique(name: str, shape: tuple[int, ...], elements: np.ndarray, words: Wording) -> None:
    """No element is written by two iterations of one statement."""
    values, counts = np.unique(elements, return_counts=True)
    if (counts > 1).any():
        element = np.unravel_index(values[counts > 1][0], shape)
        raise words.error(f"{words.several} '{name}{[int(e) for e in element]}'", advice=words.advice)


def check_independent(touches: list[Touch], extents: tuple[int, ...], words: Wording) -> None:
    """No iteration touches an element that another one writes."""
    for write in (t for t in touches if t.kind == "write"):
        order = np.argsort(write.elements, kind="stable")
        elements, by = write.elements[order], write.iterations[order]
        for other in (t for t in touches if t.storage == write.storage):
            at = np.minimum(np.searchsorted(elements, other.elements), len(elements) - 1)
            clash = (elements[at] == other.elements) & (by[at] != other.iterations)
            if clash.any():
                writer, reader = int(by[at][clash][0]), int(other.iterations[clash][0])
                raise _dependence(other, _shown(writer, extents), _shown(reader, extents), words)


def _shown(number: int, extents: tuple[int, ...]) -> str:
    index = tuple(int(i) for i in np.unravel_index(number, extents))
    return str(index[0] if len(index) == 1 else index)


def _dependence(touch: Touch, writer: str, other: str, words: Wording) -> RunError:
    verb = "reads" if touch.kind == "read" else "also writes"
    return words.error(
        f"{words.one.format(other)} {verb} an element of '{touch.name}' that "
        f"{_last_word(words)} {writer} writes",
        advice=words.advice,
    )


def _last_word(words: Wording) -> str:
    """``iteration`` of "iteration {} of ...", ``thread`` of "data race: thread {}"."""
    return words.one.split(" {}")[0].split()[-1]
