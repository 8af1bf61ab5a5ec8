"""Homes: where the elements behind every name of a Program lie.

A *home* is one tile of the Plan. A tensor argument is divided over the units of its home scale (the devices,
or the cores of a machine whose memory is theirs) as its view there says, and every unit holds its own part
with local indices; without such a view there is one copy. A tile (``T.alloc``) belongs to the level of the
Plan at or above its scale; what units inside an instance of that level have of their own (their tiles, or
copies of a replicated one) are slices of a leading dimension (``lead``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from megatile.core.placement import Owner, Shard, has_copies, share_length
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.launch import ROOT, Launch, Param
from megatile.ir.program import Binding, Program, bindings, placements, seen
from megatile.lowering.errors import cannot


@dataclass(frozen=True)
class Home:
    """One tile of the Plan. ``depth``: of the scale whose units own one; ``copy_depth``: of those that have a
    slice of the ``lead``; ``views``: how a tensor is divided, outermost first."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    memory: str
    depth: int
    lead: int = 1
    copy_depth: int = 0
    views: n.Chain = ()
    tensor: bool = False
    shared: bool = False
    """One copy for the whole launch."""
    flag: bool = False
    spread: bool = False
    """Whether it lies in the memories of the units of its home, in blocks."""
    scattered: bool = False
    """Whether units hold indices of a tensor that are no run: only local indices make sense then."""

    @property
    def extents(self) -> tuple[int, ...]:
        """The tile's extents, with the leading one of slices."""
        return (self.lead, *self.shape) if self.lead > 1 else self.shape

    def __str__(self) -> str:
        layout = "".join(f" as {view.layout} over {view.scale}" for view in self.views)
        slices = f", {self.lead} slices" if self.lead > 1 else ""
        spread = ", spread" if self.spread else ""
        return f"{self.name}: {self.dtype}{list(self.shape)} in {self.memory}{slices}{layout}{spread}"


class Homes:
    """The homes of a Program's tensors; those of its tiles follow when their level is known (``tile``)."""

    def __init__(self, program: Program, hda: HDA):
        self.program, self.hda, self.launch = program, hda, program.launch
        self.table = dict(bindings(program))
        self.layouts = placements(program)
        self.device_depth = device_depth(self.launch, hda)
        depths = sorted({self.memory_depth(), self.device_depth}, reverse=True)
        self.found: dict[str, Home] = {p.name: self.tensor(p, depths) for p in program.params}
        self.gathered: dict[str, Home] = {}
        """Divided tensors that were gathered: where every unit's whole copy lies."""

    def memory_depth(self) -> int:
        """Return the depth of the smallest scale that has device memory of its own, not below the dispatched
        one."""
        memory = self.hda.level(self.hda.memory("l2").level).position
        found = self.device_depth
        for at, scale in enumerate(self.launch.scales[: self.launch.depth(self.launch.dispatch)]):
            if self.hda.level(self.hda.scale(scale.name).level).position >= memory:
                found = max(found, at + 1)
        return found

    def tensor(self, param: Param, depths: list[int]) -> Home:
        """Return the home of a tensor, divided over the units at the first of ``depths`` where it has
        views."""
        name, shape = param.name, tuple(int(e) for e in param.shape)
        memory, spread = self.hda.memory("l2").name, self.is_spread()
        for depth in depths:
            views = self._views(name, depth)
            if views:
                largest, scattered = self._largest(shape, views)
                return Home(
                    name, largest, param.dtype, memory, depth, views=views, tensor=True,
                    spread=spread and depth == self.device_depth, scattered=scattered,
                )  # fmt: skip
        several = self.launch.count(self.launch.at(self.device_depth)) > 1
        return Home(
            name, shape, param.dtype, memory, self.device_depth, tensor=True, shared=several, spread=spread
        )

    def is_spread(self) -> bool:
        """Return whether device memory belongs to units inside a device and the launch has several of
        them."""
        launch, device = self.launch, self.launch.at(self.device_depth)
        memory, whole = self.hda.memory("l2").level, self.hda.scale(device).level
        below = self.hda.level(memory).position < self.hda.level(whole).position
        return below and not launch.resident and launch.count(launch.dispatch, device) > 1

    def _views(self, base: str, depth: int) -> n.Chain:
        """Return the views of a tensor down to a scale, if any divides or copies it there."""
        scale = self.launch.scales[depth - 1].name
        for binding in self.table.values():
            if binding.base == base and binding.owner and binding.owner[-1].scale == scale:
                return binding.owner
        return ()

    def _largest(self, shape: tuple[int, ...], views: n.Chain) -> tuple[tuple[int, ...], bool]:
        """Return the extents that hold any unit's part (the first unit's, where shares are equal, rounded
        up), and whether any unit has indices that are no run."""
        if any(uneven(view.layout) for view in views):
            parts = self.parts(shape, views)
        else:
            parts = [seen(self.launch, views, shape, (0,) * self.launch.depth(views[-1].scale))]
        lengths = zip(*(_lengths(p) for p in parts), strict=True)
        return tuple(map(max, lengths)), any(not isinstance(share, tuple) for p in parts for share in p)

    def parts(self, shape: tuple[int, ...], views: n.Chain) -> list[Any]:
        """Per unit of the last view's scale, the indices of every dimension that it holds."""
        counts = [s.count for s in self.launch.scales[: self.launch.depth(views[-1].scale)]]
        return [seen(self.launch, views, shape, path) for path in np.ndindex(*counts)]

    def part_lengths(self, binding: Binding) -> tuple[int, ...]:
        """Return the extents of what a name means for the first unit: no other's part is larger."""
        low, high = (self.launch.depth(s) for s in (self.table[binding.base].scale, binding.scale))
        return _lengths(seen(self.launch, binding.owner, binding.shape, (0,) * (high - low), low))

    def tile(self, node: n.Alloc, level_depth: int) -> Home:
        """Return the home of a tile that a level at ``level_depth`` keeps."""
        owner = max(self.launch.depth(node.scale), level_depth)
        layouts = self.layouts.get(node.name, {})
        copied = [self.launch.depth(s) for s, layout in layouts.items() if has_copies(layout)]
        deepest = max([owner, *copied])
        lead = math.prod(s.count for s in self.launch.scales[level_depth:deepest])
        home = Home(node.name, node.shape, node.dtype, node.level, level_depth, lead, deepest, flag=node.flag)
        self.found[node.name] = home
        return home

    def gather(self, node: n.Collective, depth: int) -> Home | None:
        """Return the home of the whole, for every unit at ``depth``, of a divided tensor that is gathered:
        from here on the tensor's own name means that. None: nothing is gathered, or no parts are."""
        if node.kind != "gather_view" or not self.home(node.to[0].source).views:
            return None
        base = self.table[node.to[0].source].base
        home = self.found[base]
        if home.scattered or node.axis is not None:
            raise cannot("T.allgather of a tensor whose parts are not contiguous, or along an axis,", node)
        for other in n.walk(self.program.body):
            for kind, region in n.regions(other):
                bound = self.table[region.source]
                if kind != "read" and bound.base == base and not bound.owner:
                    raise cannot(f"a write to '{base}', which is gathered elsewhere,", other)
        if base not in self.gathered:
            shape = tuple(int(e) for e in self.program.param(base).shape)
            made = Home(f"{base}_whole", shape, home.dtype, home.memory, depth)
            self.found[made.name] = self.gathered[base] = made
        return self.gathered[base]

    def home(self, name: str) -> Home:
        binding = self.table[name]
        whole = None if binding.owner else self.gathered.get(binding.base)
        return whole or self.found[binding.base]


def device_depth(launch: Launch, hda: HDA) -> int:
    """Return the depth of the units that start instances of a launch."""
    return launch.depth(launch.host if launch.host != ROOT else hda.scale("device").name)


def _lengths(shares: Any) -> tuple[int, ...]:
    return tuple(share_length(s) for s in shares)


def uneven(layout: Any) -> bool:
    """Return whether a layout gives indices that are no run."""
    return isinstance(layout, Owner) or (isinstance(layout, Shard) and layout.order != "contiguous")
