"""Tensors laid anew: a plan whose PEs fetch the elements of one tensor to their places in another.

    Move.block((4, 6), (0, 2), (4, 3), (0, 0), (4, 3))         # y = x[:, 2:5]
    Move.permuted((4, 2, 3), (1, 0, 2), (2, 12))               # y = x.reshape(4, 2, 3).swapaxes(0, 1)

Both tensors are seen with their dimensions split, so that every dimension of the one is a dimension of the
other. Each PE of the target copies a box of elements at a time from the PE that has them: its own copy if it
has one, else one of its cube. Units that do the same share a stream, and boxes that differ only in where they
begin are a loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, product
from math import prod
from typing import Any

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.core.expr import Expr, Symbol, expr, table, unit
from megatile.hda.addresses import DeviceShape
from megatile.plan.model import Compute, Loop, Plan, Region, Statement, Stream, Tile, Work, runs
from megatile.runtime.host.placement import PlacedShard, TensorHandle

Shape = tuple[int, ...]
Box = tuple[tuple[int, int], ...]
"""First and last (not included) index of every dimension."""
MEMORIES = {"hbm": "hbm", "tcm": "l1", "sram": "sram"}


@dataclass(frozen=True)
class Move:
    """Elements ``start`` on of the source, whose shape is split into ``split``, go to ``at`` of the target,
    split into ``merged``; dimension i there is dimension ``axes[i]`` here. ``at`` and ``extent`` are in the
    target's order."""

    split: Shape
    axes: Shape
    merged: Shape
    start: Shape
    at: Shape
    extent: Shape

    @staticmethod
    def block(source: Shape, start: Shape, target: Shape, at: Shape, extent: Shape) -> Move:
        """A block of one tensor becomes a block of another."""
        return Move(source, tuple(range(len(source))), target, start, at, extent)

    @staticmethod
    def permuted(split: Shape, axes: Shape) -> Move:
        """Return all elements, with dimensions in another order."""
        extent, zeros = tuple(split[a] for a in axes), (0,) * len(axes)
        return Move(split, axes, extent, zeros, zeros, extent)

    @staticmethod
    def reshaped(source: Shape, target: Shape) -> Move | None:
        """Return all elements in the same order under another shape; None where both have no common
        splitting."""
        ends = {1}
        for shape in (source, target):
            at = 1
            for extent in reversed(shape):
                at *= extent
                ends.add(at)
        steps = sorted(ends)
        if any(b % a for a, b in pairwise(steps)):
            return None
        split = tuple(b // a for a, b in pairwise(steps))[::-1]
        return Move.permuted(split, tuple(range(len(split))))


def _grouped(shape: Shape, split: Shape) -> list[list[int]]:
    """Return which dimensions of the split shape make up each dimension of the shape."""
    found, at = [], 0
    for extent in shape:
        mine, size = [], 1
        while size < extent and at < len(split):
            size *= split[at]
            mine.append(at)
            at += 1
        if size != extent:
            raise ValueError(f"{split} does not split {shape}")
        found.append(mine)
    return found


def _boxes(low: int, high: int, split: Sequence[int]) -> Iterator[Box]:
    """Yield the elements ``low`` to ``high`` of a dimension as boxes of the dimensions that it is split
    into."""
    if not split or low >= high:
        if low < high:
            yield ()
        return
    inner = prod(split[1:])
    first, last = -(-low // inner), high // inner
    if low < first * inner:
        stop = min(high, first * inner) - (first - 1) * inner
        for rest in _boxes(low - (first - 1) * inner, stop, split[1:]):
            yield ((first - 1, first), *rest)
    if first < last:
        yield ((first, last), *((0, extent) for extent in split[1:]))
    if first <= last and last * inner < high:
        for rest in _boxes(0, high - last * inner, split[1:]):
            yield ((last, last + 1), *rest)


def _held(shard: PlacedShard, shape: Shape, split: Shape) -> list[Box]:
    """Return what a shard holds, as boxes of the split shape."""
    groups = _grouped(shape, split)
    parts = [
        list(_boxes(s.start, s.stop, [split[d] for d in g]))
        for s, g in zip(shard.slices, groups, strict=True)
    ]
    found = []
    for chosen in product(*parts):
        spans = dict.fromkeys(range(len(split)), (0, 1))
        for group, box in zip(groups, chosen, strict=True):
            spans |= dict(zip(group, box, strict=True))
        found.append(tuple(spans[d] for d in range(len(split))))
    return found


def _met(a: Box, b: Box) -> Box | None:
    found = tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))
    return found if all(p < q for p, q in found) else None


@dataclass(frozen=True)
class _Command:
    """One copy: what it does, and where it begins in the target and in the source (tile, start, owner)."""

    operation: str
    code: str
    write: tuple[str, Shape]
    read: tuple[str, Shape]
    numbers: Shape

    @property
    def kind(self) -> tuple[Any, ...]:
        return self.operation, self.code, self.write, self.read


class _Side:
    """A tensor as tiles, one for each shape that its shards have."""

    def __init__(self, letter: str, handle: TensorHandle, shape: DeviceShape) -> None:
        self.letter, self.handle, self.machine = letter, handle, shape
        self.classes: dict[Shape, list[int]] = defaultdict(list)
        for number, shard in enumerate(handle.shards):
            if shard.nbytes:
                self.classes[shard.spec.shape].append(number)
        self.names = {shape: f"{letter}{n}" for n, shape in enumerate(self.classes)}

    def tile(self, number: int) -> tuple[str, int]:
        """Return the tile of a shard, and its row there."""
        shape = self.handle.shards[number].spec.shape
        return self.names[shape], self.classes[shape].index(number)

    def tiles(self, seats: list[tuple[int, int]], role: str) -> list[Tile]:
        memory = getattr(self.machine, MEMORIES[self.handle.mem_kind])
        found = []
        for shape, numbers in self.classes.items():
            rows = {(s.cube, s.pe): r for r, s in enumerate(self.handle.shards[n] for n in numbers)}
            owner = table([rows.get(seat, -1) for seat in seats], unit)
            name = self.names[shape]
            found.append(
                Tile(name, shape, self.handle.dtype, memory, role=role, owner=owner, owners=len(numbers))
            )
        return found


def relayout(
    source: TensorHandle,
    target: TensorHandle,
    moves: Sequence[Move],
    zero: bool,
    whole: bool,
    shape: DeviceShape,
) -> tuple[Plan, _Side, _Side]:
    """Return the plan on the PEs of both tensors, and how their shards are its tiles. ``zero``: elements that
    no move reaches become 0; ``whole``: there are none."""
    x, y = _Side("x", source, shape), _Side("y", target, shape)
    seats = sorted({(s.cube, s.pe) for s in (*source.shards, *target.shards)})
    work: dict[int, list[_Command]] = {n: [] for n in range(len(seats))}
    pieces = [_pieces(source, move) for move in moves]
    for number, shard in enumerate(target.shards):
        if shard.nbytes:
            mine = work[seats.index((shard.cube, shard.pe))]
            if zero:
                tile, _ = y.tile(number)
                mine.append(
                    _Command("fill", "", (tile, shard.spec.shape), ("", ()), (0,) * len(shard.slices))
                )
            for move, there in zip(moves, pieces, strict=True):
                mine += _fetches(x, y, shard, number, move, there)
    plan = Plan(
        f"copy to {target.name}",
        shape.pe_scale,
        (len(seats),),
        place=table([cube * shape.pes + pe for cube, pe in seats], unit),
        tiles=(*x.tiles(seats, "input"), *y.tiles(seats, "output" if whole else "inout")),
        streams=tuple(_streams(work, target.dtype)),
    )
    return plan, x, y


Held = dict[Box, list[int]]


def _pieces(source: TensorHandle, move: Move) -> Held:
    """Return which shards hold each box of the source."""
    found: Held = defaultdict(list)
    for number, shard in enumerate(source.shards):
        for box in _held(shard, source.shape, move.split) if shard.nbytes else ():
            found[box].append(number)
    return found


def _fetches(
    x: _Side, y: _Side, shard: PlacedShard, number: int, move: Move, pieces: Held
) -> Iterator[_Command]:
    """Yield the copies that bring a shard of the target what a move says."""
    inside = tuple((a, a + n) for a, n in zip(move.at, move.extent, strict=True))
    for box in _held(shard, y.handle.shape, move.merged):
        wanted = _met(box, inside)
        if wanted is None:
            continue
        there = [(0, 0)] * len(move.split)
        for (low, high), at, axis in zip(wanted, move.at, move.axes, strict=True):
            there[axis] = (low - at + move.start[axis], high - at + move.start[axis])
        for held, owners in pieces.items():
            part = _met(held, tuple(there))
            if part is not None:
                near = min(owners, key=lambda n: _distance(x.handle.shards[n], shard))
                here = tuple(
                    (part[axis][0] - move.start[axis] + at, part[axis][1] - move.start[axis] + at)
                    for axis, at in zip(move.axes, move.at, strict=True)
                )
                yield from _copies(x, y, near, number, move, here)


def _distance(a: PlacedShard, b: PlacedShard) -> tuple[bool, bool]:
    return a.cube != b.cube, (a.cube, a.pe) != (b.cube, b.pe)


def _copies(x: _Side, y: _Side, source: int, target: int, move: Move, box: Box) -> Iterator[_Command]:
    """Yield a box of the target's split shape, in pieces that are boxes of the target itself."""
    for group in _grouped(y.handle.shape, move.merged):
        partial = [d for d in group if box[d][1] - box[d][0] < move.merged[d]]
        broken = [d for d in group if partial and d < partial[-1] and box[d][1] - box[d][0] > 1]
        if broken:
            for i in range(*box[broken[0]]):
                part = tuple((i, i + 1) if d == broken[0] else span for d, span in enumerate(box))
                yield from _copies(x, y, source, target, move, part)
            return
    yield _command(x, y, source, target, move, box)


def _command(x: _Side, y: _Side, source: int, target: int, move: Move, box: Box) -> _Command:
    terms: dict[int, tuple[str, int]] = {}
    """By dimension of the target's split shape: the text of its index in the box, and its extent."""
    index, lengths, start = [], [], []
    slices = y.handle.shards[target].slices
    for number, (group, held) in enumerate(zip(_grouped(y.handle.shape, move.merged), slices, strict=True)):
        length, first = 1, 0
        for d in reversed(group):
            extent = box[d][1] - box[d][0]
            outer = all(box[e][1] - box[e][0] == 1 for e in group if e < d)
            text = f"i{number}" + (f" // {length}" if length > 1 else "") + ("" if outer else f" % {extent}")
            terms[d] = (text, extent)
            first += box[d][0] * prod(move.merged[e] for e in group if e > d)
            length *= extent
        index.append(f"i{number}" if length > 1 else "0")
        lengths.append(length)
        start.append(first - held.start)
    reads, extents, begin = [], [], []
    slices = x.handle.shards[source].slices
    for group, held in zip(_grouped(x.handle.shape, move.split), slices, strict=True):
        texts, extent, first = [], 1, 0
        for axis in group:
            d = move.axes.index(axis)
            stride = prod(move.split[e] for e in group if e > axis)
            text, count = terms.get(d, ("0", 1))
            first += (box[d][0] - move.at[d] + move.start[axis]) * stride
            extent += stride * (count - 1)
            if count > 1:
                texts.append(text if stride == 1 else f"({text}) * {stride}")
        reads.append(" + ".join(texts) or "0")
        extents.append(extent)
        begin.append(first - held.start)
    (write, _), (read, owner) = y.tile(target), x.tile(source)
    names = [f"i{n}" for n, length in enumerate(lengths) if length > 1] or ["i"]
    counts = [str(length) for length in lengths if length > 1] or ["1"]
    target_text, source_text = (", ".join(texts) or "0" for texts in (index, reads))
    code = f"w[{target_text}] = (a0[{source_text}] for {', '.join(names)} in ({', '.join(counts)},))"
    plain = (reads, extents) == (index, lengths)
    same = x.handle.dtype == y.handle.dtype
    return _Command(
        ("copy" if same else "cast") if plain else "nest",
        "" if plain else code,
        (write, tuple(lengths)),
        (read, tuple(extents)),
        (*start, *begin, owner),
    )


def _streams(work: dict[int, list[_Command]], dtype: str) -> Iterator[Stream]:
    alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number, commands in work.items():
        alike[tuple(c.kind for c in commands)].append(number)
    for units in alike.values():
        body: list[Statement] = []
        at = 0
        for _, group in groupby(work[units[0]], key=lambda c: c.kind):
            count = len(list(group))
            body.append(_statement(units, [work[u][at : at + count] for u in units], f"k{len(body)}", dtype))
            at += count
        yield Stream(runs(units), tuple(body))


def _statement(units: list[int], rows: list[list[_Command]], name: str, dtype: str) -> Statement:
    """Return commands of one kind, for every unit of a stream: a loop, or one of them."""
    first, count = rows[0][0], len(rows[0])
    numbers = np.array([[c.numbers for c in row] for row in rows])
    starts = [_number(units, numbers[:, :, i], name) for i in range(numbers.shape[2])]
    (write, shape), (read, extents) = first.write, first.read
    target = Region(write, tuple(starts[: len(shape)]), tuple(map(expr, shape)))
    sources: tuple[Region, ...] = ()
    if read:
        sources = (Region(read, tuple(starts[len(shape) : -1]), tuple(map(expr, extents)), starts[-1]),)
    work = Work(bytes=expr(2 * prod(shape) * itemsize(dtype)), dtype=dtype)
    attributes = (
        (("code", first.code),) if first.code else (("value", 0),) if first.operation == "fill" else ()
    )
    engine = "vector" if first.operation in ("fill", "cast") else "dma"
    one = Compute(first.operation, target, sources, attributes, engine, work)
    return one if count == 1 else Loop(name, expr(0), expr(count), (one,))


def _number(units: list[int], values: Any, name: str) -> Expr:
    """Return a number that differs by unit and by turn of a loop."""
    turns = values.shape[1]
    if (values == values[:, :1]).all():
        if (values == values[0, 0]).all():
            return expr(int(values[0, 0]))
        full = np.zeros(max(units) + 1, np.int64)
        full[units] = values[:, 0]
        return table(full.tolist(), unit)
    if (values == values[:1]).all():
        return table(values[0].tolist(), Symbol(name))
    grid = np.zeros((max(units) + 1, turns), np.int64)
    grid[units] = values
    return table(grid.reshape(-1).tolist(), unit * turns + Symbol(name))
