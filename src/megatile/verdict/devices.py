"""Rules about how units share the work: collectives by hand, duplicate work, one unit that does it all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from megatile.collectives.planner import predict
from megatile.core.dtypes import itemsize, numpy_dtype
from megatile.core.errors import MegatileError
from megatile.core.expr import Const, known, walk
from megatile.core.placement import is_whole
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Rank
from megatile.ir.passes.unit import Unit
from megatile.ir.program import Program, bindings
from megatile.plan import model as pm
from megatile.plan.counts import command_count
from megatile.plan.execute import execute
from megatile.verdict import changes, footprint
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule

MAX_EXECUTED = 50_000
"""Commands of Plans that are executed to see what they compute,"""
MAX_ELEMENTS = 1 << 25
"""and elements of all their tensors."""
READ = 0.5
"""The share of what a collective gives that must be read, not to be called too much."""
HOT = 2.0
"""Times the mean of bytes that one unit sends or receives, to be called the middle of everything."""

Array = Any


@rule("collective by hand")
def by_hand(study: Study) -> Iterator[Finding]:
    """Messages that together are a collective, which the machine's library does faster."""
    plan = study.plan
    if not _talks_by_hand(plan):
        return
    found = collective_of(plan)
    if found is None:
        return
    operation, tile, nbytes = found
    try:
        predicted = predict(
            operation, machine=study.hda, nbytes=nbytes, ranks=plan.units, dtype=tile.dtype, scale=plan.scale
        )
    except MegatileError:
        return
    yield from study.finding(
        "collective by hand", predicted.time_ps, f"{operation} of the same bytes by '{predicted.algorithm}'",
        bottleneck=f"{operation} by hand: all messages together are one, and the planner's is faster",
        reason=f"executed with random data, '{tile.name}' of every unit is what {operation} gives",
        step=f"T.{operation.replace('all_', 'all', 1) if operation != 'all_to_all' else operation}, or "
        f'mt.collective("{operation}", …): {predicted.algorithm}',
        source=study.line("channel", "dma", "control") or study.line(),
    )  # fmt: skip


def _talks_by_hand(plan: pm.Plan) -> bool:
    """Whether units of a Plan reach each other without collectives of a library."""
    statements = [s for body in plan.bodies for s in body]
    library = any(
        isinstance(s, pm.Start) or (isinstance(s, pm.Collective) and s.kind != "barrier") for s in statements
    )
    remote = any(
        isinstance(s, pm.Compute) and any(r.at is not None for r in (*s.reads, s.write)) for s in statements
    )
    return plan.units > 1 and not plan.levels and not library and (remote or bool(plan.channels))


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
        if (y == x.sum(axis=0, dtype=y.dtype)).all():
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


@rule("duplicate work")
def duplicates(study: Study) -> Iterator[Finding]:
    """Every device computes the same blocks."""
    if study.lowered is None or not _alike(study.lowered.source):
        return
    program, devices = study.lowered.source, study.lowered.source.launch.devices
    regions = changes.regions_of_scale(program, program.launch.dispatch)
    yield from study.finding(
        "duplicate work", study.program_ps(partial(_divided, parts=devices)),
        f"program timed again with 1/{devices} of the blocks on every device",
        bottleneck=f"duplicate work: all {devices} devices compute the same blocks",
        reason="neither loads, loops nor results depend on the device, and all tensors are whole on each",
        step="give every device its part: T.view(…, layout=T.FullRow) of one operand and of the result, with "
        "as many times fewer blocks; T.allgather if all devices need all of it",
        source=changes.source_line(regions[0]),
    )  # fmt: skip


def _alike(program: Program) -> bool:
    """Whether the blocks of every device do the same."""
    launch, table = program.launch, bindings(program)
    regions = changes.regions_of_scale(program, launch.dispatch)
    if launch.devices < 2 or not regions or launch.resident:
        return False
    if any(isinstance(m, n.Collective) or n.remote(m) for m in n.walk(program.body)):
        return False
    tensors = {p.name for p in program.params}
    for node in n.walk(tuple(regions)):
        for _, region in n.regions(node):
            bound = table[region.source]
            shared = bound.base in tensors or not launch.is_private(bound.scale)
            if shared and (bound.base not in tensors or not all(is_whole(v.layout) for v in bound.views)):
                return False
        for part in (p for e in n.expressions(node) for p in walk(e)):
            if isinstance(part, (Coord, Rank)) and launch.depth(part.scale) < launch.depth(launch.dispatch):
                return False
            if isinstance(part, Rank) and launch.depth(part.within) < launch.depth(launch.host):
                return False
    return True


def _divided(program: Program, parts: int) -> Program:
    """The program with that many times fewer blocks in every device."""
    launch = program.launch
    at = launch.depth(launch.dispatch) - 1
    extents = list(launch.scales[at].extents)
    axis = next((d for d in reversed(range(len(extents))) if extents[d] % parts == 0), None)
    if axis is None:
        return program
    extents[axis] //= parts
    scale = replace(launch.scales[at], extents=tuple(extents))
    scales = (*launch.scales[:at], scale, *launch.scales[at + 1 :])
    return replace(program, launch=replace(launch, scales=scales))


@rule("unread parts")
def partly_read(study: Study) -> Iterator[Finding]:
    """An all-gather of which a unit reads little."""
    if study.lowered is None:
        return
    program = study.lowered.source
    for one in n.each(n.Collective, program.body):
        if one.kind != "allgather" or len(one.to) != 1 or len(one.source) != 1:
            continue
        name = one.to[0].source
        share = footprint.read_share(study.plan, name, changes.source_line(one))
        if share is None or share > READ:
            continue
        yield from study.finding(
            "unread parts", study.program_ps(partial(_message, one=one, share=share)),
            "program timed again with one message of what is read",
            bottleneck=f"an all-gather of '{name}' of which a unit reads {share:.2g} of all",
            reason="every unit gets all parts, and reads few elements of them",
            step="T.copy of the elements that are read, from (src=) or to (dst=) the unit that needs them, "
            "and a T.barrier, instead of T.allgather",
            source=changes.source_line(one),
        )  # fmt: skip


def _message(program: Program, one: n.Collective, share: float) -> Program:
    """The program with a get from the next unit in place of an all-gather."""
    sizes = [known(d.extent) if d.extent is not None else 1 for d in one.to[0].dims]
    parts = [known(d.extent) if d.extent is not None else 1 for d in one.source[0].dims]
    if None in sizes or None in parts or len(sizes) != len(parts):
        return program
    wanted = max(1, round(share * float(np.prod([int(s) for s in sizes if s]))))
    extents, left = [1] * len(parts), wanted
    for d in reversed(range(len(parts))):
        extents[d] = max(1, min(int(parts[d] or 1), left))
        left = -(-left // extents[d])
    regions = [
        replace(
            r,
            dims=tuple(
                replace(d, start=Const(0), extent=Const(e)) for d, e in zip(r.dims, extents, strict=True)
            ),
        )
        for r in (one.to[0], one.source[0])
    ]

    def change(body: tuple[n.Node, ...], unit: Unit) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        for node in body:
            if node is one:
                group = unit.group_of(one.scale) if unit.launch.at(unit.group[1]) != one.scale else unit.group
                peer = (unit.rank(*group) + 1) % program.launch.count(one.scale)
                get = n.Copy(regions[0], regions[1], src=peer, scale=one.scale, span=one.span)
                result += [n.Barrier(one.scale, span=one.span), get]
            else:
                result.append(n.with_bodies(node, partial(change, unit=unit.within(node))))
        return tuple(result)

    return replace(program, body=change(program.body, Unit(program.launch)))


@rule("hot unit")
def hot_unit(study: Study) -> Iterator[Finding]:
    """One unit sends or receives what others share out."""
    if not _talks_by_hand(study.plan):
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
    """By unit, the bytes that it sends and those that it receives, and the lines that say so."""
    sent, received, lines = np.zeros(plan.units), np.zeros(plan.units), set[str]()
    for stream in plan.streams:
        for start, stop, step in stream.units:
            for unit in range(start, stop, step):
                for s, env in footprint.commands(stream.body, {"unit": unit}):
                    for source, to, size in _moves(s, env, unit):
                        if source != to and 0 <= source < plan.units and 0 <= to < plan.units:
                            sent[source] += size
                            received[to] += size
                            lines.add(str(s.source or ""))
    return sent, received, lines


def _moves(s: Any, env: dict[str, int], unit: int) -> Iterator[tuple[int, int, int]]:
    """From, to and bytes of what a command sends."""
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
