"""Collectives, by what they mean: all sources are read, then all results are written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.dtypes import dtype
from megatile.core.expr import Const
from megatile.core.forkjoin import rendezvous
from megatile.core.operations import OPERATIONS, cast
from megatile.core.placement import cut
from megatile.ir import nodes as n
from megatile.targets.interpret.errors import DeadlockError, OutOfBoundsError, RunError
from megatile.targets.interpret.group import word_of
from megatile.targets.interpret.units import Unit, describe

if TYPE_CHECKING:
    from megatile.targets.interpret.machine import Interpreter

Parts = list[list[np.ndarray]]
"""Per unit, per operand."""


def check_same(machine: Interpreter, node: n.Collective, meeting: Any, unit: Unit) -> None:
    """Units may come to one collective at different lines (both sides of an ``if``), but not to two."""
    first, other = meeting.node, meeting.units()[0]
    if _signature(first) == _signature(node):
        return
    lines = [f" (line {c.span.line})" if c.span else "" for c in (first, node)]
    raise DeadlockError(
        f"{describe(other, machine.launch)} is at {word_of(first)}{lines[0]}, "
        f"{describe(unit, machine.launch)} at {word_of(node)}{lines[1]}: units that meet do the same",
        advice="let all come to the same one, with the same op= and dim=",
    )


def _signature(node: n.Collective) -> Any:
    return node.kind, node.op, node.fn, node.dim, len(node.source), len(node.to)


def check_order(machine: Interpreter, meeting: Any) -> None:
    """Refuse units that come to the collectives of two tiles in opposite order."""
    nodes: dict[int, n.Collective] = meeting.nodes
    if len({node.source[0].source for node in nodes.values()}) < 2:
        return
    parts: dict[tuple[str, Any], set[int]] = {}
    for rank, node in nodes.items():
        parts.setdefault((node.source[0].source, node.place), set()).add(rank)
    group = meeting.units()[0].group
    found = group.crossings.find(
        meeting.ranks[0],
        [(tile, frozenset(ranks), place) for (tile, place), ranks in parts.items()],
        lambda rank: describe(meeting.arrived[rank], machine.launch),
    )
    if found:
        raise DeadlockError(
            f"units call collectives in opposite order: {found[0]}",
            place=found[1],
            advice="call them in the same order on all units",
        )


def perform(machine: Interpreter, nodes: list[Any], units: list[Unit]) -> None:
    """All units have come, each with a statement of its own: exchange their data."""
    access, node = machine.access, nodes[0]
    for unit, own in zip(units, nodes, strict=True):
        unit.node = own
    if node.kind == "all_to_all" and len(node.source) > 1:
        _uneven_all_to_all(machine, nodes, units)
        return
    root = _root(machine, nodes, units) if node.kind == "broadcast" else None
    givers = [(own, u) for own, u in zip(nodes, units, strict=True) if root is None or u is root]
    sources = [[access.resolve(r, u) for r in own.source] for own, u in givers]
    data = [
        [np.array(access.read(t, u)) for t in targets]
        for (_, u), targets in zip(givers, sources, strict=True)
    ]
    rendezvous(units)
    if node.kind not in _UNEVEN:
        _same_shapes(machine, node, units, data)
    results = _KINDS[node.kind](machine, node, units, data)
    for own, unit, mine in zip(nodes, units, results, strict=True):
        for region, value in zip(own.to, mine, strict=True):
            target = access.resolve(region, unit)
            if value.size != math.prod(target.shape):
                raise RunError(
                    f"{word_of(node)}: the parts make {value.shape}, the result has {target.shape} on "
                    f"{describe(unit, machine.launch)}",
                    advice="let the larger side be as long as all parts together",
                )
            access.write(target, value.reshape(target.shape), unit)
    _placements(machine, node, units)
    for targets in sources:
        for target in targets:
            target.storage.reduced = target.storage.partial and node.kind == "reduce_scatter"
    rendezvous(units)


def _same_shapes(machine: Interpreter, node: n.Collective, units: list[Unit], data: Parts) -> None:
    """What is combined element by element has one shape; uneven shards have not."""
    for unit, mine in zip(units, data, strict=False):  # of a broadcast there is one
        for x, first in zip(mine, data[0], strict=True):
            if x.shape != first.shape:
                raise RunError(
                    f"{word_of(node)}: {describe(unit, machine.launch)} has the shape {x.shape}, "
                    f"{describe(units[0], machine.launch)} has {first.shape}",
                    advice="give all units one shape: pad the uneven shards, or view with T.Replica",
                )


def _placements(machine: Interpreter, node: n.Collective, units: list[Unit]) -> None:
    """A Partial view that has been reduced holds the result."""
    for region in node.to:
        name = machine.places.names[region.source]
        if not name.is_partial:
            continue
        for unit in units:
            storage = machine.places.storage(name, unit)
            storage.partial = False
            storage.scattered = None
        if node.kind == "scatter_view":
            storage = machine.places.storage(name, units[0])
            length = storage.shape[node.dim]
            parts = []
            for rank in range(storage.copies):
                index: list[Any] = [slice(None)] * len(storage.shape)
                index[node.dim] = slice(*cut(length, storage.copies, rank))
                parts.append(tuple(index))
            storage.scattered = parts


def _reduced(node: n.Collective, data: Parts) -> np.ndarray:
    return np.asarray(OPERATIONS[node.op].meaning(np.stack([mine[0] for mine in data]), axis=0))


def _allreduce(machine: Interpreter, node: n.Collective, units: list[Unit], data: Parts) -> Parts:
    if node.fn is None:
        total = _reduced(node, data)
        return [[total] for _ in units]
    merged = data[0]
    for other in data[1:]:
        merged = _merge(machine, node.fn, merged, other)
    return [merged for _ in units]


def _merge(
    machine: Interpreter, fn: n.Merge, left: list[np.ndarray], right: list[np.ndarray]
) -> list[np.ndarray]:
    """Return the user's function on whole tiles; smaller operands are repeated over the last dimensions of
    larger ones."""
    rank = max(x.ndim for x in left)
    values = {}
    for side, operands in (("a", left), ("b", right)):
        for number, x in enumerate(operands):
            values[f"{side}{number}"] = cast(x.reshape(x.shape + (1,) * (rank - x.ndim)), "f32")
    context = SimpleNamespace(vars=values, path=())
    results = []
    for expr, like in zip(fn.results, left, strict=True):
        value = np.asarray(machine.compile(expr)(context))
        full = np.broadcast_to(
            value, np.broadcast_shapes(value.shape, like.shape + (1,) * (rank - like.ndim))
        )
        if full.size != like.size:
            full = full[(slice(None),) * like.ndim + (0,) * (rank - like.ndim)]
        results.append(cast(full.reshape(like.shape), dtype(like.dtype)))
    return results


def _allgather(machine: Interpreter, node: n.Collective, units: list[Unit], data: Parts) -> Parts:
    whole = np.concatenate([mine[0] for mine in data], axis=node.dim)
    return [[whole] for _ in units]


def _reduce_scatter(machine: Interpreter, node: n.Collective, units: list[Unit], data: Parts) -> Parts:
    total = _reduced(node, data)
    lengths = [machine.access.resolve(node.to[0], unit).shape[node.dim] for unit in units]
    return [[part] for part in np.split(total, np.cumsum(lengths)[:-1], axis=node.dim)]


def _scatter_view(machine: Interpreter, node: n.Collective, units: list[Unit], data: Parts) -> Parts:
    total = _reduced(node, data)
    results = []
    for rank, mine in enumerate(data):
        part = np.array(mine[0])
        index: list[Any] = [slice(None)] * part.ndim
        index[node.dim] = slice(*cut(part.shape[node.dim], len(units), rank))
        part[tuple(index)] = cast(total, dtype(part.dtype))[tuple(index)]
        results.append([part])
    return results


def _all_to_all(machine: Interpreter, node: n.Collective, units: list[Unit], data: Parts) -> Parts:
    length = data[0][0].shape[node.dim]
    if length % len(units):
        raise RunError(
            f"T.all_to_all: {length} elements of dimension {node.dim} do not divide over {len(units)} units",
            advice="pad the tile, or choose another dim=",
        )
    pieces = [np.split(mine[0], len(units), axis=node.dim) for mine in data]
    return [[np.concatenate([p[rank] for p in pieces], axis=node.dim)] for rank in range(len(units))]


def _uneven_all_to_all(machine: Interpreter, nodes: list[n.Collective], units: list[Unit]) -> None:
    """Parts as long as each unit's counts say."""
    access, dim = machine.access, nodes[0].dim
    counts, pieces = [], []
    for node, unit in zip(nodes, units, strict=True):
        mine = np.array(access.read(access.resolve(node.source[1], unit), unit)).astype(np.int64)
        if (mine < 0).any():
            raise RunError(f"T.all_to_all: counts {mine.tolist()}", advice="counts are at least 0")
        part = access.resolve(_first(node.source[0], dim, int(mine.sum())), unit)
        counts.append(mine)
        pieces.append(np.split(np.array(access.read(part, unit)), np.cumsum(mine)[:-1], axis=dim))
    rendezvous(units)
    for rank, (node, unit) in enumerate(zip(nodes, units, strict=True)):
        whole = np.concatenate([p[rank] for p in pieces], axis=dim)
        access.write(access.resolve(_first(node.to[0], dim, whole.shape[dim]), unit), whole, unit)
        for region in node.to[1:]:
            access.write(access.resolve(region, unit), np.array([c[rank] for c in counts]), unit)
    rendezvous(units)


def _first(region: n.Region, dim: int, length: int) -> n.Region:
    """Return the first elements of a region along a dimension; more than it has are out of bounds."""
    at = [number for number, d in enumerate(region.dims) if d.extent is not None][dim]
    extent = region.dims[at].extent
    if isinstance(extent, Const) and length > extent.value:
        raise OutOfBoundsError(
            f"T.all_to_all: {length} elements for '{region.source}', which has {extent.value} in dim {dim}",
            advice="allocate as many as may come, or check the counts",
        )
    dims = list(region.dims)
    dims[at] = replace(dims[at], extent=Const(length))
    return replace(region, dims=tuple(dims))


def _root(machine: Interpreter, nodes: list[n.Collective], units: list[Unit]) -> Unit:
    """Return the unit whose tile a broadcast gives to all."""
    roots = {int(machine.value(node.root, unit)) for node, unit in zip(nodes, units, strict=True)}
    if len(roots) != 1:
        raise RunError(
            f"T.broadcast: units name different roots {sorted(roots)}", advice="give all the same root"
        )
    root = roots.pop()
    if not 0 <= root < len(units):
        raise RunError(
            f"T.broadcast: root {root} of {len(units)} units", advice=f"ranks go from 0 to {len(units) - 1}"
        )
    return units[root]


def _broadcast(machine: Interpreter, node: n.Collective, units: list[Unit], data: Parts) -> Parts:
    return [data[0] for _ in units]


def _gather_view(machine: Interpreter, node: n.Collective, units: list[Unit], data: Parts) -> Parts:
    """The parts lie in one storage already; the meeting makes them visible."""
    for unit in units:
        machine.places.storage(machine.places.names[node.to[0].source], unit).gathered = True
    return data


_KINDS: dict[str, Callable[[Any, n.Collective, list[Unit], Parts], Parts]] = {
    "allreduce": _allreduce,
    "allgather": _allgather,
    "reduce_scatter": _reduce_scatter,
    "scatter_view": _scatter_view,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "gather_view": _gather_view,
}

_UNEVEN = ("allgather", "gather_view")
"""Kinds whose units may give parts of different lengths."""
