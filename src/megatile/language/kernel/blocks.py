"""Blocks of tensors and messages: from flat addresses and sizes to regions."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from megatile.core.dtypes import itemsize
from megatile.core.expr import ONE, ZERO, Expr, bounds, constant, divide, expr, simplify
from megatile.language.kernel.symbols import KernelError
from megatile.language.kernel.values import Tensor
from megatile.plan.handles import Handle, Part
from megatile.plan.model import Region


def flat_region(tensor: Tensor, first: Expr, count: int, ranges: Any) -> Region | None:
    """Return ``count`` elements from element ``first`` on, as a block of the tensor; None if they are
    none."""
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
        raise KernelError(
            "a message in pieces needs a destination of the same shape",
            advice="receive it into a tile, or give a larger slot_size",
        )
    return part


MAX_PIECES = 10_000
"""Messages that one tile may be divided into."""


def blocks_of(shape: tuple[int, ...], most: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield blocks of at most ``most`` elements that together are the shape, in memory order."""
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
    """Return a message as the blocks that fit a slot: (start, shape) each."""
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
    if prod(shape) > MAX_PIECES * most:
        raise tl.error(
            f"a tile of {nbytes} bytes in slots of {slot_size} bytes makes more than {MAX_PIECES} messages",
            advice="give a larger slot_size",
        )
    return list(blocks_of(shape, most))


# --- Memory that a kernel reaches by raw addresses: a tile of its own for each block of each type -----------
#
# Addresses count bytes of a memory of the unit. A block may be written again with another type or size; what
# was there is then gone, and reading it is an error.


Key = tuple[str, Expr, int, str]
"""Memory, address, elements, type."""


class RawMemory:
    """The blocks used so far: ``known`` are all, ``live`` those that hold what was last written there."""

    def __init__(self) -> None:
        self.known: dict[Key, Handle] = {}
        self.live: dict[Key, Handle] = {}
        self.retyped = 0
        """How often a block was written over one of another type or size."""

    def mark(self) -> Any:
        return dict(self.known), dict(self.live), self.retyped

    def restore(self, mark: Any) -> None:
        self.known, self.live, self.retyped = dict(mark[0]), dict(mark[1]), mark[2]

    def block(self, tl: Any, address: Expr, count: int, element: str, memory: str, write: bool) -> Part:
        """Return a block at an address: inside one used before, apart from all of them, or instead of
        some."""
        size, replaced = itemsize(element), []
        for key, found in self.live.items():
            gap = _gap(tl, key, address, count * size, memory)
            if gap is None:
                continue
            known, length = constant(gap), key[2] * itemsize(key[3])
            inside = known is not None and known >= 0 and known + count * size <= length
            if known is not None and inside and found.dtype == element and known % size == 0:
                return found[known // size : known // size + count]
            if not write or known is None or tl.reader.branches:
                raise _refused(tl, key, address, f"{element}[{count}]", known, write)
            replaced.append(key)
        if not write:
            self._check_there(tl, address, count, element, memory)
        for key in replaced:
            del self.live[key]
            self.retyped += 1
        return self._new((memory, address, count, element), tl)[0:count]

    def _new(self, key: Key, tl: Any) -> Handle:
        memory, address, count, element = key
        if key not in self.known:
            offset = constant(address)
            if offset is not None and offset < 0:
                raise tl.error(f"address {offset} is below the memory", advice="addresses begin at 0")
            offset = None if offset is None else int(offset)
            self.known[key] = tl.reader.plan.tile("raw", (count,), element, memory=memory, offset=offset)
        self.live[key] = self.known[key]
        return self.known[key]

    def _check_there(self, tl: Any, address: Expr, count: int, element: str, memory: str) -> None:
        for key in self.known:
            if key not in self.live and _gap(tl, key, address, count * itemsize(element), memory) is not None:
                raise tl.error(
                    f"{element}[{count}] at {address}: what was there has been written over "
                    "with another type or size",
                    advice="load it before, or use another address",
                )


def _gap(tl: Any, key: Key, address: Expr, nbytes: int, memory: str) -> Expr | None:
    """Return how far an address lies behind a block's; None if the two are apart."""
    if key[0] != memory:
        return None
    gap = simplify(address - key[1])
    limits = bounds(gap, tl.reader.ranges)
    if limits is not None and (limits[0] >= key[2] * itemsize(key[3]) or limits[1] <= -nbytes):
        return None
    return gap


def _refused(tl: Any, key: Key, address: Expr, what: str, known: Any, write: bool) -> Exception:
    _, base, count, element = key
    there = f"{element}[{count}] at {base}"
    if known is None:
        advice = "use the same block, or addresses that are known to be apart"
    elif write:
        advice = "under a condition memory keeps its type and size: use another address"
    else:
        advice = f"load {element}[{count}] and convert it, or store {what} there first"
    verb = "overlaps" if known is not None else "may overlap"
    return tl.error(f"{what} at {address} {verb} {there}, which was used before", advice=advice)
