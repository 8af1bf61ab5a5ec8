"""``T.Pipelined``: tiles in as many versions as there are stages, copied ahead by ``cp.async``."""

from __future__ import annotations

from megatile.core.dtypes import itemsize
from megatile.core.expr import Const, constant, simplify
from megatile.ir import nodes as n
from megatile.targets.common.allocation import Storage
from megatile.targets.common.elements import Value
from megatile.targets.cuda.alignment import row_alignment
from megatile.targets.cuda.elements import Side, copy, pairs_of, shared_out
from megatile.targets.cuda.fragments import Staged
from megatile.targets.cuda.scope import DeviceScope

WIDTHS = (16, 8, 4)
"""Bytes that cp.async moves at once."""


def pipelined(scope: DeviceScope, plan: Staged) -> None:
    """Copies for ``stages - 1`` steps are under way while a step computes."""
    node, gen, text, ahead = plan.loop, scope.gen, scope.text, plan.loop.stages - 1
    tiles = [gen.storages.table[c.to.source] for c in plan.copies]
    if scope.hazards.meets([(t.name, True) for t in tiles]):
        scope.sync()
    name, by = gen.name(node.var), constant(node.step) or 1
    start, stop = scope.whole(node.start), scope.whole(node.stop)
    known = (node.var, Value(name, "int"), scope.loop_limits(node))
    rest = tuple(x for x in node.body if not any(x is c for c in plan.copies))
    with text.block():
        text.add(f"const long {name}_start = {start}, {name}_stop = {stop};")
        with text.block(f"auto fetch = [&](long {name}, int slot)"), scope.known(*known):
            text.add(f"if ({name} >= {name}_stop) return;")
            _slots(scope, tiles, "slot")
            for one in plan.copies:
                with gen.at(one, text):
                    if not _in_background(scope, one):
                        copy(scope, one)
        text.lines[-1] += ";"
        with text.block(f"for (int ahead = 0; ahead < {ahead}; ahead++)"):
            text.add(f"fetch({name}_start + ahead * {by}, ahead);", "cp_async_commit();")
        text.add("int slot = 0;")
        with (
            text.block(f"for (long {name} = {name}_start; {name} < {name}_stop; {name} += {by})"),
            scope.known(*known),
        ):
            text.add(f"cp_async_wait<{ahead - 1}>();")
            scope.sync()
            text.add(f"fetch({name} + {ahead * by}, (slot + {ahead}) % {node.stages});", "cp_async_commit();")
            _slots(scope, tiles, "slot")
            text.add(f"slot = (slot + 1) % {node.stages};")
            gen.statements(scope, rest)
        text.add("cp_async_wait<0>();")
    scope.hazards.add(gen.touched(n.walk(node.body)))


def _slots(scope: DeviceScope, tiles: list[Storage], slot: str) -> None:
    """The version of each tile that is meant."""
    for tile in tiles:
        plain, size = scope.gen.name(tile.name), tile.bytes(scope.gen.launch)
        place = f"shared + {tile.offset} + {slot} * {-(-size // 128) * 128}"
        scope.text.add(scope.gen.storages.tile(tile, plain, place))


def _in_background(scope: DeviceScope, node: n.Copy) -> bool:
    """The copy by cp.async, if its rows are whole words at places that are aligned."""
    storages = scope.gen.storages
    source, to = storages.storage(node.source.source), storages.storage(node.to.source)
    if source.dtype != to.dtype or source.copies > 1:
        return False
    size, columns = itemsize(to.dtype), to.shape[-1]
    moved = [
        (dim.start, stride)
        for dim, stride in zip(node.source.dims, source.strides, strict=True)
        if dim.extent is not None and constant(dim.extent) != 1
    ]
    width = min(row_alignment(scope, node.source), row_alignment(scope, node.to))
    while columns * size % width:
        width //= 2
    if width not in WIDTHS or columns == 1 or not moved or moved[-1][1] != 1:
        return False
    low = scope.bound(simplify(scope.own(moved[-1][0])))
    if low is None or low[0] < 0:
        return False
    with scope.text.block():
        here, there = Side(scope, node.to), Side(scope, node.source)
        pairs = pairs_of(scope, here, there)
        count = width // size
        extents = [a.extent for a, _ in pairs]
        extents[-1] = Const(columns // count)
        with shared_out(scope, extents) as indices:
            indices[-1] = f"{indices[-1]} * {count}"
            last = pairs[-1][1]
            high, last.low = last.high, None
            pointer, _ = here.places(indices, [a for a, _ in pairs])
            origin, conditions = there.places(indices, [b for _, b in pairs])
            bytes_ = (
                str(width) if high is None else f"lmin(lmax(({high} - {indices[-1]}) * {size}, 0), {width})"
            )
            if conditions:
                bytes_ = f"{' && '.join(conditions)} ? {bytes_} : 0"
            scope.text.add(f"cp_async{width}({pointer}, {origin}, {bytes_});")
    return True
