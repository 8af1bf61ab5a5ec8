"""Rules about elements that a unit moves more than once: loads, stores, and what it loads back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from megatile.core.expr import Symbol, substitute, symbols
from megatile.core.quantities import format_time
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.program import Binding, Program, bindings
from megatile.plan.model import Plan
from megatile.verdict import changes, footprint
from megatile.verdict.fusion import as_one
from megatile.verdict.model import MIN_GAIN, Finding
from megatile.verdict.study import Study, rule


@rule("repeated loads")
def loaded_again(study: Study) -> Iterator[Finding]:
    """A unit loads elements of a tensor that it has loaded before, and they would fit its own memory."""
    found, shares = footprint.loaded_again(study.plan, study.hda)
    if found:
        one, times = found[0]
        unit = study.plan.levels[0].name if study.plan.levels else "unit"
        command = footprint.least_new(one, shares)
        near = shifted_near(study.plan, study.hda, found, shares)
        once = footprint.loaded_once(near, shares, footprint.first_only(found))
        ps, least = study.plan_ps(once), study.figures.least_ps if study.figures is not None else 0.0
        yield from study.finding(
            "repeated loads", None if ps is None else max(ps, least),
            "Plan timed again with every element loaded once"
            + (", and lanes that share it" if near is not study.plan else ""),
            bottleneck=f"redundant traffic: every {unit} loads its part of "
            f"'{one.tile.name}' {times:.3g} times",
            reason="loads overlap those before them, nothing writes the tensor between, and the part fits "
            f"the {unit}'s own memory",
            step="load the part once, with its edges, into a tile; take all that is needed from there",
            source=str(command.source or ""),
        )  # fmt: skip


@rule("repeated loads")
def loaded_in_two_passes(study: Study) -> Iterator[Finding]:
    """Find loops of a block that load the same tiles one after the other, where neither stores a result."""
    found = next(_passes(study.lowered.source), None) if study.lowered is not None else None
    if found is not None:
        first, _, copies = found
        names = _quoted(m.source.source for m in copies)
        line = changes.source_line(first).rpartition(":")[2]
        yield from study.finding(
            "repeated loads", study.program_ps(in_one_pass),
            "program timed again with both loops as one",
            bottleneck=f"redundant traffic: two passes over {names}",
            reason=f"the loop of line {line} only reduces what it loads, and the next loop loads and reduces "
            "the same",
            step="one pass: keep running results, and scale what is added up when the first one changes (as "
            "online softmax and Welford's variance do)",
            source=changes.source_line(copies[-1]),
        )  # fmt: skip


def _passes(program: Program) -> Iterator[tuple[n.Loop, n.Loop, list[n.Copy]]]:
    """Yield loops in the same body that load the same tiles and store none, with the copies of the second."""
    table, tensors = bindings(program), {p.name for p in program.params}

    def visit(body: tuple[n.Node, ...]) -> Iterator[tuple[n.Loop, n.Loop, list[n.Copy]]]:
        for one, two in pairwise(m for m in body if isinstance(m, n.Loop)):
            if (one.start, one.stop, one.step) == (two.start, two.stop, two.step):
                written = {table[name].base for name in n.written((one, two))}
                every = (
                    m for m in one.body if isinstance(m, n.Copy) and table[m.source.source].base in tensors
                )
                loads = {_at(m.source, one.var, two.var): m for m in every}
                copies = [m for m in two.body if isinstance(m, n.Copy) and m.source in loads]
                alike = all(_same_tile(table, loads[m.source].to, m.to) for m in copies)
                if copies and len(copies) == len(loads) and alike and not written & tensors:
                    yield one, two, copies
        for node in body:
            for _, inner in n.bodies(node):
                yield from visit(inner)

    return visit(program.body)


def _at(region: n.Region, var: str, other: str) -> n.Region:
    """Return the region with another variable."""
    change = {var: Symbol(other)}
    return replace(region, dims=tuple(replace(d, start=substitute(d.start, change)) for d in region.dims))


def _same_tile(table: Mapping[str, Binding], one: n.Region, other: n.Region) -> bool:
    return (table[one.source].shape, one.dims) == (table[other.source].shape, other.dims)


def in_one_pass(program: Program) -> Program:
    """Return the program with such loops as one, as long as there are any: it takes the same time as one that
    computes the same in one pass."""
    found = next(_passes(program), None)
    if found is None:
        return program
    one, two, copies = found
    sources = {m.source: m.to.source for m in copies}
    names, rest = dict[str, str](), list[n.Node]()
    for node in one.body:
        same = isinstance(node, n.Copy) and _at(node.source, one.var, two.var) in sources
        if isinstance(node, n.Copy) and same:
            names[node.to.source] = sources[_at(node.source, one.var, two.var)]
        else:
            rest.append(node)
    moved = changes.renamed(tuple(rest), names | {one.var: two.var})
    last = max(at for at, m in enumerate(two.body) if any(m is copy for copy in copies)) + 1
    again = tuple(m for m in moved if m not in two.body)
    both = replace(two, body=(*two.body[:last], *again, *two.body[last:]))
    return in_one_pass(changes.replaced(program, {id(one): (), id(two): (both,)}))


@rule("repeated stores")
def stored_again(study: Study) -> Iterator[Finding]:
    """A unit stores elements of a result that it stores again later."""
    found = footprint.stored_again(study.plan)
    if found is not None:
        one, shares, times = found
        command = footprint.least_new(one, shares)
        after = study.program_ps(stored_after)
        once = study.plan_ps(footprint.loaded_once(study.plan, shares)) if after is None else after
        yield from study.finding(
            "repeated stores", once,
            "Plan timed again with every element stored once" if after is None else
            "program timed again with the store after the loop",
            bottleneck=f"redundant traffic: every element of '{one.tile.name}' is stored {times:.3g} times",
            reason="a later store of the same unit overwrites it, and nothing reads it between",
            step="store it once, after the loop", source=str(command.source or ""),
        )  # fmt: skip


def stored_after(program: Program) -> Program:
    """Return the program with stores after their loop that go to the same place in every round, where the
    loop does not touch the tensor otherwise."""
    table, tensors = bindings(program), {p.name for p in program.params}

    def change(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        for node in body:
            last: list[n.Node] = []
            if isinstance(node, n.Loop):
                inside = list(n.walk(node.body))
                changing = {node.var} | {m.name for m in inside if isinstance(m, (n.Let, n.ReadScalar))}
                touched = [table[r.source].base for m in inside for _, r in n.regions(m)]
                last = [
                    m for m in node.body
                    if isinstance(m, n.Copy) and n.remote(m) is None
                    and table[m.to.source].base in tensors and touched.count(table[m.to.source].base) == 1
                    and not any(symbols(e) & changing for e in n.expressions(m))
                ]  # fmt: skip
                kept = tuple(m for m in node.body if not any(m is gone for gone in last))
                node = replace(node, body=kept) if last else node
            result += [n.with_bodies(node, change), *last]
        return tuple(result)

    changed = change(program.body)
    return program if changed == program.body else replace(program, body=changed)


@rule("round trip")
def read_back(study: Study) -> Iterator[Finding]:
    """A unit loads what it has stored in another loop, and could have kept."""
    found = footprint.read_back(study.plan, study.hda)
    if found is None or (study.lowered is not None and changes.round_trips(study.lowered.source)):
        return
    name, loads, stores = found
    kept = study.plan_ps(footprint.without(study.plan, loads))
    both = study.plan_ps(footprint.without(study.plan, loads | stores))
    commands = (s for body in study.plan.bodies for s in body if id(s) in loads)
    alone = f"; without the loads alone {format_time(kept)}" if both is not None and kept is not None else ""
    yield from study.finding(
        "round trip", kept if both is None else both, f"Plan timed again without loads and stores{alone}",
        bottleneck=f"round trip: '{name}' is stored, and loaded again by the same unit",
        reason="all that is loaded of it this unit has stored before, and it fits the unit's own memory",
        step=f"keep the part of '{name}' in a tile between the loops; store it only if it is a result",
        source=str(getattr(next(commands, None), "source", None) or ""),
    )  # fmt: skip


@rule("round trip")
def phases(study: Study) -> Iterator[Finding]:
    """A phase stores a tensor, and the next one loads the same parts in the same blocks."""
    if study.lowered is None:
        return
    found = changes.fusible(study.lowered.source)
    if found is not None:
        one, two, pairs = found
        both = [again for again, _ in changes.loaded_by_both(study.lowered.source, one, two)]
        names, tiles = _quoted(a.to.source for a, _ in pairs), _quoted(a.source.source for a, _ in pairs)
        twice, come = _quoted(m.source.source for m in both), "comes" if len(pairs) == 1 else "come"
        ps, how, also = study.program_ps(changes.fused), "program timed again with such phases as one", ""
        low = study.lower(changes.fused(study.lowered.source)) if ps is not None else None
        rest, others = as_one(low.plan) if low is not None else (study.plan, [])
        further = study.plan_ps(rest) if others else None
        if ps is not None and further is not None and further < ps * (1 - MIN_GAIN):
            how += f" ({format_time(ps)}), and its Plan without {_quoted(others)}"
            ps, also = further, f"; then do what is left with {_quoted(others)} there too"
        yield from study.finding(
            "round trip", ps, how, bound=bool(also),
            bottleneck=f"{'' if also else 'two '}phases through memory: {names} {come} back to the same "
            "block" + (f", and {twice} {'is' if len(both) == 1 else 'are'} loaded by both" if both else ""),
            reason="the second phase needs nothing of other blocks; what both load is loaded twice",
            step=f"one phase: go on with {tiles}{f', keep what was loaded of {twice}' if both else ''}, "
            f"without {names}{also}",
            source=changes.source_line(both[0] if both else pairs[0][1]),
        )  # fmt: skip


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in dict.fromkeys(names))


def shifted_near(
    plan: Plan, hda: HDA, found: list[tuple[footprint.Loads, float]], shares: Mapping[footprint.Key, float]
) -> Plan:
    """Return the Plan whose lanes take from the level that they share what is loaded again shifted: elements
    that other lanes have from an earlier load."""
    names = set[str]()
    for one, _ in found:
        seen = set[object]()
        for key, box in one.boxes:
            command = one.commands[key]
            if shares.get(key, 1.0) < 1 - footprint.NOTHING and box not in seen and command.engine == "dma":
                names.add(command.write.tile)
            seen.add(box)
    memory = hda.memory("l1")
    tiles = tuple(
        replace(t, memory=memory.name)
        if t.name in names and t.role == "local" and t.memory == hda.memory("l0").name
        else t
        for t in plan.tiles
    )
    return plan if tiles == plan.tiles else replace(plan, tiles=tiles)
