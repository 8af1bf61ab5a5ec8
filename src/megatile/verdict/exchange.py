"""Rules about messages by hand: those that are a collective, one unit in the middle, all in one order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from megatile.collectives.planner import predict
from megatile.core.dtypes import itemsize, numpy_dtype
from megatile.core.errors import MegatileError
from megatile.core.expr import Symbol, symbols
from megatile.ir import nodes as n
from megatile.plan import model as pm
from megatile.plan.counts import command_count
from megatile.plan.execute import execute
from megatile.plan.statements import rewritten
from megatile.verdict import footprint
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule

MAX_EXECUTED = 50_000
"""Commands of Plans that are executed to see what they compute,"""
MAX_ELEMENTS = 1 << 25
"""and elements of all their tensors."""
HOT = 2.0
"""Times the mean of bytes that one unit sends or receives, to be called the middle of everything."""

Array = Any


@rule("collective by hand", costly=True)
def by_hand(study: Study) -> Iterator[Finding]:
    """Messages that together are a collective, which the machine's library does faster."""
    plan = study.plan
    used = _collectives_of(study)
    if not _talks_by_hand(plan) and not used:
        return
    found = collective_of(plan)
    if found is None or found[0] in used:
        return
    operation, tile, nbytes = found
    try:
        predicted = predict(
            operation, machine=study.hda, nbytes=nbytes, ranks=plan.units, dtype=tile.dtype, scale=plan.scale
        )
    except MegatileError:
        return
    local = study.plan_ps(_local_copies(plan)) or 0
    yield from study.finding(
        "collective by hand", predicted.time_ps + max(0, local - study.launch_ps),
        f"{operation} of the same bytes by '{predicted.algorithm}', and the local copies",
        bottleneck=f"{operation} by {' and '.join(sorted(used)) or 'hand'}: all messages together are one, "
        "and the planner's is faster",
        reason=f"executed with random data, '{tile.name}' of every unit is what {operation} gives",
        step=f"T.{operation.replace('all_', 'all', 1) if operation != 'all_to_all' else operation}, or "
        f'mt.collective("{operation}", …): {predicted.algorithm}',
        source=study.line("channel", "dma", "control") or study.line(),
    )  # fmt: skip


class Ring(NamedTuple):
    """An all-gather by messages: every unit hands on all parts of a tile, to one other."""

    tile: pm.Tile
    lines: set[str]
    messages: set[int]
    """The identities of its commands."""


@rule("all-gather by hand")
def ring_by_hand(study: Study) -> Iterator[Finding]:
    """Units of a program with blocks hand parts on around a ring, which the library does faster."""
    found = ring_of(study.plan) if study.plan.levels else None
    if found is None:
        return
    nbytes = itemsize(found.tile.dtype) * prod(found.tile.shape)
    try:
        predicted = predict(
            "all_gather", machine=study.hda, nbytes=nbytes, ranks=study.plan.units, dtype=found.tile.dtype
        )
    except MegatileError:
        return

    def without(s: Any) -> Any:
        return None if id(s) in found.messages else s

    streams = tuple(replace(x, body=rewritten(x.body, without)) for x in study.plan.streams)
    rest = study.plan_ps(replace(study.plan, streams=streams))
    yield from study.finding(
        "collective by hand", rest and rest + predicted.time_ps - study.launch_ps,
        f"Plan timed again without these messages, and an all-gather by '{predicted.algorithm}'",
        bottleneck=f"an all-gather of '{found.tile.name}' by hand: a ring of messages from unit to unit",
        reason="each unit uses the link to one other, one message after the other; the planner's all-gather "
        "is faster",
        step=f"T.allgather({found.tile.name}, part): {predicted.algorithm}", source=min(found.lines),
    )  # fmt: skip


def ring_of(plan: pm.Plan) -> Ring | None:
    """The all-gather around a ring that the units of a Plan do by hand, if they do one."""
    got: dict[int, list[tuple[int, footprint.Box]]] = {}
    tiles, lines, messages = set[str](), set[str](), set[int]()
    for stream in plan.streams:
        for unit in (u for run in stream.units for u in range(*run)) if stream.level is None else ():
            for s, env in footprint.commands(stream.body, {"unit": unit}):
                if not isinstance(s, pm.Compute) or s.write.at is None or len(s.reads) != 1:
                    continue
                to, tile = footprint.number(s.write.at, env), plan.tile(s.write.tile)
                if s.reads[0].at is not None or s.reads[0].tile != tile.name:
                    return None
                here, there = (footprint.box_of(tile, r, env) for r in (s.reads[0], s.write))
                if here != there:
                    return None
                if here is None or to is None:
                    return None
                tiles.add(tile.name)
                lines.add(str(s.source or ""))
                messages.add(id(s))
                got.setdefault(to, []).append((unit, here))
    if plan.units < 3 or len(got) < plan.units or len(tiles) != 1:
        return None
    tile = plan.tile(next(iter(tiles)))
    for parts in got.values():
        elements = sum(prod(b - a for a, b in box) for box in {box for _, box in parts})
        of_one = len({sender for sender, _ in parts}) == 1
        if (
            not of_one
            or len(parts) != plan.units - 1
            or elements * plan.units != prod(tile.shape) * len(parts)
        ):
            return None
    return Ring(tile, lines, messages)


def _collectives_of(study: Study) -> set[str]:
    """Return the collectives that a program of whole devices uses."""
    if study.lowered is None or study.plan.levels:
        return set()
    kinds = {"allreduce": "all_reduce", "allgather": "all_gather"}
    return {kinds.get(c.kind, c.kind) for c in n.each(n.Collective, study.lowered.source.body)}


def _local_copies(plan: pm.Plan) -> pm.Plan:
    """Return the Plan with nothing but unconditional copies inside units."""

    tiles = {t.name for t in plan.tiles}

    def own(s: Any) -> Any:
        if not isinstance(s, pm.Compute) or s.engine != "dma":
            return s if isinstance(s, pm.Loop) and not s.carries else None
        return s if all(r.at is None and r.tile in tiles for r in (*s.reads, s.write)) else None

    streams = (replace(x, body=rewritten(x.body, own)) for x in plan.streams)
    return replace(plan, streams=tuple(streams))


def _talks_by_hand(plan: pm.Plan) -> bool:
    """Whether units of a Plan reach each other without collectives of a library."""
    statements = [s for body in plan.bodies for s in body]
    library = any(
        isinstance(s, pm.Start) or (isinstance(s, pm.Collective) and s.kind != "barrier") for s in statements
    )
    remote = _reaches_others(plan) or bool(plan.channels)
    return plan.units > 1 and not plan.levels and not library and remote


def _reaches_others(plan: pm.Plan) -> bool:
    commands = (s for body in plan.bodies for s in body if isinstance(s, pm.Compute))
    return any(r.at is not None for s in commands for r in (*s.reads, s.write))


def collective_of(plan: pm.Plan) -> tuple[str, pm.Tile, int] | None:
    """The collective that a Plan computes, seen from random data: its name, its result, and its bytes."""
    tensors = [t for t in plan.tiles if t.role != "local"]
    sizes = [int(np.prod(t.shape)) * plan.owners(t) for t in tensors]
    if sum(sizes) > MAX_ELEMENTS or command_count(plan) > MAX_EXECUTED:
        return None
    if any(plan.owners(t) != plan.units for t in tensors):
        return None
    rng = np.random.default_rng(0)
    given = {
        t.name: rng.integers(-3, 4, (plan.units, *t.shape)).astype(numpy_dtype(t.dtype)) for t in tensors
    }
    try:
        results = execute(plan, {name: x.copy() for name, x in given.items()}, races=False)
    except (MegatileError, ValueError):
        return None
    for tile in tensors:
        after = results.get(tile.name)
        if after is None or np.array_equal(after, given[tile.name]):
            continue
        for x in given.values():
            operation = _relation(x.reshape(plan.units, -1), np.asarray(after).reshape(plan.units, -1))
            if operation:
                elements = max(x[0].size, after[0].size)
                return operation, tile, elements * itemsize(tile.dtype)
    return None


def _relation(x: Array, y: Array) -> str:
    """The collective by which every unit's part of ``y`` comes from the parts of ``x``, or nothing."""
    units, size, other = len(x), x.shape[1], y.shape[1]
    if size == other:
        if any((y == total).all() for total in (x.sum(axis=0, dtype=y.dtype), x.max(axis=0), x.min(axis=0))):
            return "all_reduce"
        if size % units == 0 and np.array_equal(
            y, x.reshape(units, units, -1).swapaxes(0, 1).reshape(units, -1)
        ):
            return "all_to_all"
        if any((y == row).all() for row in x):
            return "broadcast"
    if other == units * size and (y == x.reshape(-1)).all():
        return "all_gather"
    if size == units * other and np.array_equal(y, x.sum(axis=0, dtype=y.dtype).reshape(units, -1)):
        return "reduce_scatter"
    return ""


@rule("hot unit")
def hot_unit(study: Study) -> Iterator[Finding]:
    """One unit sends or receives what others share out."""
    if study.plan.units < 2 or not (study.plan.channels or _reaches_others(study.plan)):
        return
    sent, received, lines = _bytes_between(study.plan)
    ratio = max((float(x.max() / x.mean()) for x in (sent, received) if x.any()), default=1.0)
    if ratio < HOT:
        return
    busiest = (
        sent if sent.max() / max(1, sent.mean()) >= received.max() / max(1, received.mean()) else received
    )
    spent = sum(row[4] for row in study.groups if row[2] in lines)
    yield from study.finding(
        "hot unit", study.base_ps - spent * (1 - 1 / ratio),
        "time of its messages on the critical path, divided among all units", bound=True,
        bottleneck=f"one unit in the middle: unit {int(busiest.argmax())} moves {ratio:.3g}× the mean",
        reason=f"{spent / study.base_ps:.0%} of the time are its messages, one after the other",
        step="let every unit take a part: a collective (T.allreduce, T.allgather, T.all_to_all), or a ring",
        source=study.line("channel", "dma", "control") or study.line(),
    )  # fmt: skip


def _bytes_between(plan: pm.Plan) -> tuple[Array, Array, set[str]]:
    """Return by unit the bytes sent and those received, and the source lines that do it."""
    sent, received, lines = np.zeros(plan.units), np.zeros(plan.units), set[str]()
    for stream in plan.streams:
        for start, stop, step in stream.units if stream.level is None else ():
            for unit in range(start, stop, step):
                for s, env in footprint.commands(stream.body, {"unit": unit}):
                    for source, to, size in _moves(s, env, unit):
                        if source != to and 0 <= source < plan.units and 0 <= to < plan.units:
                            sent[source] += size
                            received[to] += size
                            lines.add(str(s.source or ""))
    return sent, received, lines


def _moves(s: Any, env: dict[str, int], unit: int) -> Iterator[tuple[int, int, int]]:
    """Yield sender, receiver and bytes of what a command sends."""
    size = footprint.number(s.work.bytes, env) if isinstance(s, (pm.Compute, pm.Send)) else None
    if size is None:
        return
    if isinstance(s, pm.Send):
        to = footprint.number(s.to, env)
        yield from [(unit, to, size)] if to is not None else []
    else:
        to = footprint.number(s.write.at, env) if s.write.at is not None else unit
        for region in s.reads:
            source = footprint.number(region.at, env) if region.at is not None else unit
            yield from [(source, to, size)] if source is not None and to is not None else []


@rule("incast")
def incast(study: Study) -> Iterator[Finding]:
    """All units send to the same one at the same time, and then all to the next."""
    plan = study.plan
    if plan.units < 2 or not _same_order(plan):
        return

    def turned(place: Any) -> Any:
        return (
            place if place is None or "unit" in symbols(place) else (place + Symbol("unit") + 1) % plan.units
        )

    def change(s: Any) -> Any:
        if isinstance(s, pm.Compute):
            reads = tuple(replace(r, at=turned(r.at)) for r in s.reads)
            return replace(s, reads=reads, write=replace(s.write, at=turned(s.write.at)))
        return s

    streams = (replace(x, body=rewritten(x.body, change)) if x.level is None else x for x in plan.streams)
    yield from study.finding(
        "incast", study.plan_ps(replace(plan, streams=tuple(streams))),
        "Plan timed again with every unit beginning at the one after itself",
        bottleneck="incast: all units send to the same one at a time, and share its link",
        reason="each goes through the others in the same order, whatever its own number",
        step="begin behind the own rank: dst=(rank + 1 + i) % count in step i",
        source=study.line("dma", "channel"),
    )  # fmt: skip


def _same_order(plan: pm.Plan) -> bool:
    """Whether all units put to (or get from) most others, in one order that does not depend on themselves."""
    orders = set()
    for stream in plan.streams if _reaches_others(plan) else ():
        for start, stop, step in stream.units if stream.level is None else ():
            for unit in range(start, stop, step):
                order = []
                for s, env in footprint.commands(stream.body, {"unit": unit}):
                    places = [r.at for r in (*s.reads, s.write)] if isinstance(s, pm.Compute) else []
                    order += [
                        v for at in places if at is not None if (v := footprint.number(at, env)) is not None
                    ]
                orders.add(tuple(order))
    most = max(orders, key=len, default=())
    others = [tuple(v for v in order if v in most) for order in orders]
    return (
        len(set(most)) > 2
        and len(set(most)) >= plan.units - 1
        and all(set(o) == set(most) for o in others)
        and (len({o[0] for o in others}) == 1)
    )
