"""Rules about work that need not be: elements one after the other, bytes that nobody reads, wide tensors."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from functools import partial

from megatile.core.expr import Const, Expr, known, rebuild
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.ir.passes.driver import rewrite_expressions, rewrite_nodes
from megatile.ir.passes.unit import Unit
from megatile.ir.program import Program, bindings
from megatile.lowering.explain import figures
from megatile.verdict import changes
from megatile.verdict.fusion import totals
from megatile.verdict.model import MIN_GAIN, Finding, Kind
from megatile.verdict.study import Study, rule

Box = tuple[tuple[int, int], ...]
"""Per dimension the first element and the one behind the last."""
USED = 0.9
"""The share of what is copied that must be read, not to be called too much."""
MIN_BUSY_SHARE = 0.8
"""Share of the time that a memory is busy before narrower types are tried."""
MIN_SHARE = 0.05
"""The share of all bytes that a tensor must be for its type to matter."""
HALVES = ("f16", "bf16")
"""Types that sums over units are sent in, where they become tensors of these types."""
WIDEST = "f64"
"""The type that only results of that type need: sums of narrower elements are accurate in f32."""


@rule("unused bytes")
def unused_bytes(study: Study) -> Iterator[Finding]:
    """A copy moves more of a tile than is ever read."""
    if study.lowered is None:
        return
    found = _partly_read(study.lowered.source)
    if found:
        copy, box = found[0]
        slices = ", ".join(f"{low}:{high}" for low, high in box)
        how = "copies of what is read"
        step = f"copy '{copy.to.source}[{slices}]' alone, into a tile of that size"
        time, apart = study.program_ps(_trimmed), _laid_apart_ps(study)
        if apart is not None and (time is None or apart < time * (1 - MIN_GAIN)):
            time, how = apart, f"{how}, in whole sectors"
            step = (
                f"keep what is read of '{copy.source.source}' in a tensor of its own (an array of each "
                f"field, not of records), and {step}"
            )
        yield from study.finding(
            "unused bytes", time, f"program timed again with {how}",
            bottleneck=f"unused bytes: only a part of '{copy.to.source}' is read after it was copied",
            reason=f"of {_extents(copy)} elements, [{slices}] are read", step=step,
            source=changes.source_line(copy),
        )  # fmt: skip


def _laid_apart_ps(study: Study) -> int | None:
    """Return the time with copies of what is read, where their rows would fill less than the sectors of
    memories, as if they lay side by side; None where they do."""
    assert study.lowered is not None
    trimmed = study.lower(_trimmed(study.lowered.source))
    waste = figures(trimmed).waste if trimmed is not None else {}
    if not waste:
        return None
    names = {f"memory.{memory}.sector": "1 B" for memory, _, _ in waste.values()}
    fine = HDA.from_dict(study.hda.to_dict(), **names)
    low = study.lower(_trimmed(study.lowered.source), fine)
    return study.plan_ps(low.plan, fine) if low is not None else None


def _extents(copy: n.Copy) -> str:
    return "×".join(str(known(e)) for e in copy.to.extents)


def _partly_read(program: Program) -> list[tuple[n.Copy, Box]]:
    """Copies of whole tiles, each with the box of it that is read, where that is smaller."""
    table, tensors = bindings(program), {p.name for p in program.params}
    read: dict[str, list[Box | None]] = {}
    copies: list[n.Copy] = []

    def visit(body: tuple[n.Node, ...], unit: Unit) -> None:
        for node in body:
            there = unit.within(node) if isinstance(node, n.Parallel) else unit
            for kind, region in n.regions(node):
                if kind != "write":
                    read.setdefault(table[region.source].base, []).append(_box(region, there))
            if isinstance(node, n.Copy):
                copies.append(node)
            for _, inner in n.bodies(node):
                visit(inner, unit.within(node))
            unit = unit.after(node)

    visit(program.body, Unit(program.launch))
    found = []
    for copy in copies:
        name, whole = copy.to.source, table[copy.to.source].shape
        boxes = read.get(name, [])
        writers = [c for c in copies if table[c.to.source].base == name]
        starts_at_0 = all(known(d.start) == 0 for d in copy.to.dims if d.extent is not None)
        if name in tensors or name not in read or None in boxes or len(writers) != 1 or not starts_at_0:
            continue
        known_boxes = [b for b in boxes if b is not None]
        low = [min(b[d][0] for b in known_boxes) for d in range(len(whole))]
        high = [min(max(b[d][1] for b in known_boxes), whole[d]) for d in range(len(whole))]
        along = [d for d, dim in enumerate(copy.to.dims) if dim.extent is not None]  # others choose a slot
        sizes = [known(e) for e in copy.to.extents]
        box, lengths = tuple((low[d], high[d]) for d in along), [whole[d] for d in along]
        if len(copy.source.extents) != len(sizes) or sizes != lengths:
            continue
        if _elements(box) < USED * _elements([(0, e) for e in lengths]):
            found.append((copy, box))
    return found


def _elements(box: Box | list[tuple[int, int]]) -> int:
    total = 1
    for low, high in box:
        total *= max(0, high - low)
    return total


def _box(region: n.Region, unit: Unit) -> Box | None:
    box = []
    for dim in region.dims:
        low, size = unit.interval(dim.start), (1, 1) if dim.extent is None else unit.interval(dim.extent)
        if low is None or size is None:
            return None
        box.append((low[0], low[1] + size[1]))
    return tuple(box)


def _trimmed(program: Program) -> Program:
    boxes = {id(copy): box for copy, box in _partly_read(program)}

    def cut(region: n.Region, box: Box) -> n.Region:
        runs, dims = iter(box), []
        for dim in region.dims:
            low, high = next(runs) if dim.extent is not None else (0, 0)
            dims.append(
                dim if dim.extent is None else replace(dim, start=dim.start + low, extent=Const(high - low))
            )
        return replace(region, dims=tuple(dims))

    def change(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        for node in body:
            if isinstance(node, n.Copy) and id(node) in boxes:
                box = boxes[id(node)]
                result.append(replace(node, to=cut(node.to, box), source=cut(node.source, box)))
            else:
                result.append(n.with_bodies(node, change))
        return tuple(result)

    return replace(program, body=change(program.body)) if boxes else program


@rule("wide tensors", Kind.CALLER)
def wide_tensors(study: Study) -> Iterator[Finding]:
    """Device memory is the limit, and moves f32."""
    found = study.figures
    if (
        study.lowered is None
        or found is None
        or not found.memory
        or study.busy(found.memory) < MIN_BUSY_SHARE
    ):
        return
    names = [p.name for p in study.lowered.source.params if p.dtype == "f32"]
    names = [name for name in names if _moved_share(study, name) >= MIN_SHARE]
    if names:
        verb = "is" if len(names) == 1 else "are"
        yield from study.finding(
            "wide tensors", study.program_ps(partial(_narrowed, names=set(names), wide="f32", dtype="f16")),
            f"program timed again with {', '.join(names)} in f16",
            bottleneck=f"'{found.memory}' is the limit, and {', '.join(names)} {verb} f32",
            reason=f"'{found.memory}' is busy {study.busy(found.memory):.0%}",
            step=f'{", ".join(names)} in "f16" or "bf16", if the accuracy allows',
            source=study.line("dma"),
        )  # fmt: skip


def _moved_share(study: Study, name: str) -> float:
    """Return the share of a tensor in the bytes of all tensors that the program loads and stores."""
    every = [totals(study.plan, s) for s in study.plan.streams if s.level == study.plan.streams[-1].level]
    moved = [sum(part.get(name, 0.0) for part in (x.loaded, x.stored)) for x in every]
    whole = sum(sum(part.values()) for x in every for part in (x.loaded, x.stored))
    return sum(moved) / max(1.0, whole)


def _narrowed(program: Program, names: Set[str], wide: str, dtype: str) -> Program:
    """Return the program with tensors and tiles of a type in another one, and what is computed of them."""
    table = bindings(program)

    def narrow(part: Expr) -> Expr:
        there = isinstance(part, Load) and part.dtype == wide and table[part.source].base in names
        return replace(part, dtype=dtype) if there else part  # type: ignore[type-var]

    def all_of_it(part: Expr) -> Expr:
        return replace(part, dtype=dtype) if part.dtype == wide else part  # type: ignore[type-var]

    def change(node: n.Node) -> n.Node:
        if isinstance(node, n.Alloc) and node.dtype == wide and node.name in names:
            return replace(node, dtype=dtype)
        mine = isinstance(node, n.Store) and table[node.target].base in names
        return rewrite_expressions(node, lambda e: rebuild(e, all_of_it if mine else narrow))

    params = tuple(
        replace(p, dtype=dtype) if p.dtype == wide and p.name in names else p for p in program.params
    )
    return replace(program, params=params, body=rewrite_nodes(program.body, change))


@rule("wide arithmetic")
def wide_arithmetic(study: Study) -> Iterator[Finding]:
    """Find tiles in f64 that take from and give to tensors of narrower types alone."""
    if study.lowered is None:
        return
    names = _needlessly_wide(study.lowered.source)
    if names:
        program = study.lowered.source
        first = next(m for m in n.each(n.Alloc, program.body) if m.name in names)
        types = ", ".join(sorted({p.dtype for p in program.params if p.dtype[0] in "bf"}))
        yield from study.finding(
            "wide arithmetic", study.program_ps(partial(_narrowed, names=names, wide=WIDEST, dtype="f32")),
            "program timed again with these tiles in f32",
            bottleneck=f"arithmetic wider than the tensors: {_spoken(names)} in {WIDEST}",
            reason=f"what they hold comes from and goes to tensors of {types or 'integers'}: f32 holds it, "
            f"takes half of the registers{_rates(study)}",
            step=f'{_spoken(names)} in "f32"', source=changes.source_line(first),
        )  # fmt: skip


def _spoken(names: Set[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


def _rates(study: Study) -> str:
    rates = [(e.rate("f32"), e.rate(WIDEST)) for e in study.hda.engines if e.kind == "vector"]
    factors = [one / other for one, other in rates if one and other and one > other]
    return f", and vector engines are {max(factors):.3g}x as fast" if factors else ""


def _needlessly_wide(program: Program, dtype: str = WIDEST) -> set[str]:
    """Return the tiles of a type that no tensor of that type is computed from, or into."""
    table = bindings(program)
    wide = {m.name for m in n.each(n.Alloc, program.body) if m.dtype == dtype}
    needed = {p.name for p in program.params if p.dtype == dtype}
    meetings = [{table[r.source].base for _, r in n.regions(m)} for m in n.walk(program.body)]
    while True:
        more = {name for names in meetings if names & needed for name in names & wide} - needed
        if not more:
            return wide - needed
        needed |= more


@rule("wide messages", Kind.INEXACT)
def wide_messages(study: Study) -> Iterator[Finding]:
    """Find sums over units in f32 of what comes from and goes to tensors of narrower types alone."""
    if study.lowered is None:
        return
    program = study.lowered.source
    wide = _needlessly_wide(program, "f32")
    sums = [c for c in n.each(n.Collective, program.body) if c.kind in ("allreduce", "reduce_scatter")]
    sent = [c for c in sums if {r.source for r in (*c.to, *c.source)} <= wide]
    types = {p.dtype for p in program.params if p.dtype in HALVES}
    if sent and len(types) == 1:
        names, (dtype,) = {r.source for c in sent for r in (*c.to, *c.source)}, types
        yield from study.finding(
            "wide messages", study.program_ps(partial(_narrowed, names=names, wide="f32", dtype=dtype)),
            f"program timed again with {_spoken(names)} in {dtype}",
            bottleneck=f"wide messages: {_spoken(names)} in f32",
            reason=f"what is summed comes from and goes to tensors of {dtype}: half the bytes would do",
            step=f"{_spoken(names)} in {dtype}, if the accuracy of the sum allows",
            source=changes.source_line(sent[0]),
        )  # fmt: skip
