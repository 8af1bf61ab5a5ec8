"""All-reduce on a ring: whole tiles go round, all ranks merge what passes."""

from typing import Any

from megatile.collectives.kernels import REDUCE_OPS, elements_in_flight, merged  # noqa: F401
from megatile.core.dtypes import itemsize

TOPOLOGY, TOPOLOGIES = "ring_1d", ("ring_1d", "ring_1d_unidir")
KERNEL_HELPERS = ("piece_reduced",)


def kernel_args(
    *, n_elem: int, world_size: int, dtype: str = "f16", reduce_op: str = "sum", **config: Any
) -> tuple[Any, ...]:
    return (n_elem, world_size, dtype, reduce_op, elements_in_flight(n_elem, dtype, config))


def piece_reduced(tl: Any, mine: Any, count: int, world_size: int, dtype: str, op: str) -> None:
    total = tl.load(mine, shape=(count,), dtype=dtype)
    current = total
    for _ in range(world_size - 1):
        tl.send(dir="E", src=current)
        current = tl.recv(dir="W", shape=(count,), dtype=dtype)
        total = merged(tl, op, total, current)
    tl.store(mine, total)


def kernel(
    t_ptr: Any,
    n_elem: int,
    world_size: int,
    dtype: str = "f16",
    op: str = "sum",
    piece: int = 0,
    tl: Any = None,
) -> None:
    size, piece = itemsize(dtype), piece or n_elem
    mine, before_last = t_ptr + tl.rank * n_elem * size, (n_elem - 1) // piece
    for number in range(before_last):
        piece_reduced(tl, mine + number * piece * size, piece, world_size, dtype, op)
    done = before_last * piece
    piece_reduced(tl, mine + done * size, n_elem - done, world_size, dtype, op)
