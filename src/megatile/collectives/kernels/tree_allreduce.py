"""All-reduce on a binary tree: up to the root, merging; down again."""

from typing import Any

from megatile.collectives.kernels import REDUCE_OPS, elements_in_flight, in_pieces, merged  # noqa: F401

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
    in_pieces(tl, piece_reduced, t_ptr, n_elem, dtype, piece, world_size, dtype, op)
