"""Directions (``E W N S parent ...``): who is the neighbour, and by which of its directions it hears from us.

A ``Wiring`` holds both as expressions over ``unit``, so a stream does not grow with the number of units; -1
means there is no neighbour. Topologies by name live in ``TOPOLOGIES``; a user's own is a function (rank,
world_size) -> {direction: peer}, of which tables are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import numpy as np

from megatile.core.errors import MegatileError, Place, did_you_mean
from megatile.core.expr import Expr, constant, eq, expr, member, select, substitute, table, unit
from megatile.core.registry import Registry
from megatile.plan.cohort import OPPOSITE, InvalidDirection
from megatile.plan.follow import PlanDeadlock

Neighbors = Callable[[int, int], Mapping[str, int]]

IpcqDeadlock = PlanDeadlock
IpcqInvalidDirection = InvalidDirection


class TopologyError(MegatileError, ValueError):
    """A topology that does not exist for this number of units."""


@dataclass(frozen=True)
class Wiring:
    """For each direction: the peer, and the number of the direction in which the peer receives from us.

    A family of directions that are counted instead of named has ``rule``: both as expressions over ``unit``
    and ``member``, the number of the direction; such directions may be given by a symbolic number.
    """

    names: tuple[str, ...]
    peers: tuple[Expr, ...] = ()
    arrives: tuple[Expr, ...] = ()
    rule: tuple[Expr, Expr] | None = None
    send_only: tuple[str, ...] = ()
    """Directions in which messages go out but none come in; in the opposite ones they only come in."""

    def check_use(self, direction: Any, *, sending: bool, place: Place | None = None) -> None:
        """Refuse the wrong end of a direction of one way."""
        outward = direction in self.send_only
        if self.send_only and isinstance(direction, str) and outward != sending:
            refused, instead = ("sent to", "send to") if sending else ("received from", "receive from")
            raise IpcqInvalidDirection(
                f"messages go one way: nothing can be {refused} {direction!r}",
                place=place,
                advice=f"{instead} {OPPOSITE[direction]!r}, or use topology ring_1d",
            )

    def index(self, direction: Any, place: Place | None = None) -> Expr:
        """Return the number of a direction given by name, or by number where directions are counted."""
        if isinstance(direction, str) and direction in self.names:
            return expr(self.names.index(direction))
        if self.rule is not None and isinstance(direction, (int, Expr)):
            known = constant(direction)
            if known is None or 0 <= known < len(self.names):
                return expr(direction)
        advice = did_you_mean(str(direction), self.names, what="directions")
        raise IpcqInvalidDirection(f"there is no direction {direction!r}", place=place, advice=advice)

    def towards(self, direction: Expr) -> tuple[Expr, Expr]:
        """Return the peer in a direction, and the number of its direction in which it hears us."""
        if self.rule is not None:
            return substitute(self.rule[0], {"member": direction}), substitute(
                self.rule[1], {"member": direction}
            )
        number = constant(direction)
        assert number is not None
        return self.peers[number], self.arrives[number]

    def source(self) -> Expr:
        """Return who feeds queue ``member`` of ``unit``: the neighbour in that direction."""
        if self.rule is not None:
            return self.rule[0]
        result = expr(-1)
        for number, peer in reversed(list(enumerate(self.peers))):
            result = select(eq(member, number), peer, result)
        return result


def counted(count: int, peer: Expr, arrives: Expr = member) -> Wiring:
    """Directions 0, 1, ... with one rule: ``counted(log2_n, unit ^ (1 << member))`` is a hypercube."""
    return Wiring(tuple(f"d{number}" for number in range(count)), rule=(expr(peer), expr(arrives)))


TOPOLOGIES: Registry[Callable[[int], Wiring]] = Registry("topologies")


def _opposites(names: tuple[str, ...]) -> tuple[Expr, ...]:
    return tuple(expr(names.index(OPPOSITE[name])) for name in names)


@TOPOLOGIES.register("ring_1d")
def _ring(units: int) -> Wiring:
    names = ("E", "W")
    return Wiring(names, ((unit + 1) % units, (unit - 1) % units), _opposites(names))


@TOPOLOGIES.register("ring_1d_unidir")
def _one_way_ring(units: int) -> Wiring:
    return replace(_ring(units), send_only=("E",))


def _side(units: int, name: str) -> int:
    side = isqrt(units)
    if side * side != units:
        raise TopologyError(f"{name} needs a square number of units, not {units}")
    return side


def _torus(units: int, name: str) -> Wiring:
    side = _side(units, name)
    row, column = unit // side, unit % side
    names = ("N", "S", "W", "E")
    peers = (
        (row - 1) % side * side + column,
        (row + 1) % side * side + column,
        row * side + (column - 1) % side,
        row * side + (column + 1) % side,
    )
    return Wiring(names, peers, _opposites(names))


TOPOLOGIES.add("torus_2d", lambda units: _torus(units, "torus_2d"))
TOPOLOGIES.add("mesh_2d", lambda units: _torus(units, "mesh_2d"))


@TOPOLOGIES.register("mesh_2d_no_wrap")
def _mesh(units: int) -> Wiring:
    side = _side(units, "mesh_2d_no_wrap")
    row, column = unit // side, unit % side
    names = ("N", "S", "W", "E")
    peers = (
        select(row > 0, unit - side, -1),
        select(row < side - 1, unit + side, -1),
        select(column > 0, unit - 1, -1),
        select(column < side - 1, unit + 1, -1),
    )
    return Wiring(names, peers, _opposites(names))


@TOPOLOGIES.register("tree_binary")
def _tree(units: int) -> Wiring:
    names = ("parent", "child_left", "child_right")
    left, right = unit * 2 + 1, unit * 2 + 2
    peers = (
        select(unit > 0, (unit - 1) // 2, -1),
        select(left < units, left, -1),
        select(right < units, right, -1),
    )
    # A parent hears from its left child (odd) in direction child_left, from its right one in child_right.
    return Wiring(names, peers, (select(eq(unit % 2, 1), 1, 2), expr(0), expr(0)))


@TOPOLOGIES.register("none")
def _none(units: int) -> Wiring:
    return Wiring((), (), ())


def wiring(topology: Any, units: int, neighbors: Neighbors | None = None) -> Wiring:
    """Return the wiring of a topology given by name, as a ``Wiring``, or as a function (rank, world_size) ->
    neighbours.
    """
    if isinstance(topology, Wiring):
        return topology
    if neighbors is not None or callable(topology):
        return from_neighbors(neighbors if neighbors is not None else topology, units)
    return TOPOLOGIES.find(topology)(units)


def neighbor_maps(topology: Any, units: int, neighbors: Neighbors | None = None) -> list[dict[str, int]]:
    """For each unit its directions and peers."""
    wires = wiring(topology, units, neighbors)
    everyone = {"unit": np.arange(units)}
    peers = [
        np.broadcast_to(wires.towards(expr(d))[0].evaluate(everyone), units) for d in range(len(wires.names))
    ]
    return [
        {name: int(peer[u]) for name, peer in zip(wires.names, peers, strict=True) if peer[u] >= 0}
        for u in range(units)
    ]


def from_neighbors(neighbors: Neighbors, units: int, directions: tuple[str, ...] = ()) -> Wiring:
    """Tables from a function. A peer hears from us in the opposite direction if that points back, else in any
    that does. ``directions`` exist even if nobody has a neighbour there.
    """
    maps = [dict(neighbors(u, units)) for u in range(units)]
    names = tuple(dict.fromkeys((*(name for entry in maps for name in entry), *directions)))
    peers, arrives = [], []
    for name in names:
        to = [entry.get(name, -1) for entry in maps]
        peers.append(table(to, unit))
        arrives.append(table([_heard(maps, names, u, name) for u in range(units)], unit))
    return Wiring(names, tuple(peers), tuple(arrives))


def _heard(maps: list[dict[str, int]], names: tuple[str, ...], rank: int, direction: str) -> int:
    peer = maps[rank].get(direction, -1)
    if peer < 0:
        return -1
    if peer >= len(maps):
        raise TopologyError(
            f"unit {rank} has neighbour {peer} in direction {direction}, but there are {len(maps)} units"
        )
    back = direction_back(maps[peer], rank, direction)
    if back is None:
        raise TopologyError(
            f"unit {rank} has neighbour {peer} in direction {direction}, but none of its directions points "
            "back"
        )
    return names.index(back)


def direction_back(neighbors: Mapping[str, int], rank: int, direction: str) -> str | None:
    """By which direction a peer with these neighbours hears us: the opposite if it points back, else any."""
    back = OPPOSITE.get(direction, "")
    return back if neighbors.get(back) == rank else next((d for d, u in neighbors.items() if u == rank), None)
