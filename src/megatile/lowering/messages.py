"""Puts and gets as messages: a bounded queue with slots in the receiver's memory, and credits back.

A put names who gets it; a message also needs somebody to take it out. Where every unit of a group runs the
same statement and its peers are a rotation of the group, each unit sends its part and takes out what comes to
it; large ones go in pieces of a slot's size. Units inside one instance send to the instance itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.core.expr import ZERO, Const, Expr, Symbol, known, simplify, substitute, symbols, unit
from megatile.cost.implementations import channel_of
from megatile.ir import nodes as n
from megatile.lowering.commands import chosen, copy_request
from megatile.lowering.regions import Block, length, part
from megatile.lowering.storage import Home
from megatile.lowering.streams import StreamScope
from megatile.lowering.units import Place, tidy
from megatile.plan import model as pm

MAX_UNITS_WITH_A_QUEUE_EACH = 64
"""Units of a group that have a queue for every other one."""
ROUNDS = 4096
"""Rounds of the loops around a statement whose peers are looked at."""


def by_messages(scope: StreamScope, node: n.Copy) -> bool:
    """Write a put or get as messages and return True; False: it cannot be."""
    mine = _blocks(scope, node)
    pair = None if mine is None else _pair(scope, node, *mine)
    if mine is None or pair is None:
        return False
    target, source = mine
    extents = [extent for a in source.axes if (extent := known(a.extent)) is not None]
    if len(extents) < len(source.axes):
        return False
    request = copy_request(scope, target, source, scope.place.launch.scales[scope.group[1] - 1].name, True)
    chosen(scope, request, node.impl)
    slots, most = channel_of(request)
    rows = known(length(source, 0)) or 1
    row = math.prod(extents) // rows * itemsize(source.home.dtype)
    each = next(e for e in range(min(rows, max(1, (most or rows * row) // row)), 0, -1) if rows % e == 0)
    to, member, taken, feeds, members = pair
    channel = pm.Channel(
        "queue", members, feeds, slots, each * row, target.home.memory, level=scope.level.name
    )
    name, index = scope.state.declared.channel(channel), scope.state.declared.name("piece")
    work = pm.Work(ZERO, Const(each * row), source.home.dtype)
    first = ZERO if rows == each else Symbol(index) * each
    into = part(target, 0, first, Const(each))
    shape = tuple(a.extent for a in into.axes)
    body = (
        pm.Send(name, to, member, part(source, 0, first, Const(each)).region(), work, source=node.place),
        pm.Receive(
            name, taken, None, shape, source.home.dtype, into.region(), work=work, source=node.place
        ),
    )  # fmt: skip
    for s in (pm.Loop(index, ZERO, Const(rows // each), body),) if rows > each else body:
        scope.emit(s)
    return True


def _blocks(scope: StreamScope, node: n.Copy) -> tuple[Block, Block] | None:
    """Return the unit's own target and source; None where units differ."""
    regions = scope.regions
    there, peer = _inside(scope, node.source, node.src, node), _inside(scope, node.to, node.dst, node)
    targets, source = regions.blocks(node.to, True, peer), regions.block(node.source, peer=there)
    if len(targets) != 1 or targets[0].cut or source.cut or not source.kept_axes or not targets[0].kept_axes:
        return None
    target = targets[0]
    if [known(a.extent) for a in source.axes if a.kept] != [known(a.extent) for a in target.axes if a.kept]:
        return None
    alike = source.home.dtype == target.home.dtype and all(known(a.extent) for a in source.axes)
    return (target, source) if alike else None


def _inside(scope: StreamScope, region: n.Region, number: Expr | None, node: n.Copy) -> Place | None:
    """Return a peer in the same instance."""
    home, peer = scope.state.homes.home(region.source), scope.peer_of(node, number)
    return peer if peer is not None and _is_inside(scope, home, peer) else None


def _is_inside(scope: StreamScope, home: Home, peer: Place) -> bool:
    return scope.owner(home, peer) is None and scope.group[1] > home.depth == scope.level.depth


def _pair(scope: StreamScope, node: n.Copy, target: Block, source: Block) -> Any:
    """Return where a message goes and under which member, that of the one taken out, who feeds a queue, and
    how many queues a unit has; None where no unit can know who sends to it."""
    number = node.dst if node.dst is not None else node.src
    assert number is not None
    rank = scope.whole(number)
    peer = scope.peer(rank, node.axis, node.scale)
    other = target if node.dst is not None else source
    if _is_inside(scope, other.home, peer):
        return unit, ZERO, ZERO, unit, 1
    if other.home.depth != scope.level.depth or node.scale is not None or not _alike(scope, other):
        return None
    me, size, _ = scope.line(node.axis)
    shift = _shift(scope, rank, me, size)
    if shift is None:
        return None

    def at(number: Expr) -> Expr:
        return tidy(scope.number(scope.peer(tidy(number, scope.ranges), node.axis)), scope.ranges)

    back = simplify((me + size - shift) % size)
    ahead, behind = (rank, back) if node.dst is not None else (back, rank)
    if not symbols(shift):
        return at(ahead), ZERO, ZERO, at(behind), 1
    if size > MAX_UNITS_WITH_A_QUEUE_EACH:
        return None
    return at(ahead), tidy(me, scope.ranges), tidy(behind, scope.ranges), at(Symbol("member")), size


def _alike(scope: StreamScope, other: Block) -> bool:
    """Return whether all units of the level run this statement equally often, on the same part of their
    tiles."""
    stream, rounds = scope.stream, {turn.name for turn in scope.turns}
    return (
        stream.everyone
        and stream.depth == len(scope.turns) + len(scope.conditions)
        and all(symbols(c) <= rounds for c in scope.conditions)
        and all(symbols(a.start) <= rounds for a in other.axes)
        and not any(isinstance(m, n.Wait) for m in n.walk(scope.state.program.body))
    )


def _shift(scope: StreamScope, rank: Expr, me: Expr, size: int) -> Expr | None:
    """By how much every unit's peer is further round the group than itself, in every round."""
    if not symbols(rank) <= {"unit", *(turn.name for turn in scope.turns)}:
        return None
    units = scope.stream.units
    mine = np.broadcast_to(me.evaluate({"unit": units}), units.shape)
    first = int(units[np.flatnonzero(mine == 0)[0]])
    shift = tidy(substitute(rank, {"unit": Const(first)}), scope.ranges)
    turns = [t for t in scope.turns if t.name in symbols(rank)]
    trips = [t.trips for t in turns]
    if math.prod(trips) > ROUNDS or any(known(t.start) is None for t in turns):
        return None
    for index in np.ndindex(*trips):
        env: dict[str, Any] = {
            t.name: (known(t.start) or 0) + i * t.step for t, i in zip(turns, index, strict=True)
        }
        there = np.broadcast_to(rank.evaluate({**env, "unit": units}), units.shape)
        if not np.array_equal(there, (mine + int(shift.evaluate(env))) % size):
            return None
    return shift
