"""Which copies of pipelined loops can be done ahead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatile.core.expr import constant, symbols
from megatile.ir import nodes as n
from megatile.ir.expr import has_loads
from megatile.ir.program import Program
from megatile.targets.common.scalars import lets
from megatile.targets.cuda.fragments import is_whole


@dataclass(frozen=True)
class Staged:
    """A loop, and the copies of its body that are done ahead."""

    loop: n.Loop
    copies: tuple[n.Copy, ...]


def staged(program: Program, allocs: dict[str, n.Alloc]) -> Iterator[Staged]:
    """Loops whose copies can be done ahead: of tensors they do not write, into tiles of their own."""
    uses: dict[str, int] = {}
    for node in n.walk(program.body):
        for _, region in n.regions(node):
            uses[region.source] = uses.get(region.source, 0) + 1
        if isinstance(node, (n.View, n.Reshape)):
            uses[node.source] = uses.get(node.source, 0) + 1
    tensors = {p.name for p in program.params}
    for node in n.walk(program.body):
        by = constant(node.step) if isinstance(node, n.Loop) else None
        if (
            not isinstance(node, n.Loop)
            or node.kind != "pipelined"
            or node.stages < 2
            or by is None
            or by < 1
        ):
            continue
        touched = [(a, r.source) for one in n.walk(node.body) for a, r in n.regions(one)]
        written = {name for access, name in touched if access != "read"}
        own = {name for one in n.walk(node.body) for name in lets((one,))}
        found = []
        for at, one in enumerate(node.body):
            if not isinstance(one, n.Copy) or one.dst is not None or one.src is not None:
                continue
            tile, source = allocs.get(one.to.source), one.source.source
            before = {r.source for x in n.walk(node.body[:at]) for _, r in n.regions(x)}
            inside = [name for _, name in touched if name == one.to.source]
            if (
                tile is None or source not in tensors - written or one.to.source in before
                or len(inside) != uses[one.to.source] or not is_whole(one.to, tile.shape)
                or sum(a != "read" and name == one.to.source for a, name in touched) != 1
                or any(symbols(e) & own or has_loads(e) for e in one.source.expressions())
            ):  # fmt: skip
                continue
            found.append(one)
        if found:
            yield Staged(node, tuple(found))
