"""How busy engines, links and memories were, out of what the engine recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from megatile.core.expr import constant
from megatile.hda.routing import Link
from megatile.sim.instructions import RECEIVE, SIGNAL, WORK
from megatile.sim.recorded_rows import RecordedRows
from megatile.sim.state import NONE, CacheRow, Recorded
from megatile.trace.exposure import COMMUNICATION, WAITING, covered_ps, engine_kind, uncovered_ps

PLACES = {RECEIVE: "channel", SIGNAL: "channel"}
"""The engine of commands that have none; all others hold up the control."""


class Traffic(NamedTuple):
    """What went through a memory layer; hits and misses count the blocks that a cache was asked for."""

    read_bytes: int = 0
    written_bytes: int = 0
    hits: int = 0
    misses: int = 0

    @property
    def hit_rate(self) -> float | None:
        """Of what a cache was asked for, the share that it had; None where nothing asked, or it is none."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else None

    @property
    def hit_text(self) -> str:
        return "" if self.hit_rate is None else f"{self.hit_rate:.1%} hits"


@dataclass(frozen=True)
class Usage:
    """Busy ps per kind of engine, shares of the whole time, bytes by name, exposed ps per unit."""

    busy: dict[str, int]
    units: dict[str, int]
    """On how many units of the hardware each kind of engine works."""
    covered: dict[str, int]
    """Ps in which each kind of engine works, added up over those units: what goes on at once counts once."""
    links: dict[str, float]
    memories: dict[str, float]
    bytes_on: dict[str, int]
    exposed: dict[str, int]


class RecordedUsage(RecordedRows):
    """The records of one launch by what they used."""

    def resources(self) -> tuple[dict[Any, int], dict[Any, int]]:
        """Busy time and bytes of every link and memory on a path, by its key."""
        spent: dict[Any, int] = {}
        moved: dict[Any, int] = {}
        for path, nbytes, count in self._moved:
            described = self.path(path)
            for stage, busy in zip(described.stages, described.stage_ps(nbytes)[1], strict=True):
                if (key := stage.resource) is not None:
                    spent[key] = spent.get(key, 0) + busy * count
                    moved[key] = moved.get(key, 0) + nbytes * count
        for key, time, nbytes in self._direct():
            spent[key], moved[key] = spent.get(key, 0) + time, moved.get(key, 0) + nbytes
        for row, (_, _, key) in zip(self.cached.tolist(), self.caches, strict=True):
            spent[key] = spent.get(key, 0) + row[CacheRow.spent]
            moved[key] = moved.get(key, 0) + row[CacheRow.filled] + row[CacheRow.evicted]
        return spent, moved

    def _direct(self) -> Iterator[tuple[Any, int, int]]:
        """Memories that commands of engines keep, for how long, and the bytes."""
        launched = self.launched
        if not launched.plan.levels:
            return
        work = self.rows[:, Recorded.kind] == WORK
        pc_of, actor_of = (self.rows[work, column] for column in (Recorded.pc, Recorded.actor))
        for pc in np.flatnonzero(np.bincount(pc_of)).tolist():
            statement, actors = self.statements[pc], actor_of[pc_of == pc]
            view = launched.views[launched.which(int(actors[0]))[0]]
            name, keeps = view.keeps_memory(statement, constant(statement.work.flops) or 1)
            if keeps:
                places, counts = np.unique(self.places[actors - launched.first], return_counts=True)
                rate = view.memory(name)[1] / 1e12
                for place, count in zip(places.tolist(), counts.tolist(), strict=True):
                    yield view.memory_key(name, place), keeps * count, round(keeps * count * rate)

    def traffic(self) -> dict[str, Traffic]:
        """Return what was read from and written to every memory layer, and how its blocks were found."""
        found: dict[str, list[int]] = {}

        def add(name: str, *counts: int) -> None:
            found[name] = [a + b for a, b in zip(found.get(name, [0] * 4), (*counts, 0, 0), strict=False)]

        for path, nbytes, count in self._moved:
            described = self.path(path)
            for write, (name, caches) in enumerate(
                zip(described.memories, (described.reads, described.writes), strict=True)
            ):
                if not caches:
                    add(
                        self.launched.resources.hda.memory(name).name,
                        *((0, nbytes * count) if write else (nbytes * count, 0)),
                    )
        for row, (name, behind, _) in zip(self.cached.tolist(), self.caches, strict=True):
            add(name, row[CacheRow.read], row[CacheRow.written], row[CacheRow.hits], row[CacheRow.misses])
            add(behind, row[CacheRow.filled], row[CacheRow.evicted])
        return {name: Traffic(*counts) for name, counts in found.items()}

    @cached_property
    def _moved(self) -> list[tuple[int, int, int]]:
        """How many transfers of each size went over each path."""
        used = self.rows[:, Recorded.path] != NONE
        if not used.any():
            return []
        paths, path = np.unique(self.rows[used, Recorded.path], return_inverse=True)
        nbytes = self.rows[used, Recorded.nbytes]
        size = int(nbytes.max()) + 1
        pairs, counts = np.unique(path * size + nbytes, return_counts=True)
        numbers = paths[pairs // size].tolist()
        return list(zip(numbers, (pairs % size).tolist(), counts.tolist(), strict=True))

    def _work(self) -> tuple[dict[str, int], dict[str, int], dict[str, int], dict[str, int]]:
        """Busy time per kind of engine, on how many hardware units, how much of their time that covers; per
        unit, time in which it communicates and computes nothing."""
        rows, names = self.rows, self._engine_names()
        start = np.maximum(rows[:, Recorded.start], 0)
        end = np.maximum(start, rows[:, Recorded.end])
        engine = rows[:, Recorded.engine].copy()
        for kind, name in PLACES.items():
            engine[(engine == NONE) & (rows[:, Recorded.kind] == kind)] = names.index(name)
        engine[engine == NONE] = names.index("control")
        unit = rows[:, Recorded.actor] - self.launched.first
        spent = np.bincount(engine, end - start, len(names))
        used = np.bincount(engine, minlength=len(names))
        busy, units, covered = dict[str, int](), dict[str, int](), dict[str, int]()
        places = self.places + (np.searchsorted(self.launched.offsets, np.arange(self.units), "right") << 40)
        for name in dict.fromkeys(
            engine_kind(n) for n, count in zip(names, used.tolist(), strict=True) if count
        ):
            numbers = [i for i, other in enumerate(names) if engine_kind(other) == name]
            if name not in WAITING:
                rows_of = np.isin(engine, numbers)
                mine, place = np.unique(places[unit[rows_of]], return_inverse=True)
                busy[name] = covered[name] = int(spent[numbers].sum())
                units[name] = len(mine)
                if name in COMMUNICATION:  # an engine that computes does one thing at a time
                    covered[name] = int(covered_ps(place, start[rows_of], end[rows_of], len(mine)).sum())
        working = np.array([engine_kind(name) not in COMMUNICATION for name in names])[engine]
        exposed = uncovered_ps(unit, start, end, working, self.units).tolist()
        return busy, units, covered, dict(zip(self.names, exposed, strict=True))

    def usage(self, whole_ps: int) -> Usage:
        spent, moved = self.resources()
        widths = self.launched.resources.fabric.widths
        tables: tuple[dict[str, float], dict[str, float]] = ({}, {})
        named: dict[str, int] = {}
        for key, time in spent.items():
            name = self._name(key)
            tables[isinstance(key, tuple) and key[0] == "memory"][name] = (
                time / max(1, whole_ps) / widths[key]
            )
            named[name] = named.get(name, 0) + moved[key]
        busy, units, covered, exposed = self._work()
        return Usage(busy, units, covered, tables[0], tables[1], named, exposed)

    def _name(self, key: Any) -> str:
        if isinstance(key, Link):
            network = self.launched.resources.hda.network(key.network)
            start, stop = network.topology.ends(key.number)
            owner = f"[{key.owner}]" if key.owner else ""
            return f"{key.network}{owner} {start}->{stop}"
        return " ".join(str(part) for part in key[:2]) + f"[{', '.join(str(p) for p in key[2:])}]"
