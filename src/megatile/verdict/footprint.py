"""What one unit reads of every tensor, and how often: elements that it loads again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.core.expr import Const, Symbol, binary, ceil_div, symbols
from megatile.hda import HDA
from megatile.plan import model as pm
from megatile.plan.statements import reads_of, rewritten, write_of

MAX_COMMANDS = 4000
"""Commands of one owner of a tile that are looked at."""
MAX_READS = 40_000
"""Commands of all units that share a tile."""
MAX_CELLS = 1 << 22
"""Of the part of a tensor that one unit reads, to be looked at."""
NOTHING = 0.02
"""The share of new elements below which a load brings nothing."""
AGAIN = 1.15
"""How often an element must be loaded on average to be a symptom."""

Box = tuple[tuple[int, int], ...]
Key = tuple[int, int]
"""The identity of a command, and which of its operands."""


@dataclass
class Loads:
    """The loads of one tensor by one unit."""

    tile: pm.Tile
    remote: bool = False
    """Whether they are of another unit's part."""
    boxes: list[tuple[Key, Box]] = field(default_factory=list)
    commands: dict[Key, pm.Compute] = field(default_factory=dict)
    news: dict[Key, list[float]] = field(default_factory=dict)
    """By load, the share of new elements each time; `shares` fills it."""

    def shares(self) -> tuple[dict[Key, float], float, int]:
        """By load, the share of its elements that are new; how often an element is loaded on average; and how
        many elements there are."""
        # Between two neighbouring edges of boxes all elements are alike: cells of them are counted.
        edges = [
            np.unique([side for _, box in self.boxes for side in box[d]]) for d in range(len(self.tile.shape))
        ]
        cells = [len(e) - 1 for e in edges]
        if prod(cells) > MAX_CELLS or min(cells, default=0) <= 0:
            return {}, 1.0, 0
        seen, sizes = np.zeros(cells, bool), [np.diff(e) for e in edges]
        new, all_of_it = dict[Key, int](), dict[Key, int]()
        for key, box in self.boxes:
            at = tuple(slice(*np.searchsorted(e, side).tolist()) for e, side in zip(edges, box, strict=True))
            part, size = seen[at], prod(end - start for start, end in box)
            fresh = size - int(_weight(part, [w[i] for w, i in zip(sizes, at, strict=True)]))
            part[...] = True
            new[key] = new.get(key, 0) + fresh
            self.news.setdefault(key, []).append(fresh / max(1, size))
            all_of_it[key] = all_of_it.get(key, 0) + size
        unique = sum(new.values())
        shares = {key: new[key] / all_of_it[key] for key in new}
        return shares, sum(all_of_it.values()) / max(1, unique), unique


def _weight(cells: Any, sizes: list[Any]) -> float:
    """How many elements are in the cells that are set."""
    if not cells.any():
        return 0
    for size in reversed(sizes):
        cells = cells @ size
    return float(cells)


def loads(plan: pm.Plan) -> dict[str, Loads]:
    """Return what the middle unit of the largest stream loads, for every tensor that is never written."""
    written = {w.tile for body in plan.bodies for s in body if (w := write_of(s)) is not None}
    found = {t.name: Loads(t) for t in plan.tiles if t.role != "local" and t.name not in written}
    of_others: dict[str, Loads] = {}
    for s, env in of_middle_unit(plan):
        for at, region in enumerate(s.reads) if isinstance(s, pm.Compute) else ():
            one = found.get(region.tile)
            if one is not None and region.at is not None:  # each owner's part is a tensor of its own
                owner = number(region.at, env)
                one = (
                    of_others.setdefault(f"{region.tile} of {owner}", Loads(one.tile, remote=True))
                    if owner is not None
                    else None
                )
            box = _box(one.tile, replace(region, at=None), env) if one is not None else None
            if one is not None and box is not None:
                one.boxes.append(((id(s), at), box))
                one.commands[id(s), at] = s
    return {name: one for name, one in (found | of_others).items() if one.boxes}


def stored_again(plan: pm.Plan) -> tuple[Loads, dict[Key, float], float] | None:
    """The tensor of which one unit stores elements several times and never reads them, by store the share
    that nothing overwrites, and how often an element is stored."""
    read = {r.tile for body in plan.bodies for s in body for r in reads_of(s)}
    found = {t.name: Loads(t) for t in plan.tiles if t.role != "local" and t.name not in read}
    for s, here in of_middle_unit(plan):
        if isinstance(s, pm.Compute) and s.engine == "dma" and s.write.tile in found:
            box = _box(found[s.write.tile].tile, s.write, here)
            if box is not None:
                found[s.write.tile].boxes.insert(0, ((id(s), 0), box))  # the last one counts
                found[s.write.tile].commands[id(s), 0] = s
    for one in found.values():
        shares, times, elements = one.shares() if one.boxes else ({}, 1.0, 0)
        if times > AGAIN and elements:
            return one, shares, times
    return None


def read_share(plan: pm.Plan, name: str, besides: str) -> float | None:
    """The share of a tile that the commands of all units of its first owner read, but those of one source
    line; None where that is not known."""
    one = reads(plan, name, besides)
    return one.shares()[2] / prod(one.tile.shape) or None if one is not None else None


def reads(plan: pm.Plan, name: str, besides: str) -> Loads | None:
    """What the commands of all units of a tile's first owner read of it, but those of one source line; None
    where that is not known."""
    tile = next((t for t in plan.tiles if t.name == name), None)
    if tile is None:
        return None
    one, boxes, counted = Loads(tile), 0, 0

    def touching(s: Any) -> Any:
        nested = isinstance(s, (pm.Loop, pm.If))
        leave = not nested and all(r.tile != name for r in reads_of(s))
        return None if leave or (isinstance(s, pm.Loop) and not s.body and not s.carries) else s

    for stream in (replace(x, body=rewritten(x.body, touching)) for x in plan.streams):
        owned = range(plan.per(stream.level, tile.level) or 1)
        for unit in (u for run in stream.units for u in range(*run) if u in owned):
            for s, env in commands(stream.body, {"unit": unit}):
                counted += 1
                if counted > MAX_READS:
                    return None
                for region in reads_of(s) if str(s.source or "") != besides else ():
                    box = _box(tile, region, env) if region.tile == name else None
                    boxes += region.tile == name
                    if box is not None:
                        one.boxes.append(((id(s), 0), box))
    return one if boxes and len(one.boxes) == boxes else None


def of_middle_unit(plan: pm.Plan) -> Iterator[tuple[Any, dict[str, int]]]:
    """Return the first commands of the middle unit of the largest stream."""
    stream = max(plan.streams, key=lambda s: s.unit_count())
    start, stop, step = stream.units[0]
    middle = start + (stop - start) // step // 2 * step
    return islice(commands(stream.body, {"unit": middle}), MAX_COMMANDS)


def commands(body: tuple[Any, ...], env: dict[str, int]) -> Iterator[tuple[Any, dict[str, int]]]:
    """The commands of one unit in their order, each with the numbers that are known there; of a branch on
    what is not known, those of both sides."""
    for s in body:
        if isinstance(s, pm.Loop):
            yield from _rounds(s, env)
        elif isinstance(s, pm.If):
            taken = number(s.condition, env)
            sides = (s.body, s.orelse) if taken is None else ((s.body,) if taken else (s.orelse,))
            for side in sides:
                yield from commands(side, env)
        else:
            yield s, env


def _rounds(loop: pm.Loop, env: dict[str, int]) -> Iterator[tuple[Any, dict[str, int]]]:
    limits = [number(e, env) for e in (loop.start, loop.stop, loop.step)]
    if None in limits or not limits[2]:
        return
    carried = {c.name: c for c in loop.carries if isinstance(c, pm.CarryInt)}
    inner = env | {name: v for name, c in carried.items() if (v := number(c.init, env)) is not None}
    for index in range(*limits):  # type: ignore[arg-type]
        inner[loop.index] = index
        yield from commands(loop.body, inner)
        inner |= {name: v for name, c in carried.items() if (v := number(c.next, inner)) is not None}
    env |= {name: inner[name] for name in carried if name in inner}


def number(expr: Any, env: dict[str, int]) -> int | None:
    """Return the value of an expression; None if it has unknown names."""
    return int(expr.evaluate(env)) if symbols(expr) <= env.keys() else None


def _box(tile: pm.Tile, region: pm.Region, env: dict[str, int]) -> Box | None:
    return None if region.at is not None else box_of(tile, region, env)


def box_of(tile: pm.Tile, region: pm.Region, env: dict[str, int]) -> Box | None:
    """Return the part of a tile, of whichever unit, that a region is; None where that is not known."""
    if not region.start:
        return tuple((0, n) for n in tile.shape)
    box = list[tuple[int, int]]()
    for start, size, length in zip(region.start, region.shape, tile.shape, strict=True):
        low, extent = number(start, env), number(size, env)
        if low is None or extent is None or min(low + extent, length) <= max(0, low):
            return None
        box.append((max(0, low), min(low + extent, length)))
    return tuple(box)


def boxes(plan: pm.Plan, stream: pm.Stream, unit: int, name: str, store: bool) -> list[Box]:
    """Return the parts of a tensor that copies of one unit store, or load; none where one is not known."""
    tile, found = plan.tile(name), list[Box]()
    for s, here in islice(commands(stream.body, {"unit": unit}), MAX_COMMANDS):
        for region in ((s.write,) if store else s.reads) if isinstance(s, pm.Compute) else ():
            if region.tile == name:
                box = _box(tile, region, here)
                if box is None:
                    return []
                found.append(box)
    return found


def tile_bytes(tile: pm.Tile) -> int:
    """Return the bytes of a tile."""
    return prod(tile.shape) * itemsize(tile.dtype)


def near_bytes(hda: HDA, memory: str) -> int:
    """Return the bytes of the largest memory below the one that holds the tensors."""
    return max(
        (m.available for m in hda.memories if not m.cache and m.name != hda.memory(memory).name), default=0
    )


def loaded_again(plan: pm.Plan, hda: HDA) -> tuple[list[tuple[Loads, float]], dict[Key, float]]:
    """Tensors of which a unit loads elements again that it could keep, each with how often; and by load, the
    share that is new."""
    found, shares = list[tuple[Loads, float]](), dict[Key, float]()
    for one in loads(plan).values():
        new, times, elements = one.shares()
        memory = one.tile.memory
        room = hda.memory(memory).available if one.remote else near_bytes(hda, memory)
        if times > AGAIN and elements * itemsize(one.tile.dtype) <= room:
            found.append((one, times))
            shares |= new
    return sorted(found, key=lambda item: -item[1]), shares


def first_only(found: list[tuple[Loads, float]]) -> set[int]:
    """Return the loads that bring something new the first time alone."""
    news = (item for one, _ in found for item in one.news.items())
    return {
        key for (key, at), each in news
        if at == 0 and len(each) > 1 and each[0] > 1 - NOTHING and max(each[1:]) < NOTHING
    }  # fmt: skip


def loaded_once(plan: pm.Plan, shares: dict[Key, float], first: Collection[int] = ()) -> pm.Plan:
    """Return the Plan that loads every element once; loads of ``first`` in the first round of their loop."""
    before = {id(s): s for body in plan.bodies for s in body if isinstance(s, pm.Compute)}
    first = {id(x) for body in plan.bodies for s in body if isinstance(s, pm.Loop) for x in s.body} & set(
        first
    )

    def change(s: Any) -> Any:
        if isinstance(s, pm.Loop):
            begins = binary("==", Symbol(s.index), s.start)
            return replace(s, body=tuple(pm.If(begins, (x,)) if id(x) in first else x for x in s.body))
        if not isinstance(s, pm.Compute) or id(s) not in before or id(s) in first:
            return s
        mine = [shares.get((id(s), at), 1.0) for at in range(len(s.reads))]
        if min(mine, default=1.0) > 1 - NOTHING:
            return s
        if s.engine == "dma":
            return None if mine[0] < NOTHING else scaled_read(s, 0, mine[0])
        for at, share in enumerate(mine):
            s = scaled_read(s, at, share) if share < 1 - NOTHING else s
        return s

    streams = (replace(stream, body=rewritten(stream.body, change)) for stream in plan.streams)
    return replace(plan, streams=tuple(streams))


def scaled_read(s: pm.Compute, at: int, share: float) -> pm.Compute:
    """Return a command that reads a share of an operand."""
    region = s.reads[at]
    longest = max(range(len(region.shape)), key=lambda d: _length(region.shape[d]), default=None)
    if longest is not None:
        shape = list(region.shape)
        shape[longest] = (
            Const(max(1, round(_length(shape[longest]) * share)))
            if _length(shape[longest])
            else shape[longest]
        )
        region = replace(region, shape=tuple(shape))
    work = s.work
    if s.engine == "dma":
        work = replace(work, bytes=ceil_div(work.bytes * round(share * 1000), 1000))
    return replace(s, reads=(*s.reads[:at], region, *s.reads[at + 1 :]), work=work)


def _length(extent: Any) -> int:
    return int(extent.value) if isinstance(extent, Const) else 0


def least_new(one: Loads, shares: dict[Key, float]) -> pm.Compute:
    """Return the load with the smallest share of new elements."""
    return one.commands[min(one.commands, key=lambda key: shares.get(key, 1.0))]


def read_back(plan: pm.Plan, hda: HDA) -> tuple[str, set[int], set[int]] | None:
    """The tensor of which a unit loads what it has stored itself and could keep, with the commands that load
    it, and those that store it before."""
    tensors = {t.name: t for t in plan.tiles if t.role != "local"}
    moved, stores, before = dict[str, Loads](), dict[str, set[int]](), dict[str, set[int]]()
    loaded = dict[str, set[int]]()
    for s, here in of_middle_unit(plan):
        if not isinstance(s, pm.Compute) or s.engine != "dma" or len(s.reads) != 1:
            continue
        for region, store in ((s.reads[0], False), (s.write, True)):
            name = region.tile
            box = _box(tensors[name], region, here) if name in tensors else None
            if box is not None and (store or name in stores):
                moved.setdefault(name, Loads(tensors[name])).boxes.append(((id(s), int(not store)), box))
                (stores if store else loaded).setdefault(name, set()).add(id(s))
                if not store:
                    before[name] = set(stores[name])
    for name, keys in loaded.items():
        shares, _, elements = moved[name].shares()
        again = {key for (key, which), share in shares.items() if which == 1 and share < NOTHING}
        fits = elements * itemsize(tensors[name].dtype) <= near_bytes(hda, tensors[name].memory)
        if again == keys and fits and elements:
            return name, again, before[name]
    return None


def without(plan: pm.Plan, gone: set[int]) -> pm.Plan:
    """The Plan without some commands."""
    streams = (
        replace(x, body=rewritten(x.body, lambda s: None if id(s) in gone else s)) for x in plan.streams
    )
    return replace(plan, streams=tuple(streams))
