"""Rules about elements that a unit moves more than once: loads, stores, and what it loads back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from megatile.core.expr import symbols
from megatile.core.quantities import format_time
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.program import Program, bindings
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
