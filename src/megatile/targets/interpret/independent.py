"""Which launches can run in lockstep, read off the text of their body; and that iterations of T.Parallel, or
units that run together, do not depend on each other: accesses to watch, and what they may not do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.expr import Applied, Expr, Symbol, constant, walk
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Rank, has_loads, loads
from megatile.ir.launch import Launch
from megatile.targets.interpret.errors import DataRaceError, DependenceError, RunError
from megatile.targets.interpret.expressions import divides
from megatile.targets.interpret.group import MAX_INSTANCES
from megatile.targets.interpret.places import Name
from megatile.targets.interpret.units import Unit

if TYPE_CHECKING:
    from megatile.targets.interpret.machine import Interpreter


MIN_UNITS_AT_ONCE = 8
"""Units below which it is not worth while."""
_KINDS = (n.Alloc, n.Copy, n.Fill, n.Gemm, n.Reduce, n.Cumsum, n.Let, n.Store, n.Loop, n.Parallel)


def can_run(machine: Interpreter, node: n.ScaleRegion, unit: Unit, size: int) -> bool:
    """Return whether the units of a region of the whole launch qualify, by the text of their body."""
    if (
        unit.parent is not None
        or not MIN_UNITS_AT_ONCE <= size <= MAX_INSTANCES
        or machine.recorder is not None
    ):
        return False
    inside = list(n.walk(node.body))
    if not all(isinstance(one, _KINDS) for one in inside):
        return False
    return all(_is_plain(machine, name, node.scale) for one in inside for name in _names(one)) and all(
        _fits(machine, one, varying) for one, varying in _with_varying(node.body)
    )


def _names(node: n.Node) -> set[str]:
    return {region.source for _, region in n.regions(node)}


def _is_plain(machine: Interpreter, name: str, scale: str) -> bool:
    """Return whether a region is a tensor as it is, or a tile of the unit itself."""
    found = machine.places.names[name]
    if found.binding.owner or found.copies > 1 or found.base in machine.places.sharded:
        return False
    return found.alloc is None or (found.owner == scale and found.base in machine.sharing.raceless)


def _with_varying(body: tuple[n.Node, ...]) -> Iterator[tuple[n.Node, set[str]]]:
    """Yield every statement, with the variables that may differ between units."""
    every = list(n.walk(body))
    lets = [one for one in every if isinstance(one, n.Let)]
    varying: set[str] = set()
    for _ in lets:  # a variable may be set from one that is set later in a loop
        varying |= {one.name for one in lets if not _is_uniform(one.value, varying)}
    for one in every:
        yield one, varying


def _is_uniform(expr: Expr, varying: set[str]) -> bool:
    return not any(
        isinstance(part, (Coord, Rank, Load)) or (isinstance(part, Symbol) and part.name in varying)
        for part in walk(expr)
    )


def _fits(machine: Interpreter, node: n.Node, varying: set[str]) -> bool:
    if isinstance(node, n.Loop):
        bounds = (node.start, node.stop, node.step)
        return node.kind != "bounded" and all(_is_uniform(e, varying) for e in bounds)
    if isinstance(node, n.Parallel):
        return (
            all(_is_uniform(e, varying) for e in node.extents)
            and all(isinstance(one, (n.Store, n.Let)) for one in node.body)
            and not watched(node, machine.places.names)
            and all(_is_own(one.index, node.vars) for one in node.body if isinstance(one, n.Store))
        )
    if n.remote(node) is not None or any(map(_guards_division, n.expressions(node))):
        return False
    return all(
        _region_fits(machine, region, varying)
        for _, region in n.regions(node)
        if not _is_element(node, region)
    )


def _is_element(node: n.Node, region: n.Region) -> bool:
    return isinstance(node, (n.Store, n.Let)) or not any(d.extent is not None for d in region.dims)


def _region_fits(machine: Interpreter, region: n.Region, varying: set[str]) -> bool:
    if region.along is not None or any(has_loads(e) for e in region.expressions()):
        return False
    name = machine.places.names[region.source]
    private = name.alloc is not None
    for dim, length in zip(region.dims, name.binding.shape, strict=True):
        if dim.extent is not None and not _is_uniform(dim.extent, varying):
            return False
        if private and not (
            _is_uniform(dim.start, varying) and (not dim.anchored or _is_inside(dim, length))
        ):
            return False
    return True


def _is_inside(dim: n.Dim, length: int) -> bool:
    """Return whether an anchored dimension of a tile, which may reach over the edge, surely does not."""
    start, size = constant(dim.start), 1 if dim.extent is None else constant(dim.extent)
    return start is not None and size is not None and 0 <= start <= length - size


def _guards_division(expr: Expr) -> bool:
    """Return whether a condition decides if whole numbers are divided: units are not told apart in that."""
    for part in walk(expr):
        if isinstance(part, Applied) and part.operator in ("select", "and", "or"):
            sides = part.args[1:]
            chosen = part.operator != "select" or any(map(has_loads, sides))
            if chosen and any(map(divides, sides)):
                return True
    return False


def _is_own(index: tuple[Expr, ...], variables: tuple[str, ...]) -> bool:
    """Return whether every iteration writes an element of its own: each variable stands alone in a dimension,
    or with something added that no variable changes."""
    found: list[str] = []
    for expr in index:
        if has_loads(expr):
            return False
        used = [p.name for p in walk(expr) if isinstance(p, Symbol) and p.name in variables]
        if len(used) > 1 or (used and not _only_added(expr, used[0])):
            return False
        found += used
    return sorted(found) == sorted(variables)


def _only_added(expr: Expr, name: str) -> bool:
    """``name`` plus terms without it."""
    if isinstance(expr, Symbol):
        return expr.name == name
    if getattr(expr, "operator", None) != "+":
        return False
    holding = [a for a in expr.args if any(isinstance(p, Symbol) and p.name == name for p in walk(a))]  # type: ignore[attr-defined]
    return len(holding) == 1 and _only_added(holding[0], name)


_ELEMENTWISE = (n.Store, n.Atomic, n.Let, n.If, n.Loop, n.Check)


def can_batch(node: n.ScaleRegion, depth: int, names: dict[str, Name], launch: Launch) -> bool:
    """Return whether the units of a region below a unit at ``depth`` can run together."""
    inside = list(n.walk(node.body))
    if not all(isinstance(inner, _ELEMENTWISE) and n.remote(inner) is None for inner in inside):
        return False
    touched = {name for inner in inside for _, name, _ in n.element_accesses(inner)}
    if any(names[t].depth > depth or names[t].copy_depth > depth for t in touched):
        return False  # every unit has its own: a tile, a share, or a copy
    own = {inner.name for inner in inside if isinstance(inner, n.Let)}
    bounds = [
        e for inner in inside if isinstance(inner, n.Loop) for e in (inner.start, inner.stop, inner.step)
    ]
    return all(_is_shared(e, depth, own, launch) for e in bounds)


def _is_shared(expr: Expr, depth: int, own: set[str], launch: Launch) -> bool:
    """Return whether all units see the same value."""
    for part in walk(expr):
        if isinstance(part, Load) or getattr(part, "name", None) in own:
            return False
        if isinstance(part, (Rank, Coord)) and launch.depth(part.scale) > depth:
            return False
    return True


# --- iterations ------------------------------------------------------------------------------------


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


def watched(node: n.Parallel | n.ScaleRegion, names: dict[str, Name]) -> set[int]:
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
    """Return ``iteration`` of "iteration {} of ...", ``thread`` of "data race: thread {}"."""
    return words.one.split(" {}")[0].split()[-1]


def wording(scale: str) -> Wording:
    """Return how a conflict between units is reported."""
    return Wording(
        DataRaceError,
        several=f"data race: several units of scale '{scale}' write",
        one=f"data race: {scale} {{}}",
        advice=f"let every {scale} write its own element, use T.atomic_add, or put a T.barrier() between",
    )
