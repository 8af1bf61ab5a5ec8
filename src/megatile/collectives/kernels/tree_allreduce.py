"""All-reduce on a binary tree: up to the root with addition, down again."""

from typing import Any


def kernel_args(*, n_elem: int, world_size: int, **config: Any) -> tuple[Any, ...]:
    return (n_elem, world_size)


def kernel(t_ptr: Any, n_elem: int, world_size: int, tl: Any) -> None:
    rank = tl.rank
    mine = t_ptr + rank * n_elem * 2
    total = tl.load(mine, shape=(n_elem,), dtype="f16")
    if 2 * rank + 1 < world_size:
        total = total + tl.recv(dir="child_left", shape=(n_elem,), dtype="f16")
    if 2 * rank + 2 < world_size:
        total = total + tl.recv(dir="child_right", shape=(n_elem,), dtype="f16")
    if rank > 0:
        tl.send(dir="parent", src=total)
        total = tl.recv(dir="parent", shape=(n_elem,), dtype="f16")
    if 2 * rank + 1 < world_size:
        tl.send(dir="child_left", src=total)
    if 2 * rank + 2 < world_size:
        tl.send(dir="child_right", src=total)
    tl.store(mine, total)
