"""Where tiles lie on the CPU: in the memory of one dispatched instance, or of the launch."""

from __future__ import annotations

from megatile.ir import nodes as n
from megatile.ir.program import Program
from megatile.targets.common.allocation import Allocation, Storage
from megatile.targets.common.elements import NARROW
from megatile.targets.cpu.passes import by_columns, operands

LINE = 64


class CpuAllocation(Allocation):
    def __init__(self, program: Program, words: frozenset[str]):
        self.by_columns, self.operands = by_columns(program), operands(program)
        self.words = words
        super().__init__(program)

    def _tile(self, alloc: n.Alloc, instance: int | None, free: bool) -> None:
        name = self.names[alloc.name]
        private = name.private and instance is not None
        low = instance if private and instance is not None else 0
        above = tuple(s.name for s in self.launch.scales[low : name.owner_depth])
        as_words = alloc.dtype in self.words and alloc.name in self.operands
        wide = free and private and alloc.dtype in NARROW and not as_words
        free_columns = alloc.name in self.by_columns and alloc.name not in self.viewed
        turned = free and private and len(alloc.shape) == 2 and free_columns
        strides = (1, alloc.shape[0]) if turned else ()
        made = Storage(
            alloc.name,
            alloc.dtype,
            alloc.shape,
            name.copies,
            "instance" if private else "launch",
            above,
            wide=wide,
            strides=strides,
        )
        size = -(-made.bytes(self.launch) // LINE) * LINE
        if private:
            made.offset, self.instance_bytes = self.instance_bytes, self.instance_bytes + size
        else:
            made.offset, self.launch_bytes = self.launch_bytes, self.launch_bytes + size
        self.table[alloc.name] = made
