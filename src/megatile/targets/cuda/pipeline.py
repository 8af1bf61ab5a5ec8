"""``T.Pipelined``: tiles in as many versions as there are stages, copied ahead by ``cp.async``."""

from __future__ import annotations

from megatile.core.expr import constant
from megatile.targets.common.allocation import Storage
from megatile.targets.common.elements import Value
from megatile.targets.cuda.elements import copy
from megatile.targets.cuda.fragments import Staged
from megatile.targets.cuda.rows import copy_rows
from megatile.targets.cuda.scope import DeviceScope


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
                    if not copy_rows(scope, one, background=True):
                        copy(scope, one)
        text.lines[-1] += ";"
        scope.hazards.copying = False
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
            gen.pipelines += 1
            gen.statements(scope, rest)
            gen.pipelines -= 1
        text.add("cp_async_wait<0>();")


def _slots(scope: DeviceScope, tiles: list[Storage], slot: str) -> None:
    """The version of each tile that is meant."""
    for tile in tiles:
        plain, size = scope.gen.name(tile.name), tile.bytes(scope.gen.launch)
        place = f"shared + {tile.offset} + {slot} * {-(-size // 128) * 128}"
        scope.text.add(scope.gen.storages.tile(tile, plain, place))
