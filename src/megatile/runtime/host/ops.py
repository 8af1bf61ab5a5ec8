"""Operations on tensors of one device, as ``tl`` kernels on its PEs.

A product divides its columns over the PEs; functions of elements run where the tensor lies, those of rows
where rows are whole. Tensors that lie otherwise are laid anew first: launches of copies within the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import inf, prod, sqrt
from typing import Any, NamedTuple

import numpy as np

from megatile.core.arguments import no_none
from megatile.core.basic_operations import OperationError
from megatile.core.dtypes import itemsize, numpy_dtype
from megatile.core.quantities import whole
from megatile.runtime.host.placement import DPPolicy, packed
from megatile.runtime.host.relayout import Move

QUERIES = 64
"""Rows of queries that attention works on at a time, at most."""


def dimension(dim: int, ndim: int) -> int:
    """Return the number of a dimension, which may be counted from the end."""
    if whole(dim) is None or not -ndim <= dim < ndim:
        raise OperationError(f"a tensor of {ndim} dimensions has no dimension {dim!r}")
    return int(dim) % ndim


def extents(size: Sequence[Any]) -> tuple[int, ...]:
    """Return a shape as torch's functions take it: as numbers, or as one tuple."""
    return tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else tuple(size)


def resolved(shape: Sequence[Any], count: int) -> tuple[int, ...]:
    """Return a shape for so many elements as torch's ``view`` takes it: one extent may be -1."""
    given = extents(shape)
    rest = prod(e for e in given if e != -1)
    found = tuple(count // max(1, rest) if e == -1 else e for e in given)
    if prod(found) != count or given.count(-1) > 1 or any(whole(e) is None or e < 0 for e in found):
        raise OperationError(f"{count} elements are not of shape {given}")
    return found


# where things lie


def seats_for(host: Any, count: int) -> tuple[int, int]:
    """Return the cubes and PEs among which ``count`` rows or columns divide evenly, as many as possible."""
    best = max(
        (c * p, c, p)
        for c in range(1, host.shape.cubes + 1)
        for p in range(1, host.shape.pes + 1)
        if count % (c * p) == 0
    )
    return best[1], best[2]


def _policy(kind: str, seats: tuple[int, int]) -> DPPolicy:
    return DPPolicy(kind, kind, num_cubes=seats[0], num_pes=seats[1])


def relaid(
    x: Any,
    *,
    shape: Sequence[int] | None = None,
    dp: DPPolicy | None = None,
    moves: Sequence[Move] | None = None,
    zero: bool = False,
) -> Any:
    """Return the tensor in another layout or shape, or with other elements (``moves``): copies within its
    device.

    Without any of them, the tensor on one PE, as collectives take it; itself where it lies so.
    """
    host = x.context
    extents = tuple(x.shape) if shape is None else tuple(shape)
    target = host.empty(extents, dtype=x.dtype, dp=dp)
    if moves is None and extents == tuple(x.shape) and _lies_like(x, target):
        target.free()
        return x
    host.relayout(x, target, moves, zero)
    return target


def _lies_like(x: Any, y: Any) -> bool:
    return [(s.cube, s.pe, s.slices) for s in x.shards] == [(s.cube, s.pe, s.slices) for s in y.shards]


def copied(x: Any) -> Any:
    """Return a copy of a tensor with the same placement."""
    return _put(x, x.context.empty_like(x))


def taken(x: Any, dim: int, start: int, stop: int) -> Any:
    """Return the elements ``start`` to ``stop`` of a dimension, as a tensor of their own."""
    shape, zeros = along(x.shape, dim, stop - start), (0,) * x.ndim
    begin = along(zeros, dim, start)
    return relaid(x, shape=shape, moves=[Move.block(tuple(x.shape), begin, shape, zeros, shape)])


def along(shape: Sequence[int], dim: int, number: int) -> tuple[int, ...]:
    """Return the shape (or place) with another number in one dimension."""
    return tuple(number if i == dim else n for i, n in enumerate(shape))


def padded(x: Any, shape: Sequence[int]) -> Any:
    """Return the tensor with zeros behind its elements, up to a larger shape."""
    wide, held = tuple(shape), tuple(x.shape)
    if wide == held:
        return x
    zeros = (0,) * len(held)
    return relaid(x, shape=wide, moves=[Move.block(held, zeros, wide, zeros, held)], zero=True)


def transposed(x: Any, dims: Sequence[int], split: Sequence[int] | None = None, **options: Any) -> Any:
    """Return the dimensions in another order; ``split`` are those into which the tensor's are divided
    first."""
    parts = tuple(x.shape if split is None else split)
    shape = options.pop("shape", tuple(parts[d] for d in dims))
    return relaid(x, shape=shape, moves=[Move.permuted(parts, tuple(dims))], **options)


def joined(parts: Sequence[Any], dim: int = 0) -> Any:
    """Return tensors one behind the other along a dimension."""
    shape = along(parts[0].shape, dim, sum(p.shape[dim] for p in parts))
    zeros, at = (0,) * len(shape), 0
    target = parts[0].context.empty(shape, dtype=parts[0].dtype)
    for part in parts:
        own = tuple(part.shape)
        target.context.relayout(part, target, [Move.block(own, zeros, shape, along(zeros, dim, at), own)])
        at += own[dim]
    return target


# products


def _product(x: Any, w: Any, y: Any, m: int, k: int, n: int, dtype: str, tl: Any) -> None:
    me = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)
    size = itemsize(dtype)
    tl.composite(
        op="gemm",
        a=tl.ref(x, (m, k), dtype),
        b=tl.ref(w + me * (k * n * size), (k, n), dtype),
        out_ptr=y + me * (m * n * size),
        tile=(min(64, m), min(64, n), min(128, k)),
    )


def matmul(x: Any, w: Any) -> Any:
    """Return ``x @ w`` of matrices on one device; the columns are divided over its PEs. Where these reach all
    of the device's memory, operands are read where they lie, tile by tile."""
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[0]:
        raise OperationError(f"matmul of {tuple(x.shape)} and {tuple(w.shape)} does not fit")
    if x.dtype != w.dtype:
        raise OperationError(f"matmul of {x.dtype} and {w.dtype}", advice="x.to(dtype=…)")
    host, (m, k), n = x.context, x.shape, w.shape[1]
    if not m * k * n:
        return host.zeros((m, n), dtype=x.dtype)
    seats = seats_for(host, n)
    split = _policy("column_wise", seats)
    if host.shape.hbm_of == "device":
        out = host.empty((m, n), dtype=x.dtype, dp=split)
        host.product(relaid(x), relaid(w), out)
        return out
    left, right = relaid(x, dp=_policy("replicate", seats)), relaid(w, dp=split)
    out = host.empty((m, n), dtype=x.dtype, dp=split)
    host.launch("matmul", _product, left, right, out, m, k, n // (seats[0] * seats[1]), x.dtype)
    return out


# elements and rows

_UNARY: dict[str, Callable[[Any, Any, float], Any]] = {
    "scale": lambda tl, x, number: x * number,
    "shift": lambda tl, x, number: x + number,
    "divide": lambda tl, x, number: tl.full(x.shape, number, x.dtype) / x,
    "relu": lambda tl, x, _: tl.maximum(x, 0.0),
    "gelu": lambda tl, x, _: x * (tl.erf(x * (1 / sqrt(2.0))) + 1.0) * 0.5,
    "silu": lambda tl, x, _: x * tl.sigmoid(x),
    "softmax": lambda tl, x, _: tl.softmax(x, axis=-1),
}
PLAIN = ("exp", "log", "sqrt", "rsqrt", "abs", "tanh", "sigmoid", "cos", "sin")
"""Functions that ``tl`` has by the same name."""
_BINARY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda tl, a, b: a + b,
    "sub": lambda tl, a, b: a - b,
    "mul": lambda tl, a, b: a * b,
    "div": lambda tl, a, b: a / b,
    "maximum": lambda tl, a, b: tl.maximum(a, b),
    "minimum": lambda tl, a, b: tl.minimum(a, b),
}
_REDUCE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda tl, x: tl.sum(x, axis=0),
    "max": lambda tl, x: tl.max(x, axis=0),
    "min": lambda tl, x: tl.min(x, axis=0),
}


_IDENTITY = {"sum": 0.0, "max": -inf, "min": inf}


class _Rows(NamedTuple):
    """What every PE has of a matrix: so many rows and columns, and whether each has others."""

    rows: int
    columns: int
    spread: bool


def _base(held: _Rows, dtype: str, tl: Any) -> Any:
    me = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)
    return me * (held.rows * held.columns * itemsize(dtype)) if held.spread else 0


def _unary(x: Any, y: Any, held: _Rows, dtype: str, name: str, number: float, tl: Any) -> None:
    base = _base(held, dtype, tl)
    for row in range(held.rows):
        at = base + row * (held.columns * itemsize(dtype))
        tile = tl.load(x + at, shape=(held.columns,), dtype=dtype)
        tl.store(y + at, getattr(tl, name)(tile) if name in PLAIN else _UNARY[name](tl, tile, number))


def _binary(
    a: Any, b: Any, y: Any, held: _Rows, row_of: _Rows | None, dtype: str, name: str, tl: Any
) -> None:
    base = _base(held, dtype, tl)
    other = 0 if row_of is None else _base(row_of, dtype, tl)
    for row in range(held.rows):
        at = base + row * (held.columns * itemsize(dtype))
        left = tl.load(a + at, shape=(held.columns,), dtype=dtype)
        right = tl.load(b + (at if row_of is None else other), shape=(held.columns,), dtype=dtype)
        tl.store(y + at, _BINARY[name](tl, left, right))


def _normed(x: Any, w: Any, y: Any, held: _Rows, dtype: str, eps: float, tl: Any) -> None:
    base = _base(held, dtype, tl)
    weight = tl.load(w, shape=(held.columns,), dtype=dtype).to("f32")
    for row in range(held.rows):
        at = base + row * (held.columns * itemsize(dtype))
        tile = tl.load(x + at, shape=(held.columns,), dtype=dtype).to("f32")
        mean = tl.sum(tile * tile, axis=0) * (1.0 / held.columns)
        tl.store(y + at, (tile * tl.rsqrt(mean + eps) * weight).to(dtype))


def _reduced(x: Any, y: Any, held: _Rows, dtype: str, name: str, tl: Any) -> None:
    base = _base(held._replace(columns=1), dtype, tl)
    for row in range(held.rows):
        at = base + row * itemsize(dtype)
        tile = tl.load(x + at * held.columns, shape=(held.columns,), dtype=dtype).to("f32")
        tl.store(y + at, _REDUCE[name](tl, tile).to(dtype))


def _rows_of(x: Any, whole: bool) -> _Rows | None:
    """Return how a matrix lies, if an operation (on ``whole`` rows) can run where it is."""
    shards = x.shards
    different = len({s.offset_bytes for s in shards})
    local = shards[0].spec.shape
    if x.ndim not in (1, 2) or not x.handle.even or different not in (1, len(shards)) or not prod(local):
        return None
    if whole and local[-1] != x.shape[-1]:
        return None
    return _Rows(1 if x.ndim == 1 else local[0], local[-1], different > 1)


def _ready(x: Any, whole: bool = False) -> tuple[Any, _Rows]:
    """Return the tensor where an operation can run on it: as it lies, or as a matrix with its rows over the
    PEs."""
    _on_device(x)
    held = _rows_of(x, whole)
    if held is not None:
        return x, held
    columns = x.shape[-1] if x.ndim else 1
    rows = prod(x.shape[:-1])
    laid = relaid(x, shape=(rows, columns), dp=_policy("row_wise", seats_for(x.context, rows)))
    found = _rows_of(laid, whole)
    assert found is not None
    return laid, found


def _on_device(*tensors: Any) -> None:
    if any(t.handle is None for t in tensors):
        raise OperationError(
            "a tensor of the host takes part in an operation of a device",
            advice="x.to(device) brings it there",
        )


def _like(x: Any, other: Any) -> Any:
    """Return the tensor as the other one lies."""
    same = tuple(x.shape) == tuple(other.shape) and _lies_like(x, other)
    return x if same else _put(x, x.context.empty_like(other))


def _row_for(row: Any, x: Any) -> Any:
    """Return a row so that every PE has the part that goes with its columns of ``x``."""
    flat = relaid(row, shape=(x.shape[-1],)) if row.ndim != 1 else row
    return _put(flat, _beside(x, flat.shape, lambda held: held[-1:]))


def _beside(x: Any, shape: Sequence[int], slices: Callable[[Any], Any]) -> Any:
    """Make a tensor on the PEs of another one: each PE holds a function of its slices."""
    held = ((s.cube, s.pe, slices(s.slices)) for s in x.shards)
    specs = packed(held, itemsize(x.dtype), x.device_index)
    return x.context._deploy(tuple(shape), x.dtype, specs, None, "hbm", None)


def _shaped(x: Any, shape: tuple[int, ...]) -> Any:
    """Return the same elements under another shape, on one PE where that is a copy anyway."""
    return x if tuple(x.shape) == tuple(shape) else relaid(x, shape=shape)


def unary(name: str, x: Any, number: float = 1.0, out: Any = None) -> Any:
    """Return a function of every element (or of every row, as softmax); ``out`` may be ``x`` itself."""
    if not x.numel():
        return copied(x)
    laid, held = _ready(x, name == "softmax")
    target = out if laid is x and out is x else x.context.empty_like(laid)
    x.context.launch(name, _unary, laid, target, held, x.dtype, name, float(number))
    return _put(_shaped(target, tuple(x.shape)), out)


def _put(found: Any, out: Any) -> Any:
    """Return what was found, in the tensor that was asked for."""
    if out is None or found is out:
        return found
    found.context.relayout(found, out)
    return out


def _named(name: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return unary(name, x)

    function.__name__ = name
    return no_none(function)


relu, gelu, silu, softmax = map(_named, ("relu", "gelu", "silu", "softmax"))


_WITH_NUMBER: dict[str, Callable[[float], tuple[str, float]]] = {
    "add": lambda number: ("shift", number),
    "sub": lambda number: ("shift", -number),
    "mul": lambda number: ("scale", number),
    "div": lambda number: ("scale", 1 / number),
}


def binary(name: str, a: Any, b: Any, out: Any = None) -> Any:
    """Return a function of two tensors of one shape, of a tensor and a row that goes with all of its rows, or
    of a tensor and a number; ``out`` may be ``a`` itself."""
    if not hasattr(b, "shape"):
        if name in _WITH_NUMBER and (name != "div" or b):
            function, number = _WITH_NUMBER[name](float(b))
            return unary(function, a, number, out)
        b = a.context.full((a.shape[-1] if a.ndim else 1,), float(b), dtype=a.dtype)
    one = tuple(a.shape) != tuple(b.shape)
    if a.dtype != b.dtype or (one and (not a.ndim or prod(b.shape) != a.shape[-1])):
        raise OperationError(f"{name} of {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)} does not fit")
    _on_device(a, b)
    if not a.numel():
        return copied(a)
    laid, held = _ready(a)
    if one and held.columns != laid.shape[-1] and held.rows != prod(laid.shape[:-1]):
        laid, held = _ready(a, whole=True)
    other = _row_for(b, laid) if one else _like(b, laid)
    row_of = held._replace(rows=1, spread=held.columns != laid.shape[-1]) if one else None
    target = out if laid is a and out is a else a.context.empty_like(laid)
    a.context.launch(name, _binary, laid, other, target, held, row_of, a.dtype, name)
    return _put(_shaped(target, tuple(a.shape)), out)


@no_none
def add(a: Any, b: Any) -> Any:
    return binary("add", a, b)


@no_none
def mul(a: Any, b: Any) -> Any:
    return binary("mul", a, b)


@no_none
def rms_norm(x: Any, weight: Any, eps: float = 1e-5) -> Any:
    """Return every row divided by its root mean square, times ``weight``; in f32."""
    if not x.numel():
        return copied(x)
    laid, held = _ready(x, whole=True)
    out = x.context.empty_like(laid)
    x.context.launch("rms_norm", _normed, laid, _row_for(weight, laid), out, held, x.dtype, float(eps))
    return _shaped(out, tuple(x.shape))


def reduced(name: str, x: Any, dim: int) -> Any:
    """Return the sum, maximum or minimum over a dimension, which is gone then; sums are f32 inside."""
    dim %= max(1, x.ndim)
    kept = tuple(extent for i, extent in enumerate(x.shape) if i != dim)
    if not x.numel():
        return x.context.full(kept or (1,), _IDENTITY[name], dtype=x.dtype)
    if dim != x.ndim - 1:
        x = transposed(x, (*(i for i in range(x.ndim) if i != dim), dim))
    laid, held = _ready(x, whole=True)
    out = _beside(laid, (prod(kept), 1), lambda s: (s[0] if len(s) > 1 else slice(0, 1), slice(0, 1)))
    x.context.launch(name, _reduced, laid, out, held, x.dtype, name)
    return relaid(out, shape=kept or (1,))


# attention and lookups


def _attend(
    q: Any, k: Any, v: Any, mask: Any, o: Any, heads: int, group: int, queries: int, keys: int, dim: int,
    block: int, step: int, dtype: str, tl: Any,
) -> None:  # fmt: skip
    size = itemsize(dtype)
    first = (tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)) * heads
    for h in range(heads):
        head = first + h
        for i in range(queries // block):
            at = (head * queries + i * block) * (dim * size)
            query = tl.load(q + at, shape=(block, dim), dtype=dtype)
            top = tl.full((block, 1), -1e30, "f32")
            total = tl.zeros((block, 1), "f32")
            mixed = tl.zeros((block, dim), "f32")
            for j in range(keys // step):
                there = (head // group * keys + j * step) * (dim * size)
                key = tl.load(k + there, shape=(step, dim), dtype=dtype)
                value = tl.load(v + there, shape=(step, dim), dtype=dtype)
                hidden = mask + (i * (keys // step) + j) * (block * step * size)
                seen = tl.load(hidden, shape=(block, step), dtype=dtype)
                scores = tl.dot(query, tl.trans(key)).to("f32") * (1.0 / sqrt(dim)) + seen.to("f32")
                high = tl.maximum(top, tl.max(scores, axis=-1, keepdims=True))
                weight, before = tl.exp(scores - high), tl.exp(top - high)
                total = total * before + tl.sum(weight, axis=-1, keepdims=True)
                mixed = mixed * before + tl.dot(weight.to(dtype), value).to("f32")
                top = high
            tl.store(o + at, (mixed / total).to(dtype))


def _attention_blocks(room: int, queries: int, keys: int, dim: int, size: int) -> tuple[int, int]:
    """Return queries and keys that are worked on at a time: the largest blocks whose tiles fit the near
    memory (each operation of `_attend` has a tile of its own, in two buffers)."""

    def needed(pair: tuple[int, int]) -> int:
        block, step = pair
        scores, rows = 64 + 8 * size, 44 + 7 * size
        return 10 * size * step * dim + scores * block * step + rows * block * dim + 96 * block + 8

    blocks, steps = ({-(-n // parts) for parts in range(1, n + 1)} for n in (queries, keys))
    pairs = [pair for pair in product(blocks, steps) if pair[0] <= QUERIES and needed(pair) <= room]
    return min(pairs, default=(1, 1), key=lambda p: (-(-queries // p[0]) * -(-keys // p[1]), p[0] * p[1]))


@no_none
def attention(q: Any, k: Any, v: Any, *, heads: int, kv_heads: int | None = None, causal: bool = True) -> Any:
    """Attention of ``q`` [tokens, heads * dim] to ``k``, ``v`` [keys, kv_heads * dim], heads over the PEs."""
    shared = kv_heads or heads
    host, queries, keys = q.context, q.shape[0], k.shape[0]
    if heads % shared or q.shape[1] % heads or k.shape[1] * heads != q.shape[1] * shared:
        raise OperationError(
            f"{heads} heads over {shared} heads of keys do not fit {tuple(q.shape)} and {tuple(k.shape)}"
        )
    dim = q.shape[1] // heads
    seats, room = seats_for(host, heads), host.shape.l1_bytes - host.shape.l1_reserved
    block, step = _attention_blocks(room, queries, keys, dim, itemsize(q.dtype))
    rows, columns = -(-queries // block) * block, -(-keys // step) * step
    q, k, v = padded(q, (rows, q.shape[1])), *(padded(x, (columns, x.shape[1])) for x in (k, v))

    def by_head(x: Any, count: int, dp: DPPolicy) -> Any:
        return transposed(x, (1, 0, 2), (x.shape[0], count, dim), shape=(count * x.shape[0], dim), dp=dp)

    everywhere, split = _policy("replicate", seats), _policy("row_wise", seats)
    parts = by_head(q, heads, split), by_head(k, shared, everywhere), by_head(v, shared, everywhere)
    hidden = np.full((rows, columns), -6e4, numpy_dtype(q.dtype))
    hidden[:, :keys] = 0
    if causal:
        hidden[:queries, :keys][np.triu_indices(queries, keys - queries + 1, keys)] = -6e4
    tiled = hidden.reshape(rows // block, block, columns // step, step).swapaxes(1, 2).reshape(-1, step)
    mask = host.empty(tiled.shape, dtype=q.dtype, dp=everywhere).copy_(np.ascontiguousarray(tiled))
    out = host.empty((heads * rows, dim), dtype=q.dtype, dp=split)
    each = heads // (seats[0] * seats[1])
    host.launch(
        "attention",
        _attend,
        *parts,
        mask,
        out,
        each,
        heads // shared,
        rows,
        columns,
        dim,
        block,
        step,
        q.dtype,
    )
    found = transposed(out, (1, 0, 2), (heads, rows, dim), shape=(rows, heads * dim))
    return found if rows == queries else taken(found, 0, 0, queries)


def check_numbers(numbers: Any, count: int | None = None) -> None:
    """Check that these are row numbers below ``count``."""
    if numbers.dtype.kind not in "iu":
        raise OperationError(f"rows are looked up by whole numbers, not {numbers.dtype}")
    if count is not None and numbers.size and not 0 <= numbers.min() <= numbers.max() < count:
        raise OperationError(f"a table of {count} rows has no row {int(numbers.max())}")


def looked_up(table: Any, indices: Any, first: int) -> Any:
    """Return rows of a table whose first row has number ``first``; zeros for numbers outside. Every PE
    fetches its rows."""
    host, (count, width) = table.context, table.shape
    numbers = np.asarray(indices).reshape(-1)
    check_numbers(numbers)
    shape, rows = (*np.shape(indices), width), (len(numbers), width)
    moves = [
        Move.block((count, width), (int(n) - first, 0), rows, (i, 0), (1, width))
        for i, n in enumerate(numbers)
        if 0 <= n - first < count
    ]
    dp = _policy("row_wise", seats_for(host, len(numbers)))
    return _shaped(relaid(table, shape=rows, dp=dp, moves=moves, zero=len(moves) < len(numbers)), shape)
