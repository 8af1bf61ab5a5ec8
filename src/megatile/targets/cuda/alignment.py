"""What is known of addresses while code is written: at how many bytes rows begin."""

from __future__ import annotations

from megatile.core.dtypes import itemsize
from megatile.core.expr import Expr, constant, linear, simplify
from megatile.ir import nodes as n
from megatile.ir.expr import Pick
from megatile.targets.common.elements import held
from megatile.targets.cuda.scope import DeviceScope

WIDEST = 16
"""Bytes that a thread moves at once."""


def row_alignment(scope: DeviceScope, region: n.Region) -> int:
    """Bytes, a power of two up to 16, that divide the address of the first element of every row of a region,
    that is, of its elements along the last dimension. Tensors and tiles begin at multiples of 16."""
    storages = scope.gen.storages
    storage = storages.storage(region.source)
    size = itemsize(held(storage.dtype, storage.wide))
    first, _, copies = storages.place(region.source, scope.path, scope.depth)
    places = [first] + [d.start * stride for d, stride in zip(region.dims, storage.strides, strict=True)]
    steps = [copies] if storage.copies > 1 else []
    for dim, stride in zip(region.dims, storage.strides, strict=True):
        if isinstance(dim.start, Pick):
            return 1
        if stride != 1 and dim.extent is not None and constant(dim.extent) != 1:
            steps.append(stride)
    return common_alignment(scope, places, steps, size)


def common_alignment(scope: DeviceScope, places: list[Expr], steps: list[int], size: int) -> int:
    """Bytes, a power of two up to 16, that divide places and steps in elements of ``size`` bytes."""
    steps = list(steps)
    for place in places:
        factors, left = linear(simplify(scope.own(place)))
        steps += [*factors.values(), left]
    width = WIDEST
    while width > size and any(step * size % width for step in steps):
        width //= 2
    return width
