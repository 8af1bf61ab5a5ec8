"""Short vectors in one value: ``T.float32x4``, ``T.ldg128``, ``T.Broadcast``, indices by ``T.Ramp``.

A vector is its lanes: numbers of the program, each with an expression of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

from megatile.core.dtypes import itemsize
from megatile.core.expr import Const, Symbol, known, simplify
from megatile.ir import nodes as n
from megatile.language.tile.builder import current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.functions import bitcast, if_then_else
from megatile.language.tile.operations import element_of
from megatile.language.tile.regions import operand
from megatile.language.tile.scalars import Value, as_expr, operate
from megatile.language.tile.tiles import Ref, Tile

MAX_LANES = 64
"""Lanes of the widest vector type of TileLang."""


@dataclass(frozen=True)
class Vector:
    """Numbers side by side; operators work lane by lane."""

    lanes: tuple[Any, ...]

    def _with(self, other: Any, operator: str, turned: bool = False) -> Vector:
        others = other.lanes if isinstance(other, Vector) else (other,) * len(self.lanes)
        pairs = zip(others, self.lanes, strict=True) if turned else zip(self.lanes, others, strict=True)
        return Vector(tuple(operate(operator, a, b) for a, b in pairs))

    def __add__(self, other: Any) -> Vector:
        return self._with(other, "+")

    def __radd__(self, other: Any) -> Vector:
        return self._with(other, "+", True)

    def __sub__(self, other: Any) -> Vector:
        return self._with(other, "-")

    def __rsub__(self, other: Any) -> Vector:
        return self._with(other, "-", True)

    def __mul__(self, other: Any) -> Vector:
        return self._with(other, "*")

    def __rmul__(self, other: Any) -> Vector:
        return self._with(other, "*", True)

    def __truediv__(self, other: Any) -> Vector:
        return self._with(other, "/")


@dataclass(frozen=True)
class Ramp:
    """``T.Ramp(base, stride, lanes)``: an index of several elements; those below zero count from the end."""

    base: Any
    stride: Any
    lanes: int

    def places(self, extent: Any) -> list[Any]:
        found = [self.base + self.stride * i for i in range(int(self.lanes))]
        return [
            if_then_else(operate("<", at, 0), at + extent, at)
            if isinstance(at, Value)
            else at + extent * (at < 0)
            for at in found
        ]


def elements(tile: Any, index: Any) -> list[Any] | None:
    """The indices of each lane where a part of ``index`` is a ramp, otherwise None."""
    parts = index if isinstance(index, tuple) else (index,)
    ramps = [part for part in parts if isinstance(part, Ramp)]
    if not ramps:
        return None
    if len({int(ramp.lanes) for ramp in ramps}) > 1:
        raise ProgramError("ramps of different lengths in one index", advice="give each the same lanes")
    lists = [
        part.places(tile.shape[d]) if isinstance(part, Ramp) else [part] * int(ramps[0].lanes)
        for d, part in enumerate(parts)
    ]
    return list(zip(*lists, strict=True))


def Broadcast(value: Any, lanes: Any) -> Vector:
    """The same number in every lane."""
    return Vector((value,) * int(lanes))


def extract_lane(vector: Any, lane: Any) -> Any:
    """One lane of a vector."""
    if not isinstance(vector, Vector):
        raise ProgramError("T.extract_lane expects a vector expression", advice="T.float32x2(a, b)")
    if not isinstance(lane, int) or not 0 <= lane < len(vector.lanes):
        raise ProgramError(f"lane {lane!r} is out of bounds", advice=f"0 to {len(vector.lanes) - 1}")
    return vector.lanes[lane]


def named(value: Any) -> Value:
    """A variable with the value that an expression has here."""
    builder = current()
    builder.open_implied()
    expr = as_expr(value)
    name = builder.variable("lane")
    builder.emit(n.Let, name=name, value=expr)
    return Value(Symbol(name, expr.dtype))


def lanes_of(value: Any, count: int | None = None) -> list[Ref]:
    """The elements of a region, or so many from one element on."""
    if isinstance(value, Ref) and value.is_element:
        *front, last = value.dims
        return [Ref(value.tile, (*front, n.Dim(simplify(last.start + Const(i))))) for i in range(count or 1)]
    side = operand(value, "a vector")
    extents = [known(simplify(e)) for e in side.extents]
    if any(e is None for e in extents) or math.prod(e or 0 for e in extents) > MAX_LANES:
        raise ProgramError(f"a vector of '{side.tile.name}'", advice=f"give at most {MAX_LANES} elements")
    wide = [[Const(i) for i in range(e or 0)] for e in extents]
    return [element_of(side, list(place)) for place in product(*wide)]


def store(target: Any, value: Any) -> None:
    """Put the lanes of a vector (or a number) into the elements of a region."""
    places = lanes_of(target, len(value.lanes) if isinstance(value, Vector) else 1)
    values = value.lanes if isinstance(value, Vector) else (value,) * len(places)
    if len(places) != len(values):
        raise ProgramError(
            f"a vector of {len(values)} lanes for {len(places)} elements", advice="give equal numbers"
        )
    for place, lane in zip(places, values, strict=True):
        place.tile[tuple(map(Value, place.index))] = lane


def reinterpreted(vector: Vector, short: str, lanes: int) -> Any:
    """The lanes read as another dtype of as many bytes; the value itself where there is one."""
    if len(vector.lanes) != lanes or itemsize(as_expr(vector.lanes[0]).dtype) != itemsize(short):
        raise ProgramError(
            f"T.reinterpret of {len(vector.lanes)} lanes as {lanes} of {short}",
            advice="read as many lanes of the same size",
        )
    found = tuple(bitcast(lane, short) for lane in vector.lanes)
    return found[0] if lanes == 1 else Vector(found)


def _load(bits: int) -> Any:
    def load(src: Any, pred: Any = None) -> Any:
        """So many bits from an element on; zeros where the predicate does not hold."""
        tile = src if isinstance(src, Tile) else src.tile
        count = bits // 8 // itemsize(tile.dtype)
        if isinstance(src, Tile):
            src = src[(0,) * len(src.shape)]
        found = lanes_of(src, count)
        if len(found) != count:
            raise ProgramError(
                f"{bits} bits are {count} elements of {tile.dtype}, not {len(found)}",
                advice=f"give {count} elements",
            )
        held = found if pred is None else [if_then_else(pred, one, 0) for one in found]
        vector = Vector(tuple(map(named, held)))
        return bitcast(vector.lanes[0], "u32") if bits == 32 and count == 1 else vector

    return load


def _store(bits: int) -> Any:
    def put(dst: Any, value: Any, pred: Any = None) -> None:
        """So many bits to an element and those after it, where the predicate holds."""
        tile = dst if isinstance(dst, Tile) else dst.tile
        if isinstance(dst, Tile):
            dst = dst[(0,) * len(dst.shape)]
        value = value if isinstance(value, Vector) else Vector((value,))
        wide = Vector(tuple(bitcast(lane, tile.dtype) for lane in value.lanes))
        if pred is None:
            store(dst, wide)
            return
        with current().inside(n.If, condition=as_expr(pred)):
            store(dst, wide)

    return put


def read_only(element: Any, index: Any = None) -> Any:
    """An element, or that of a tile at an index, through the cache of what is only read."""
    return element if index is None else element[index]


LOADS = {f"{word}{bits}": _load(bits) for word in ("ldg", "lds") for bits in (32, 64, 128, 256)}
STORES = {f"{word}{bits}": _store(bits) for word in ("stg", "sts") for bits in (32, 64, 128, 256)}
WORDS: dict[str, Any] = {
    **LOADS, **STORES, "__ldg": read_only, "Broadcast": Broadcast, "Ramp": Ramp,
    "extract_lane": extract_lane,
}  # fmt: skip
