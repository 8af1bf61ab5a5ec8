"""The loss of phases that talk through memory: a tensor that one phase stores and a later one loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import islice
from typing import Any

from megatile.core.dtypes import itemsize
from megatile.core.expr import Const, Expr, Symbol, substitute
from megatile.core.quantities import format_bytes
from megatile.plan import model as pm
from megatile.plan.statements import reads_of, rewritten, write_of
from megatile.verdict import changes, footprint
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule

READ_ONCE = 1.5
"""How often phases may read a tensor on average, for the reader to be merged into the writer."""


@dataclass
class Totals:
    """What all units of a stream do: bytes by tensor, and operations of the vector and tensor engines."""

    loaded: dict[str, float]
    stored: dict[str, float]
    vector: float = 0.0
    tensor: float = 0.0
    others: bool = False
    """Whether it does more than copy and compute elements: products, reductions, messages."""


@dataclass(frozen=True)
class Between:
    """A tensor that one stream stores and another one loads."""

    name: str
    writer: pm.Stream
    reader: pm.Stream
    wrote: Totals
    read: Totals
    own: bool = False
    """Whether blocks of the reader load what blocks of the same number have stored, and no more."""

    @property
    def recomputable(self) -> bool:
        """Whether readers can compute the elements themselves: the writer computes nothing but these."""
        return not self.wrote.others and set(self.wrote.stored) == {self.name}

    @property
    def elementwise_reader(self) -> bool:
        """Whether the writer can do the reader's work: this takes every element about once, for itself."""
        once = self.read.loaded[self.name] <= READ_ONCE * self.wrote.stored[self.name]
        return self.own or (once and not self.read.others and self.name not in self.read.stored)


def totals(plan: pm.Plan, stream: pm.Stream) -> Totals:
    """Return what a stream's units do together; its middle unit stands for all."""
    tensors = {t.name: t for t in plan.tiles if t.level != stream.level}
    start, stop, step = stream.units[len(stream.units) // 2]
    middle, count = start + (stop - start) // step // 2 * step, stream.unit_count()
    found = Totals({}, {})
    for s, env in islice(footprint.commands(stream.body, {"unit": middle}), footprint.MAX_COMMANDS):
        if not isinstance(s, pm.Compute):
            found.others |= isinstance(s, (pm.Send, pm.Receive, pm.Collective, pm.Start))
            continue
        flops = (footprint.number(s.work.flops, env) or 0) * count
        found.tensor += flops if s.engine == "tensor" else 0
        found.vector += flops if s.engine == "vector" else 0
        along = any(name == "axis" for name, _ in s.attributes)  # sums and maxima
        found.others |= s.engine == "tensor" or along or s.operation.startswith("atomic")
        for regions, into in ((s.reads, found.loaded), ((s.write,), found.stored)):
            for region in regions:
                size = _bytes(tensors.get(region.tile), region, env)
                if size:
                    into[region.tile] = into.get(region.tile, 0) + size * count
    return found


def _bytes(tile: pm.Tile | None, region: pm.Region, env: dict[str, int]) -> int:
    if tile is None:
        return 0
    size = itemsize(tile.dtype)
    for extent in region.shape or tuple(map(Const, tile.shape)):
        size *= footprint.number(extent, env) or 1
    return size


def between(plan: pm.Plan) -> Iterator[Between]:
    """Yield the tensors that one stream stores and another one, of the same level, loads."""
    streams = [s for s in plan.streams if s.level == plan.streams[-1].level]
    done = {id(s): totals(plan, s) for s in streams}
    others = {  # what units around blocks read or write: collectives, messages
        r.tile
        for stream in plan.streams if stream.level != streams[0].level
        for s in pm.statements(stream.body) for r in (*reads_of(s), write_of(s)) if r is not None
    }  # fmt: skip
    for writer in streams:
        for name in done[id(writer)].stored.keys() - others:
            writers = [s for s in streams if name in done[id(s)].stored]
            readers = [s for s in streams if s is not writer and name in done[id(s)].loaded]
            if len(writers) == len(readers) == 1 and name not in done[id(writer)].loaded:
                yield Between(
                    name, writer, readers[0], done[id(writer)], done[id(readers[0])],
                    _own(plan, name, writer, readers[0]),
                )  # fmt: skip


def _own(plan: pm.Plan, name: str, writer: pm.Stream, reader: pm.Stream) -> bool:
    """Whether the middle block of a phase loads what the middle one of another has stored, and no more."""
    if writer.unit_count() != reader.unit_count():
        return False
    extents = []
    for stream, store in ((writer, True), (reader, False)):
        start, stop, step = stream.units[len(stream.units) // 2]
        middle = start + (stop - start) // step // 2 * step
        boxes = footprint.boxes(plan, stream, middle, name, store)
        if not boxes:
            return False
        extents.append([(min(a for a, _ in dim), max(b for _, b in dim)) for dim in zip(*boxes, strict=True)])
    return extents[0] == extents[1]


def recomputed(plan: pm.Plan, one: Between) -> pm.Plan:
    """Return the Plan whose readers load what the writer loads, and compute what it computes."""
    stored = one.wrote.stored[one.name]
    share, work = min(1.0, sum(one.wrote.loaded.values()) / stored), one.wrote.vector / stored
    tiles = {t.name: t for t in plan.tiles}

    def change(body: tuple[Any, ...]) -> tuple[Any, ...]:
        made: list[Any] = []
        for s in body:
            inner = {part: change(getattr(s, part)) for part in ("body", "orelse") if hasattr(s, part)}
            new = replace(s, **inner) if inner else s
            if isinstance(new, pm.Compute) and new.engine == "dma" and new.reads[0].tile == one.name:
                flops = round(work * _bytes(tiles[one.name], new.reads[0], {}))
                new = footprint.scaled_read(new, 0, share)
                done = pm.Compute("abs", new.write, (new.write,), (), "vector", pm.Work(Const(flops)))
                made += [new, replace(done, source=new.source)]
            else:
                made.append(new)
        return tuple(made)

    streams = (
        replace(x, body=()) if x is one.writer else replace(x, body=change(x.body)) if x is one.reader else x
        for x in plan.streams
    )
    return unsignalled(replace(plan, streams=tuple(streams)), one)


def merged(plan: pm.Plan, one: Between) -> pm.Plan:
    """Return the Plan without stores and loads of the tensor between the phases, and without waiting."""

    def gone(s: Any) -> Any:
        touches = {r.tile for r in reads_of(s)} | ({w.tile} if (w := write_of(s)) is not None else set())
        copies = isinstance(s, pm.Compute) and s.engine == "dma"
        return None if copies and one.name in touches else s

    first, second = (rewritten(x.body, gone) for x in (one.writer, one.reader))
    if one.own and len(one.writer.units) == len(one.reader.units) == 1:  # then a block does both
        by = one.reader.units[0][0] - one.writer.units[0][0]
        still = tuple(s for s in second if not isinstance(s, pm.Wait))
        first, second = (*first, *(_of_unit(s, Symbol("unit") + by) for s in still)), ()
    bodies = {id(one.writer): first, id(one.reader): second}
    streams = (replace(x, body=bodies.get(id(x), x.body)) for x in plan.streams)
    return unsignalled(replace(plan, streams=tuple(streams)), one)


def _of_unit(value: Any, unit: Expr) -> Any:
    """Return a statement, or a part of one, of another unit."""
    if isinstance(value, Expr):
        return substitute(value, {"unit": unit})
    if isinstance(value, tuple):
        return tuple(_of_unit(v, unit) for v in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return replace(value, **{f.name: _of_unit(getattr(value, f.name), unit) for f in fields(value) if f.init})


def unsignalled(plan: pm.Plan, one: Between) -> pm.Plan:
    """Return the Plan whose streams do not wait for flags that the writer alone signals."""
    mine = _signals(one.writer.body)
    for stream in plan.streams:
        if stream.units != one.writer.units or stream.level != one.writer.level:
            mine -= _signals(stream.body)
    gone = lambda s: None if isinstance(s, (pm.Wait, pm.Signal)) and s.flag in mine else s  # noqa: E731
    streams = (replace(x, body=rewritten(x.body, gone)) for x in plan.streams)
    return replace(plan, streams=tuple(streams))


def _signals(body: tuple[Any, ...]) -> set[str]:
    found = set[str]()
    for s in body:
        found |= {s.flag} if isinstance(s, pm.Signal) else set()
        for part in ("body", "orelse"):
            found |= _signals(getattr(s, part, ()))
    return found


def elementwise(plan: pm.Plan) -> Iterator[Between]:
    """Yield tensors that need not be stored, as the writer or the reader only computes elements."""
    return (one for one in between(plan) if one.recomputable or one.elementwise_reader)


def as_one(plan: pm.Plan, by_readers: bool = False) -> tuple[pm.Plan, list[str]]:
    """Return the Plan without any tensor that need not be stored, and their names: later phases read what
    earlier ones have made, or (``by_readers``) compute it themselves where both can be."""
    names = list[str]()
    while (one := next((x for x in elementwise(plan) if x.name not in names), None)) is not None:
        again = one.recomputable and (by_readers or not one.elementwise_reader)
        plan = (recomputed if again else merged)(plan, one)
        names.append(one.name)
    return plan, names


@rule("intermediate tensor")
def intermediate(study: Study) -> Iterator[Finding]:
    """Find a tensor that one phase stores and the next loads, where one phase could do both."""
    if study.lowered is not None and changes.fusible(study.lowered.source) is not None:
        return
    found = list(elementwise(study.plan))
    for one in found[:1]:
        both = one.recomputable and one.elementwise_reader
        ways = {
            again: as_one(study.plan, again) for again in ((True, False) if both else (one.recomputable,))
        }
        timed = {again: study.plan_ps(plan) or study.base_ps for again, (plan, _) in ways.items()}
        again = min(timed, key=lambda key: timed[key])
        _, gone = ways[again]
        names = [f"'{name}'" for name in gone]
        unit = {"unit": next(one.reader.unit_numbers())}
        loads = (
            s
            for s, _ in footprint.commands(one.reader.body, unit)
            if isinstance(s, pm.Compute) and any(r.tile == one.name for r in s.reads)
        )
        times = one.read.loaded[one.name] / one.wrote.stored[one.name]
        step = (
            f"do what the second phase does with '{one.name}' in the first, before the store"
            if not again
            else f"compute '{one.name}' where it is read: load what it is made of into a tile there"
        )
        how = "elements computed where they are read" if again else "one phase"
        yield from study.finding(
            "intermediate tensor", timed[again], f"Plan timed again with {how}", bound=True,
            bottleneck=f"phases through memory: {', '.join(names)} stored by one and loaded by the next",
            reason=f"{format_bytes(one.wrote.stored[one.name])} are stored and loaded {times:.3g} times; the "
            "second phase waits for the first",
            step=f"{step}; without {', '.join(names)} in memory",
            source=str(getattr(next(loads, None), "source", None) or ""),
        )  # fmt: skip
