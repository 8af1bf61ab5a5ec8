"""All-reduce over the cubes of all SIPs: along rows, along the root's column, between SIPs, and back.

One PE of every cube takes part. Inside a SIP cubes stand on a mesh without wrap-around (E W N S), and data
comes to the root cube from all sides. SIPs that form a ring or a torus pass whole tiles round (global_E, then
global_S); on a mesh without wrap-around they are reduced along a chain and the result goes back.
"""

from typing import Any

from megatile.collectives.kernels import (
    REDUCE_OPS as REDUCE_OPS,
    elements_in_flight,
    in_pieces,
    merged,
    passed_round,
)
from megatile.core.dtypes import itemsize

TOPOLOGY, MAPPER, TOPOLOGIES = "intercube", "cube_leaders", ("intercube",)
KERNEL_HELPERS = ("gathered", "own_parts", "piece_reduced", "spread")
TOPO_NAME_TO_KIND = {"ring_1d": 0, "torus_2d": 1, "mesh_2d": 1, "mesh_2d_no_wrap": 2}
"""Topologies of KernBench's argument ``sip_topo_kind``; a ring has neither width nor height."""


def kernel_args(
    *,
    n_elem: int,
    world_size: int,
    mesh_w: int,
    mesh_h: int,
    sip_w: int,
    sip_h: int,
    sip_wrap: bool,
    root_cube: int,
    dtype: str = "f16",
    reduce_op: str = "sum",
    **config: Any,
) -> tuple[Any, ...]:
    kind, piece = 1 if sip_wrap else 2, elements_in_flight(n_elem, dtype, config)
    return (
        n_elem, mesh_w, mesh_h, sip_w * sip_h, None, kind, sip_w, sip_h, root_cube, dtype, reduce_op, piece,
    )  # fmt: skip


def own_parts(tl: Any, t_ptr: Any, sip_rank: Any, nbytes: int) -> Any:
    """Return the tensor of all SIPs; with a ``sip_rank`` the pointer is that of the SIP's own tensor."""
    if sip_rank is None:
        return t_ptr
    return t_ptr + (tl.program_id(1) - tl.rank) * nbytes


def gathered(tl: Any, total: Any, place: Any, root: int, extent: int, low: str, high: str, **how: Any) -> Any:
    """Reduce a line of ``extent`` participants towards number ``root``, from both sides."""
    if (place > 0) & (place <= root):
        total = merged(tl, how["op"], total, tl.recv(dir=low, shape=how["shape"], dtype=how["dtype"]))
    if (place < extent - 1) & (place >= root):
        total = merged(tl, how["op"], total, tl.recv(dir=high, shape=how["shape"], dtype=how["dtype"]))
    if place < root:
        tl.send(dir=high, src=total)
    if place > root:
        tl.send(dir=low, src=total)
    return total


def spread(tl: Any, total: Any, place: Any, root: int, extent: int, low: str, high: str, **how: Any) -> Any:
    """Send the root's tile back along the line."""
    if place < root:
        total = tl.recv(dir=high, shape=how["shape"], dtype=how["dtype"])
    if place > root:
        total = tl.recv(dir=low, shape=how["shape"], dtype=how["dtype"])
    if (place > 0) & (place <= root):
        tl.send(dir=low, src=total)
    if (place < extent - 1) & (place >= root):
        tl.send(dir=high, src=total)
    return total


def piece_reduced(
    tl: Any, mine: Any, count: int, mesh_w: int, mesh_h: int, sip_w: int, sip_h: int, root: int,
    around: Any, end: tuple[int, int], dtype: str, op: str,
) -> None:  # fmt: skip
    """Reduce one piece; SIPs exchange by ``around`` on rings (None: towards SIP ``end`` and back)."""
    how: Any = {"op": op, "shape": (count,), "dtype": dtype}
    cube, sip = tl.program_id(1), tl.program_id(2)
    row, column = cube // mesh_w, cube % mesh_w
    root_row, root_column = root // mesh_w, root % mesh_w
    total = tl.load(mine, shape=(count,), dtype=dtype)
    total = gathered(tl, total, column, root_column, mesh_w, "W", "E", **how)
    if column == root_column:
        total = gathered(tl, total, row, root_row, mesh_h, "N", "S", **how)
    if cube == root:
        if around is not None:
            total = around(tl, total, sip_w, "global_W", "global_E", **how)
            total = around(tl, total, sip_h, "global_N", "global_S", **how)
        else:
            x, y = sip % sip_w, sip // sip_w
            total = gathered(tl, total, x, end[0], sip_w, "global_W", "global_E", **how)
            total = spread(tl, total, x, end[0], sip_w, "global_W", "global_E", **how)
            total = gathered(tl, total, y, end[1], sip_h, "global_N", "global_S", **how)
            total = spread(tl, total, y, end[1], sip_h, "global_N", "global_S", **how)
    if column == root_column:
        total = spread(tl, total, row, root_row, mesh_h, "N", "S", **how)
    tl.store(mine, spread(tl, total, column, root_column, mesh_w, "W", "E", **how))


def kernel(
    t_ptr: Any, n_elem: int, cube_w: int, cube_h: int, n_sips: int, sip_rank: Any = None,
    sip_topo_kind: int = 0, sip_topo_w: int = 0, sip_topo_h: int = 0, root_cube: int | None = None,
    dtype: str = "f16", op: str = "sum", piece: int = 0, tl: Any = None,
) -> None:  # fmt: skip
    """KernBench's arguments up to ``sip_topo_h``: launches on all SIPs may call it as KernBench does."""
    width, height = (n_sips, 1) if sip_topo_kind == 0 else (sip_topo_w, sip_topo_h)
    root = cube_w * cube_h - 1 if root_cube is None else root_cube
    around = passed_round if sip_topo_kind != 2 else None
    how = (cube_w, cube_h, width, height, root, around, (width - 1, height - 1), dtype, op)
    own = own_parts(tl, t_ptr, sip_rank, n_elem * itemsize(dtype))
    in_pieces(tl, piece_reduced, own, n_elem, dtype, piece, *how)
