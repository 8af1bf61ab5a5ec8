"""All-reduce over the cubes of all SIPs: along rows, along the last column, between SIPs, and back.

One PE of every cube takes part. Inside a SIP cubes stand on a mesh without wrap-around (E W N S); the SIPs
form a ring (global_E, global_W) or a grid (and global_S, global_N), which wraps.
"""

from typing import Any


def kernel_args(
    *, n_elem: int, world_size: int, mesh_w: int, mesh_h: int, sip_w: int, sip_h: int, **config: Any
) -> tuple[Any, ...]:
    return (n_elem, mesh_w, mesh_h, sip_w, sip_h)


def kernel(t_ptr: Any, n_elem: int, mesh_w: int, mesh_h: int, sip_w: int, sip_h: int, tl: Any) -> None:
    cube = tl.program_id(0)
    row, column = cube // mesh_w, cube % mesh_w
    corner = (row == mesh_h - 1) & (column == mesh_w - 1)
    mine = t_ptr + tl.rank * n_elem * 2
    total = tl.load(mine, shape=(n_elem,), dtype="f16")
    if column > 0:
        total = total + tl.recv(dir="W", shape=(n_elem,), dtype="f16")
    if column < mesh_w - 1:
        tl.send(dir="E", src=total)
    if column == mesh_w - 1:
        if row > 0:
            total = total + tl.recv(dir="N", shape=(n_elem,), dtype="f16")
        if row < mesh_h - 1:
            tl.send(dir="S", src=total)
    if corner:
        current = total
        for _ in range(sip_w - 1):
            tl.send(dir="global_E", src=current)
            current = tl.recv(dir="global_W", shape=(n_elem,), dtype="f16")
            total = total + current
        passing = total
        for _ in range(sip_h - 1):
            tl.send(dir="global_S", src=passing)
            passing = tl.recv(dir="global_N", shape=(n_elem,), dtype="f16")
            total = total + passing
    if column == mesh_w - 1:
        if row < mesh_h - 1:
            total = tl.recv(dir="S", shape=(n_elem,), dtype="f16")
        if row > 0:
            tl.send(dir="N", src=total)
    if column < mesh_w - 1:
        total = tl.recv(dir="E", shape=(n_elem,), dtype="f16")
    if column > 0:
        tl.send(dir="W", src=total)
    tl.store(mine, total)
