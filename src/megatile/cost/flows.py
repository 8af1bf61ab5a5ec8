"""How long things take when nothing is in the way, and who uses which resource for how long."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.plan.cohort import spread
from megatile.plan.model import Channel, Plan, Tile
from megatile.timing.fabric import Path
from megatile.timing.resources import Resources

Array = Any


class Group:
    """Transfers of one command between the same units: their times, and how often they ran."""

    def __init__(self, paths: list[Path], users: list[Any], nbytes: list[int]):
        self.paths, self.users, self.nbytes = paths, users, nbytes
        held = [p.held_ps(n) for p, n in zip(paths, nbytes, strict=True)]
        self.busy = np.asarray([p.startup_ps + h for p, h in zip(paths, held, strict=True)], dtype=np.int64)
        rest = [p.occupied_ps(n) - h + p.latency_ps for p, n, h in zip(paths, nbytes, held, strict=True)]
        self.latency = np.asarray(rest, dtype=np.int64)
        self.count = 0


class Flows:
    """Durations by the machine's rules, and the load they put on its resources."""

    def __init__(self, plan: Plan, machine: Resources):
        self.plan, self.machine = plan, machine
        self._groups: dict[Any, Group] = {}
        self._computes: dict[Any, Any] = {}
        self._credits: dict[Any, Any] = {}
        self._first: dict[str, Any] = {}
        self._meetings: dict[Any, int] = {}
        self._engines: dict[Any, dict[int, int]] = {}
        self._engine_keys: dict[tuple[str, int], Any] = {}

    def send(
        self, channel: Channel, units: Array, memory: str, to: Array, queue: Array, nbytes: Any
    ) -> tuple[Any, Any]:
        """Busy time of the sender's DMA, and how much later the message has arrived."""
        key = ("send", channel.name, memory, units.tobytes(), queue.tobytes(), _key(nbytes))
        group = self._groups.get(key)
        if group is None:
            pairs = zip(units.tolist(), spread(to, len(units)).tolist(), strict=True)
            paths = [self.machine.path(u, memory, t, channel.memory) for u, t in pairs]
            users = [("queue", channel.name, q) for q in queue.tolist()]
            group = self._groups[key] = Group(paths, users, spread(nbytes, len(units)).tolist())
        return self._use(group, units)

    def copy(
        self, units: Array, source: Array, source_memory: str, target: Array, target_memory: str, nbytes: Any
    ) -> tuple[Any, Any]:
        """The same for a copy between memories."""
        ends = source.tobytes(), target.tobytes()
        key = ("copy", source_memory, target_memory, units.tobytes(), *ends, _key(nbytes))
        group = self._groups.get(key)
        if group is None:
            pairs = zip(source.tolist(), target.tolist(), strict=True)
            paths = [self.machine.path(a, source_memory, b, target_memory) for a, b in pairs]
            users = [("copy", u, id(p)) for u, p in zip(units.tolist(), paths, strict=True)]
            group = self._groups[key] = Group(paths, users, spread(nbytes, len(units)).tolist())
        return self._use(group, units)

    def _use(self, group: Group, units: Array) -> tuple[Any, Any]:
        group.count += 1
        self._load_engine("dma", units, group.busy)
        return group.busy, group.latency

    def compute(self, statement: Any, units: Array, flops: Any) -> Any:
        key = (id(statement), units.tobytes(), _key(flops))
        if key not in self._computes:
            amounts = spread(flops, len(units)).tolist()
            times = [
                self.machine.compute_ps(statement, f, u) for f, u in zip(amounts, units.tolist(), strict=True)
            ]
            self._computes[key] = np.asarray(times, dtype=np.int64)
        self._load_engine(statement.engine, units, self._computes[key])
        return self._computes[key]

    def _load_engine(self, kind: str, units: Array, busy: Any) -> None:
        """Engines that several units share are resources too."""
        if len(units) == 0 or self.machine.engine_resource(kind, int(units[0])) is None:
            return
        times = spread(busy, len(units)).tolist()
        for unit, time in zip(units.tolist(), times, strict=True):
            key = self.machine.engine_resource(kind, unit)
            if key is not None:
                users = self._engines.setdefault(key, {})
                users[unit] = users.get(unit, 0) + time

    def credit(self, channel: Channel, units: Array, member: Any) -> Any:
        """How long the credits of queues travel back to their senders."""
        members = spread(member, len(units))
        key = (channel.name, units.tobytes(), members.tobytes())
        if key not in self._credits:
            senders = spread(channel.source.evaluate({"unit": units, "member": members}), len(units))
            pairs = zip(units.tolist(), senders.tolist(), strict=True)
            times = [self.machine.credit_ps(u, s, channel) for u, s in pairs]
            self._credits[key] = np.asarray(times, dtype=np.int64)
        return self._credits[key]

    def meeting(self, statement: Any, members: Array, nbytes: int) -> int:
        key = (id(statement), members.tobytes(), nbytes)
        if key not in self._meetings:
            self._meetings[key] = self.machine.collective_ps(statement, tuple(members.tolist()), nbytes)
        return self._meetings[key]

    def first_sharer(self, tile: Tile) -> Any:
        """For each owner of a shared tile the first unit that has it."""
        if tile.name not in self._first:
            units = np.arange(self.plan.units)
            owners = spread(tile.owner.evaluate({"unit": units}), self.plan.units)
            first = np.zeros(self.plan.owners(tile), dtype=np.int64)
            first[owners[::-1]] = units[::-1]
            self._first[tile.name] = first
        return self._first[tile.name]

    def counts(self) -> Any:
        """How often everything ran so far."""
        return {k: g.count for k, g in self._groups.items()}, {k: dict(u) for k, u in self._engines.items()}

    def repeat(self, before: Any, times: int) -> None:
        """What ran since ``before`` runs ``times`` times more."""
        for key, group in self._groups.items():
            group.count += times * (group.count - before[0].get(key, 0))
        for key, users in self._engines.items():
            for unit, busy in users.items():
                users[unit] = busy + times * (busy - before[1].get(key, {}).get(unit, 0))

    def contention(self) -> tuple[int, int, tuple[str, ...]]:
        """(most time that can be lost by waiting, busy time of the busiest shared resource, names of those
        shared).
        """
        fabric = self.machine.fabric
        loads: dict[int, int] = {}
        users: dict[int, set[Any]] = {}
        rounding: dict[int, int] = {}
        for group in self._groups.values():
            for path, user, nbytes in zip(group.paths, group.users, group.nbytes, strict=True):
                busy = path.stage_ps(nbytes)[1]
                pieces = len(path.pieces(nbytes))
                for stage, time in zip(path.stages, busy, strict=True):
                    if stage.resource is not None:
                        loads[stage.resource] = loads.get(stage.resource, 0) + group.count * time
                        users.setdefault(stage.resource, set()).add(user)
                        # A transfer cut into pieces rounds the time of every piece up.
                        more = group.count * 2 * pieces if pieces > 1 else 0
                        rounding[stage.resource] = rounding.get(stage.resource, 0) + more
        shared = [r for r, names in users.items() if len(names) > 1]
        waiting = sum(loads[r] + rounding[r] for r in shared)
        busiest = max((loads[r] // fabric.widths[r] for r in shared), default=0)
        names = [str(fabric.keys[r]) for r in shared]
        for key, each in self._engines.items():
            if len(each) > 1:
                waiting += sum(each.values())
                busiest = max(busiest, sum(each.values()))
                names.append(str(key))
        return waiting, busiest, tuple(sorted(names))


def _key(value: Any) -> Any:
    return value.tobytes() if isinstance(value, np.ndarray) else value
