"""Which tiles in shared memory are swizzled: factors of products, whose rows would meet in banks."""

from __future__ import annotations

from megatile.core.dtypes import itemsize
from megatile.ir import nodes as n
from megatile.ir.program import Program
from megatile.targets.cuda.fragments import by_tensor_cores
from megatile.targets.interpret.places import Name

SMALLEST = 32
"""Bytes of a row with more than one chunk of 16 to exchange."""


def swizzled(program: Program, names: dict[str, Name], reached: set[str]) -> set[str]:
    """Tiles whose chunks of 16 bytes are exchanged (``Swizzled`` in device.h): factors on tensor cores with
    rows of a power of two of bytes, which only their own unit takes, by their own name, not by atomics."""
    every = list(n.walk(program.body))
    factors = {
        region.source
        for node in every
        if isinstance(node, n.Gemm) and by_tensor_cores(node, names)
        for region in (node.a, node.b)
    }
    refused = reached | {x.base for x in names.values() if x.binding.owner or x.reshaped is not None}
    for node in every:
        if isinstance(node, n.Atomic):
            refused.add(node.target)
        elif isinstance(node, n.AtomicRegion):
            refused.add(node.to.source)
    return {
        a.name
        for a in every
        if isinstance(a, n.Alloc) and a.name in factors - refused and suits(a.shape[-1] * itemsize(a.dtype))
        and names[a.name].copies == 1
    }  # fmt: skip


def suits(row: int) -> bool:
    return row >= SMALLEST and row & (row - 1) == 0
