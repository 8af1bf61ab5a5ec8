"""Which tiles in shared memory are swizzled: factors of products, whose rows would meet in banks.

The CUDA text is written with this layout, and the simulator counts turns in banks with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from megatile.core.dtypes import itemsize
from megatile.core.expr import constant
from megatile.ir import nodes as n
from megatile.ir.program import Binding, Program, bindings

TENSOR_CORES = {
    "f16": ("f32", "f16", "bf16"), "bf16": ("f32", "f16", "bf16"), "f8e4m3": ("f32", "f16", "bf16"),
    "f8e5m2": ("f32", "f16", "bf16"), "i8": ("i32",), "u8": ("i32",),
}  # fmt: skip
"""The factors that tensor cores multiply, and the sums that they can be added to."""
DEEP = 32
"""Bytes of each row that one instruction multiplies."""
SMALLEST = 32
"""Bytes of a row with more than one chunk to exchange."""
CHUNK = 16
"""Bytes that stay together."""
LINE = 128
"""Bytes of all banks once."""


def by_tensor_cores(node: n.Gemm, names: Mapping[str, Binding]) -> bool:
    """Whether tensor cores have the dtypes of a product, in steps of the depth that they have."""
    a, b, c = (names[r.source].dtype for r in (node.a, node.b, node.c))
    inner = constant(node.a.extents[-2 if node.transpose_a else -1]) or 1
    return a == b and c in TENSOR_CORES.get(a, ()) and inner * itemsize(a) % DEEP == 0


def swizzled(program: Program) -> set[str]:
    """Return tiles whose chunks of 16 bytes are exchanged: factors on tensor cores with rows of a power of
    two of bytes, which only their own unit takes, by their own name, not by atomics."""
    every, names = list(n.walk(program.body)), bindings(program)
    allocs = {a.name: a for a in every if isinstance(a, n.Alloc)}
    factors = {
        region.source
        for node in every
        if isinstance(node, n.Gemm) and by_tensor_cores(node, names)
        for region in (node.a, node.b)
    }
    refused = reached(program) | {b.base for b in names.values() if b.owner or _reshaped(b, allocs)}
    for node in every:
        if isinstance(node, n.Atomic):
            refused.add(node.target)
        elif isinstance(node, n.AtomicRegion):
            refused.add(node.to.source)
    return {
        name
        for name, a in allocs.items()
        if name in factors - refused and suits(a.shape[-1] * itemsize(a.dtype))
    }


def _reshaped(binding: Binding, allocs: Mapping[str, n.Alloc]) -> bool:
    """Whether a name reads the elements of a tile with another shape or dtype."""
    alloc = allocs.get(binding.base)
    if alloc is None or binding.views or not binding.shape:
        return False
    return tuple(binding.shape) != tuple(alloc.shape) or binding.dtype != alloc.dtype


def suits(row: int) -> bool:
    return row >= SMALLEST and row & (row - 1) == 0


def reached(program: Program) -> set[str]:
    """Return tiles that other units may touch: by views, copies to peers, signals and collectives."""
    found = {a.name for a in n.walk(program.body) if isinstance(a, n.Alloc) and (a.flag or a.parts)}
    for node in n.walk(program.body):
        if isinstance(node, n.Reshape):
            found.add(node.source)
        elif isinstance(node, n.Collective) or (
            isinstance(node, n.Copy) and (node.dst is not None or node.src is not None)
        ):
            found |= {region.source for _, region in n.regions(node)}
    return found


def exchanged(at: int, pitch: int, width: int) -> int:
    """Return the place of element ``at`` of a swizzled tile with rows of ``pitch`` elements of ``width``
    bytes: ``Swizzled`` of device.h."""
    row = pitch * width
    line, ways = max(row, LINE) // width, min(row // CHUNK, 8)
    return at ^ (at // line % ways * (CHUNK // width))
