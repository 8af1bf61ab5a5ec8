"""Where the elements of a name are for a unit: storage, copies, and this unit's share of every dimension."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

from megatile.core.placement import Part, Partial, has_copies, is_whole, numpy_index
from megatile.ir import nodes as n
from megatile.ir.launch import ROOT
from megatile.ir.program import Binding, Program, bindings, placements, seen
from megatile.targets.interpret.expressions import flatten, unflatten
from megatile.targets.interpret.storage import StoredArray
from megatile.targets.interpret.units import Unit


class Name:
    """What is fixed about a name of the Program before it runs."""

    def __init__(self, program: Program, binding: Binding, layouts: dict[str, Any], alloc: n.Alloc | None):
        launch = program.launch
        self.binding = binding
        self.name = binding.name
        self.base = binding.base
        self.alloc = alloc
        self.owner = alloc.scale if alloc else ROOT
        self.owner_depth = launch.depth(self.owner)
        copied = [s for s, layout in layouts.items() if has_copies(layout)]
        self.copy_scale = max(copied, key=launch.depth) if copied else self.owner
        self.copy_depth = launch.depth(self.copy_scale)
        self.copies = launch.count(self.copy_scale, self.owner)
        self.counts = [s.count for s in launch.scales[self.owner_depth : self.copy_depth]]
        whole = alloc.shape if alloc else program.param(binding.base).shape
        element = alloc.dtype if alloc else program.param(binding.base).dtype
        same = not binding.shape or (binding.shape == tuple(whole) and binding.dtype == element)
        self.reshaped = None if same or binding.views else (binding.shape, binding.dtype)
        """The shape and dtype with which it reads the elements of its storage, if they are others."""
        self.valid: list[Any] | None = None
        """Per copy, the elements it really holds, where copies hold different ones (None: all hold all)."""
        self.depth = launch.depth(binding.scale)
        self.is_partial = any(isinstance(v.layout, Partial) for v in binding.owner)
        self.private = alloc is not None and launch.is_private(self.owner)

    def views_of(self, part: Name) -> bool:
        """Return whether it is that part, or a view inside it."""
        return self.binding.owner[: len(part.binding.owner)] == part.binding.owner


class Places:
    """Finds storages; creates the tiles of a unit when they are first needed."""

    def __init__(self, program: Program):
        self.program = program
        self.launch = program.launch
        table = bindings(program)
        layouts = placements(program)
        allocs = {a.name: a for a in n.walk(program.body) if isinstance(a, n.Alloc)}
        self.names = {
            name: Name(program, b, layouts.get(b.base, {}), allocs.get(b.base)) for name, b in table.items()
        }
        self.aliased = {one.base for one in self.names.values() if one.reshaped is not None}
        """Tensors and tiles that are read under several shapes or dtypes."""
        self.frame: dict[Any, StoredArray] = {}
        self.sharded = {n.base: n for n in reversed(self.names.values()) if self._divides_devices(n)}
        """Tensors whose parts lie on different devices: the view that says so."""
        self.parts: dict[Any, Part] = {}
        self.made: dict[Any, StoredArray] | None = None
        """All tiles that were made, by name and owner, if somebody wants to know."""
        valid = {base: self._valid_parts(base) for base in layouts}
        for one in self.names.values():
            one.valid = valid.get(one.base)

    def _divides_devices(self, name: Name) -> bool:
        views = name.binding.owner
        if name.alloc is not None or len(views) != 1 or views[0].scale != self.launch.device_scale:
            return False
        return not is_whole(views[0].layout) and not has_copies(views[0].layout)

    def _valid_parts(self, base: str) -> list[Any] | None:
        """Return the elements that each copy of a tile holds: those that the unit sees through its view."""
        copied = self.names[base].copy_scale
        for name in self.names.values():
            views = name.binding.owner
            if name.base == base and views and views[-1].scale == copied:
                if not has_copies(views[-1].layout) or all(is_whole(v.layout) for v in views):
                    return None
                paths = (unflatten(rank, name.counts) for rank in range(name.copies))
                return [numpy_index(self.composed(name, path)) for path in paths]
        return None

    def storage(self, name: Name, unit: Unit) -> StoredArray:
        found = (unit.frame if name.private else self.frame).get((name.base, unit.path[: name.owner_depth]))
        found = self.renew(name, unit, keep=False) if found is None else found
        return found if name.reshaped is None else found.reshaped(*name.reshaped)

    def renew(self, name: Name, unit: Unit, keep: bool) -> StoredArray:
        """Return a new tile in which nothing is written; with ``keep``, the one there is."""
        key = (name.base, unit.path[: name.owner_depth])
        frame = unit.frame if name.private else self.frame
        if keep and key in frame:
            return frame[key]
        alloc = name.alloc
        assert alloc is not None
        made = StoredArray.tile(name.base, alloc.shape, alloc.dtype, name.copies, zero=alloc.flag)
        frame[key] = made
        if self.made is not None:
            self.made[key] = made
        return made

    def copies(self, name: Name, unit: Unit) -> tuple[int, int]:
        """Return the copies a unit reaches: its own, or all those below it."""
        if name.copies == 1:
            return (0, 1)
        mine = unit.path[name.owner_depth : name.copy_depth]
        index = flatten(mine, name.counts[: len(mine)])
        inside = math.prod(name.counts[len(mine) :])
        return (index * inside, (index + 1) * inside)

    def share(self, name: Name, unit: Unit) -> Part | None:
        """Return this unit's indices of every dimension in the storage; None is all of them."""
        return self.part(name, unit) if name.binding.views else None

    def part(self, name: Name, unit: Unit) -> Part:
        """Return the indices, in the storage, of the part that a name means for a unit."""
        key = (name.name, unit.path[: name.depth])
        if key not in self.parts:
            self.parts[key] = self.composed(name, unit.path[name.owner_depth :])
        return self.parts[key]

    def composed(self, name: Name, path: tuple[int, ...]) -> Part:
        """Return the shares of all views one inside the other, for the unit at ``path`` below the owner."""
        return seen(self.launch, name.binding.owner, name.binding.shape, path, name.owner_depth)


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
        return {name.base for name in self.names.values()} - set(map(self.base, n.written(self.body)))

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
        touched = filter(None, map(n.remote, n.walk(self.body)))
        names = [self.names[self.base(name)] for name in touched]
        return {name.base: name for name in names if name.private}

    @cached_property
    def raceless(self) -> set[str]:
        """Storages that need no race check: constant ones, and tiles that only their own unit touches."""
        shared = set(self.remote)
        for scale, node in n.with_scales(self.body, ROOT):
            if isinstance(node, n.Copy) and node.src is not None:
                shared.add(self.base(node.source.source))
            touched = {self.base(region.source) for _, region in n.regions(node)}
            shared |= {base for base in touched if self.names[base].owner != scale}
        return self.constant | {name.base for name in self.names.values() if name.base not in shared}
