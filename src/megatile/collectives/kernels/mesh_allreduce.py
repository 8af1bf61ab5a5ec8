"""All-reduce on a square mesh that wraps: a ring along every row, then along every column."""

from math import isqrt
from typing import Any

from megatile.collectives.kernels import REDUCE_OPS, merged  # noqa: F401
from megatile.core.dtypes import itemsize


def kernel_args(
    *, n_elem: int, world_size: int, dtype: str = "f16", reduce_op: str = "sum", **config: Any
) -> tuple[Any, ...]:
    return (n_elem, isqrt(world_size), dtype, reduce_op)


def kernel(t_ptr: Any, n_elem: int, side: int, dtype: str, op: str, tl: Any) -> None:
    mine = t_ptr + tl.rank * n_elem * itemsize(dtype)
    total = tl.load(mine, shape=(n_elem,), dtype=dtype)
    current = total
    for _ in range(side - 1):
        tl.send(dir="E", src=current)
        current = tl.recv(dir="W", shape=(n_elem,), dtype=dtype)
        total = merged(tl, op, total, current)
    passing = total
    for _ in range(side - 1):
        tl.send(dir="S", src=passing)
        passing = tl.recv(dir="N", shape=(n_elem,), dtype=dtype)
        total = merged(tl, op, total, passing)
    tl.store(mine, total)
