"""Numbers for everything a unit can access: the buffers of its tiles and the slots of its queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megatile.plan import model as pm
from megatile.plan.memory import aliases


class Storages:
    """Consecutive numbers, the same in every unit: first the tiles' versions, then the channels' slots."""

    def __init__(self, plan: pm.Plan) -> None:
        self.plan = plan
        self._tiles = {tile.name: tile for tile in plan.tiles}
        self._channels = {channel.name: channel for channel in plan.channels}
        self._base: dict[str, int] = {}
        self._slot_base: dict[str, int] = {}
        self._owners: list[tuple[int, Any]] = []
        count = 0
        for tile in plan.tiles:
            self._base[tile.name] = count
            self._owners.append((count, tile))
            count += tile.versions
        self.first_slot = count
        for channel in plan.channels:
            self._slot_base[channel.name] = count
            self._owners.append((count, channel))
            count += channel.members * channel.slots
        self.count = count
        self.aliases = self._aliases()
        """Buffers that lie over others in their memory: each with those others."""

    def _aliases(self) -> dict[int, list[int]]:
        first: dict[str, str] = aliases(self.plan)
        together: dict[str, list[str]] = {}
        for name in first:
            together.setdefault(first[name], []).append(name)
        found = {}
        for names in together.values():
            numbers = [(self._base[n] + v, n) for n in names for v in range(self._tiles[n].versions)]
            for number, name in numbers:
                found[number] = [other for other, tile in numbers if tile != name]
        return found

    def tile(self, name: str) -> pm.Tile | None:
        """The declared tile of that name, if it is one."""
        return self._tiles.get(name)

    def buffer(self, name: str, version: Any) -> Any:
        return self._base[name] + version % self._tiles[name].versions

    def slot(self, channel: str, member: Any, number: Any) -> Any:
        slots = self._channels[channel].slots
        return self._slot_base[channel] + member * slots + number % slots

    def what(self, storage: int) -> pm.Tile | pm.Channel:
        """The tile or channel that a number belongs to."""
        low, high = 0, len(self._owners)
        while high - low > 1:
            middle = (low + high) // 2
            if self._owners[middle][0] <= storage:
                low = middle
            else:
                high = middle
        return self._owners[low][1]

    def queue_of(self, storage: int) -> tuple[str, int]:
        """Channel and member of a slot."""
        channel = self.what(storage)
        assert isinstance(channel, pm.Channel)
        return channel.name, (storage - self._slot_base[channel.name]) // channel.slots

    def memory(self, storage: int) -> str:
        return self.what(storage).memory

    def describe(self, storage: int, bounds: Sequence[tuple[Any, Any]]) -> str:
        """A block as text, with its memory: ``tcm:x[0:64]``."""
        what = self.what(storage)
        edges = ", ".join(f"{low}:{low + extent}" for low, extent in bounds)
        return f"{what.memory}:{what.name}[{edges}]" if bounds else f"{what.memory}:{what.name}"
