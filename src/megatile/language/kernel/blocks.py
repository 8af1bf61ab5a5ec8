"""Blocks of tensors and messages: from flat addresses and sizes to regions."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from megatile.core.dtypes import itemsize
from megatile.core.expr import ONE, ZERO, Expr, divide, expr
from megatile.language.kernel.symbols import KernelError
from megatile.language.kernel.values import Tensor
from megatile.plan.handles import Handle, Part
from megatile.plan.model import Region


def flat_region(tensor: Tensor, first: Expr, count: int, ranges: Any) -> Region | None:
    """``count`` elements from element ``first`` on, as a block of the tensor; None if they are none."""
    if first == ZERO and count == prod(tensor.shape):
        return Region(tensor.name)
    if len(tensor.shape) == 1:
        return Region(tensor.name, (first,), (expr(count),))
    inner = prod(tensor.shape[1:])
    row, rest = divide(first, inner, ranges)
    if rest == ZERO and count % inner == 0:
        start = (row, *([ZERO] * (len(tensor.shape) - 1)))
        return Region(tensor.name, start, (expr(count // inner), *(expr(s) for s in tensor.shape[1:])))
    if len(tensor.shape) == 2 and count <= inner:
        return Region(tensor.name, (row, rest), (ONE, expr(count)))
    return None


def sub_block(source: Handle | Part, start: tuple[int, ...], shape: tuple[int, ...]) -> Part:
    handle = source if isinstance(source, Handle) else source.handle
    inner = source.region.start if isinstance(source, Part) and source.region.start else ()
    base = inner or (ZERO,) * len(shape)
    region = Region(
        handle.name,
        tuple(b + s for b, s in zip(base, start, strict=True)),
        tuple(expr(s) for s in shape),
        source.region.at if isinstance(source, Part) else None,
    )
    return Part(handle, region)


def shaped_as(part: Part, extents: tuple[int, ...]) -> Part:
    if len(part.region.start or part.handle.shape) != len(extents):
        raise KernelError("a message in pieces needs a destination of the same shape")
    return part


MOST_PIECES = 10_000


def blocks_of(shape: tuple[int, ...], most: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Blocks of at most ``most`` elements that together are the shape, in memory order."""
    if prod(shape) <= most:
        yield (0,) * len(shape), shape
        return
    inner = prod(shape[1:])
    if inner <= most:
        rows = most // inner
        for start in range(0, shape[0], rows):
            yield (start, *(0,) * (len(shape) - 1)), (min(rows, shape[0] - start), *shape[1:])
        return
    for row in range(shape[0]):
        for inside, piece in blocks_of(shape[1:], most):
            yield (row, *inside), (1, *piece)


def pieces_of(
    tl: Any, shape: tuple[int, ...], element: str, slot_size: int | None, split: bool
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """A message as the blocks that fit a slot: (start, shape) each."""
    nbytes = prod(shape) * itemsize(element)
    if slot_size is None or nbytes <= slot_size:
        return [((0,) * len(shape), shape)]
    if not split:
        raise tl.error(
            f"a tile of {nbytes} bytes does not fit a slot of {slot_size} bytes",
            advice="give a larger slot_size, or split=True to send it in pieces",
        )
    if slot_size < itemsize(element):
        raise tl.error(f"not even one element of {element} fits a slot of {slot_size} bytes")
    most = slot_size // itemsize(element)
    if prod(shape) > MOST_PIECES * most:
        raise tl.error(
            f"a tile of {nbytes} bytes in slots of {slot_size} bytes makes more than {MOST_PIECES} messages",
            advice="give a larger slot_size",
        )
    return list(blocks_of(shape, most))
