"""Launches that nested ``T.Scale("block", 4)`` describe, without a ``T.Kernel``: TileScale's spelling.

The extents are known only when the kernel has been read to its innermost scale. A level that is met for the
first time therefore raises `LevelFound`, and the kernel is read again with it.

    with T.Scale("die", 2) as d:                     a grid of 2 × 37 clusters
        with T.Scale("sm-cluster", 2) as r:          of 2 blocks each
            with T.Scale("sm", 37) as s:
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from megatile.core.errors import MegatileError
from megatile.hda import HDA
from megatile.ir.expr import Coord
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.launch import CLUSTER_SIZE, clusters_of, extents_of, find_scale
from megatile.language.tile.scalars import Rank, Value

RANKS = ("sm-cluster", "cta")
"""Names of the blocks of a cluster."""
PHYSICAL = ("die", "sm")
"""Names of groups of blocks that a machine need not declare: dimensions of the grid."""


@dataclass(frozen=True)
class ScaleLevel:
    """One ``T.Scale`` with extents; ``number`` counts those of its name around it."""

    word: str
    extents: tuple[int, ...]
    cluster_size: int = 0
    number: int = 0


class LevelFound(BaseException):
    """The launch has one more level: read the kernel again."""

    def __init__(self, levels: tuple[ScaleLevel, ...]):
        super().__init__(levels)
        self.levels = levels


def level_of(word: Any, extents: tuple[Any, ...], workgroup: Any, cluster_size: Any,
             num_sms_per_die: Any) -> ScaleLevel:  # fmt: skip
    """Return what the arguments of ``T.Scale`` say of a level."""
    if workgroup is not None and extents:
        raise ProgramError(
            f'T.Scale("{word}") has extents and workgroup=', advice="give its shape once: workgroup=(4, 2)"
        )
    if isinstance(workgroup, (tuple, list)) and not workgroup:
        raise ProgramError(f'T.Scale("{word}", workgroup=())', advice="workgroup= needs a dimension: (4,)")
    shape = extents_of(word, extents if workgroup is None else workgroup)
    if word in ("device", "gpu") and len(shape) > 1:
        raise ProgramError(
            f'T.Scale("{word}", workgroup={shape}): a device scale has a single workgroup dimension',
            advice=f"workgroup=({math.prod(shape)},)",
        )
    [size] = extents_of("cluster_size", 1 if cluster_size is None else cluster_size)
    if word in RANKS and cluster_size is not None and size != math.prod(shape):
        raise ProgramError(
            f'T.Scale("{word}", {math.prod(shape)}, cluster_size={size})',
            advice="a cluster has cluster_size blocks: give the same number twice, or once",
        )
    if num_sms_per_die is not None and math.prod(shape) * size > num_sms_per_die:
        raise ProgramError(
            f"{math.prod(shape)} clusters of {size} do not fit on {num_sms_per_die} SMs of a die",
            advice=f"at most {num_sms_per_die // size}",
        )
    return ScaleLevel(word, shape, 0 if cluster_size is None or word in RANKS else size)


class Nest:
    """The levels of a launch, each with its scale of the machine."""

    def __init__(self, machine: HDA, levels: tuple[ScaleLevel, ...] = ()):
        self.machine, self.levels = machine, levels
        self.open: list[ScaleLevel] = []
        clustered = any(one.word in RANKS or self._is(one, "cluster") for one in levels)
        self.ranks = [one for one in levels if one.word in RANKS or (clustered and self._is(one, "block"))]
        self.grid = [one for one in levels if one not in self.ranks and self._in_grid(one)]
        self.clustered = clustered
        """Whether the grid is of clusters, not of blocks."""

    def _is(self, level: ScaleLevel, scale: str) -> bool:
        try:
            return self.machine.scale(level.word) == self.machine.scale(scale)
        except MegatileError:
            return False

    def _in_grid(self, level: ScaleLevel) -> bool:
        if any(self._is(level, scale) for scale in ("block", "cluster")):
            return True
        return level.word in PHYSICAL and level.word not in self.machine.scale_names

    def name(self, level: ScaleLevel) -> str:
        """Return the scale of the machine whose units the level counts."""
        if self.in_grid(level):
            word = "cluster" if self.clustered and level in self.grid else "block"
            return self.machine.scale(word).name
        return find_scale(self.machine, level.word, what="T.Scale").name

    def enter(self, level: ScaleLevel) -> ScaleLevel:
        """Return the level, known by now; it is open until `leave`."""
        number = sum(1 for one in self.open if one.word == level.word)
        level = ScaleLevel(level.word, level.extents, level.cluster_size, number)
        known = next((one for one in self.levels if (one.word, one.number) == (level.word, number)), None)
        if known is None:
            self._check_order(level)
            raise LevelFound((*self.levels, level))
        if known != level:
            raise ProgramError(
                f'T.Scale("{level.word}") has extents {known.extents} before and {level.extents} here',
                advice="a launch has one shape: use a second program",
            )
        self.open.append(level)
        return level

    def leave(self) -> None:
        self.open.pop()

    def _check_order(self, level: ScaleLevel) -> None:
        """Check that the name is known, and smaller than what is open (names of hardware come in their
        order)."""
        if level.word in (*PHYSICAL, *RANKS):
            return
        both = Nest(self.machine, (*self.levels, level))
        depth = {one: self.machine.scale(both.name(one)).position for one in both.levels}
        smaller = next((one for one in self.open if depth[one] < depth[level]), None)
        if smaller is None and self._is(level, "cluster"):
            smaller = next((one for one in self.open if self._is(one, "block")), None)
        if smaller is not None:
            raise ProgramError(
                f'T.Scale("{level.word}") inside T.Scale("{smaller.word}") is not supported: '
                f"a {level.word} is larger than a {smaller.word}",
                advice=f'put T.Scale("{smaller.word}") inside T.Scale("{level.word}")',
            )

    # --- the launch -------------------------------------------------------------------------------

    @property
    def cluster_size(self) -> int:
        return next((one.cluster_size for one in self.grid if one.cluster_size), 0)

    def scales(self) -> dict[str, Any]:
        """Return what ``T.Kernel`` would be told."""
        found = {self.name(one): one.extents for one in self._others()}
        grid = tuple(extent for one in self.grid for extent in one.extents)
        if self.ranks:
            size = math.prod(math.prod(one.extents) for one in self.ranks)
            if self.cluster_size not in (0, size):
                raise ProgramError(
                    f"clusters of {size} blocks, and cluster_size={self.cluster_size}",
                    advice=f"cluster_size={size}",
                )
            found |= {"cluster": grid or (1,), "block": (size,)}
        elif self.clustered:
            found |= {"cluster": grid, "block": (1,)}
        elif grid:
            found |= clusters_of(
                {CLUSTER_SIZE: self.cluster_size, "block": grid} if self.cluster_size else {"block": grid}
            )[0]
        return {name: extents for name, extents in (found | self._threads()).items() if extents}

    def _others(self) -> list[ScaleLevel]:
        return [one for one in self.levels if not self.in_grid(one)]

    def _threads(self) -> dict[str, Any]:
        """Return the threads of the smallest level, if it is larger than a thread; one level alone becomes
        them."""
        block = self.machine.scale("block").position
        below = {self.name(one): one for one in self._others()}
        below = {name: one for name, one in below.items() if self.machine.scale(name).position < block}
        thread = self.machine.scale("thread").name
        if not below or thread in below:
            return {}
        smallest = min(below, key=lambda name: self.machine.scale(name).position)
        lanes = self.machine.count(thread, smallest)
        if len(below) > 1:
            return {thread: (lanes,)}
        return {smallest: (), thread: (math.prod(below[smallest].extents) * lanes,)}

    def region(self) -> str | None:
        """Return the smallest scale whose levels are all open."""
        if not self.open:
            return None
        if all(one in self.open for one in self.grid) and any(
            one in self.open for one in (*self.grid, *self.ranks)
        ):
            others = [self.name(one) for one in self.open if not self.in_grid(one)]
            whole = all(one in self.open for one in self.ranks) and (self.ranks or not self.clustered)
            inner = self.machine.scale("block" if whole else "cluster").name
            return min((*others, inner), key=lambda name: self.machine.scale(name).position)
        last = self.open[-1]
        return None if self.in_grid(last) else self.name(last)

    def in_grid(self, level: ScaleLevel) -> bool:
        return level in self.grid or level in self.ranks

    def coordinates(self, level: ScaleLevel) -> Any:
        """Return the index of a unit at a level, or its indices if the level has several dimensions."""
        name = self.name(level)
        if level in self.ranks:
            before = self.ranks[: self.ranks.index(level)]
            whole: Any = Value(Coord(name, 0))
            size, step = math.prod(level.extents), math.prod(math.prod(one.extents) for one in before)
            if len(self.ranks) > 1:
                whole = whole // step % size
            return Rank(whole.expr, size, (whole,))
        first = 0
        if level in self.grid:
            before = self.grid[: self.grid.index(level)]
            first = sum(len(one.extents) for one in before)
        found = [Value(Coord(name, first + axis)) for axis in range(len(level.extents))]
        if self.cluster_size and level in self.grid and not self.ranks:
            cluster = self.machine.scale("cluster").name
            found = [Value(Coord(cluster, first + axis)) for axis in range(len(level.extents))]
            if first == 0:
                found[0] = found[0] * self.cluster_size + Value(Coord(name, 0))
        if len(found) == 1:
            return Rank(found[0].expr, level.extents[0], (found[0],))
        return tuple(found)
