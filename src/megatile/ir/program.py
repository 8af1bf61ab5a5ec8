"""The Program: parameters, launch, and a body of statements."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from megatile.core.cached import cached_in_owner
from megatile.core.placement import Layout, Part, compose, is_whole, part, share_length
from megatile.ir.launch import ROOT, Launch, Param
from megatile.ir.nodes import Alloc, Chain, Node, Reshape, View, only_annotated, walk
from megatile.ir.printer import show


@dataclass(frozen=True, repr=False)
class Program:
    """What a function under ``@T.program`` means on one machine."""

    name: str
    params: tuple[Param, ...]
    launch: Launch
    body: tuple[Node, ...]
    machine: str = ""
    symbols: tuple[str, ...] = ()
    padded: bool = False
    """Whether elements outside a tensor read as zero and are not written, whatever the statement."""
    warnings: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        return show(self)

    def __repr__(self) -> str:
        return f"Program({self.name}({', '.join(p.name for p in self.params)}) for {self.machine})"

    def param(self, name: str) -> Param:
        return next(p for p in self.params if p.name == name)


@dataclass(frozen=True)
class Binding:
    """What a name of the Program refers to: its storage, the views between the two, outermost first, and
    whose part it is (``owner``): these views, or in a Program without views those it had."""

    name: str
    base: str
    shape: tuple[int, ...]
    dtype: str
    scale: str
    views: Chain = ()
    owner: Chain = ()


def part_name(base: str, chain: Chain) -> str:
    """Return the name, in a Program without views, of what a unit has of a tensor or tile: ``A.device``."""
    return ".".join((base, *(view.scale for view in chain)))


def base_name(name: str) -> str:
    """Return the tensor or tile that such a name is a part of."""
    return name.partition(".")[0]


@cached_in_owner
def bindings(program: Program) -> dict[str, Binding]:
    """Return every tensor, tile and view of the Program, with the shape of its storage. It is not to be
    changed."""
    table = {
        p.name: Binding(
            p.name, p.name, tuple(int(n) if isinstance(n, int) else 0 for n in p.shape), p.dtype, ROOT
        )
        for p in program.params
    }

    def add_parts(of: Binding, chains: tuple[Chain, ...]) -> None:
        for chain in chains:
            name = part_name(of.name, chain)
            table[name] = replace(of, name=name, scale=chain[-1].scale, owner=chain)

    for param in program.params:
        add_parts(table[param.name], param.parts)
    for node in walk(program.body):
        if isinstance(node, Alloc):
            table[node.name] = Binding(node.name, node.name, node.shape, node.dtype, node.scale)
            add_parts(table[node.name], node.parts)
        elif isinstance(node, View) and node.source in table:
            source = table[node.source]
            views = (*source.views, node)
            table[node.name] = Binding(
                node.name, source.base, source.shape, source.dtype, node.scale, views, views
            )
        elif isinstance(node, Reshape) and node.source in table:
            source = table[node.source]
            table[node.name] = Binding(node.name, source.base, node.shape, node.dtype, source.scale)
    return table


def same_names(before: Program, after: Program) -> bool:
    """Return whether two Programs differ by annotations at most; if so, what is known of the names of one is
    known of the other's."""
    tensors = zip(before.params, after.params, strict=False)
    same = (
        before.launch is after.launch
        and before.symbols == after.symbols
        and len(before.params) == len(after.params)
        and all(a is b or replace(a, home=b.home) == b for a, b in tensors)
        and only_annotated(before.body, after.body)
    )
    if same:
        after.__dict__[bindings.key] = before.__dict__.get(bindings.key, {})  # type: ignore[attr-defined]
    return same


def seen(
    launch: Launch, views: tuple[View, ...], shape: tuple[int, ...], path: tuple[Any, ...], first: int = 0
) -> Part:
    """Return the indices of every dimension that the unit at ``path`` below depth ``first`` has through
    views, one inside the other."""
    shares: Part = tuple((0, size) for size in shape)
    low = first
    for view in views:
        high = launch.depth(view.scale)
        if not is_whole(view.layout):
            rank = 0
            for index, scale in zip(path[low - first : high - first], launch.scales[low:high], strict=True):
                rank = rank * scale.count + int(index)
            grid = launch.grid(view.scale, launch.at(low))
            inner = part(view.layout, tuple(map(share_length, shares)), grid, rank)
            shares = tuple(map(compose, shares, inner))
        low = high
    return shares


def placements(program: Program) -> dict[str, dict[str, Layout]]:
    """For every tensor and tile: its layout at each scale at which it is viewed."""
    result: dict[str, dict[str, Layout]] = {}
    for one in bindings(program).values():
        for view in one.owner[-1:]:
            result.setdefault(one.base, {}).setdefault(view.scale, view.layout)
    return result
