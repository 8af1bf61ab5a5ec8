"""All-reduce on a binary tree: up to the root, merging; down again."""

from typing import Any

from megatile.collectives.kernels import REDUCE_OPS, elements_in_flight, merged  # noqa: F401
from megatile.core.dtypes import itemsize

TOPOLOGY, TOPOLOGIES = "tree_binary", ("tree_binary",)
KERNEL_HELPERS = ("piece_reduced",)


def kernel_args(
    *, n_elem: int, world_size: int, dtype: str = "f16", reduce_op: str = "sum", **config: Any
) -> tuple[Any, ...]:
    return (n_elem, world_size, dtype, reduce_op, elements_in_flight(n_elem, dtype, config))


def piece_reduced(tl: Any, mine: Any, count: int, world_size: int, dtype: str, op: str) -> None:
    rank = tl.rank
    total = tl.load(mine, shape=(count,), dtype=dtype)
    if 2 * rank + 1 < world_size:
        total = merged(tl, op, total, tl.recv(dir="child_left", shape=(count,), dtype=dtype))
    if 2 * rank + 2 < world_size:
        total = merged(tl, op, total, tl.recv(dir="child_right", shape=(count,), dtype=dtype))
    if rank > 0:
        tl.send(dir="parent", src=total)
        total = tl.recv(dir="parent", shape=(count,), dtype=dtype)
    if 2 * rank + 1 < world_size:
        tl.send(dir="child_left", src=total)
    if 2 * rank + 2 < world_size:
        tl.send(dir="child_right", src=total)
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
