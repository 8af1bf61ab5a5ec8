"""Compare the bytes of tiles in each memory layer with its capacity."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from megatile.core.dtypes import bits
from megatile.core.placement import has_copies
from megatile.core.quantities import format_bytes
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.launch import Launch
from megatile.ir.passes.lint import Finding
from megatile.ir.passes.pipeline import pipelined, stages
from megatile.ir.program import Program, bindings, placements
from megatile.language.tile.errors import ProgramError


@dataclass(frozen=True)
class Use:
    """A tile, with the bytes it takes of its layer in one unit of ``home``. ``region`` numbers the regions of
    the dispatched scale, whose tiles are never alive at once; 0: it is in none of them."""

    tile: n.Alloc
    home: str
    size: int
    region: int


class _Total:
    """Bytes of one layer in one unit, regions one after the other."""

    def __init__(self) -> None:
        self.by_region: dict[int, int] = defaultdict(int)

    def add(self, use: Use) -> int:
        """Return the most that is alive at once."""
        self.by_region[use.region] += use.size
        return self.by_region[0] + max((n for k, n in self.by_region.items() if k), default=0)


def checked_memory(machine: HDA, program: Program, spills: bool = False) -> dict[str, int]:
    """Return bytes that one dispatched instance uses of each layer; no unit uses more than it has.

    With ``spills``, tiles lie as GPU compilers put them: what does not fit the registers in a larger
    memory, and tiles of which one is done before the other begins may share their place.
    """
    used: dict[tuple[str, str], int] = {}
    totals: dict[tuple[str, str], _Total] = defaultdict(_Total)
    alive = _most_alive(program) if spills else {}
    for use in _uses(program):
        node, place = use.tile, (use.home, use.tile.level)
        total = totals[place].add(use)
        used[place] = min(total, alive.get(place, total))
        room = _room(machine, *place)
        threads = thread_count(program.launch, use.home)
        most = machine.memory(node.level).per_thread
        if spills and node.level == machine.memory("l0").name:
            used[place] = min(used[place], room, room if most is None else most * threads)
            continue
        if used[place] > room:
            needed, largest = _needed(program, place)
            raise ProgramError(
                f"the tiles of one {use.home} need {format_bytes(needed)} of '{node.level}', "
                f"but there are {format_bytes(room)} (the largest: {largest})",
                place=node.place,
                advice="use smaller tiles, a smaller dtype, or another level",
            )
        if most is not None and threads > 1 and used[place] > most * threads:
            needed, largest = _needed(program, place)
            raise ProgramError(
                f"the tiles of one {use.home} need {-(-needed // threads)} B of '{node.level}' in each "
                f"of its {threads} threads, but a thread has at most {most} B (the largest: {largest})",
                place=node.place,
                advice="launch more threads, use smaller tiles, or another level",
            )
    return {level: size for (home, level), size in used.items() if home == program.launch.dispatch}


def _needed(program: Program, place: tuple[str, str]) -> tuple[int, str]:
    """Return what all tiles of a layer in one unit need together, and the largest of them as text."""
    uses, total = [u for u in _uses(program) if (u.home, u.tile.level) == place], _Total()
    needed = max(map(total.add, uses))
    tile = max(uses, key=lambda use: use.size).tile
    return needed, f"'{tile.name}', {tile.dtype}{list(tile.shape)}"


def crowded_threads(machine: HDA, program: Program) -> Iterator[Finding]:
    """Tiles that take all that a thread has of a memory: compilers need some for addresses as well
    (``thread_overhead``), and move tiles to device memory where that is not left; no time is charged for
    it."""
    totals: dict[tuple[str, str], _Total] = defaultdict(_Total)
    said: set[tuple[str, str]] = set()
    for use in _uses(program):
        place, threads = (use.home, use.tile.level), thread_count(program.launch, use.home)
        layer, used = machine.memory(use.tile.level), totals[use.home, use.tile.level].add(use)
        most, each = _room(machine, *place), (layer.per_thread or layer.size) * threads
        room = min(most, each)
        if threads > 1 and place not in said and used + threads * layer.thread_overhead > room >= used:
            said.add(place)
            yield (
                f"the tiles of one {use.home} take {used // threads} B of '{use.tile.level}' in each of its "
                f"{threads} threads, and leave {(room - used) // threads} of the {layer.thread_overhead} B "
                "that addresses need: a compiler would spill",
                use.tile.span,
                "more threads, or smaller tiles" if each < most else "smaller tiles",
            )


def thread_count(launch: Launch, home: str) -> int:
    """Return how many threads a unit has; 1 where the launch does not say."""
    named = launch.scales[launch.depth("thread") - 1].named
    return launch.count("thread", home) if named and launch.depth("thread") >= launch.depth(home) else 1


def shallow_pipelines(machine: HDA, program: Program) -> Iterator[Finding]:
    """Pipelined loops whose tiles have no room for a buffer per stage; lowering will use fewer stages."""
    uses = list(_uses(program))
    for loop in pipelined(program):
        ahead = set(stages(loop, program).versions)
        for place in sorted({(u.home, u.tile.level) for u in uses if u.tile.name in ahead}):
            regions = {u.region for u in uses if u.tile.name in ahead} | {0}
            here = [u for u in uses if (u.home, u.tile.level) == place and u.region in regions]
            once = sum(u.size for u in here)
            each = sum(u.size for u in here if u.tile.name in ahead)
            room = _room(machine, *place)
            needed = once + each * (loop.stages - 1)
            if needed > room:
                fitting = max(1, 1 + (room - once) // each)
                yield (
                    f"{loop.stages} stages of pipelined loop '{loop.var}' need {format_bytes(needed)} of "
                    f"'{place[1]}' per {place[0]}, but there are {format_bytes(room)}; {fitting} fit",
                    loop.span,
                    f"num_stages={fitting}, or smaller tiles",
                )


def _uses(program: Program) -> Iterator[Use]:
    copies, launch = _copies(program), program.launch
    regions = {
        id(node): number
        for number, region in enumerate(n.each(n.ScaleRegion, program.body), 1)
        if region.scale == launch.dispatch
        for node in n.walk(region.body)
    }
    for node in n.each(n.Alloc, program.body):
        size = math.ceil(math.prod(node.shape) * bits(node.dtype) / 8) * copies.get(node.name, 1)
        home = node.scale
        if launch.depth(home) > launch.depth(launch.dispatch):
            size *= launch.count(home, launch.dispatch)
            home = launch.dispatch
        yield Use(node, home, size, regions.get(id(node), 0) if home == launch.dispatch else 0)


def _most_alive(program: Program) -> dict[tuple[str, str], int]:
    """Return the most bytes of each memory that tiles take at once, each from its first use to its last."""
    spans = _lifetimes(program)
    changes: dict[tuple[str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for use in _uses(program):
        if use.tile.name in spans:
            first, last = spans[use.tile.name]
            changes[use.home, use.tile.level][first] += use.size
            changes[use.home, use.tile.level][last + 1] -= use.size
    return {place: max(accumulate(c[t] for t in sorted(c))) for place, c in changes.items()}


def _lifetimes(program: Program) -> dict[str, tuple[int, int]]:
    """Return the first and the last statement that touches a tile; of a loop or of units that run at once,
    the whole."""
    table, launch = bindings(program), program.launch
    spans: dict[str, tuple[int, int]] = {}

    def touch(node: n.Node, first: int, last: int) -> None:
        for name in {table[r.source].base for _, r in n.regions(node) if r.source in table}:
            low, high = spans.get(name, (first, last))
            spans[name] = min(low, first), max(high, last)

    def visit(body: tuple[n.Node, ...], clock: int) -> int:
        for node in body:
            touch(node, clock, clock)
            start = clock = clock + 1
            for _, inner in n.bodies(node):
                clock = visit(inner, clock)
            at_once = isinstance(node, n.ScaleRegion) and launch.depth(node.scale) > launch.depth(
                launch.dispatch
            )
            if at_once or isinstance(node, n.Loop):
                for one in n.walk(node.body):  # type: ignore[attr-defined]
                    touch(one, start, clock)
        return clock

    return dict.fromkeys(table, (0, visit(program.body, 0))) | spans


def _copies(program: Program) -> dict[str, int]:
    scales = {node.name: node.scale for node in n.each(n.Alloc, program.body)}
    result = {}
    for name, layouts in placements(program).items():
        spread = [s for s, layout in layouts.items() if has_copies(layout)]
        if name in scales and spread:
            result[name] = max(program.launch.count(s, scales[name]) for s in spread)
    return result


def _room(machine: HDA, scale: str, level: str) -> int:
    """Return bytes of all memories of a layer inside one hardware unit of a scale, or of the one that it is
    in."""
    layer = machine.memory(level)
    return int(layer.available * max(machine.level(layer.level).total // machine.count(scale), 1))
