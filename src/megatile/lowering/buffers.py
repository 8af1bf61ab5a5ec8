"""What is asked of the collectives library: a collective, its units, and what it reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from megatile.core.expr import known
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.lowering.regions import Block, length


@dataclass(frozen=True)
class Buffers:
    """What a collective reads (``x``) and writes (``y``; the same block where it is done in place), cut into
    rows along a dimension."""

    x: Block
    y: Block
    dim: int

    @classmethod
    def of(cls, node: n.Collective, x: Block, y: Block, units: int) -> Buffers | None:
        """Return those of a collective of ``units``, cut along its dimension or, where that does not matter,
        the longest that divides equally, or the longest; None: they have none, or not equally many."""
        if not x.kept_axes or len(x.kept_axes) != len(y.kept_axes):
            return None
        sizes = [known(x.axes[a].extent) or 0 for a in x.kept_axes]
        longest = max(range(len(sizes)), key=lambda d: (sizes[d] > 0 and sizes[d] % units == 0, sizes[d]))
        return cls(x, y, longest if node.kind in ("allreduce", "broadcast") else node.dim)

    @property
    def in_place(self) -> bool:
        return self.x.region() == self.y.region()

    def rows(self, block: Block) -> int | None:
        return known(length(block, self.dim))

    @property
    def row(self) -> tuple[int, ...] | None:
        """The extents of a row, with 1 for the dimension; None: they are not known, or not equal."""
        at = self.x.kept_axes[self.dim]
        if at != self.y.kept_axes[self.dim] or len(self.x.axes) != len(self.y.axes):
            return None
        found = []
        for d, (a, b) in enumerate(zip(self.x.axes, self.y.axes, strict=True)):
            sizes = [1, 1] if d == at else [known(a.extent), known(b.extent)]
            if sizes[0] is None or sizes[0] != sizes[1]:
                return None
            found.append(sizes[0])
        return tuple(found)


@dataclass(frozen=True)
class Asked:
    """What is asked of the library: a collective of ``size`` units of a scale on ``members`` of a machine."""

    machine: HDA
    scale: str
    node: n.Collective
    size: int
    members: Callable[[], list[int]]
    root: int | None
    """None: it is not a number."""
    buffers: Buffers | None
