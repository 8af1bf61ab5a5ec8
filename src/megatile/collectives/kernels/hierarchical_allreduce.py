"""All-reduce over PEs, cubes and SIPs: leaders collect inside, then between; then back.

On the ring of PEs in a cube (E, W) and of cubes in a SIP (N, S) data comes to the leader from both sides;
SIP leaders form a ring (global_E, global_W).
"""

from typing import Any

from megatile.collectives.kernels import REDUCE_OPS, merged  # noqa: F401
from megatile.core.dtypes import itemsize

TOPOLOGY, MAPPER = "hierarchical_3level", "all_pes"


def kernel_args(
    *,
    n_elem: int,
    world_size: int,
    pes_per_cube: int,
    cubes_per_sip: int,
    num_sips: int,
    dtype: str = "f16",
    reduce_op: str = "sum",
    **config: Any,
) -> tuple[Any, ...]:
    return (n_elem, pes_per_cube, cubes_per_sip, num_sips, dtype, reduce_op)


def kernel(t_ptr: Any, n_elem: int, pes: int, cubes: int, sips: int, dtype: str, op: str, tl: Any) -> None:
    pe, cube = tl.program_id(0), tl.program_id(1)
    half, middle = pes // 2, cubes // 2
    mine = t_ptr + tl.rank * n_elem * itemsize(dtype)
    total = tl.load(mine, shape=(n_elem,), dtype=dtype)
    # Inside the cube: PEs 1..half pass westwards to PE 0, the others eastwards, round the ring.
    if pe < half:
        total = merged(tl, op, total, tl.recv(dir="E", shape=(n_elem,), dtype=dtype))
    if (pe > half + 1) | ((pe == 0) & (pes > 2)):
        total = merged(tl, op, total, tl.recv(dir="W", shape=(n_elem,), dtype=dtype))
    if (pe > 0) & (pe <= half):
        tl.send(dir="W", src=total)
    if pe > half:
        tl.send(dir="E", src=total)
    if (cubes > 1) & (pe == 0):
        if cube < middle:
            total = merged(tl, op, total, tl.recv(dir="S", shape=(n_elem,), dtype=dtype))
        if (cube > middle + 1) | ((cube == 0) & (cubes > 2)):
            total = merged(tl, op, total, tl.recv(dir="N", shape=(n_elem,), dtype=dtype))
        if (cube > 0) & (cube <= middle):
            tl.send(dir="N", src=total)
        if cube > middle:
            tl.send(dir="S", src=total)
    if (sips > 1) & (pe == 0) & (cube == 0):
        current = total
        for _ in range(sips - 1):
            tl.send(dir="global_E", src=current)
            current = tl.recv(dir="global_W", shape=(n_elem,), dtype=dtype)
            total = merged(tl, op, total, current)
    # Back: the same paths in the other direction.
    if (cubes > 1) & (pe == 0):
        if (cube > 0) & (cube <= middle):
            total = tl.recv(dir="N", shape=(n_elem,), dtype=dtype)
        if cube > middle:
            total = tl.recv(dir="S", shape=(n_elem,), dtype=dtype)
        if cube < middle:
            tl.send(dir="S", src=total)
        if (cube > middle + 1) | ((cube == 0) & (cubes > 2)):
            tl.send(dir="N", src=total)
    if (pe > 0) & (pe <= half):
        total = tl.recv(dir="W", shape=(n_elem,), dtype=dtype)
    if pe > half:
        total = tl.recv(dir="E", shape=(n_elem,), dtype=dtype)
    if pe < half:
        tl.send(dir="E", src=total)
    if (pe > half + 1) | ((pe == 0) & (pes > 2)):
        tl.send(dir="W", src=total)
    tl.store(mine, total)
