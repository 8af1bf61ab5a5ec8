"""Servers, caches and paths of a machine as rows of the arena.

A path has a *class* (a row of `path` and its stages: all that it has in common with paths elsewhere on the
machine) and a first server, from which the class counts its others; both are packed into its number. So the
paths of all units to their neighbours are one row, however many there are. The links of a grid that a plan
uses as a whole have servers in the order of the links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from megatile.core.cached import cached
from megatile.hda.routing import Link
from megatile.sim import plain, state as st
from megatile.sim.arena import Arena
from megatile.sim.state import NONE, CacheBlock, CacheRow, Server
from megatile.timing.caches import Cache
from megatile.timing.fabric import Fabric, Path, PathGroup, Stage, equal
from megatile.timing.resources import Resources

CacheKey = tuple[str, int]
"""The name of a cache and which of them it is."""
_STATE = [CacheBlock.key, CacheBlock.index, CacheBlock.nbytes, CacheBlock.dirty]
DENSE = 1024
"""Links of a grid for every unit up to which all of them get servers."""
DENSE_SPREAD = 1 << 18
"""The same for plans with spread tiles, where units reach all parts."""


@cached(most=1 << 12)
def as_bits(rate: float) -> int:
    """Return the bits of a float as the integer stored in the arena."""
    return int(np.float64(rate).view(np.int64))


class Paths:
    def __init__(self, arena: Arena, contended: bool, everything_shared: bool) -> None:
        self.arena = arena
        self.contended = contended
        self.everything_shared = everything_shared
        self.shared: set[Any] = set()
        """Keys of the resources that more than one flow uses, besides those below."""
        self.servers: dict[Any, int] = {}
        self._keys: dict[int, Any] = {}
        self.grids: dict[str, tuple[int, int, Any] | None] = {}
        """By network: the first server of its links, how many there are in each of its owners, and how many
        flows use each. None where links have servers when they are used."""
        self.caches: dict[CacheKey, int] = {}
        """Rows of caches, by name and instance."""
        self.behind: list[tuple[str, Any]] = []
        """Of every cache, the name and the key of what is behind it."""
        self.pending_states: dict[CacheKey, bytes] = {}
        """What caches hold that have no row yet."""
        self.asked: dict[tuple[Any, ...], Any] = {}
        """The numbers of many paths at once, by what was asked."""
        self._classes: dict[tuple[Any, ...], int] = {}
        self._alike: dict[tuple[Any, ...], int] = {}
        self._described: list[tuple[Path, list[int | None]]] = []
        """Of every class: a path and the servers of its stages, counted from the first."""

    # servers

    def use(self, view: Resources, units: int) -> None:
        """Plans with so many units use the links of a grid, if the machine has one at their level."""
        network = view.fabric.grid(view.level.name)
        if network is None or network.name in self.grids:
            return
        self.grids[network.name] = None
        count = view.hda.level(network.level).total * network.topology.link_count
        if count <= (DENSE_SPREAD if any(t.over for t in view.plan.tiles) else DENSE) * units:
            lanes, first = self.arena.extend("lanes", count), self.arena.extend("servers", count)
            rows = self.arena.rows("servers")[first : first + count]
            rows[:, Server.lanes], rows[:, Server.lane_count] = np.arange(lanes, lanes + count), 1
            users = np.zeros(count, dtype=np.int64)
            self.grids[network.name] = first, network.topology.link_count, users

    def server(self, key: Any, width: int) -> int:
        number = self.servers.get(key)
        if number is None:
            grid = self.grids.setdefault(key.network, None) if isinstance(key, Link) else None
            if grid is not None:
                return grid[0] + key.owner * grid[1] + key.number
            lanes = self.arena.extend("lanes", width)
            number = self.servers[key] = self.arena.append("servers", (lanes, width))
            self._keys[number] = key
        return number

    def key(self, server: int) -> Any:
        if server in self._keys:
            return self._keys[server]
        for name, grid in self.grids.items():
            if grid is not None and 0 <= server - grid[0] < len(grid[2]):
                return Link(name, *divmod(server - grid[0], grid[1]))
        raise KeyError(server)

    def is_shared(self, key: Any) -> bool:
        if not self.contended:
            return False
        if self.everything_shared or key in self.shared or (not isinstance(key, Link) and key[0] == "memory"):
            return True
        grid = self.grids.get(key.network) if isinstance(key, Link) else None
        return grid is not None and bool(grid[2][key.owner * grid[1] + key.number] > 1)

    def count(
        self, fabric: Fabric, stages: Iterable[Stage], group: PathGroup, flow: Any, users: dict[Any, Any]
    ) -> None:
        """Flows (by the number of a pair) use the links of a group of routes (given by its first route);
        ``users``: some flow of every link that is not counted in a grid."""
        for stage in stages:
            key = stage.resource
            grid = self.grids.get(key.network) if isinstance(key, Link) else None
            if grid is not None:
                np.add.at(grid[2], key.owner * grid[1] + key.number + group.shifts, 1)
            elif key is not None:
                per = fabric.hda.network(key.network).topology.link_count if isinstance(key, Link) else 1
                for pair, shift in zip(group.pairs.tolist(), group.shifts.tolist(), strict=True):
                    other = key
                    if shift:
                        other = Link(key.network, *divmod(key.owner * per + key.number + shift, per))
                    if users.setdefault(other, flow(pair)) != flow(pair):
                        self.shared.add(other)

    # paths

    def number(self, path: Path, fabric: Fabric) -> int:
        """Return the number of a path."""
        if self.contended or self.arena.recording or path.reads or path.writes:
            return self._number(path, fabric)
        # Nobody waits and nothing is recorded: it does not matter which servers it has.
        key = path.figures, path.granule, path.memories
        if key not in self._alike:
            self._alike[key] = self._number(path, fabric)
        return self._alike[key]

    def _number(self, path: Path, fabric: Fabric) -> int:
        keys = [stage.resource for stage in path.stages]
        servers = [None if key is None else self.server(key, fabric.widths[key]) for key in keys]
        return self._packed(path, fabric, servers, [key is not None and self.is_shared(key) for key in keys])

    def numbers(self, path: Path, group: PathGroup, fabric: Fabric, each: Callable[[int], Path]) -> Any:
        """Return the numbers of the paths of a group, whose first one is given; ``each`` makes the others."""
        count = len(group.pairs)
        grid = None if group.network is None else self.grids.get(group.network.name)
        keys = [stage.resource for stage in path.stages]
        links = [i for i, key in enumerate(keys) if isinstance(key, Link)]
        others = any(key is not None and not isinstance(key, Link) for key in keys)
        if group.network is None or count == 1 or not (links or others):
            return np.full(count, self.number(path, fabric))
        if grid is None or others or len(links) > 60:
            return np.array([self.number(each(i), fabric) for i in range(count)])
        found = np.empty(count, dtype=np.int64)
        servers = [None if key is None else self.server(key, 1) for key in keys]
        used = np.array([s for s in servers if s is not None])
        for part in self._patterns(grid, used - grid[0], group.shifts):
            shift = int(group.shifts[part[0]])
            here = [s is not None and grid[2][s - grid[0] + shift] > 1 for s in servers]
            if self.everything_shared:
                here = [s is not None for s in servers]
            shared = [self.contended and flag for flag in here]
            first = self._packed(path, fabric, [None if s is None else s + shift for s in servers], shared)
            found[part] = first + (group.shifts[part] - shift << st.CLASSES)
        return found

    def _patterns(self, grid: tuple[int, int, Any], links: Any, shifts: Any) -> list[Any]:
        """Paths whose links are shifted against each other, in groups in which the same ones are shared."""
        if self.everything_shared or not self.contended:
            return [np.arange(len(shifts))]
        shared = grid[2][links[None, :] + shifts[:, None]] > 1
        return equal(shared @ (1 << np.arange(len(links), dtype=np.int64)))

    def _packed(self, path: Path, fabric: Fabric, servers: Sequence[int | None], shared: list[bool]) -> int:
        first = next((s for s in servers if s is not None), 0)
        relative = [None if s is None else s - first for s in servers]
        caches = [self._caches(path.reads, fabric), self._caches(path.writes, fabric)]
        stages = tuple(
            (stage.latency_ps, stage.bandwidth, server, used)
            for stage, server, used in zip(path.stages, relative, shared, strict=True)
        )
        granule = (path.granule or 0) if path.first_resource is not None else 0
        key = (stages, path.startup_ps, path.dma_bandwidth, path.extra_ps, granule, path.memories, *caches)
        number = self._classes.get(key)
        if number is None:
            arena, at = self.arena, self.arena.used["stages"]
            arena.append("stages", [
                n for latency, bandwidth, server, used in stages
                for n in (server or 0, latency, NONE if server is None else used, -1, 0, as_bits(bandwidth))
            ])  # fmt: skip
            number = self._classes[key] = arena.append("paths", (
                at, len(stages), path.startup_ps, path.latency_ps, path.extra_ps, path.before_ps,
                NONE if path.first_resource is None else path.first_resource, granule, int(any(shared)),
                -1, 0, as_bits(path.bandwidth), as_bits(path.dma_bandwidth), *caches,
            ))  # fmt: skip
            self._described.append((path, relative))
        return number + (first << st.CLASSES)

    def described(self, number: int, fabric: Fabric) -> Path:
        """Return a path by its number, with the resources of a fabric."""
        path, relative = self._described[number & st.CLASS]
        first = number >> st.CLASSES
        stages = []
        for stage, server in zip(path.stages, relative, strict=True):
            key = None if server is None else self.key(first + server)
            if server is not None:
                fabric.widths.setdefault(
                    key, int(self.arena.rows("servers")[first + server, Server.lane_count])
                )
            stages.append(stage._replace(resource=key))
        made = Path(tuple(stages), path.startup_ps, path.dma_bandwidth)
        for name in ("granule", "reads", "writes", "memories"):
            setattr(made, name, getattr(path, name))
        return made

    # caches

    def _caches(self, caches: tuple[Cache, ...], fabric: Fabric) -> int:
        """Return the row of the nearest of some caches, made with all behind it."""
        row = NONE
        for cache in reversed(caches):
            key = (cache.name, cache.instance)
            if key not in self.caches:
                stage, arena = cache.behind, self.arena
                server = NONE
                if stage.resource is not None:
                    server = self.server(stage.resource, fabric.widths[stage.resource])
                blocks = arena.extend("blocks", cache.blocks, None)
                self.caches[key] = arena.append("caches", (
                    blocks, cache.blocks, 0, NONE, NONE, int(cache.writes_back), row, server,
                    stage.latency_ps, as_bits(stage.bandwidth), *[0] * 9,
                ))  # fmt: skip
                self.behind.append((cache.of, stage.resource))
                state = self.pending_states.pop(key, b"")
                grown = blocks + cache.blocks > arena.size("buckets")
                if grown:
                    arena.set_size("buckets", 1 << (blocks + cache.blocks).bit_length())
                if state:
                    self._fill(self.caches[key], state)
                if grown or state:
                    self._fill_buckets()
            row = self.caches[key]
        return row

    def cache_state(self, key: CacheKey) -> bytes:
        """Return what a cache holds: key, number, bytes and changes of its blocks, the one used longest ago
        first. Blocks of launches that are over have no key."""
        if key not in self.caches:
            return self.pending_states.get(key, b"")
        row = self.arena.rows("caches")[self.caches[key]]
        blocks = self.arena.rows("blocks")[row[CacheRow.first_block] :][: row[CacheRow.used]]
        found = blocks[np.argsort(blocks[:, CacheBlock.used_at])][:, _STATE]
        found[found[:, 0] >= st.OWN_BLOCKS << 24, :2] = NONE
        found[found[:, 0] == NONE, 1] = NONE
        return found.tobytes()

    def all_cache_states(self) -> dict[CacheKey, bytes]:
        """Return what all caches hold."""
        return {**self.pending_states, **{key: self.cache_state(key) for key in self.caches}}

    def set_cache_states(self, states: Mapping[CacheKey, bytes]) -> None:
        """Let caches hold what they held before, whenever that came."""
        self.pending_states.update((key, state) for key, state in states.items() if key not in self.caches)
        there = states.keys() & self.caches.keys()
        for key in there:
            self._fill(self.caches[key], states[key])
        if there:
            self._fill_buckets()

    def _fill(self, cache: int, state: bytes) -> None:
        """Set the blocks of a cache; its buckets come later."""
        row, found = self.arena.rows("caches")[cache], np.frombuffer(state, dtype=np.int64).reshape(-1, 4)
        first, count = int(row[CacheRow.first_block]), len(found)
        blocks, numbers = self.arena.rows("blocks")[first : first + count], np.arange(first, first + count)
        blocks[:], blocks[:, _STATE], blocks[:, CacheBlock.cache] = 0, found, cache
        gone = found[:, 0] == NONE
        blocks[gone, CacheBlock.index] = numbers[gone]  # so that they are spread over the buckets
        blocks[:, CacheBlock.newer], blocks[:, CacheBlock.older] = numbers + 1, numbers - 1
        blocks[-1:, CacheBlock.newer] = blocks[:1, CacheBlock.older] = NONE
        blocks[:, CacheBlock.used_at] = np.arange(-count, 0)
        row[CacheRow.used], row[CacheRow.oldest] = count, first if count else NONE
        row[CacheRow.newest] = first + count - 1 if count else NONE

    def _fill_buckets(self) -> None:
        """Put all blocks into the buckets where they are found."""
        arena, blocks, buckets = self.arena, self.arena.rows("blocks"), self.arena.rows("buckets")
        buckets[:] = NONE
        spans = arena.rows("caches")[:, [CacheRow.first_block, CacheRow.used]].tolist()
        numbers = np.concatenate([np.arange(first, first + used) for first, used in spans])
        if not len(numbers):
            return
        columns = blocks[numbers][:, [CacheBlock.cache, CacheBlock.key, CacheBlock.index]].T
        at = plain.engine().bucket_number(arena.memory, *columns)
        order = np.argsort(at, kind="stable")
        numbers, at = numbers[order], at[order]
        follows = np.append(at[1:] == at[:-1], False)
        blocks[numbers, CacheBlock.next] = np.where(follows, np.roll(numbers, -1), NONE)
        buckets[at[::-1]] = numbers[::-1]  # of several the first stays
