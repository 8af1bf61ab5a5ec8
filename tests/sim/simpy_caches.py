"""Caches for the SimPy reader: what "Caches" in ``plan/model.py`` says, block by block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import product
from typing import Any

import simpy

from megatile.timing.fabric import serialise_ps

Key = tuple[Any, ...]


class Held:
    """A block in a cache: ``known`` has the time at which it is filled, when that is known."""

    def __init__(self, env: simpy.Environment, nbytes: int, filled: int | None = None, changed: bool = False):
        self.nbytes, self.changed, self.known = nbytes, changed, env.event()
        if filled is not None:
            self.known.succeed(filled)


class Caches:
    """All caches of a machine."""

    def __init__(self, servers: Any) -> None:
        self.servers, self.env = servers, servers.env
        self.contents: dict[Any, OrderedDict[Key, Held]] = {}
        self.hits: dict[str, int] = {}
        self.misses: dict[str, int] = {}

    def of(self, cache: Any) -> OrderedDict[Key, Held]:
        return self.contents.setdefault((cache.name, cache.instance), OrderedDict())

    def ask(self, fabric: Any, cache: Any, nbytes: int) -> Any:
        """A turn at the layer behind a cache; a process that says (turn, end of it)."""
        stage = cache.behind
        busy = serialise_ps(nbytes, stage.bandwidth)

        def process() -> Any:
            if stage.resource is not None:
                yield from self.servers.serve(stage.resource, fabric.widths[stage.resource], busy)
            else:
                yield self.env.timeout(0)
            return self.env.now, self.env.now + busy

        return self.env.process(process())

    def insert(self, fabric: Any, caches: tuple[Any, ...], block: Key, held: Held) -> list[Any]:
        """Put a block into a cache; turns that write what makes room for it to the layers behind."""
        there, turns = self.of(caches[0]), list[Any]()
        if len(there) == caches[0].blocks:
            old, gone = there.popitem(last=False)
            if gone.changed:
                turns = self.write_behind(fabric, caches, old, gone.nbytes)
        there[block] = held
        return turns

    def write_behind(self, fabric: Any, caches: tuple[Any, ...], block: Key, nbytes: int) -> list[Any]:
        turns = [self.ask(fabric, caches[0], nbytes)]
        if len(caches) == 1:
            return turns
        behind = self.of(caches[1])
        if block in behind:
            behind.move_to_end(block)
            behind[block].changed = True
            return turns
        return turns + self.insert(fabric, caches[1:], block, Held(self.env, nbytes, self.env.now, True))

    def load(self, fabric: Any, caches: tuple[Any, ...], blocks: list[Key], size: int) -> Any:
        """Look up blocks: turns of the layers behind that serve what is missing (with their latencies), and
        the blocks that were there."""
        missed, new, found = [0] * len(caches), list[Held](), list[Held]()
        for block in blocks:
            for level, cache in enumerate(caches):
                there = self.of(cache)
                if block in there:
                    there.move_to_end(block)
                    found.append(there[block])
                    self.hits[cache.name] = self.hits.get(cache.name, 0) + 1
                    break
                self.misses[cache.name] = self.misses.get(cache.name, 0) + 1
                missed[level] += size
                new.append(Held(self.env, size))
                self.insert(fabric, caches[level:], block, new[-1])
        asked = [cache for cache, nbytes in zip(caches, missed, strict=True) if nbytes]
        turns = [self.ask(fabric, c, n) for c, n in zip(caches, missed, strict=True) if n]
        return turns, sum(cache.behind.latency_ps for cache in asked), new, found

    def store(self, fabric: Any, caches: tuple[Any, ...], blocks: list[Key], size: int, nbytes: int) -> Any:
        """Write blocks; turns of the layers behind that have to serve them too, or what makes room for them,
        each with its latency."""
        turns, latency = list[Any](), 0
        for level, cache in enumerate(caches):
            there = self.of(cache)
            for block in blocks:
                if block in there:
                    there.move_to_end(block)
                elif cache.writes_back:
                    new = Held(self.env, size, self.env.now)
                    turns += [(turn, 0) for turn in self.insert(fabric, caches[level:], block, new)]
                if cache.writes_back:
                    there[block].changed = True
            if cache.writes_back:
                break
            latency += cache.behind.latency_ps
            turns.append((self.ask(fabric, cache, nbytes), latency))
        return turns


def blocks_of(storage: Key, bounds: Any, shape: tuple[int, ...], brick: tuple[int, ...]) -> Iterator[Key]:
    """The blocks that a region touches, in row-major order."""
    spans = bounds or [(0, extent) for extent in shape]
    each = [
        range(low // b, -(-high // b)) if high > low else range(0)
        for (low, high), b in zip(spans, brick, strict=True)
    ]
    for index in product(*each):
        yield (*storage, *index)
