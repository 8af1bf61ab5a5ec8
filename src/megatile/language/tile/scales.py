"""``T.Kernel`` and ``T.Scale``: where statements run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from megatile.core.expr import Const, Expr, applied, simplify
from megatile.core.placement import Shard
from megatile.cost.implementations import by_blocks_ps, implementation
from megatile.ir.expr import Coord, Rank as RankExpr
from megatile.ir.launch import Param
from megatile.language.tile.builder import LargerScale, ProgramBuilder, current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.launch import clusters_of, find_scale, instance_of
from megatile.language.tile.memory import view
from megatile.language.tile.nest import ScaleLevel, level_of
from megatile.language.tile.operations import gemm, use_swizzle
from megatile.language.tile.scalars import Coordinate, Rank, Value
from megatile.language.tile.tiles import Symbol, Tensor


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
    one.

    With extents, nested scales describe the launch themselves: ``with T.Scale("block", 4, 2) as (bx, by):``,
    or ``workgroup=(4, 2)``. One extent gives one index. ``swizzle`` is that of ``T.use_swizzle``;
    ``cluster_size`` blocks make a cluster; ``sm_schedule``, an order of the SMs, changes no data.
    """

    def __init__(self, name: str, *extents: Any, workgroup: Any = None, cluster_size: Any = None,
                 num_sms_per_die: Any = None, sm_schedule: Any = None, swizzle: Any = None,
                 swizzle_order: str = "row"):  # fmt: skip
        self.name = name
        self.span: Any = None
        self.level: ScaleLevel | None = None
        self.swizzle = (swizzle, {"col": "column"}.get(swizzle_order, swizzle_order))
        self.opened = False
        if extents or workgroup is not None:
            self.level = level_of(name, extents, workgroup, cluster_size, num_sms_per_die)
        if swizzle is not None and name not in ("block", "cluster"):
            raise ProgramError(
                f'T.Scale("{name}", swizzle={swizzle})', advice='blocks are swizzled: T.Scale("block", ...)'
            )

    def __enter__(self) -> Any:
        builder = current()
        if (
            self.level is None
            and not builder.launched
            and builder.machine.scale("device").name == self._scale(builder)
        ):
            self.level = ScaleLevel(self.name, (1,))
        if self.level is None:
            if not builder.launched:
                raise ProgramError(
                    f'T.Scale("{self.name}") without a launch',
                    advice=f'say how many: T.Scale("{self.name}", 4), or put it under with T.Kernel(...)',
                )
            return self._enter(builder, self._scale(builder))
        if builder.launched and not builder.nest.levels:
            return self._within_launch(builder, self.level)
        self.level = builder.nest.enter(self.level)
        if builder.launch is None:
            builder.begin(instance_of(builder.machine, builder.nest.scales()))
        region = builder.nest.region()
        rank = None
        if region is not None and builder.plan.depth(region) > builder.plan.depth(builder.scale):
            rank = self._enter(builder, region)
        if self.swizzle[0] is not None:
            use_swizzle(*self.swizzle)
        if rank is None or builder.nest.in_grid(self.level):
            return builder.nest.coordinates(self.level)
        return _unpacked(rank, self.level.extents)

    def _scale(self, builder: ProgramBuilder) -> str:
        return find_scale(builder.machine, self.name, what="T.Scale").name

    def _within_launch(self, builder: ProgramBuilder, level: ScaleLevel) -> Any:
        """Extents beside a ``T.Kernel`` must be those of its launch."""
        rank = self._enter(builder, self._scale(builder))
        if rank.size != math.prod(level.extents):
            raise ProgramError(
                f'T.Scale("{self.name}") of {math.prod(level.extents)} units, and the launch has {rank.size}',
                advice=f'T.Scale("{self.name}") takes those of the launch; without T.Kernel extents make one',
            )
        self.level = None
        return _unpacked(rank, level.extents)

    def _enter(self, builder: ProgramBuilder, scale: str) -> Rank:
        self.span = builder.span()
        self.opened = True
        launch = builder.plan
        _check_inferred(builder.instance, scale)
        depth = launch.depth(scale)
        if builder.parallel:
            raise ProgramError("T.Scale inside T.Parallel", advice="put T.Parallel inside the T.Scale")
        if depth > launch.depth(launch.dispatch):
            builder.open_implied()
        else:
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
        return Rank(rank, launch.count(scale, within), _coords(rank, launch.grid(scale, within)))

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            builder = current()
            builder.close_implied()
            if self.opened:
                builder.leave_scale(self.span)
            if self.level is not None:
                builder.nest.leave()


def _check_inferred(instance: Any, scale: str) -> None:
    """96 threads make three warps, but no warp group."""
    inferred = instance.inferred.get(scale)
    if inferred is not None and inferred.problem:
        raise ProgramError(
            f"this launch has no '{scale}': {inferred.problem}", advice="choose another number of threads"
        )


def _unpacked(rank: Rank, extents: tuple[int, ...]) -> Any:
    """Return one index for one extent, a coordinate for each of several."""
    return rank if len(extents) == 1 else _coords(rank.expr, extents)


def _coords(rank: Expr, grid: tuple[int, ...]) -> tuple[Any, ...]:
    if len(grid) == 1:
        return (Value(rank),)
    wholes = (applied("//", (rank, Const(math.prod(grid[:axis])))) for axis in range(len(grid)))
    coords = (applied("%", (whole, Const(n))) for whole, n in zip(wholes, grid, strict=True))
    return tuple(Value(simplify(one)) for one in coords)


# --- ``T.Symmetric``: an argument of which every device has its own copy, addressable by rank ---------------
#
# The array has a leading dimension of devices; in the kernel the name means this device's copy, and another
# device's with ``src=`` or ``dst=``:
#
#     def kernel(X: T.Symmetric((M, N), "f32")):
#         ...
#         T.copy(X, tile, dst=(rank + 1) % size)


RANKS = "ranks"
"""The name of the extent of devices."""


def Symmetric(shape: Any, dtype: Any = "f32") -> Tensor:
    """Annotation: every device has a copy of this shape; the array given has one more extent, of devices, in
    front."""
    extents = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    return Tensor((Symbol(RANKS), *extents), dtype, symmetric=True)


def share_out(builder: ProgramBuilder) -> None:
    """Give every device its copy of the symmetric arguments: the launch is known now."""
    own = [one for one in builder.symmetric if one.part is None]
    if not own or builder.launch is None:
        return
    device = builder.machine.scale("device").name
    count = builder.launch.count(device)
    for one in own:
        given = one.tile.shape[0]
        if not isinstance(given, Symbol) and given != count:
            raise ProgramError(
                f"'{one.name}' has copies for {given} devices, and the launch has {count}",
                advice=f"give an array of shape ({count}, {', '.join(map(str, one.shape))})",
            )
        one.tile.shape = (count, *one.shape)
        one.tile.bound = (count, *one.tile.bound[1:])
    with Scale(device):
        for one in own:
            one.part = view(one.tile, layout=Shard(0))


def shared_out(builder: ProgramBuilder, params: tuple[Param, ...]) -> tuple[Param, ...]:
    """Arguments with the extents that the launch gave them."""
    found = {one.name: one.tile.shape[0] for one in builder.symmetric}
    if found and RANKS in builder.symbols:
        builder.symbols.remove(RANKS)
    return tuple(replace(p, shape=(found[p.name], *p.shape[1:])) if p.name in found else p for p in params)


# --- Implementations of primitives that are written in ``T`` themselves -------------------------------------


@implementation("gemm", "cluster", price=by_blocks_ps)
def cluster_gemm(A: Any, B: Any, C: Any, transpose_A: bool = False, transpose_B: bool = False) -> None:
    """Each block of a larger unit computes its rows of C from its rows of A and all of B, which lies spread
    over the blocks' shared memories."""
    with Scale("block"):
        rows = view(A, layout=Shard(1 if transpose_A else 0))
        gemm(rows, B, view(C, layout=Shard(0)), transpose_A=transpose_A, transpose_B=transpose_B)
