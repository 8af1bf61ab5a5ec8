"""Divide a range of elements into parts, for numbers and for expressions."""

from __future__ import annotations

from dataclasses import dataclass

from megatile.core.expr import IntLike, constant, expr, minimum
from megatile.plan.build import Handle, Part
from megatile.plan.model import Region


def piece(handle: Handle, start: IntLike, length: IntLike) -> Part:
    """Return ``length`` elements of a one-dimensional tile from ``start``."""
    return Part(handle, Region(handle.name, (expr(start),), (expr(length),)))


@dataclass(frozen=True)
class Blocks:
    """``count`` elements from ``base`` in ``parts`` blocks, as ``numpy.array_split`` cuts them.

    ``count`` and ``base`` may depend on the unit; ``limit`` is the most that ``count`` can be.
    """

    count: IntLike
    parts: int
    base: IntLike = 0
    limit: int = 0

    @property
    def most(self) -> int:
        """Elements of the largest block, known while planning."""
        known = constant(self.count)
        return -(-(self.limit if known is None else known) // self.parts)

    def start(self, index: IntLike) -> IntLike:
        """Return where block ``index`` begins (``parts`` gives the end of the last)."""
        even, rest = self._cut()
        if constant(rest) == 0:
            return expr(index) * even + self.base
        return expr(index) * even + minimum(index, rest) + self.base

    def length(self, index: IntLike) -> IntLike:
        even, rest = self._cut()
        if constant(rest) == 0:
            return expr(even)
        return (expr(index) < rest) + even

    def stretch(self, index: IntLike, blocks: IntLike) -> tuple[IntLike, IntLike]:
        """Start and length of ``blocks`` neighbouring blocks from ``index``."""
        even, rest = self._cut()
        first = self.start(index)
        if constant(rest) == 0:
            return first, expr(blocks) * even
        return first, self.start(expr(index) + blocks) - expr(first)

    def _cut(self) -> tuple[IntLike, IntLike]:
        known = constant(self.count)
        if known is not None:
            return divmod(known, self.parts)
        return expr(self.count) // self.parts, expr(self.count) % self.parts

    def part(self, handle: Handle, index: IntLike) -> Part:
        return piece(handle, self.start(index), self.length(index))

    def inside(self, index: IntLike, parts: int) -> Blocks:
        """Block ``index`` cut again."""
        return Blocks(self.length(index), parts, self.start(index), self.most)


@dataclass(frozen=True)
class _Joined(Blocks):
    """Blocks made of ``width`` neighbouring ones of ``finer``, from number ``first`` on."""

    finer: Blocks = Blocks(0, 1)
    first: IntLike = 0
    width: int = 1

    def start(self, index: IntLike) -> IntLike:
        return self.finer.start(expr(index) * self.width + self.first)

    def length(self, index: IntLike) -> IntLike:
        return self.finer.stretch(expr(index) * self.width + self.first, self.width)[1]


def joined(finer: Blocks, first: IntLike, width: int, parts: int) -> Blocks:
    """Return ``parts`` blocks, each of ``width`` neighbouring blocks of ``finer``, from its block ``first``
    on."""
    start, count = finer.stretch(first, width * parts)
    return _Joined(count, parts, start, finer.most * width * parts, finer, first, width)
