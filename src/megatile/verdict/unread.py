"""Rule about collectives of whose result units read little: their own part, or a few elements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from megatile.core.expr import Const, known, simplify, walk
from megatile.ir import nodes as n
from megatile.ir.expr import Rank
from megatile.ir.passes.unit import Unit
from megatile.ir.program import Program
from megatile.verdict import changes, footprint
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule

PARTLY = 0.8
"""The share of what an all-to-all gives that must be read, not to be called too much,"""
READ = 0.5
"""and of what an all-gather gives."""
EDGES = 0.25
"""How much of others a unit reads at most that needs their edges, as a share of its own part."""


@rule("unread parts")
def unread_parts(study: Study) -> Iterator[Finding]:
    """Find collectives whose result units hardly read."""
    if study.lowered is None:
        return
    program = study.lowered.source
    for one in n.each(n.Collective, program.body):
        if len(one.to) != 1 or len(one.source) != 1:
            continue
        if one.kind == "allreduce" and one.axis is None:
            yield from _summed(study, one)
        elif one.kind == "all_to_all":
            yield from _exchanged(study, one)
        if one.kind != "allgather":
            continue
        name, line = one.to[0].source, changes.source_line(one)
        count = program.launch.count(one.scale)
        own = _own_reads(program, one)
        share = None if own else footprint.read_share(study.plan, name, line)
        if own:
            part = one.source[0].source
            yield from study.finding(
                "unread parts", study.program_ps(partial(_ungathered, one=one, own=own)),
                "program timed again without the all-gather",
                bottleneck=f"an all-gather of '{name}' where every unit reads only its own part",
                reason=f"all that is read of '{name}' is '{part}', which the unit has",
                step=f"read '{part}' itself, and leave T.allgather out", source=line,
            )  # fmt: skip
        elif (edges := _edges(study, one)) is not None:
            yield from study.finding(
                "unread parts", study.program_ps(partial(_message, one=one, share=edges / 2, peers=(1, -1))),
                "program timed again with messages of what is read, from two neighbours", bound=True,
                bottleneck=f"an all-gather of '{name}': besides its own part a unit reads {edges:.2g} of it",
                reason="every unit gets all parts, and reads the edges of its neighbours' (a halo)",
                step="send the edges to the neighbours (T.copy with dst=, then T.barrier), instead of "
                "T.allgather", source=line,
            )  # fmt: skip
        elif share is not None and share <= READ and share * count > 1.01:  # more than one part's
            less = study.collective_ps("all_gather", one) - study.collective_ps("all_gather", one, share)
            yield from study.finding(
                "unread parts", study.base_ps - max(0, less),
                f"the all-gather's time replaced by that of {share:.2g} of the tensor",
                bottleneck=f"an all-gather of '{name}': a unit reads {share:.2g} of it",
                reason="every unit gets all of each part, and reads some of it",
                step=f"T.copy what is read of '{one.source[0].source}' into a tile, and T.allgather that",
                source=line,
            )  # fmt: skip
        elif share is not None and share <= READ and _of_many(study, one):
            less = study.collective_ps("all_gather", one) - study.collective_ps("all_to_all", one, 1 / count)
            yield from study.finding(
                "unread parts", study.base_ps - max(0, less),
                "the all-gather's time replaced by that of an all-to-all of one part",
                bottleneck=f"an all-gather of '{name}': a unit reads {share:.2g} of it, some of every part",
                reason="every unit gets all of each part, and reads its own share of it",
                step=f"T.all_to_all(out, {one.source[0].source}): every unit sends to each what that reads",
                source=line,
            )  # fmt: skip
        elif share is not None and share <= READ:
            yield from study.finding(
                "unread parts", study.program_ps(partial(_message, one=one, share=share)),
                "program timed again with one message of what is read",
                bottleneck=f"an all-gather of '{name}': a unit reads {share:.2g} of it",
                reason="every unit gets all parts, and reads few elements of them",
                step="T.copy of the elements that are read, from (src=) or to (dst=) the unit that needs "
                "them, and a T.barrier, instead of T.allgather", source=line,
            )  # fmt: skip


def _of_many(study: Study, one: n.Collective) -> bool:
    """Whether a unit reads elements of several parts of what is gathered."""
    found = footprint.reads(study.plan, one.to[0].source, changes.source_line(one))
    part = one.source[0].dims[one.dim]
    size = known(part.extent) if part.extent is not None else 1
    if found is None or not size or one.to[0].source != found.tile.name:
        return False
    return len({at // size for _, box in found.boxes for at in range(*box[one.dim], size)}) > 2


def _edges(study: Study, one: n.Collective) -> float | None:
    """The share of what is gathered that a unit reads of others' parts, if it reads its own and little of
    these."""
    found = footprint.reads(study.plan, one.to[0].source, changes.source_line(one))
    part = one.source[0].dims[one.dim]
    size = known(part.extent) if part.extent is not None else 1
    if found is None or not size or one.to[0].source != found.tile.name:
        return None
    # What is counted is read by the first unit: its own part is the first.
    sides = [(key, box, box[one.dim]) for key, box in found.boxes]
    own = [key for key, _, (start, _) in sides if start < size]
    outside = [
        (key, (*box[: one.dim], (max(start, size), end), *box[one.dim + 1 :]))
        for key, box, (start, end) in sides
        if end > size
    ]
    if not own or not outside:
        return None
    share = replace(found, boxes=outside, news={}).shares()[2] / prod(found.tile.shape)
    own_share = size / found.tile.shape[one.dim]
    return share if 0 < share < EDGES * own_share else None


def _summed(study: Study, one: n.Collective) -> Iterator[Finding]:
    """Find an all-reduce where every unit reads no more than what a reduce-scatter would give it."""
    assert study.lowered is not None
    name, line, count = (
        one.to[0].source,
        changes.source_line(one),
        study.lowered.source.launch.count(one.scale),
    )
    share = footprint.read_share(study.plan, name, line)
    if share is None or count < 2 or share > 1.01 / count:
        return
    saved = study.collective_ps("all_reduce", one) - study.collective_ps("reduce_scatter", one)
    yield from study.finding(
        "whole result", study.base_ps - max(0, saved),
        "the all-reduce's time replaced by that of a reduce-scatter of the same tensor",
        bottleneck=f"an all-reduce of '{name}' where every unit reads only a part",
        reason=f"what a unit reads after it is {share:.2g} of it, and there are {count} units",
        step=f"T.reduce_scatter(own, {name}): half of the messages", source=line,
    )  # fmt: skip


def _exchanged(study: Study, one: n.Collective) -> Iterator[Finding]:
    """Find an all-to-all whose result is partly read: buffers of full capacity."""
    name, line = one.to[0].source, changes.source_line(one)
    share = footprint.read_share(study.plan, name, line)
    if share is None or share > PARTLY:
        return
    whole, part = (study.collective_ps("all_to_all", one, size) for size in (1.0, share))
    yield from study.finding(
        "unread parts", study.base_ps * part / whole if whole else None,
        "all-to-all of the bytes that are read, by the planner's estimate", bound=True,
        bottleneck=f"an all-to-all of '{name}': a unit reads {share:.2g} of it",
        reason="the rest of the buffers travels for nothing",
        step="send what is read: smaller buffers, or counts (T.all_to_all(out, x, counts, received))",
        source=line,
    )  # fmt: skip


def _own_reads(program: Program, one: n.Collective) -> dict[int, n.Region]:
    """By copy, the region of the unit's own part that it reads of what a collective gathers; none if anything
    else is read."""
    found: dict[int, n.Region] = {}
    others = [False]

    def visit(body: tuple[n.Node, ...], unit: Unit) -> None:
        for node in body:
            for kind, region in n.regions(node) if node is not one else ():
                if region.source == one.to[0].source:
                    own = _within_own(region, one, unit) if isinstance(node, n.Copy) else None
                    if kind != "read" or own is None or n.remote(node):
                        others[0] = True
                    else:
                        found[id(node)] = own
            for _, inner in n.bodies(node):
                visit(inner, unit.within(node))
            unit = unit.after(node)

    visit(program.body, Unit(program.launch))
    return {} if others[0] else found


def _within_own(region: n.Region, one: n.Collective, unit: Unit) -> n.Region | None:
    """A region of what is gathered as one of the unit's own part, if it is inside."""
    dims, turned = [], 0
    for dim, whole, part in zip(region.dims, one.to[0].dims, one.source[0].dims, strict=True):
        all_of_it, mine = (known(d.extent) if d.extent is not None else 1 for d in (whole, part))
        if all_of_it == mine:
            dims.append(dim)
            continue
        ranks = [p for p in walk(dim.start) if isinstance(p, Rank) and p.scale == one.scale]
        start = simplify(dim.start - ranks[0] * (mine or 0)) if ranks else dim.start
        size = 1 if dim.extent is None else known(dim.extent)
        reach = unit.interval(start)
        if (
            not ranks
            or mine is None
            or size is None
            or reach is None
            or reach[0] < 0
            or reach[1] + size > mine
        ):
            return None
        dims.append(replace(dim, start=start))
        turned += 1
    return replace(one.source[0], dims=tuple(dims)) if turned == 1 else None


def _ungathered(program: Program, one: n.Collective, own: dict[int, n.Region]) -> Program:
    """Return the program without an all-gather, whose copies read the unit's own part."""
    copies = (m for m in n.each(n.Copy, program.body) if id(m) in own)
    made: dict[int, tuple[n.Node, ...]] = {id(m): (replace(m, source=own[id(m)]),) for m in copies}
    return changes.replaced(program, made | {id(one): ()})


def _message(program: Program, one: n.Collective, share: float, peers: tuple[int, ...] = (1,)) -> Program:
    """The program with a get from each of some neighbours in place of an all-gather."""
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
                own, count = unit.rank(*group), program.launch.count(one.scale)
                result.append(n.Barrier(one.scale, span=one.span))
                for peer in peers:
                    from_it = (own + peer + count) % count
                    result.append(n.Copy(regions[0], regions[1], src=from_it, scale=one.scale, span=one.span))
            else:
                result.append(n.with_bodies(node, partial(change, unit=unit.within(node))))
        return tuple(result)

    return replace(program, body=change(program.body, Unit(program.launch)))
