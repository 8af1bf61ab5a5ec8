"""Between which PEs the bytes of a collective go, where every PE or cube has a far memory of its own.

Ranks whose tensors are divided alike exchange them shard by shard: the PEs that hold the same shard on every
device are a *column*. So lanes, memories and links of the PEs that hold a tensor decide how long it takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from megatile.hda.addresses import DeviceShape
from megatile.runtime.host.groups import Call
from megatile.runtime.host.oplog import Piece, Rows, pieces
from megatile.runtime.host.placement import PlacedShard

if TYPE_CHECKING:
    from megatile.runtime.host.tensor import Tensor


@dataclass(frozen=True)
class Columns:
    """``places[c][r]``: the PE of column ``c`` and rank ``r``, counted in the whole machine; ``count``: the
    elements of the largest column; ``memory``: where they lie. There is a row per column and rank."""

    places: tuple[tuple[int, ...], ...]
    count: int
    memory: str
    load: Rows
    store: Rows


def columns_of(calls: Sequence[Call], stored: Sequence[bool], shape: DeviceShape) -> Columns | None:
    """Return the columns of a collective; None where its tensors are divided differently, or a device's far
    memory is one for all its PEs.

    ``stored`` says of every call whether it gets a result.
    """
    each = [[*call.inputs, *call.outputs] for call in calls]
    tensors = [tensor for own in each for tensor in own]
    kinds = {tensor._there().mem_kind for tensor in tensors}
    if shape.hbm_of == "device" or len(kinds) != 1 or not all(each):
        return None
    memory = {"hbm": shape.hbm, "tcm": shape.l1, "sram": shape.sram}[kinds.pop()]
    assert memory is not None
    if all(len({_seat(t.shards[0]) for t in own}) == 1 == max(len(t.shards) for t in own) for own in each):
        places = tuple(_number(own[0].shards[0], shape) for own in each)
        load = [pieces(call.inputs) for call in calls]
        store = [pieces(call.outputs) if kept else [] for call, kept in zip(calls, stored, strict=True)]
        return Columns((places,), calls[0].count, memory, load, store)
    lies = [(_seat(s), s.slices) for s in tensors[0].shards]
    if any([(_seat(s), s.slices) for s in t.shards] != lies for t in tensors[1:]):
        return None
    rows = [
        (_shards(call.inputs, len(lies)), _shards(call.outputs if kept else (), len(lies)))
        for call, kept in zip(calls, stored, strict=True)
    ]
    load = [list(given[column]) for column in range(len(lies)) for given, _ in rows]
    store = [list(got[column]) for column in range(len(lies)) for _, got in rows]
    places_of = tuple(tuple(_number(own[0].shards[c], shape) for own in each) for c in range(len(lies)))
    largest = max(prod(s.spec.shape) for s in tensors[0].shards)
    return Columns(places_of, calls[0].count // tensors[0].numel() * largest, memory, load, store)


def _shards(tensors: Sequence[Tensor], columns: int) -> list[tuple[Piece, ...]]:
    """Return the shards of every column, one tensor after the other; each has the room of the largest."""
    found, place = [], 0
    for tensor in tensors:
        sizes = [prod(shard.spec.shape) for shard in tensor.shards]
        found.append([Piece(tensor, 0, size, place, number) for number, size in enumerate(sizes)])
        place += max(sizes)
    return list(zip(*found, strict=True)) or [()] * columns


def _seat(shard: PlacedShard) -> tuple[int, int]:
    return shard.cube, shard.pe


def _number(shard: PlacedShard, shape: DeviceShape) -> int:
    return (shard.sip * shape.cubes + shard.cube) * shape.pes + shard.pe
