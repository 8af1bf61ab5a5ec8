"""Memory that a kernel reaches by raw addresses: a tile of its own for each block of each type.

Addresses count bytes of a memory of the unit. A block may be written again with another type or size; what
was there is then gone, and reading it is an error.
"""

from __future__ import annotations

from typing import Any

from megatile.core.dtypes import itemsize
from megatile.core.expr import Expr, bounds, constant, simplify
from megatile.plan.handles import Handle, Part

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
        """A block at an address: inside one used before, apart from all of them, or instead of some."""
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
    """How far an address lies behind a block's; None if the two are apart."""
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
