"""All-reduce on a ring, as ``ring`` of the library does it: a reduce-scatter, then an all-gather.

The tile is cut into as many blocks as there are ranks. First every rank adds its block to the sum that
arrives and passes it on, until one rank has all of it; then the sums go round. Rank ``r`` begins with block
``r - 1`` and ends the first round with block ``r``. Blocks have one size: where ranks do not divide the tile,
the last ones begin earlier, and the sums of the elements that they share are computed twice.
"""

from typing import Any

from megatile.collectives.kernels import REDUCE_OPS, elements_in_flight, in_pieces, merged  # noqa: F401
from megatile.core.dtypes import itemsize

TOPOLOGY, TOPOLOGIES = "ring_1d", ("ring_1d", "ring_1d_unidir")
KERNEL_HELPERS = ("block_at", "piece_reduced")


def kernel_args(
    *, n_elem: int, world_size: int, dtype: str = "f16", reduce_op: str = "sum", **config: Any
) -> tuple[Any, ...]:
    in_flight = world_size * elements_in_flight(-(-n_elem // world_size), dtype, config)
    return (n_elem, world_size, dtype, reduce_op, min(n_elem, in_flight))


def block_at(mine: Any, back: Any, rank: Any, world_size: int, count: int, size: int) -> Any:
    """Return where the block of the rank ``back`` positions before this one begins."""
    block = -(-count // world_size)
    return mine + min((rank - back) % world_size * block, count - block) * size


def piece_reduced(tl: Any, mine: Any, count: int, world_size: int, dtype: str, op: str) -> None:
    size, shape = itemsize(dtype), (-(-count // world_size),)
    first = block_at(mine, 1, tl.rank, world_size, count, size)
    tl.send(dir="E", src_addr=first, shape=shape, dtype=dtype, space="hbm")
    for step in range(world_size - 1):
        own = tl.load(block_at(mine, step + 2, tl.rank, world_size, count, size), shape=shape, dtype=dtype)
        total = merged(tl, op, own, tl.recv(dir="W", shape=shape, dtype=dtype))
        tl.send(dir="E", src=total)
    tl.store(block_at(mine, 0, tl.rank, world_size, count, size), total)
    for step in range(world_size - 1):
        current = tl.recv(dir="W", shape=shape, dtype=dtype)
        if step < world_size - 2:
            tl.send(dir="E", src=current)
        tl.store(block_at(mine, step + 1, tl.rank, world_size, count, size), current)


def kernel(
    t_ptr: Any,
    n_elem: int,
    world_size: int,
    dtype: str = "f16",
    op: str = "sum",
    piece: int = 0,
    tl: Any = None,
) -> None:
    if world_size > 1:
        in_pieces(tl, piece_reduced, t_ptr, n_elem, dtype, piece, world_size, dtype, op)
