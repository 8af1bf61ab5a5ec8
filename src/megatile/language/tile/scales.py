"""``T.Kernel`` and ``T.Scale``: where statements run."""

from __future__ import annotations

from typing import Any

from megatile.core.expr import Const, applied, simplify
from megatile.ir.expr import Coord, Rank as RankExpr
from megatile.language.tile.builder import LargerScale, current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.launch import clusters_of, find_scale, instance_of
from megatile.language.tile.scalars import Coordinate, Rank, Value


class Kernel:
    """``with T.Kernel(device=4, block=(gx, gy), threads=256) as (bx, by):``

    Keywords are scales of the machine; plain numbers are extents of the block. ``as`` binds the
    coordinates of
    the dispatched scale (the block), x first. ``cta_cluster=2`` beside ``block=`` groups two blocks of the
    grid along x into a cluster. Statements outside every ``T.Scale`` run at that scale.
    """

    def __init__(self, *grid: Any, **scales: Any):
        if grid:
            if "block" in scales:
                raise ProgramError("T.Kernel with plain numbers and block=", advice="write block=(gx, gy)")
            scales["block"] = grid
        self.scales = scales

    def __enter__(self) -> Any:
        builder = current()
        if builder.launch is not None:
            raise ProgramError("a second T.Kernel in one program", advice="use T.Scale inside the first")
        scales, size = clusters_of(self.scales)
        builder.begin(instance_of(builder.machine, scales))
        dispatch = builder.plan.dispatch
        axes = range(len(builder.plan.extents(dispatch)))
        if size:
            cluster = find_scale(builder.machine, "cluster", what="T.Kernel").name
            coords = tuple(Value(Coord(cluster, a)) * size[a] + Value(Coord(dispatch, a)) for a in axes)
            return coords[0] if len(coords) == 1 else coords
        coords = tuple(Value(Coord(dispatch, a)) for a in axes)
        return Coordinate(Coord(dispatch, 0)) if len(coords) == 1 else coords

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            current().close_implied()


class Scale:
    """``with T.Scale("warpgroup") as (rank, size):`` runs the body on every unit of that scale below this
    one."""

    def __init__(self, name: str):
        self.name = name
        self.span: Any = None

    def __enter__(self) -> Rank:
        builder = current()
        scale = find_scale(builder.machine, self.name, what="T.Scale").name
        self.span = builder.span()
        launch = builder.plan
        _check_inferred(builder.instance, scale)
        depth = launch.depth(scale)
        if builder.parallel:
            raise ProgramError("T.Scale inside T.Parallel", advice="put T.Parallel inside the T.Scale")
        if not builder.scales and depth > launch.depth(launch.dispatch):
            builder.open_implied()
        if depth <= launch.depth(launch.dispatch):
            builder.close_implied()
            if builder.scales and builder.scales[-1].implied:
                raise LargerScale
        if depth <= launch.depth(builder.scale) and builder.scales:
            raise ProgramError(
                f"T.Scale(\"{self.name}\") inside scale '{builder.scale}', which is not larger",
                advice=f"leave the '{builder.scale}' region first",
            )
        within = builder.scale
        builder.enter_scale(scale)
        rank = RankExpr(scale, within)
        size = launch.count(scale, within)
        return Rank(rank, size, _coords(rank, launch.grid(scale, within)))

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            builder = current()
            builder.close_implied()
            builder.leave_scale(self.span)


def _check_inferred(instance: Any, scale: str) -> None:
    """96 threads make three warps, but no warp group."""
    inferred = instance.inferred.get(scale)
    if inferred is not None and inferred.problem:
        raise ProgramError(
            f"this launch has no '{scale}': {inferred.problem}", advice="choose another number of threads"
        )


def _coords(rank: RankExpr, grid: tuple[int, ...]) -> tuple[Any, ...]:
    if len(grid) == 1:
        return (Value(rank),)
    coords, stride = [], 1
    for extent in grid:
        whole = applied("//", (rank, Const(stride)))
        coords.append(Value(simplify(applied("%", (whole, Const(extent))))))
        stride *= extent
    return tuple(coords)
