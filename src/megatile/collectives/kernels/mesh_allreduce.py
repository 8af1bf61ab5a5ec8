"""All-reduce on a square mesh that wraps: a ring along every row, then along every column."""

from math import isqrt
from typing import Any

from megatile.collectives.kernels import REDUCE_OPS, elements_in_flight, in_pieces, passed_round  # noqa: F401

TOPOLOGY, TOPOLOGIES = "mesh_2d", ("mesh_2d", "torus_2d")
KERNEL_HELPERS = ("piece_reduced",)


def kernel_args(
    *, n_elem: int, world_size: int, dtype: str = "f16", reduce_op: str = "sum", **config: Any
) -> tuple[Any, ...]:
    return (n_elem, isqrt(world_size), dtype, reduce_op, elements_in_flight(n_elem, dtype, config))


def piece_reduced(tl: Any, mine: Any, count: int, side: int, dtype: str, op: str) -> None:
    how: Any = {"op": op, "shape": (count,), "dtype": dtype}
    total = passed_round(tl, tl.load(mine, shape=(count,), dtype=dtype), side, "W", "E", **how)
    tl.store(mine, passed_round(tl, total, side, "N", "S", **how))


def kernel(
    t_ptr: Any, n_elem: int, side: int, dtype: str = "f16", op: str = "sum", piece: int = 0, tl: Any = None
) -> None:
    in_pieces(tl, piece_reduced, t_ptr, n_elem, dtype, piece, side, dtype, op)
