"""Where the tiles of a process lie: those of its unit and of the instances below it, and those of others."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megatile.plan.model import Plan, Tile, statements
from megatile.plan.statements import regions_of, write_of
from megatile.runtime.errors import NoTorchRuleError
from megatile.runtime.torch_rules import DTYPES


class Memory:
    """The tiles of one unit as tensors, with a leading axis of versions; those that other units reach lie in
    files of ``folder``, which is the same for all processes of a run and which all map.

    All processes of such a run are on one host, so that a put or a get is a copy into or out of such a file;
    ``Signal`` and ``Wait`` order them, as everywhere in a plan.
    """

    def __init__(self, plan: Plan, unit: int, inputs: Mapping[str, Tensor], folder: Path | None = None):
        self.plan, self.unit, self._folder = plan, unit, folder
        self.tiles = {tile.name: tile for tile in plan.tiles}
        for tile in plan.tiles:
            if tile.dtype not in DTYPES:
                raise NoTorchRuleError(f"tile '{tile.name}': torch has no type for {tile.dtype}")
        bodies = [statement for stream in plan.streams for statement in statements(stream.body)]
        remote = {region.tile for s in bodies for region in regions_of(s) if region.at is not None}
        self.reached = {t.name for t in plan.tiles if t.shared or t.name in remote}
        self._kept: dict[tuple[str, int], Tensor] = {}
        for name, data in inputs.items():
            self.of(name, self.owner(name, unit))[0] = data

    def owner(self, name: str, number: int) -> int:
        """Return whose copy of a tile an instance of its level means."""
        return int(self.tiles[name].owner.evaluate({"unit": number}))

    def here(self, name: str, owner: int) -> bool:
        """Return whether this process reaches a copy of a tile by itself."""
        return True

    def of(self, name: str, owner: int) -> Tensor:
        """Return all versions of a tile of an owner."""
        if (name, owner) not in self._kept:
            self._kept[name, owner] = self._new(self.tiles[name], owner)
        return self._kept[name, owner]

    def _new(self, tile: Tile, owner: int) -> Tensor:
        shape, dtype = (tile.versions, *tile.shape), DTYPES[tile.dtype]
        if tile.name not in self.reached or self._folder is None or not prod(shape):
            return torch.zeros(shape, dtype=dtype)
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"tile_{list(self.tiles).index(tile.name)}_{owner}"
        # The file is made with zeros by whoever comes first.
        return torch.from_file(str(path), shared=True, size=prod(shape), dtype=dtype).reshape(shape)

    def release(self, level: str | None, number: int) -> None:
        """Forget the tiles of an instance that has ended, but for those that others may still reach."""
        for tile in self.plan.tiles:
            if tile.level == level and level is not None and tile.name not in self.reached:
                self._kept.pop((tile.name, number), None)


class RankMemory(Memory):
    """The tiles of one rank among hosts that share no memory; each copy of a tile has one rank as its home.

    ``inputs`` has the copies of all owners: what no command writes is here on every rank.
    """

    def __init__(self, plan: Plan, unit: int, inputs: Mapping[str, Any]):
        super().__init__(plan, unit, {})
        self.inputs = inputs
        every = (s for stream in plan.streams for s in statements(stream.body))
        self._written = {write.tile for s in every if (write := write_of(s)) is not None}
        self._homes: dict[str, list[int]] = {}

    def home(self, name: str, owner: int) -> int:
        """Return the rank that keeps a copy of a tile."""
        if name not in self._homes:
            self._homes[name] = homes(self.plan, self.tiles[name])
        return self._homes[name][owner]

    def here(self, name: str, owner: int) -> bool:
        return name not in self._written or self.home(name, owner) == self.unit

    def _new(self, tile: Tile, owner: int) -> Tensor:
        made = super()._new(tile, owner)
        if tile.name in self.inputs and made.numel():
            data = np.ascontiguousarray(self.inputs[tile.name][owner]).reshape(-1).view(np.uint8)
            made[0] = torch.from_numpy(data.copy()).view(made.dtype).reshape(tile.shape)
        return made


def homes(plan: Plan, tile: Tile) -> list[int]:
    """Return the rank of each copy of a tile: the first whose unit, or an instance below it, owns the
    copy."""
    per, found = plan.per(tile.level, None) or 1, [0] * plan.owners(tile)
    count = plan.instances(tile.level)
    numbers = np.arange(count)
    owners = np.broadcast_to(np.asarray(tile.owner.evaluate({"unit": numbers})), count)
    for number, owner in zip(reversed(range(count)), owners[::-1].tolist(), strict=True):
        if 0 <= owner < len(found):
            found[owner] = number // per
    return found
