"""All-reduce over PEs, cubes and SIPs: leaders collect inside, then between; then back.

On the ring of PEs in a cube (E, W) and of cubes in a SIP (N, S) data comes to the leader from both sides;
SIP leaders form a ring (global_E, global_W).
"""

from typing import Any

from megatile.collectives.kernels import REDUCE_OPS, elements_in_flight, in_pieces, merged  # noqa: F401

TOPOLOGY, MAPPER, TOPOLOGIES = "hierarchical_3level", "all_pes", ("hierarchical_3level",)
KERNEL_HELPERS = ("piece_reduced",)


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
    piece = elements_in_flight(n_elem, dtype, config)
    return (n_elem, pes_per_cube, cubes_per_sip, num_sips, dtype, reduce_op, piece)


def piece_reduced(
    tl: Any, mine: Any, count: int, pes: int, cubes: int, sips: int, dtype: str, op: str
) -> None:
    pe, cube = tl.program_id(0), tl.program_id(1)
    half, middle = pes // 2, cubes // 2
    total = tl.load(mine, shape=(count,), dtype=dtype)
    # Inside the cube: PEs 1..half pass westwards to PE 0, the others eastwards, round the ring.
    if pe < half:
        total = merged(tl, op, total, tl.recv(dir="E", shape=(count,), dtype=dtype))
    if (pe > half + 1) | ((pe == 0) & (pes > 2)):
        total = merged(tl, op, total, tl.recv(dir="W", shape=(count,), dtype=dtype))
    if (pe > 0) & (pe <= half):
        tl.send(dir="W", src=total)
    if pe > half:
        tl.send(dir="E", src=total)
    if (cubes > 1) & (pe == 0):
        if cube < middle:
            total = merged(tl, op, total, tl.recv(dir="S", shape=(count,), dtype=dtype))
        if (cube > middle + 1) | ((cube == 0) & (cubes > 2)):
            total = merged(tl, op, total, tl.recv(dir="N", shape=(count,), dtype=dtype))
        if (cube > 0) & (cube <= middle):
            tl.send(dir="N", src=total)
        if cube > middle:
            tl.send(dir="S", src=total)
    if (sips > 1) & (pe == 0) & (cube == 0):
        current = total
        for _ in range(sips - 1):
            tl.send(dir="global_E", src=current)
            current = tl.recv(dir="global_W", shape=(count,), dtype=dtype)
            total = merged(tl, op, total, current)
    # Back: the same paths in the other direction.
    if (cubes > 1) & (pe == 0):
        if (cube > 0) & (cube <= middle):
            total = tl.recv(dir="N", shape=(count,), dtype=dtype)
        if cube > middle:
            total = tl.recv(dir="S", shape=(count,), dtype=dtype)
        if cube < middle:
            tl.send(dir="S", src=total)
        if (cube > middle + 1) | ((cube == 0) & (cubes > 2)):
            tl.send(dir="N", src=total)
    if (pe > 0) & (pe <= half):
        total = tl.recv(dir="W", shape=(count,), dtype=dtype)
    if pe > half:
        total = tl.recv(dir="E", shape=(count,), dtype=dtype)
    if pe < half:
        tl.send(dir="E", src=total)
    if (pe > half + 1) | ((pe == 0) & (pes > 2)):
        tl.send(dir="W", src=total)
    tl.store(mine, total)


def kernel(
    t_ptr: Any, n_elem: int, pes: int, cubes: int, sips: int, dtype: str = "f16", op: str = "sum",
    piece: int = 0, tl: Any = None,
) -> None:  # fmt: skip
    in_pieces(tl, piece_reduced, t_ptr, n_elem, dtype, piece, pes, cubes, sips, dtype, op)
