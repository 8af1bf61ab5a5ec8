"""The Program: parameters, launch, and a body of statements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from megatile.core.placement import Layout, Part, compose, is_whole, part, share_length
from megatile.ir.launch import ROOT, Launch, Param
from megatile.ir.nodes import Alloc, Node, Reshape, View, each, walk
from megatile.ir.printer import show


@dataclass(frozen=True)
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

    def param(self, name: str) -> Param:
        return next(p for p in self.params if p.name == name)


@dataclass(frozen=True)
class Binding:
    """What a name of the Program stands for: its storage, and the views between the two, outermost first."""

    name: str
    base: str
    shape: tuple[int, ...]
    dtype: str
    scale: str
    views: tuple[View, ...] = ()

    @property
    def is_view(self) -> bool:
        return bool(self.views)


def bindings(program: Program) -> dict[str, Binding]:
    """Every tensor, tile and view of the Program, with the shape of its storage."""
    table = {
        p.name: Binding(
            p.name, p.name, tuple(int(n) if isinstance(n, int) else 0 for n in p.shape), p.dtype, ROOT
        )
        for p in program.params
    }
    for node in walk(program.body):
        if isinstance(node, Alloc):
            table[node.name] = Binding(node.name, node.name, node.shape, node.dtype, node.scale)
        elif isinstance(node, View) and node.source in table:
            source = table[node.source]
            views = (*source.views, node)
            table[node.name] = Binding(node.name, source.base, source.shape, source.dtype, node.scale, views)
        elif isinstance(node, Reshape) and node.source in table:
            source = table[node.source]
            table[node.name] = Binding(node.name, source.base, node.shape, node.dtype, source.scale)
    return table


def seen(
    launch: Launch, views: tuple[View, ...], shape: tuple[int, ...], path: tuple[Any, ...], first: int = 0
) -> Part:
    """The indices of every dimension that the unit at ``path`` below depth ``first`` has through views, one
    inside the other."""
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
    table = bindings(program)
    result: dict[str, dict[str, Layout]] = {}
    for node in each(View, program.body):
        result.setdefault(table[node.name].base, {}).setdefault(node.scale, node.layout)
    return result
