"""What the memories of a machine hold between launches: tensors by name, raw memory by address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megatile.core.dtypes import numpy_dtype
from megatile.plan.memory import aliases
from megatile.plan.model import Plan, PlanError, Tile
from megatile.plan.storage import allocate
from megatile.sim.install import places_of

Array = Any


@dataclass
class Tensor:
    """A tensor that stays: its description, where its parts lie, and (if known) what they hold."""

    tile: Tile
    places: tuple[int, ...]
    data: Array | None


@dataclass
class Block:
    """Bytes at a raw address of some units: ``data[i]`` belongs to unit ``places[i]``."""

    memory: str
    start: int
    places: Array
    data: Array

    @property
    def stop(self) -> int:
        return self.start + int(self.data.shape[1])


class Contents:
    """The memories of one machine. ``tensors`` are known by name, ``blocks`` by address."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.blocks: list[Block] = []

    def inputs(self, plan: Plan, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """What a plan finds in memory, with what the host gives; None where something is unknown."""
        found: dict[str, Any] = dict(given)
        for tile in plan.tiles:
            if tile.name in self.tensors and tile.role != "local":
                self._check(tile, plan)
            if tile.role not in ("input", "inout") or tile.name in found:
                continue
            if is_raw(tile):
                found[tile.name] = self._raw(tile, plan)
            elif tile.name in self.tensors and self.tensors[tile.name].data is not None:
                found[tile.name] = self.tensors[tile.name].data
            else:
                return None
        return found

    def keep(self, plan: Plan, inputs: Mapping[str, Any] | None, outputs: Mapping[str, Any] | None) -> None:
        """What is in memory after a launch; without outputs nobody knows what a plan has written."""
        for tile in plan.tiles:
            if tile.role == "local":
                continue
            source = inputs if tile.role == "input" else outputs
            data = None if source is None else np.asarray(source[tile.name], dtype=numpy_dtype(tile.dtype))
            if not is_raw(tile):
                places = tuple(places_of(plan).tolist())
                self.tensors[tile.name] = Tensor(tile, places, data)
            elif data is not None:
                self._put(tile, plan, data)
            else:
                self.blocks = [b for b in self.blocks if not _meets(b, tile)]

    def _check(self, tile: Tile, plan: Plan) -> None:
        known = self.tensors[tile.name]
        for what in ("shape", "dtype", "memory", "owner", "owners"):
            was, now = getattr(known.tile, what), getattr(tile, what)
            if was != now:
                raise PlanError(
                    f"'{tile.name}' is there from an earlier launch with {what} {was}, "
                    f"plan '{plan.name}' declares {what} {now}",
                    advice="give the tensors different names, or free() the one that is there",
                )
        if known.places != tuple(places_of(plan).tolist()):
            raise PlanError(
                f"'{tile.name}' lies on other units than those of plan '{plan.name}'",
                advice="give the tensors different names, or free() the one that is there",
            )

    def _raw(self, tile: Tile, plan: Plan) -> Array:
        """What lies at a raw address; what nobody wrote is NaN (0 for integers)."""
        array = np.ascontiguousarray(allocate(plan, tile, None)[:, 0])
        raw = array.reshape(len(array), -1).view(np.uint8)
        rows = {place: row for row, place in enumerate(places_of(plan).tolist())}
        start = tile.offset or 0
        for block in self.blocks:
            low, high = max(block.start, start), min(block.stop, start + tile.nbytes)
            if block.memory != tile.memory or low >= high:
                continue
            for at, place in enumerate(block.places.tolist()):
                if place in rows:
                    raw[rows[place], low - start : high - start] = block.data[
                        at, low - block.start : high - block.start
                    ]
        return array

    def _put(self, tile: Tile, plan: Plan, data: Array) -> None:
        raw = np.ascontiguousarray(data).reshape(len(data), -1).view(np.uint8)
        block = Block(tile.memory, tile.offset or 0, places_of(plan), raw)
        covered = set(block.places.tolist())
        self.blocks = [
            b for b in self.blocks if not (_inside(b, block) and covered >= set(b.places.tolist()))
        ]
        self.blocks.append(block)


def is_raw(tile: Tile) -> bool:
    """Whether a tile is memory at an address and not a tensor with a name."""
    return tile.offset is not None


def with_raw_kept(plan: Plan) -> Plan:
    """The plan with its raw memory as something that outlives it.

    An address used with two types in one plan is scratch: what lies there afterwards is nobody's business.
    """
    mixed = aliases(plan)
    kept = {t.name for t in plan.tiles if t.role == "local" and is_raw(t) and not t.shared} - set(mixed)
    return replace(plan, tiles=tuple(replace(t, role="inout") if t.name in kept else t for t in plan.tiles))


def _inside(inner: Block, outer: Block) -> bool:
    return inner.memory == outer.memory and outer.start <= inner.start and inner.stop <= outer.stop


def _meets(block: Block, tile: Tile) -> bool:
    start = tile.offset or 0
    return block.memory == tile.memory and block.start < start + tile.nbytes and start < block.stop
