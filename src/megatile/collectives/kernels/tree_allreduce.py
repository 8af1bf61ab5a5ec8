"""All-reduce on a binary tree: up to the root, merging; down again."""

from typing import Any

from megatile.collectives.kernels import REDUCE_OPS, merged  # noqa: F401
from megatile.core.dtypes import itemsize


def kernel_args(
    *, n_elem: int, world_size: int, dtype: str = "f16", reduce_op: str = "sum", **config: Any
) -> tuple[Any, ...]:
    return (n_elem, world_size, dtype, reduce_op)


def kernel(t_ptr: Any, n_elem: int, world_size: int, dtype: str, op: str, tl: Any) -> None:
    rank = tl.rank
    mine = t_ptr + rank * n_elem * itemsize(dtype)
    total = tl.load(mine, shape=(n_elem,), dtype=dtype)
    if 2 * rank + 1 < world_size:
        total = merged(tl, op, total, tl.recv(dir="child_left", shape=(n_elem,), dtype=dtype))
    if 2 * rank + 2 < world_size:
        total = merged(tl, op, total, tl.recv(dir="child_right", shape=(n_elem,), dtype=dtype))
    if rank > 0:
        tl.send(dir="parent", src=total)
        total = tl.recv(dir="parent", shape=(n_elem,), dtype=dtype)
    if 2 * rank + 1 < world_size:
        tl.send(dir="child_left", src=total)
    if 2 * rank + 2 < world_size:
        tl.send(dir="child_right", src=total)
    tl.store(mine, total)
