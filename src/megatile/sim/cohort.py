"""Units that are followed together: what their names mean, how far their counters are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megatile.core.expr import Const, Expr, symbols
from megatile.plan import model as pm
from megatile.sim.counts import QueueCounts
from megatile.sim.memo import Memo
from megatile.sim.rows import Access, Mask, Number, Odd
from megatile.sim.slots import SlotHolds
from megatile.sim.storage import Storages


@dataclass
class Cohort:
    """Units that are followed together: their numbers, their names' meanings, their counters."""

    plan: pm.Plan
    storages: Storages
    unit: Number
    scalars: Callable[[pm.ReadScalar, Number, Number], Number]
    env: dict[str, Number] = field(default_factory=dict)
    names: dict[str, Number] = field(default_factory=dict)
    """Handles: name -> storage number (slots, and captured versions of declared tiles)."""
    versions: dict[str, Number] = field(default_factory=dict)
    reads: dict[str, Number] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.env["unit"] = self.unit
        self.vector = isinstance(self.unit, np.ndarray)
        self.size = len(self.unit) if self.vector else 1
        self.versions.update({tile.name: 0 for tile in self.plan.tiles})
        self.channels = {c.name: c for c in self.plan.channels}
        self.holds = SlotHolds(self.storages, self.size)
        self.sent = {c.name: QueueCounts(self.plan.units * c.members) for c in self.plan.channels}
        self.taken = {c.name: QueueCounts(self.plan.units * c.members) for c in self.plan.channels}
        self.sizes: dict[str, tuple[set[int], set[int]]] = {c: (set(), set()) for c in self.channels}
        """Per channel, the sizes of messages sent and received; -1 where they depend on the unit."""
        self.met: dict[str, Number] = {g.name: 0 for g in self.plan.groups}
        self._compiled: dict[int, tuple[Expr, Callable[..., Any]]] = {}
        self._steady: dict[int, Number] = {}
        self._memo = Memo()
        self._queues: dict[int, tuple[bool, Number]] = {}
        self._same_queues: dict[tuple[str, bytes], Number] = {}
        self._fed: set[int] = set()
        self._groups: dict[str, tuple[Any, Any]] = {}

    # values

    def value(self, expr: Expr) -> Number:
        """An expression's value; what depends on the unit alone is worked out once."""
        if isinstance(expr, Const):
            return expr.value
        key = id(expr)
        steady = self._steady.get(key)
        if steady is not None:
            return steady
        entry = self._compiled.get(key)
        if entry is None:
            made = self._memo.function(expr) if self.vector else expr.compile()
            entry = self._compiled[key] = (expr, made)
            if symbols(expr) <= {"unit"}:
                self._steady[key] = entry[1](self.env)
                return self._steady[key]
        return entry[1](self.env)

    def end(self, names: Iterable[str], mask: Mask) -> None:
        """Forget names; where only some units do, the others keep them."""
        for name in names:
            if mask is None:
                self.names.pop(name, None)
            elif name in self.names:
                self.names[name] = np.where(mask, -1, self.names[name])

    def bind(self, name: str, storage: Number, mask: Mask) -> None:
        self.holds.hold(storage, mask)
        self.names[name] = self.choose(mask, storage, self.names.get(name, storage))

    def choose(self, mask: Mask, new: Number, old: Number) -> Number:
        return new if mask is None else np.where(mask, new, old)

    # storage

    def storage_of(self, name: str) -> Number:
        if name in self.names:
            return self.names[name]
        version = self.versions[name]
        return self.storages.buffer(name, version)

    def begin_version(self, name: str, mask: Mask) -> None:
        version = self.versions[name]
        self.versions[name] = self.choose(mask, version + 1, version)

    def access(self, region: pm.Region, write: bool) -> Access:
        name = region.tile
        storage = self.storage_of(name)
        tile = self.storages.tile(name)
        owner: Number = None
        shared = False
        if region.at is not None:
            owner, shared = self.value(region.at), True
        elif tile is not None and tile.shared and name not in self.names:
            owner, shared = self.value(tile.owner), True
        value = self.value
        bounds = tuple([(value(a), value(b)) for a, b in zip(region.start, region.shape, strict=True)])
        return Access(storage, owner, bounds, write, name, shared)

    def queue(self, statement: Any, channel: pm.Channel, to: Number, member: Number) -> Number:
        """The queue a statement uses: one array object while nothing but the unit decides, so that counting
        stays uniform."""
        known = self._queues.get(id(statement))
        if known is None:
            used = symbols(getattr(statement, "to", Const(0))) | symbols(statement.member)
            steady = used <= {"unit"}
            queue = to * channel.members + member
            if steady and isinstance(queue, np.ndarray):
                # Statements that use the same queues share one array, so that they are counted together.
                queue = self._same_queues.setdefault((channel.name, queue.tobytes()), queue)
            known = self._queues[id(statement)] = (steady, queue)
        return known[1] if known[0] else to * channel.members + member

    def check_send(self, statement: Any, channel: pm.Channel, to: Number, member: Number, mask: Mask) -> None:
        """Who sends must be the one that feeds the queue. Asked once where the unit alone decides."""
        if mask is None and id(statement) in self._fed:
            return
        if isinstance(to, int) and isinstance(member, int) and not self.vector:
            good = 0 <= to < self.plan.units and 0 <= member < channel.members
            good = good and int(channel.source.evaluate({"unit": to, "member": member})) == self.unit
        else:
            source = channel.source.evaluate({"unit": to, "member": member})
            right = (np.asarray(to) >= 0) & (np.asarray(to) < self.plan.units) & (source == self.unit)
            right = right & (np.asarray(member) >= 0) & (np.asarray(member) < channel.members)
            good = bool(np.all(right if mask is None else right | ~mask))
        if not good:
            raise Odd(f"a queue of channel '{channel.name}' is fed by the wrong unit")
        if mask is None and symbols(statement.to) | symbols(statement.member) <= {"unit"}:
            self._fed.add(id(statement))

    def check_size(self, channel: pm.Channel, nbytes: Number, mask: Mask, received: bool) -> None:
        size = nbytes if isinstance(nbytes, int) else -1
        if not received and size < 0:
            most = int(np.max(nbytes if mask is None else np.where(mask, nbytes, 0)))
        else:
            most = size
        if not received and most > channel.slot_bytes:
            raise Odd(f"a message of {most} bytes does not fit a slot of channel '{channel.name}'")
        self.sizes[channel.name][received].add(size)

    def check_meeting(self, statement: pm.Collective, group: pm.Group, mask: Mask) -> None:
        """Who meets belongs to a group, and the root of a broadcast to the same."""
        keys, sizes = self._group(group)
        root = self.value(statement.root) if statement.kind == "broadcast" else 0
        right = (keys[self.unit] >= 0) & (np.asarray(root) >= 0) & (root < sizes[keys[self.unit]])
        if not np.all(right if mask is None else right | ~mask):
            raise Odd(f"a unit meets at a {statement.kind} of group '{group.name}' in which it has no part")

    def _group(self, group: pm.Group) -> tuple[Any, Any]:
        if group.name not in self._groups:
            units = np.arange(self.plan.units, dtype=np.int64)
            keys = np.broadcast_to(group.key.evaluate({"unit": units}), units.shape)
            self._groups[group.name] = keys, np.bincount(keys[keys >= 0], minlength=1)
        return self._groups[group.name]

    def stream(self) -> pm.Stream:
        """The stream that these units follow."""
        first = int(self.unit[0]) if self.vector else self.unit
        for stream in self.plan.streams:
            if any(first in range(*run) for run in stream.units):
                return stream
        return pm.Stream(units=(), body=())
