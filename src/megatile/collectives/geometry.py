"""How chosen ranks lie on a machine: nesting, grid, what the networks can reduce, which memory to use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

from megatile.collectives.job import CollectiveError
from megatile.core.expr import Expr, table, unit
from megatile.core.quantities import whole
from megatile.hda import HDA
from megatile.hda.direct import Edges
from megatile.hda.model import Level, MemoryLayer, Network

Ranks = int | Sequence[int] | None


@dataclass(frozen=True)
class Geometry:
    """See ``Job`` for ``levels``, ``dims``, ``wrap``, ``reduces``, ``place`` and ``cables``."""

    scale: str
    numbers: Sequence[int]
    levels: tuple[int, ...]
    dims: tuple[int, ...]
    wrap: tuple[bool, ...]
    reduces: tuple[tuple[str, ...], ...]
    place: Expr
    cables: tuple[tuple[int, int, int], ...] = ()

    @property
    def ranks(self) -> int:
        return len(self.numbers)


def survey(hda: HDA, scale: str, ranks: Ranks = None) -> Geometry:
    """Look at the ranks: all units of a scale, the first so many, or those with the given numbers."""
    numbers = _numbers(hda, scale, ranks)
    nesting = list(_nesting(hda, scale, numbers))
    levels = tuple(size for size, _ in nesting)
    dims: list[int] = []
    wrap: list[bool] = []
    reduces = []
    for size, network in nesting:
        grid = network.topology.dims if network else ()
        fits = bool(grid) and prod(grid) == size
        dims += grid if fits else (size,)
        known = getattr(network.topology, "wrap", ()) if fits and network else ()
        wrap += known or (False,) * (len(grid) if fits else 1)
        reduces.append(network.in_network_reduction if network else ())
    name = hda.scale(scale).name
    cables = _cables(nesting[0][1], numbers) if len(nesting) == 1 else ()
    return Geometry(name, numbers, levels, tuple(dims), tuple(wrap), tuple(reduces), _place(numbers), cables)


def _cables(network: Network | None, numbers: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Return pairs of ranks that a network given by its edges joins directly, and how many cables they
    have."""
    topology = network.topology if network is not None else None
    if not isinstance(topology, Edges):
        return ()
    ranks = {number % topology.size: rank for rank, number in enumerate(numbers)}
    return tuple((ranks[a], ranks[b], count) for a, b, count in topology.edges if {a, b} <= ranks.keys())


def _numbers(hda: HDA, scale: str, ranks: Ranks) -> Sequence[int]:
    total = hda.count(scale)
    numbers = _asked(ranks, total)
    if not len(numbers):
        raise CollectiveError("a collective needs at least one rank")
    beyond = [n for n in (min(numbers), max(numbers)) if not 0 <= n < total]
    if beyond:
        raise CollectiveError(
            f"{hda.name} has {total} units of scale '{scale}', from 0; there is no unit {beyond[0]}",
            advice="choose fewer ranks or a larger machine"
            + (f" (parameters: {', '.join(hda.parameters)})" if hda.parameters else ""),
        )
    if len(set(numbers)) != len(numbers):
        raise CollectiveError("a unit cannot be two ranks of the same group")
    return numbers


def _asked(ranks: Any, total: int) -> Sequence[int]:
    """Return numbers of units, from how many or which were asked for."""
    if ranks is None:
        return range(total)
    many = whole(ranks)
    if many is not None:
        return range(many)
    if isinstance(ranks, range):
        return ranks
    wanted = [] if isinstance(ranks, str) or not isinstance(ranks, Iterable) else list(ranks)
    numbers = [n for n in map(whole, wanted) if n is not None]
    if (
        isinstance(ranks, (str, set, frozenset))
        or len(numbers) != len(wanted)
        or not isinstance(ranks, Iterable)
    ):
        raise CollectiveError(
            f"{ranks!r} is not a number or list of ranks",
            advice="give their number, or a list such as [0, 2, 4]",
        )
    return numbers


def _nesting(hda: HDA, scale: str, numbers: Sequence[int]) -> list[tuple[int, Network | None]]:
    """(members, network) per level that groups the ranks in equal, neighbouring lots."""
    base = hda.level(hda.scale(scale).level)
    found: list[tuple[int, Network | None]] = []
    groups = list(numbers)
    for level in hda.levels:
        if level.position <= base.position or not _joins(hda, level):
            continue
        parents = [n * level.total // base.total for n in numbers[:: len(numbers) // len(groups)]]
        size = _equal_runs(parents)
        if size is None:
            return [(len(numbers), _network(hda, hda.levels[-1]))]
        if size > 1:
            found.append((size, _network(hda, level)))
        groups = parents[::size]
        if len(groups) == 1:
            break
    if prod(size for size, _ in found) != len(numbers):
        return [(len(numbers), None)]
    return found or [(1, None)]


def _joins(hda: HDA, level: Level) -> bool:
    return any(n.level == level.name for n in hda.networks) or any(
        m.level == level.name and m.shared and not m.cache for m in hda.memories
    )


def _network(hda: HDA, level: Level) -> Network | None:
    return next((n for n in hda.networks if n.level == level.name), None)


def _equal_runs(values: Sequence[int]) -> int | None:
    """Return the common length of the runs of equal values, if there is one and no value comes back."""
    starts = [0, *(i for i in range(1, len(values)) if values[i] != values[i - 1]), len(values)]
    sizes = {b - a for a, b in pairwise(starts)}
    if len(sizes) != 1 or len(starts) - 1 != len(set(values)):
        return None
    return sizes.pop()


def _place(numbers: Sequence[int]) -> Expr:
    first = numbers[0]
    step = numbers[1] - first if len(numbers) > 1 else 1
    if all(n == first + i * step for i, n in enumerate(numbers)):
        return unit * step + first
    return table(list(numbers), unit)


BUFFERS = 3
"""So many times a buffer is what a collective needs at most: input, output, and what it keeps or receives."""


def buffer_memory(hda: HDA, scale: str, nbytes: int = 0) -> str:
    """Return where a rank's buffers lie: the nearest memory that a unit of the scale reaches and that holds
    them."""
    memory = nearest_memory(hda, scale, nbytes)
    if _room(hda, scale, memory) < nbytes and nbytes // BUFFERS > memory.available:
        raise CollectiveError(
            f"a buffer of {nbytes // BUFFERS} bytes fits no memory of '{hda.name}': '{memory.name}' has "
            f"{memory.available}",
            advice="use a smaller size",
        )
    return memory.name


def nearest_memory(hda: HDA, scale: str, nbytes: int = 0) -> MemoryLayer:
    """Return the nearest memory of a unit that holds so many bytes, whatever it is called; else the
    largest."""
    hda.require("memory")
    base = hda.level(hda.scale(scale).level)
    usable = [m for m in hda.memories if not m.cache and m.shared]
    above = [m for m in usable if hda.level(m.level).position >= base.position]
    below = [m for m in usable if hda.level(m.level).position < base.position]
    above.sort(key=lambda m: (hda.level(m.level).position, m.size))
    below.sort(key=lambda m: -hda.level(m.level).position)
    for memory in [*above, *below]:
        if _room(hda, scale, memory) >= nbytes:
            return memory
    biggest = max(usable, key=lambda m: _room(hda, scale, m), default=None)
    if biggest is None:
        raise CollectiveError(f"machine '{hda.name}' has no memory that units of '{scale}' can use")
    return biggest


def near_memory(hda: HDA, scale: str, buffers: str) -> MemoryLayer | None:
    """Return the memory that a unit of ``scale`` owns, if its buffers lie in one farther away."""
    level = hda.level(hda.scale(scale).level)
    if hda.level(hda.memory(buffers).level).position <= level.position:
        return None
    return next((m for m in hda.memories if m.level == level.name and m.shared and not m.cache), None)


def _room(hda: HDA, scale: str, memory: MemoryLayer) -> int:
    """Return a unit's share of a memory that units have in common, or of all those below it."""
    return memory.available * hda.level(memory.level).total // hda.level(hda.scale(scale).level).total
