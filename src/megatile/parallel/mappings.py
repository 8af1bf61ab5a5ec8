"""Megatron's mappings between regions, forwards: what a tensor is inside and outside of a parallel region."""

from __future__ import annotations

from typing import Any

from megatile.core.arguments import no_none
from megatile.parallel.state import (
    active,
    get_tensor_model_parallel_group,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from megatile.runtime.host.ops import along, relaid, taken, transposed
from megatile.runtime.host.placement import DPPolicy
from megatile.runtime.host.relayout import Move


@no_none
def copy_to_tp_region(x: Any, torch: Any = None) -> Any:
    """Every rank has it already."""
    return x


def reduce_from_tp_region(x: Any, torch: Any = None) -> Any:
    """Return the sum over the ranks, on each of them."""
    host = active(torch)
    size = get_tensor_model_parallel_world_size(host)
    if size == 1:
        return x
    seats = host.distributed.participants() if size == host.distributed.get_world_size() else ()
    if len(seats) > 1:
        return _through_kernel(x, len({cube for cube, _ in seats}), len({pe for _, pe in seats}), host)
    # A kernel of ccl.yaml takes a tensor on the PE that takes part.
    x = relaid(x) if seats else x
    host.distributed.all_reduce(x, op="sum", group=get_tensor_model_parallel_group(host))
    return x


def _through_kernel(x: Any, cubes: int, pes: int, host: Any) -> Any:
    """Return a kernel that adds up the tiles of all PEs of all devices: one gives the tensor, the others
    zeros."""
    rows = cubes * pes
    policy = DPPolicy("row_wise", "row_wise", num_cubes=cubes, num_pes=pes)

    held = (1, x.numel())
    begin = Move.block(held, (0, 0), (rows, x.numel()), (0, 0), held)
    spread = relaid(relaid(x, shape=held), shape=(rows, x.numel()), dp=policy, moves=[begin], zero=True)
    host.distributed.all_reduce(spread, op="sum", group=get_tensor_model_parallel_group(host))
    return relaid(taken(spread, 0, 0, 1), shape=x.shape)


@no_none
def scatter_to_tp_region(x: Any, torch: Any = None) -> Any:
    """Return this rank's part of the last dimension."""
    return _part(x, x.ndim - 1, active(torch))


@no_none
def gather_from_tp_region(x: Any, torch: Any = None) -> Any:
    """Return the parts of all ranks side by side in the last dimension."""
    return _gathered(x, x.ndim - 1, active(torch))


def scatter_to_sequence_region(x: Any, torch: Any = None) -> Any:
    """Return this rank's part of the first dimension."""
    return _part(x, 0, active(torch))


def gather_from_sequence_region(x: Any, torch: Any = None) -> Any:
    """Return the parts of all ranks below each other in the first dimension."""
    return _gathered(x, 0, active(torch))


def reduce_scatter_to_sequence_region(x: Any, torch: Any = None) -> Any:
    """Return this rank's part of the first dimension of the sum over the ranks."""
    host = active(torch)
    size = get_tensor_model_parallel_world_size(host)
    if size == 1:
        return x
    _divides(x, 0, size)
    out = host.empty((x.shape[0] // size, *x.shape[1:]), dtype=x.dtype)
    host.distributed.reduce_scatter_tensor(out, relaid(x), group=get_tensor_model_parallel_group(host))
    return out


def _divides(x: Any, dim: int, size: int) -> None:
    if x.shape[dim] % size:
        raise ValueError(f"dimension {dim} of {tuple(x.shape)} is not divisible by TP world size ({size})")


def _part(x: Any, dim: int, host: Any) -> Any:
    size = get_tensor_model_parallel_world_size(host)
    if size == 1:
        return x
    _divides(x, dim, size)
    length = x.shape[dim] // size
    start = get_tensor_model_parallel_rank(host) * length
    return taken(x, dim, start, start + length)


def _gathered(x: Any, dim: int, host: Any) -> Any:
    size = get_tensor_model_parallel_world_size(host)
    if size == 1:
        return x
    out = host.empty((size * x.shape[0], *x.shape[1:]), dtype=x.dtype)
    host.distributed.all_gather_into_tensor(out, relaid(x), group=get_tensor_model_parallel_group(host))
    if dim == 0:
        return out
    order = (*range(1, dim + 1), 0, *range(dim + 1, x.ndim + 1))
    return transposed(out, order, (size, *x.shape), shape=along(x.shape, dim, size * x.shape[dim]))
