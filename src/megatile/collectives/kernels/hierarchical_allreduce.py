"""All-reduce over PEs, cubes and SIPs: leaders collect inside, then between; then back.

On the ring of PEs in a cube (E, W) and of cubes in a SIP (N, S) data comes to the leader from both sides;
SIP leaders form a ring (global_E, global_W).
"""

from typing import Any

from megatile.collectives.kernels import (
    REDUCE_OPS as REDUCE_OPS,
    elements_in_flight,
    in_pieces,
    merged,
    passed_round,
)

TOPOLOGY, MAPPER, TOPOLOGIES = "hierarchical_3level", "all_pes", ("hierarchical_3level",)
KERNEL_HELPERS = ("from_leader", "piece_reduced", "to_leader")


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


def to_leader(tl: Any, total: Any, place: Any, extent: int, low: str, high: str, **how: Any) -> Any:
    """Reduce a ring of ``extent`` participants towards number 0: numbers 1 to half pass to ``low``, others to
    ``high``, round the ring."""
    half = extent // 2
    if place < half:
        total = merged(tl, how["op"], total, tl.recv(dir=high, shape=how["shape"], dtype=how["dtype"]))
    if (place > half + 1) | ((place == 0) & (extent > 2)):
        total = merged(tl, how["op"], total, tl.recv(dir=low, shape=how["shape"], dtype=how["dtype"]))
    if (place > 0) & (place <= half):
        tl.send(dir=low, src=total)
    if place > half:
        tl.send(dir=high, src=total)
    return total


def from_leader(tl: Any, total: Any, place: Any, extent: int, low: str, high: str, **how: Any) -> Any:
    """Send the leader's tile back on the same paths."""
    half = extent // 2
    if (place > 0) & (place <= half):
        total = tl.recv(dir=low, shape=how["shape"], dtype=how["dtype"])
    if place > half:
        total = tl.recv(dir=high, shape=how["shape"], dtype=how["dtype"])
    if place < half:
        tl.send(dir=high, src=total)
    if (place > half + 1) | ((place == 0) & (extent > 2)):
        tl.send(dir=low, src=total)
    return total


def piece_reduced(
    tl: Any, mine: Any, count: int, pes: int, cubes: int, sips: int, dtype: str, op: str
) -> None:
    how: Any = {"op": op, "shape": (count,), "dtype": dtype}
    pe, cube = tl.program_id(0), tl.program_id(1)
    total = to_leader(tl, tl.load(mine, shape=(count,), dtype=dtype), pe, pes, "W", "E", **how)
    if (cubes > 1) & (pe == 0):
        total = to_leader(tl, total, cube, cubes, "N", "S", **how)
    if (sips > 1) & (pe == 0) & (cube == 0):
        total = passed_round(tl, total, sips, "global_W", "global_E", **how)
    if (cubes > 1) & (pe == 0):
        total = from_leader(tl, total, cube, cubes, "N", "S", **how)
    tl.store(mine, from_leader(tl, total, pe, pes, "W", "E", **how))


def kernel(
    t_ptr: Any, n_elem: int, pes: int, cubes: int, sips: int, dtype: str = "f16", op: str = "sum",
    piece: int = 0, tl: Any = None,
) -> None:  # fmt: skip
    in_pieces(tl, piece_reduced, t_ptr, n_elem, dtype, piece, pes, cubes, sips, dtype, op)
