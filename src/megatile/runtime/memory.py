"""The tiles of one unit as tensors; those that other units reach lie in files that all processes map.

All processes of a launch run on one machine, so that a put or a get is a copy into or out of such a file;
``Signal`` and ``Wait`` order them, as everywhere in a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from megatile.plan.model import Plan, Tile, statements
from megatile.plan.statements import regions_of
from megatile.runtime.torch_rules import DTYPES


class Memory:
    """Tensors with a leading axis of versions. ``folder`` is the same for all processes of a run."""

    def __init__(self, plan: Plan, unit: int, inputs: Mapping[str, Tensor], folder: Path):
        self.unit, self._folder = unit, folder
        self.tiles = {tile.name: tile for tile in plan.tiles}
        bodies = [statement for stream in plan.streams for statement in statements(stream.body)]
        remote = {region.tile for s in bodies for region in regions_of(s) if region.at is not None}
        self.reached = {tile.name for tile in plan.tiles if tile.shared or tile.name in remote}
        self._owner = {tile.name: int(tile.owner.evaluate({"unit": unit})) for tile in plan.tiles}
        self._mapped: dict[tuple[str, int], Tensor] = {}
        self._own = {tile.name: self._new(tile) for tile in plan.tiles}
        for name, data in inputs.items():
            self._own[name][0] = data

    def _new(self, tile: Tile) -> Tensor:
        if tile.name in self.reached:
            return self.of(tile.name, self._owner[tile.name])
        return torch.zeros((tile.versions, *tile.shape), dtype=DTYPES[tile.dtype])

    def of(self, name: str, owner: int | None = None) -> Tensor:
        """All versions of a tile, of this unit or of another owner."""
        if owner is None or name not in self.reached:
            return self._own[name]
        if (name, owner) not in self._mapped:
            self._mapped[name, owner] = self._map(self.tiles[name], owner)
        return self._mapped[name, owner]

    def _map(self, tile: Tile, owner: int) -> Tensor:
        shape, dtype = (tile.versions, *tile.shape), DTYPES[tile.dtype]
        if not prod(shape):
            return torch.zeros(shape, dtype=dtype)
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"tile_{list(self.tiles).index(tile.name)}_{owner}"
        # The file is made with zeros by whoever comes first.
        return torch.from_file(str(path), shared=True, size=prod(shape), dtype=dtype).reshape(shape)
