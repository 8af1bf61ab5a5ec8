"""Puts, signals and barriers between ranks, blocks of a cluster, and warp groups, in their words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megatile.core.expr import Const, Expr, known, simplify
from megatile.ir import nodes as n
from megatile.ir.program import base_name, bindings
from megatile.targets.tilelang.units import dtype

if TYPE_CHECKING:
    from megatile.targets.tilelang.writer import TileLangWriter

BARRIER = "ranks_meet"
"""The tensor by which the blocks of all ranks meet."""


def _scale(out: TileLangWriter, node: n.Node) -> tuple[str, str]:
    """Return the scale whose units are peers, and the scale around them."""
    scale = getattr(node, "scale", None) or next(
        s for s in reversed(out.scales) if s not in ("thread", "warp")
    )
    return scale, out.scales[out.scales.index(scale) - 1]


def put(out: TileLangWriter, node: n.Copy) -> None:
    """Write a copy to a peer, or from one."""
    scale, within = _scale(out, node)
    peer = node.dst if node.dst is not None else node.src
    assert peer is not None
    if scale == "warpgroup":
        out.roles.put(out, node)
    elif scale == "block":
        if node.src is not None or not out.units.cluster:
            out.refuse(node, f"{'from' if node.src is not None else 'to'} another block has no counterpart")
        to, source = out.part(node.to, node.source), out.part(node.source, node.to)
        if base_name(node.source.source) in out.registers:  # blocks see each other's shared memory only
            source = _in_shared(out, node.source, bindings(out.program)[node.source.source].dtype)
        out.add(f"T.copy_cluster({source}, {to}, dst_block={out.value(peer)})")
    else:
        rank = out.value(out.units.plain(out.units.absolute(peer, scale, within, node.axis)))
        _moved(out, node, rank)


def _in_shared(out: TileLangWriter, region: n.Region, kind: str) -> str:
    """Copy a region from registers to shared memory; the name of that tile."""
    name = out.name(f"{base_name(region.source)}_put")
    extents = ", ".join(out.value(e) for e in region.extents)
    out.add(f'{name} = T.alloc_shared(({extents},), "{dtype(kind)}")')
    out.add(f"T.copy({out.part(region)}, {name})")
    return name


def _moved(out: TileLangWriter, node: n.Copy, rank: str) -> None:
    """``T.put_block`` or ``T.get_block``, run by run of what lies together on both sides."""
    kinds = [
        bindings(out.program)[r.source].dtype if r.source in bindings(out.program) else None
        for r in (node.to, node.source)
    ]
    if None not in kinds and kinds[0] != kinds[1]:
        out.refuse(node, f"from {kinds[1]} to {kinds[0]} of another rank has no counterpart")
    regions = [out.places.region(r) for r in (node.to, node.source)]
    staged = base_name(node.source.source) in out.registers
    if staged and node.src is None:
        name = _in_shared(out, node.source, kinds[1] or "f32")
    own = node.to if node.src is not None else node.source
    if base_name(own.source) in out.registers and node.src is not None:
        out.refuse(node, "from another rank into registers has no counterpart")
    runs = [_together(out, r) for r in regions]
    if staged:
        runs[1] = len(regions[0].extents)
    together = max(min(runs), 1)
    loops = len(regions[0].extents) - together
    variables = [out.name(f"@row{len(out.lines)}_{d}") for d in range(loops)]
    for d, variable in enumerate(variables):
        out.names[f"@loop{d}"] = variable = f"r{d}"
        variables[d] = variable
        out.add(f"for {variable} in T.serial({out.value(regions[0].extents[d])}):")
        out.depth += 1
    size = " * ".join(out.value(e, 10) for e in regions[0].extents[loops:]) or "1"
    to = _address(out, regions[0], variables)
    source = (
        f"T.address_of({name}[{', '.join([*variables, *['0'] * together])}])" if staged and node.src is None
        else _address(out, regions[1], variables)
    )  # fmt: skip
    word, side = ("put_block", "dst_pe") if node.dst is not None else ("get_block", "src_pe")
    if base_name(own.source) not in out.workspace and node.dst is not None:
        out.add("T.sync_threads()")
    out.add(f"T.{word}(src={source}, dst={to}, size={size}, {side}={rank})")
    out.depth -= loops


def _address(out: TileLangWriter, region: n.Region, variables: list[str]) -> str:
    left, index = iter(variables), []
    for dim in region.dims:
        start = out.value(dim.start, 8)
        variable = next(left, None) if dim.extent is not None else None
        index.append(start if variable is None else variable if start == "0" else f"{start} + {variable}")
    return f"T.address_of({out.tile(region.source)}[{', '.join(index)}])"


def _together(out: TileLangWriter, region: n.Region) -> int:
    """Return how many of the last dimensions of a region are one run of memory."""
    shape = out.places.shape(region.source, out.shapes.get(region.source, ()))
    found, whole = 0, True
    for dim, extent in zip(reversed(region.dims), reversed(shape), strict=True):
        if not whole:
            break
        if dim.extent is None:
            whole = extent == 1
            continue
        if dim.limits is not None and [known(simplify(e)) for e in dim.limits] != [0, extent]:
            out.refuse(n.Copy(region, region), "of a part that may be cut off has no counterpart")
        found += 1
        whole = known(dim.start) == 0 and known(dim.extent) == extent
    return found


def barrier(out: TileLangWriter, node: n.Barrier) -> None:
    scale, within = node.scale, out.scales[out.scales.index(node.scale) - 1]
    if scale == "warpgroup":
        out.refuse(node, "inside a loop or branch of a role has no counterpart")
    if scale in ("thread", "warp"):
        out.add("T.sync_threads()" if scale == "thread" else "T.sync_warp()")
    elif scale == "block":
        out.add("T.cluster_sync()" if out.units.cluster and within == "cluster" else "T.sync_grid()")
    else:
        if not out.single:
            out.refuse(node, "of devices, by many blocks, has no counterpart")
        name = BARRIER
        out.workspace.setdefault(name, n.Alloc(name, (out.units.ranks,), "i32", "hbm", "device", flag=True))
        out.add("T.sync_threads()")
        out.add(f"T.barrier_blocks({out.name(name)})")


def signal(out: TileLangWriter, node: n.Signal) -> None:
    if out.roles.signalled(out, node):
        return
    scale, within = _scale(out, node)
    rank: Expr = Const(-1)
    if out.units.ranks > 1:
        rank = rank if node.dst is None else out.units.absolute(node.dst, scale, within, node.axis)
    if node.flag not in out.workspace:
        out.refuse(node, "to another block has no counterpart")
    place = out.element(node.flag, node.index)
    out.add("T.sync_threads()")
    amount, peer = out.value(node.amount), out.value(out.units.plain(rank))
    word = f"T.signal_op(T.address_of({place}), {amount}, T.Amo.SIGNAL_ADD, {peer})"
    out.block(f"if {out.name('@thread')} == 0:", lambda: out.add(word))


def wait(out: TileLangWriter, node: n.Wait) -> None:
    if out.roles.waited(out, node):
        return
    if node.flag not in out.workspace:
        out.refuse(node, "for another block has no counterpart")
    word = f"T.wait_ge({out.element(node.flag, node.index)}, {out.value(node.value)})"
    out.block(f"if {out.name('@thread')} == 0:", lambda: out.add(word))
    out.add("T.sync_threads()")
