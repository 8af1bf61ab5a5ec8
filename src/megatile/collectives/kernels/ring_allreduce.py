"""All-reduce on a ring: whole tiles go round, all ranks merge what passes."""

from typing import Any

from megatile.collectives.kernels import REDUCE_OPS, merged  # noqa: F401
from megatile.core.dtypes import itemsize


def kernel_args(
    *, n_elem: int, world_size: int, dtype: str = "f16", reduce_op: str = "sum", **config: Any
) -> tuple[Any, ...]:
    return (n_elem, world_size, dtype, reduce_op)


def kernel(t_ptr: Any, n_elem: int, world_size: int, dtype: str, op: str, tl: Any) -> None:
    mine = t_ptr + tl.rank * n_elem * itemsize(dtype)
    total = tl.load(mine, shape=(n_elem,), dtype=dtype)
    current = total
    for _ in range(world_size - 1):
        tl.send(dir="E", src=current)
        current = tl.recv(dir="W", shape=(n_elem,), dtype=dtype)
        total = merged(tl, op, total, current)
    tl.store(mine, total)
