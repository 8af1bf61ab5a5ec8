"""Which tensors and tiles several units can touch at all: read off the text of the Program."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from megatile.ir import nodes as n
from megatile.ir.launch import ROOT
from megatile.ir.program import Program
from megatile.targets.interpret.places import Name, Places


class Sharing:
    """Sets of names of storages."""

    def __init__(self, program: Program, places: Places):
        self.body = program.body
        self.names = places.names

    def base(self, name: str) -> str:
        return self.names[name].base

    @cached_property
    def constant(self) -> set[str]:
        """Tensors and tiles that nothing writes."""
        written = {
            self.base(r.source) for node in n.walk(self.body) for kind, r in n.regions(node) if kind != "read"
        }
        return {name.base for name in self.names.values()} - written

    @cached_property
    def remote(self) -> set[str]:
        """Tiles that other units write into: flags, and destinations of puts."""
        found = set()
        for node in n.walk(self.body):
            name = n.remote(node)
            if name is not None and getattr(node, "src", None) is None:
                found.add(self.base(name))
            elif isinstance(node, (n.Signal, n.Wait)):
                found.add(self.base(node.flag))
        return found

    @cached_property
    def exposed(self) -> dict[str, Name]:
        """Tiles of dispatched instances that others put into or get from: gone when their instance ends."""
        found = {}
        for node in n.walk(self.body):
            touched = n.remote(node)
            if touched is not None:
                name = self.names[self.base(touched)]
                if name.private:
                    found[name.base] = name
        return found

    @cached_property
    def raceless(self) -> set[str]:
        """Storages that need no race check: constant ones, and tiles that only their own unit touches."""
        shared = set(self.remote)
        for scale, node in _with_scales(self.body, ROOT):
            if isinstance(node, n.Copy) and node.src is not None:
                shared.add(self.base(node.source.source))
            touched = {self.base(region.source) for _, region in n.regions(node)}
            shared |= {base for base in touched if self.names[base].owner != scale}
        return self.constant | {name.base for name in self.names.values() if name.base not in shared}


def _with_scales(body: tuple[n.Node, ...], scale: str) -> Iterator[tuple[str, n.Node]]:
    """Every statement, and the scale whose units run it."""
    for node in body:
        yield scale, node
        inner_scale = node.scale if isinstance(node, n.Scale) else scale
        for _, inner in n.bodies(node):
            yield from _with_scales(inner, inner_scale)
