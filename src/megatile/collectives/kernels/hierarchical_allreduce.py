"""All-reduce over PEs, cubes and SIPs: leaders collect inside, then between; then back.

On the ring of PEs in a cube (E, W) and of cubes in a SIP (N, S) data comes to the leader from both sides;
SIP leaders form a ring (global_E, global_W).
"""

from typing import Any

from megatile.collectives.kernels import REDUCE_OPS, merged, passed_round  # noqa: F401
from megatile.core.dtypes import itemsize

TOPOLOGY, MAPPER = "hierarchical_3level", "all_pes"
KERNEL_HELPERS = ("to_leader", "from_leader")


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


def to_leader(tl: Any, total: Any, place: Any, extent: int, low: str, high: str, op: str, **like: Any) -> Any:
    """Reduce a ring to its member 0: members 1..half pass down to it, the others up, round the ring."""
    half = extent // 2
    if place < half:
        total = merged(tl, op, total, tl.recv(dir=high, **like))
    if (place > half + 1) | ((place == 0) & (extent > 2)):
        total = merged(tl, op, total, tl.recv(dir=low, **like))
    if (place > 0) & (place <= half):
        tl.send(dir=low, src=total)
    if place > half:
        tl.send(dir=high, src=total)
    return total


def from_leader(tl: Any, total: Any, place: Any, extent: int, low: str, high: str, **like: Any) -> Any:
    """The same paths in the other direction."""
    half = extent // 2
    if (place > 0) & (place <= half):
        total = tl.recv(dir=low, **like)
    if place > half:
        total = tl.recv(dir=high, **like)
    if place < half:
        tl.send(dir=high, src=total)
    if (place > half + 1) | ((place == 0) & (extent > 2)):
        tl.send(dir=low, src=total)
    return total


def kernel(t_ptr: Any, n_elem: int, pes: int, cubes: int, sips: int, dtype: str, op: str, tl: Any) -> None:
    pe, cube = tl.program_id(0), tl.program_id(1)
    mine, like = t_ptr + tl.rank * n_elem * itemsize(dtype), {"shape": (n_elem,), "dtype": dtype}
    total = to_leader(tl, tl.load(mine, **like), pe, pes, "W", "E", op, **like)
    if (cubes > 1) & (pe == 0):
        total = to_leader(tl, total, cube, cubes, "N", "S", op, **like)
    if (sips > 1) & (pe == 0) & (cube == 0):
        total = passed_round(tl, total, sips - 1, "global_E", "global_W", op, **like)
    if (cubes > 1) & (pe == 0):
        total = from_leader(tl, total, cube, cubes, "N", "S", **like)
    tl.store(mine, from_leader(tl, total, pe, pes, "W", "E", **like))
