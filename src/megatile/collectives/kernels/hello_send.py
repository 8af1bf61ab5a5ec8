"""The first kernel of the tutorial: every rank sends its tile east and keeps what comes from the west."""

from typing import Any

from megatile.core.dtypes import itemsize


def kernel_args(*, n_elem: int, world_size: int, dtype: str = "f16", **config: Any) -> tuple[Any, ...]:
    return (n_elem, dtype)


def kernel(t_ptr: Any, n_elem: int, dtype: str = "f16", tl: Any = None) -> None:
    mine = t_ptr + tl.rank * n_elem * itemsize(dtype)
    tl.send(dir="E", src=tl.load(mine, shape=(n_elem,), dtype=dtype))
    tl.store(mine, tl.recv(dir="W", shape=(n_elem,), dtype=dtype))
