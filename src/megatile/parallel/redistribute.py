"""From one placement of a tensor over a mesh to another: the cheapest path by predicted time.

A state is one placement for each dimension of the mesh. A step changes one of them by a collective within the
groups of that dimension, or by cutting what a rank has. Where several dimensions of the mesh divide the same
dimension of the tensor, the last one divides most finely, so it is undone first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from megatile.core.dtypes import itemsize
from megatile.core.placement import Partial, Replicate, Shard, runs
from megatile.core.quantities import format_time
from megatile.core.times import HasTime
from megatile.cost.cheapest import Search
from megatile.parallel.mesh import DeviceMesh, Placement
from megatile.runtime.host.groups import Call
from megatile.runtime.host.ops import along, copied, padded, relaid, taken, transposed
from megatile.runtime.host.relayout import Move

State = tuple[Placement, ...]


@dataclass(frozen=True)
class Step(HasTime):
    """One change: along which dimension of the mesh, from what to what, by which collective, how long."""

    mesh_dim: int
    before: Placement
    after: Placement
    how: str
    time_ps: int

    def __str__(self) -> str:
        took = format_time(self.time_ps)
        return f"mesh dimension {self.mesh_dim}: {self.before} -> {self.after} by {self.how}, {took}"


@dataclass(frozen=True)
class Path(HasTime):
    """The steps of a redistribution and their predicted time."""

    steps: tuple[Step, ...]

    @property
    def time_ps(self) -> int:
        return sum(step.time_ps for step in self.steps)

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps)) or "nothing to do"


def local_shape(
    shape: tuple[int, ...], mesh: DeviceMesh, state: State, at: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the shape that the rank at these coordinates of the mesh holds."""
    return tuple(stop - start for start, stop in runs(state, shape, mesh.shape, at))


def changed(state: State, mesh_dim: int, after: Placement) -> State:
    return (*state[:mesh_dim], after, *state[mesh_dim + 1 :])


def _steps(state: State, dims: Collection[int]) -> Iterator[tuple[int, Placement, str]]:
    """(mesh dimension, placement after it, collective) of every step that divides one of these dimensions."""
    for number, here in enumerate(state):
        later = {p.dim for p in state[number + 1 :] if isinstance(p, Shard)}
        free = [d for d in dims if d not in later]
        if isinstance(here, Shard):
            if here.dim in later:
                continue
            yield number, Replicate(), "all_gather"
            yield from ((number, Shard(d), "all_to_all") for d in free if d != here.dim)
        elif isinstance(here, Partial):
            yield number, Replicate(), "all_reduce"
            yield from ((number, Shard(d), "reduce_scatter") for d in free)
        else:
            yield from ((number, Shard(d), "cut") for d in free)


def plan_path(x: Any, target: State) -> Path:
    """Return the cheapest steps that lead from a DTensor's placements to ``target``."""
    mesh: DeviceMesh = x.device_mesh
    begin: State = tuple(x.placements)
    # Dimensions that neither side divides do not help on the way; one is enough to scatter sums along.
    dims = sorted({p.dim for p in (*begin, *target) if isinstance(p, Shard)}) or list(range(min(1, x.ndim)))
    best: dict[State, float] = {begin: 0}
    came: dict[State, tuple[State, Step]] = {}
    search = Search[State]()
    search.add(begin, 0)
    for spent, state in search:
        if state == target:
            steps: list[Step] = []
            while state != begin:
                state, step = came[state]
                steps.append(step)
            return Path(tuple(reversed(steps)))
        if spent > best[state]:
            continue
        for mesh_dim, after, how in _steps(state, dims):
            if how in ("all_reduce", "reduce_scatter") and target[mesh_dim] == state[mesh_dim]:
                continue
            next_state = changed(state, mesh_dim, after)
            took = _time(x, mesh, state, mesh_dim, how)
            if next_state not in best or spent + took < best[next_state]:
                best[next_state] = spent + took
                came[next_state] = (state, Step(mesh_dim, state[mesh_dim], after, how, took))
                search.add(next_state, spent + took)
    raise ValueError(f"{x!r} cannot become {target}")


def _time(x: Any, mesh: DeviceMesh, state: State, mesh_dim: int, how: str) -> int:
    """Return what a step takes, predicted for the largest shard."""
    host = mesh.torch
    elements = max(1, prod(local_shape(tuple(x.shape), mesh, state, (0,) * mesh.ndim)))
    layer = host.machine.memory(host.shape.hbm)
    copied = round(2 * elements * itemsize(x.dtype) / layer.effective_bandwidth * 1e12) + layer.latency_ps
    size = mesh.size(mesh_dim)
    if how == "cut" or size == 1:
        return copied // size
    blocks = -(-elements // size) * size
    count = {"all_gather": elements * size, "all_reduce": elements}.get(how, blocks)
    call = Call(how, host.rank, count, x.dtype)
    found = host.collectives.prediction(mesh.ranks_along(mesh_dim), call, count)
    # Collectives along other dimensions than the first also lay the elements anew.
    return int(host.engine.timed(found.plan).took_ps) + copied


# doing it


def redistributed(x: Any, target: State) -> Any:
    """Return the local tensor under another placement."""
    mesh, local, state = x.device_mesh, x.to_local(), tuple(x.placements)
    for step in plan_path(x, target).steps:
        local = _DO[step.how](local, tuple(x.shape), mesh, state, step)
        state = changed(state, step.mesh_dim, step.after)
    return local


def _extents(shape: tuple[int, ...], mesh: DeviceMesh, state: State, mesh_dim: int, dim: int) -> list[int]:
    """Return how many elements of a dimension each rank along a mesh dimension holds (state: after the
    step)."""
    at = mesh.get_coordinate()
    places = (along(at, mesh_dim, place) for place in range(mesh.size(mesh_dim)))
    return [local_shape(shape, mesh, state, place)[dim] for place in places]


def _all_gather(local: Any, shape: Any, mesh: DeviceMesh, state: State, step: Step) -> Any:
    dim, size = step.before.dim, mesh.size(step.mesh_dim)  # type: ignore[union-attr]
    lengths = _extents(shape, mesh, state, step.mesh_dim, dim)
    wide = _padded(local, dim, max(lengths))
    out = mesh.torch.empty((size, *wide.shape), dtype=local.dtype)
    mesh.torch.distributed.all_gather_into_tensor(out, relaid(wide), group=mesh.get_group(step.mesh_dim))
    return _side_by_side(out, dim, lengths)


def _side_by_side(parts: Any, dim: int, lengths: list[int]) -> Any:
    """Return blocks behind each other as one tensor: of each so many elements of a dimension, one after
    another."""
    held, moves, at = tuple(parts.shape[1:]), [], 0
    shape, zeros = along(held, dim, sum(lengths)), (0,) * len(held)
    for number, length in enumerate(lengths):
        if length:
            begin, extent = (0, *along(zeros, dim, at)), (1, *along(held, dim, length))
            moves.append(Move.block(tuple(parts.shape), (number, *zeros), (1, *shape), begin, extent))
        at += length
    return relaid(parts, shape=shape, moves=moves)


def _blocks(x: Any, dim: int, size: int) -> Any:
    """Return a tensor cut along a dimension into so many equal blocks, behind each other."""
    split = (*x.shape[:dim], size, x.shape[dim] // size, *x.shape[dim + 1 :])
    order = (dim, *range(dim), *range(dim + 1, x.ndim + 1))
    return transposed(x, order, split)


def _padded(local: Any, dim: int, length: int) -> Any:
    return padded(local, along(local.shape, dim, length))


def _all_reduce(local: Any, shape: Any, mesh: DeviceMesh, state: State, step: Step) -> Any:
    copy = copied(local)
    op = step.before.op  # type: ignore[union-attr]
    mesh.torch.distributed.all_reduce(copy, op=op, group=mesh.get_group(step.mesh_dim))
    return copy


def _cut(local: Any, shape: Any, mesh: DeviceMesh, state: State, step: Step) -> Any:
    dim = step.after.dim  # type: ignore[union-attr]
    after = changed(state, step.mesh_dim, step.after)
    start = runs(state, shape, mesh.shape, mesh.get_coordinate())[dim][0]
    low, high = runs(after, shape, mesh.shape, mesh.get_coordinate())[dim]
    return taken(local, dim, low - start, high - start)


def _reduce_scatter(local: Any, shape: Any, mesh: DeviceMesh, state: State, step: Step) -> Any:
    dim, size = step.after.dim, mesh.size(step.mesh_dim)  # type: ignore[union-attr]
    host, op = mesh.torch, step.before.op  # type: ignore[union-attr]
    parts = _blocks(_padded(local, dim, -(-local.shape[dim] // size) * size), dim, size)
    out = host.empty(parts.shape[1:], dtype=local.dtype)
    host.distributed.reduce_scatter_tensor(out, parts, op=op, group=mesh.get_group(step.mesh_dim))
    return _trimmed(out, shape, mesh, state, step)


def _all_to_all(local: Any, shape: Any, mesh: DeviceMesh, state: State, step: Step) -> Any:
    old, new, size = step.before.dim, step.after.dim, mesh.size(step.mesh_dim)  # type: ignore[union-attr]
    lengths = _extents(shape, mesh, state, step.mesh_dim, old)
    each = -(-local.shape[new] // size)
    parts = _blocks(_padded(_padded(local, old, max(lengths)), new, each * size), new, size)
    out = mesh.torch.empty(parts.shape, dtype=local.dtype)
    mesh.torch.distributed.all_to_all_single(out, parts, group=mesh.get_group(step.mesh_dim))
    return _trimmed(_side_by_side(out, old, lengths), shape, mesh, state, step)


def _trimmed(x: Any, shape: Any, mesh: DeviceMesh, state: State, step: Step) -> Any:
    """Return the elements that belong to this rank, without padding."""
    dim = step.after.dim  # type: ignore[union-attr]
    low, high = runs(changed(state, step.mesh_dim, step.after), shape, mesh.shape, mesh.get_coordinate())[dim]
    return x if x.shape[dim] == high - low else taken(x, dim, 0, high - low)


_DO = {
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "cut": _cut,
}
