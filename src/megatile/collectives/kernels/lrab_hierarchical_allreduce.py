"""All-reduce over the cubes of all SIPs with the root in the centre of each mesh, in both directions.

Rows are reduced from the left and the right to the root's column, that column from above and below to the
root, and the SIPs' roots exchange theirs: on a ring or torus eastwards and westwards at the same time, on a
mesh without wrap-around towards its centre and back. The result goes back the same way.
"""

from typing import Any

from megatile.collectives.kernels import REDUCE_OPS, in_pieces, merged  # noqa: F401
from megatile.collectives.kernels.intercube_allreduce import (
    TOPO_NAME_TO_KIND as TOPO_NAME_TO_KIND,
    kernel_args as kernel_args,
    own_parts,
    piece_reduced,
)
from megatile.core.dtypes import itemsize

TOPOLOGY, MAPPER, TOPOLOGIES = "intercube", "cube_leaders", ("intercube",)
KERNEL_HELPERS = ("both_ways",)


def root_cube(mesh_w: int, mesh_h: int) -> int:
    """Return the cube in the centre, where an entry names none."""
    return mesh_h // 2 * mesh_w + mesh_w // 2


def both_ways(tl: Any, total: Any, extent: int, low: str, high: str, **how: Any) -> Any:
    """Reduce over a ring: everybody's tile goes half round in each direction."""
    east = west = total
    for _ in range((extent - 1) // 2):
        tl.send(dir=high, src=east)
        tl.send(dir=low, src=west)
        east = tl.recv(dir=low, shape=how["shape"], dtype=how["dtype"])
        west = tl.recv(dir=high, shape=how["shape"], dtype=how["dtype"])
        total = merged(tl, how["op"], merged(tl, how["op"], total, east), west)
    if extent % 2 == 0:
        tl.send(dir=high, src=east)
        last = tl.recv(dir=low, shape=how["shape"], dtype=how["dtype"])
        total = merged(tl, how["op"], total, last)
    return total


def kernel(
    t_ptr: Any, n_elem: int, cube_w: int, cube_h: int, n_sips: int, sip_rank: Any = None,
    sip_topo_kind: int = 0, sip_topo_w: int = 0, sip_topo_h: int = 0, root: int | None = None,
    dtype: str = "f16", op: str = "sum", piece: int = 0, tl: Any = None,
) -> None:  # fmt: skip
    """KernBench's arguments up to ``sip_topo_h``, as of ``intercube_allreduce``."""
    width, height = (n_sips, 1) if sip_topo_kind == 0 else (sip_topo_w, sip_topo_h)
    centre = root_cube(cube_w, cube_h) if root is None else root
    around = both_ways if sip_topo_kind != 2 else None
    how = (cube_w, cube_h, width, height, centre, around, (width // 2, height // 2), dtype, op)
    own = own_parts(tl, t_ptr, sip_rank, n_elem * itemsize(dtype))
    in_pieces(tl, piece_reduced, own, n_elem, dtype, piece, *how)
