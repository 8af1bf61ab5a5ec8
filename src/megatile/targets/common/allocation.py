"""Where tensors and tiles lie: arguments, memory of the launch, or memory of one dispatched instance."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from megatile.core.dtypes import itemsize
from megatile.core.expr import Const, Expr, binary
from megatile.ir import nodes as n
from megatile.ir.launch import Launch
from megatile.ir.program import Program
from megatile.ir.signals import dispatched
from megatile.targets.common.elements import c_type, held
from megatile.targets.interpret.places import Name, Places

LINE = 64
"""Bytes of a line of a cache: where tiles begin."""
Path = dict[str, Expr]
"""The index of a unit at every scale of the launch down to its own."""


@dataclass
class Storage:
    """Elements of a tensor or tile: ``copies`` after each other, for every unit that owns one."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    copies: int
    home: str
    """``argument``, ``launch`` or ``instance``."""
    above: tuple[str, ...] = ()
    """The scales whose units have one each (in the launch, or in the instance)."""
    offset: int = 0
    wide: bool = False
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.strides = self.strides or row_major(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def c_type(self) -> str:
        return c_type(held(self.dtype, self.wide))

    def bytes(self, launch: Launch) -> int:
        count = math.prod(launch.scales[launch.depth(s) - 1].count for s in self.above)
        return count * self.copies * max(self.size, 1) * itemsize(held(self.dtype, self.wide))


def rounded(size: int, line: int = LINE) -> int:
    """Return bytes, in whole lines."""
    return -(-size // line) * line


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def tiles(body: tuple[n.Node, ...]) -> Iterator[n.Alloc]:
    return (node for node in n.walk(body) if isinstance(node, n.Alloc))


class Allocation:
    """All storages of a program."""

    def __init__(self, program: Program):
        self.program, self.launch = program, program.launch
        self.places = Places(program)
        self.names: dict[str, Name] = self.places.names
        self.table: dict[str, Storage] = {}
        self.launch_bytes = self.instance_bytes = 0
        self.viewed = {name.base for name in self.names.values() if name.binding.owner}
        reshaped = {name.base for name in self.names.values() if name.reshaped is not None}
        for param in program.params:
            shape = tuple(int(e) for e in param.shape)
            self.table[param.name] = Storage(
                param.name, param.dtype, shape, self.names[param.name].copies, "argument"
            )
        instances = {
            alloc.name: min(self.launch.depth(region.scale), self.launch.depth(self.launch.dispatch))
            for region in dispatched(program.body, self.launch)
            for alloc in tiles(region.body)
        }
        """By tile, the depth of the dispatched instance it is in."""
        for alloc in tiles(program.body):
            self._tile(alloc, instances.get(alloc.name), alloc.name not in reshaped)

    def _tile(self, alloc: n.Alloc, instance: int | None, free: bool) -> None:
        """Find the place of a tile: ``free`` if nothing looks at it with another shape."""
        raise NotImplementedError

    def storage(self, name: str) -> Storage:
        """Return the storage of a name, read with the shape and dtype that a reshape gave it."""
        found = self.names[name]
        base = self.table[found.base]
        if found.reshaped is None:
            return base
        shape, dtype = found.reshaped
        return Storage(base.name, dtype, tuple(shape), base.copies, base.home, base.above, base.offset)

    def is_plain(self, name: str, home: str) -> bool:
        """Return whether a name means all of a storage that lies so, with its own shape, and there are no
        copies."""
        found, storage = self.names[name], self.storage(name)
        return (storage.home, storage.copies) == (home, 1) and not found.binding.owner and not found.reshaped

    def place(self, name: str, path: Path, depth: int) -> tuple[Expr, int, int]:
        """Return the element at which the copy of a unit begins; how many copies the unit reaches, and from
        one to the next."""
        found, storage = self.names[name], self.storage(name)
        unit = self.flat(storage.above, path)
        mine = self.launch.scales[found.owner_depth : min(depth, found.copy_depth)]
        inside = math.prod(found.counts[len(mine) :])
        copy = binary("*", self.flat(tuple(s.name for s in mine), path), inside)
        if found.copies == 1:
            copy, inside = Const(0), 1
        start = binary("*", binary("+", binary("*", unit, storage.copies), copy), storage.size)
        return start, inside, storage.size

    def flat(self, scales: tuple[str, ...], path: Path) -> Expr:
        result: Expr = Const(0)
        for scale in scales:
            result = binary(
                "+", binary("*", result, self.launch.scales[self.launch.depth(scale) - 1].count), path[scale]
            )
        return result
