"""All-reduce on a ring: whole tiles go round, all ranks merge what passes."""

from typing import Any

from megatile.collectives.kernels import REDUCE_OPS, elements_in_flight, in_pieces, merged  # noqa: F401

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
    in_pieces(tl, piece_reduced, t_ptr, n_elem, dtype, piece, world_size, dtype, op)
