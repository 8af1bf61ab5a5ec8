"""All-reduce over the cubes of all SIPs: along rows, along the root's column, between SIPs, and back.

One PE of every cube takes part. Inside a SIP cubes stand on a mesh without wrap-around (E W N S), and data
comes to the root cube from all sides. SIPs that form a ring or a torus pass whole tiles round (global_E, then
global_S); on a mesh without wrap-around they are reduced along a chain and the result goes back.
"""

from typing import Any

from megatile.collectives.kernels import REDUCE_OPS, elements_in_flight, in_pieces, merged  # noqa: F401

TOPOLOGY, MAPPER, TOPOLOGIES = "intercube", "cube_leaders", ("intercube",)
KERNEL_HELPERS = ("gathered", "piece_reduced", "spread")


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
    piece = elements_in_flight(n_elem, dtype, config)
    return (n_elem, mesh_w, mesh_h, sip_w, sip_h, sip_wrap, root_cube, dtype, reduce_op, piece)


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
    tl: Any, mine: Any, count: int, mesh_w: int, mesh_h: int, sip_w: int, sip_h: int, wrap: bool,
    root_cube: int, dtype: str, op: str,
) -> None:  # fmt: skip
    cube, sip = tl.program_id(1), tl.program_id(2)
    row, column = cube // mesh_w, cube % mesh_w
    root_row, root_column = root_cube // mesh_w, root_cube % mesh_w
    total = tl.load(mine, shape=(count,), dtype=dtype)
    total = gathered(tl, total, column, root_column, mesh_w, "W", "E", op=op, shape=(count,), dtype=dtype)
    if column == root_column:
        total = gathered(tl, total, row, root_row, mesh_h, "N", "S", op=op, shape=(count,), dtype=dtype)
    if cube == root_cube:
        if wrap:
            current = total
            for _ in range(sip_w - 1):
                tl.send(dir="global_E", src=current)
                current = tl.recv(dir="global_W", shape=(count,), dtype=dtype)
                total = merged(tl, op, total, current)
            passing = total
            for _ in range(sip_h - 1):
                tl.send(dir="global_S", src=passing)
                passing = tl.recv(dir="global_N", shape=(count,), dtype=dtype)
                total = merged(tl, op, total, passing)
        else:
            x, y = sip % sip_w, sip // sip_w
            how = {"op": op, "shape": (count,), "dtype": dtype}
            total = gathered(tl, total, x, sip_w - 1, sip_w, "global_W", "global_E", **how)
            total = spread(tl, total, x, sip_w - 1, sip_w, "global_W", "global_E", **how)
            total = gathered(tl, total, y, sip_h - 1, sip_h, "global_N", "global_S", **how)
            total = spread(tl, total, y, sip_h - 1, sip_h, "global_N", "global_S", **how)
    if column == root_column:
        total = spread(tl, total, row, root_row, mesh_h, "N", "S", op=op, shape=(count,), dtype=dtype)
    total = spread(tl, total, column, root_column, mesh_w, "W", "E", op=op, shape=(count,), dtype=dtype)
    tl.store(mine, total)


def kernel(
    t_ptr: Any, n_elem: int, mesh_w: int, mesh_h: int, sip_w: int, sip_h: int, wrap: bool, root_cube: int,
    dtype: str = "f16", op: str = "sum", piece: int = 0, tl: Any = None,
) -> None:  # fmt: skip
    how = (mesh_w, mesh_h, sip_w, sip_h, wrap, root_cube, dtype, op)
    in_pieces(tl, piece_reduced, t_ptr, n_elem, dtype, piece, *how)
