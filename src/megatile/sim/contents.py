"""What the memories of a machine hold between launches: tensors by name, raw memory by address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megatile.plan.memory import aliases
from megatile.plan.model import Plan, PlanError, Tile
from megatile.plan.storage import allocate
from megatile.sim.install import place_numbers, places_of

Array = Any


@dataclass
class Tensor:
    """A tensor that stays: its description, where its parts lie, and what they hold.

    ``known`` says whether the launches submitted so far leave known contents, ``valid`` whether those that
    have ended did."""

    tile: Tile
    places: tuple[int, ...]
    data: Array = None
    known: bool = False
    valid: bool = False


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

    def __init__(self, lasting: bool = True) -> None:
        """``lasting=False``: those of a launch that leaves nothing, and finds only what it is given."""
        self.lasting = lasting
        self.tensors: dict[str, Tensor] = {}
        self.blocks: list[Block] = []

    def missing(self, plan: Plan, given: Mapping[str, Any]) -> str | None:
        """Return the first input of a plan that is not known."""
        for tile in plan.tiles:
            wanted = tile.role in ("input", "inout") and tile.name not in given and not is_raw(tile)
            if wanted and not (tile.name in self.tensors and self.tensors[tile.name].known):
                return tile.name
        return None

    def declare(self, plan: Plan, with_data: bool) -> None:
        """A plan is submitted: its tensors are in memory from now on."""
        named = [tile for tile in plan.tiles if tile.role != "local" and not is_raw(tile)]
        for tile in named:
            if tile.name in self.tensors:
                self._check(tile, plan)
        for tile in named:
            places = place_numbers(plan)
            tensor = self.tensors.setdefault(tile.name, Tensor(tile, places))
            tensor.known = with_data or (tensor.known and tile.role == "input")
            if with_data and tensor.data is None:
                tensor.data = allocate(plan, tile, None)[:, 0]

    def inputs(self, plan: Plan, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a plan finds in memory, with what the host gives."""
        found: dict[str, Any] = dict(given)
        for tile in plan.tiles:
            if tile.role not in ("input", "inout") or tile.name in found:
                continue
            if is_raw(tile) and self.lasting:
                found[tile.name] = self.raw(tile, plan)
            elif tile.name in self.tensors:
                found[tile.name] = self.tensors[tile.name].data
        return found

    def keep(self, plan: Plan, outputs: Mapping[str, Any] | None, present: Array) -> None:
        """What is in memory after a launch; without outputs what a plan has written is unknown."""
        for tile in plan.tiles if self.lasting else ():
            if tile.role == "local":
                continue
            if is_raw(tile):
                if outputs is None:
                    self.blocks = [b for b in self.blocks if not _meets(b, tile)]
                elif tile.role != "input":
                    self._put(tile, places_of(plan)[present], outputs[tile.name][present])
                continue
            tensor = self.tensors.get(tile.name)
            if tensor is None:
                continue  # the host has freed it
            tensor.valid = outputs is not None or (tile.role == "input" and tensor.valid)
            if outputs is not None and tile.versions > 1 and tile.role != "input":
                rows = np.unique(np.broadcast_to(tile.owner.evaluate({"unit": present}), present.shape))
                tensor.data[rows] = outputs[tile.name][rows]

    def _check(self, tile: Tile, plan: Plan) -> None:
        known = self.tensors[tile.name]
        for what in ("shape", "dtype", "memory", "owner", "owners"):
            was, now = getattr(known.tile, what), getattr(tile, what)
            if was != now:
                raise PlanError(
                    f"'{tile.name}' exists from an earlier launch with {what} {was}, "
                    f"plan '{plan.name}' declares {what} {now}",
                    advice="give the tensors different names, or free() the existing one",
                )
        if known.places != place_numbers(plan):
            raise PlanError(
                f"'{tile.name}' lies on other units than those of plan '{plan.name}'",
                advice="give the tensors different names, or free() the existing one",
            )

    def raw(self, tile: Tile, plan: Plan) -> Array:
        """Return what lies at a raw address; what nobody wrote is NaN (0 for integers)."""
        array = np.ascontiguousarray(allocate(plan, tile, None)[:, 0])
        raw = array.reshape(len(array), -1).view(np.uint8)
        rows = {place: row for row, place in enumerate(place_numbers(plan))}
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

    def _put(self, tile: Tile, places: Array, data: Array) -> None:
        raw = np.ascontiguousarray(data).reshape(len(data), -1).view(np.uint8)
        block = Block(tile.memory, tile.offset or 0, places, raw)
        covered = set(block.places.tolist())
        self.blocks = [
            b for b in self.blocks if not (_inside(b, block) and covered >= set(b.places.tolist()))
        ]
        self.blocks.append(block)


def is_raw(tile: Tile) -> bool:
    """Return whether a tile is memory at an address and not a tensor with a name."""
    return tile.offset is not None


def with_lasting_raw(plan: Plan) -> Plan:
    """Return the plan with its raw memory as something that outlives it.

    An address used with two types in one plan is scratch: what lies there afterwards is nobody's business.
    """
    mixed = aliases(plan)
    kept = {t.name for t in plan.tiles if t.role == "local" and is_raw(t) and not t.shared} - set(mixed)
    if not kept:
        return plan
    return replace(plan, tiles=tuple(replace(t, role="inout") if t.name in kept else t for t in plan.tiles))


def _inside(inner: Block, outer: Block) -> bool:
    return inner.memory == outer.memory and outer.start <= inner.start and inner.stop <= outer.stop


def _meets(block: Block, tile: Tile) -> bool:
    start = tile.offset or 0
    return block.memory == tile.memory and block.start < start + tile.nbytes and start < block.stop
