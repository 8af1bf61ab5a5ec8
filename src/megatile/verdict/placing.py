"""Rules about where data are kept and in which type: far tiles, tensors wider than they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from megatile.core.dtypes import itemsize
from megatile.core.expr import known
from megatile.ir import nodes as n
from megatile.ir.passes.driver import rewrite_nodes
from megatile.ir.program import Program, bindings
from megatile.verdict import changes
from megatile.verdict.model import Finding, Kind
from megatile.verdict.study import OutOfBudget, Study, rule

NEAR = ("l1", "l0")


@rule("far tile")
def far_tiles(study: Study) -> Iterator[Finding]:
    """A block's own tile is in a memory farther away than it need be."""
    if study.lowered is None:
        return
    program, times = study.lowered.source, dict[tuple[n.Alloc, str], int]()
    for tile in _far(study, program):
        for level in NEAR:
            memory = study.hda.memory(level).name
            try:
                ps = (
                    study.program_ps(partial(_moved, name=tile.name, memory=memory))
                    if memory != tile.level
                    else None
                )
            except OutOfBudget:
                break
            if ps is not None:
                times[tile, memory] = ps
    if times:
        tile, memory = min(times, key=lambda key: times[key])
        yield from study.finding(
            "far tile", times[tile, memory], f"program timed again with '{tile.name}' in '{memory}'",
            bottleneck=f"a tile in the wrong memory: '{tile.name}' is in '{tile.level}'",
            reason=f"'{tile.name}' belongs to one {tile.scale}, which has '{memory}' nearer",
            step=f"T.alloc(…, level=\"{memory}\") for '{tile.name}'",
            source=changes.source_line(tile),
        )  # fmt: skip


def _far(study: Study, program: Program) -> list[n.Alloc]:
    """Tiles of dispatched units in memories above these, and accumulators that are not in the nearest."""
    far, nearest = study.hda.memory("l2").name, study.hda.memory("l0").name
    totals = {bindings(program)[g.c.source].base for g in n.each(n.Gemm, program.body)}
    private = (m for m in n.each(n.Alloc, program.body) if program.launch.is_private(m.scale) and not m.flag)
    return [m for m in private if m.level == far or (m.name in totals and m.level != nearest)]


def _moved(program: Program, name: str, memory: str) -> Program:
    change = lambda m: replace(m, level=memory) if isinstance(m, n.Alloc) and m.name == name else m  # noqa: E731
    return replace(program, body=rewrite_nodes(program.body, change))


@rule("wider than read")
def wider_than_read(study: Study) -> Iterator[Finding]:
    """A tensor is kept in a wider type than everything that reads it."""
    if study.lowered is None:
        return
    program = study.lowered.source
    names = _wider(program)
    if names:
        some = ", ".join(f"'{name}'" for name in names)
        dtype = next(iter(names.values()))
        sent = [c for c in n.each(n.Collective, program.body) if len(c.to) == 1 and c.to[0].source in names]
        yield from study.finding(
            "wide messages" if sent else "wider than read", study.program_ps(partial(_narrow, names=names)),
            f"program timed again with {some} in {dtype}",
            bottleneck=f"wide messages: {some} is sent, and then read as {dtype} alone" if sent else
            f"a wide tensor: {some} is read as {dtype} alone",
            reason=f"every load of {some} converts it to {dtype}, so the other bytes are moved for nothing",
            step=f'convert to "{dtype}" before T.{sent[0].kind}: the results stay the same' if sent else
            f'{some} in "{dtype}": the results stay the same',
            source=changes.source_line(sent[0]) if sent else _line(program, names),
        )  # fmt: skip


def _line(program: Program, names: dict[str, str]) -> str:
    copies = (c for c in n.each(n.Copy, program.body) if bindings(program)[c.source.source].base in names)
    return changes.source_line(next(copies, None))


def _wider(program: Program) -> dict[str, str]:
    """Tensors and tiles in shared memories that are read by copies alone, all to one narrower type (tensors
    by copies to tiles: others are what callers want converted)."""
    table, tensors = bindings(program), {p.name for p in program.params}
    kept = tensors | {m.name for m in n.each(n.Alloc, program.body) if not program.launch.is_private(m.scale)}
    reads: dict[str, set[str]] = {}
    for node in n.walk(program.body):
        for access, region in n.regions(node):
            base = table[region.source].base
            if base in kept and access != "write":
                plain = isinstance(node, n.Copy) and not (
                    base in tensors and table[node.to.source].base in kept
                )
                reads.setdefault(base, set()).add(table[node.to.source].dtype if plain else "")  # type: ignore[attr-defined]
    return {
        name: dtype
        for name, types in reads.items()
        for dtype in types
        if len(types) == 1 and dtype not in ("", "bool") and itemsize(dtype) < itemsize(table[name].dtype)
    }


def _narrow(program: Program, names: dict[str, str]) -> Program:
    """Return the program with tensors and tiles in other types; what a collective sends is converted before
    it."""
    table = bindings(program)

    def change(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        for node in body:
            if isinstance(node, n.Alloc) and node.name in names:
                node = replace(node, dtype=names[node.name])
            if isinstance(node, n.Collective) and len(node.to) == len(node.source) == 1:
                dtype, source = names.get(node.to[0].source), node.source[0]
                if dtype is not None and table[source.source].base not in names:
                    shape = tuple(known(e) or 1 for e in source.extents)
                    sent = n.whole(f"{source.source}_{dtype}", shape)
                    level = next(
                        m.level for m in n.each(n.Alloc, program.body) if m.name == node.to[0].source
                    )
                    result += [
                        n.Alloc(sent.source, shape, dtype, level, node.scale, span=node.span),
                        n.Copy(sent, source, span=node.span),
                    ]
                    node = replace(node, source=(sent,))
            result.append(n.with_bodies(node, change))
        return tuple(result)

    params = tuple(replace(p, dtype=names.get(p.name, p.dtype)) for p in program.params)
    return replace(program, params=params, body=change(program.body))


@rule("wide messages", Kind.INEXACT)
def wide_messages(study: Study) -> Iterator[Finding]:
    """A collective sends a wider type than what it is made of and becomes."""
    if study.lowered is None:
        return
    names = _widened_sums(study.lowered.source)
    if names:
        name, dtype = next(iter(names.items()))
        wide = bindings(study.lowered.source)[name].dtype
        one = next(c for c in n.each(n.Collective, study.lowered.source.body) if c.to[0].source == name)
        yield from study.finding(
            "wide messages", study.program_ps(partial(_narrow, names=names)),
            f"program timed again with '{name}' in {dtype}",
            bottleneck=f"wide messages: '{name}' is sent as {wide}, but is {dtype}",
            reason=f"{itemsize(wide) // itemsize(dtype)} times the bytes on the links",
            step=f"'{name}' in {dtype}, if the accuracy of the sum allows", source=changes.source_line(one),
        )  # fmt: skip


def _widened_sums(program: Program) -> dict[str, str]:
    """Tiles of collectives that copies fill from a narrower type, and that copies read as such alone."""
    table, found = bindings(program), dict[str, str]()
    for one in n.each(n.Collective, program.body):
        if one.kind not in ("allreduce", "reduce_scatter"):
            continue
        name = one.to[0].source
        if len(one.to) != 1 or name not in {m.name for m in n.each(n.Alloc, program.body)}:
            continue
        types = set[str]()
        for node in n.walk(program.body):
            for access, region in n.regions(node) if not isinstance(node, n.Collective) else ():
                if table[region.source].base == name:
                    other = getattr(node, "source" if access != "read" else "to", None)
                    types.add(
                        table[other.source].dtype if isinstance(node, n.Copy) and other is not None else ""
                    )
        if len(types) == 1 and "" not in types:
            (dtype,) = types
            found |= {name: dtype} if itemsize(dtype) < itemsize(table[name].dtype) else {}
    return found
