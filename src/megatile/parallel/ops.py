"""Operations on tensors of one device, as ``tl`` kernels on its PEs.

A product divides its columns over the PEs, everything else its rows; tensors that lie otherwise are laid anew
first, which costs a copy within the device.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt
from typing import Any

import numpy as np

from megatile.core.dtypes import itemsize, numpy_dtype
from megatile.core.errors import MegatileError
from megatile.runtime.host.placement import DPPolicy

QUERIES = 64
"""Rows of queries that attention works on at a time, at most."""


class OperationError(MegatileError, ValueError):
    """Operands that do not go together."""


# where things lie


def _seats(host: Any, count: int) -> tuple[int, int]:
    """The cubes and PEs among which ``count`` rows or columns divide evenly, as many as possible."""
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
    shape: tuple[int, ...] | None = None,
    dp: DPPolicy | None = None,
    change: Callable[[Any], Any] | None = None,
) -> Any:
    """The tensor in another layout, shape or order of elements: a copy within its device.

    Without any of them, the tensor on one PE, as collectives take it; itself where it lies so.
    """
    host = x.context
    extents = tuple(x.shape) if shape is None else tuple(shape)
    policy = dp or DPPolicy(num_cubes=1, num_pes=1)
    target = host.empty(extents, dtype=x.dtype, dp=policy)
    if change is None and extents == tuple(x.shape) and _lies_like(x, target):
        target.free()
        return x
    host.local_copy(x, target)
    if host.has_data:
        data = x.contents()
        target.set_contents(data.reshape(extents) if change is None else change(data))
    return target


def _lies_like(x: Any, y: Any) -> bool:
    return [(s.cube, s.pe, s.slices) for s in x.shards] == [(s.cube, s.pe, s.slices) for s in y.shards]


def taken(x: Any, dim: int, start: int, stop: int) -> Any:
    """The elements ``start`` to ``stop`` of a dimension, as a tensor of their own."""
    index = tuple(slice(start, stop) if i == dim else slice(None) for i in range(x.ndim))
    shape = tuple(stop - start if i == dim else extent for i, extent in enumerate(x.shape))
    return relaid(x, shape=shape, change=lambda data: data[index])


def transposed(x: Any, dims: tuple[int, ...]) -> Any:
    """The dimensions in another order."""
    return relaid(x, shape=tuple(x.shape[d] for d in dims), change=lambda data: data.transpose(dims))


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
    """``x @ w`` of matrices on one device; the columns of ``w`` are divided over its PEs."""
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[0]:
        raise OperationError(f"matmul of {tuple(x.shape)} and {tuple(w.shape)} does not fit")
    if x.dtype != w.dtype:
        raise OperationError(f"matmul of {x.dtype} and {w.dtype}", advice="x.to(dtype=…)")
    host, (m, k), n = x.context, x.shape, w.shape[1]
    seats = _seats(host, n)
    split = _policy("column_wise", seats)
    left, right = relaid(x, dp=_policy("replicate", seats)), relaid(w, dp=split)
    out = host.empty((m, n), dtype=x.dtype, dp=split)
    host.launch("matmul", _product, left, right, out, m, k, n // (seats[0] * seats[1]), x.dtype)
    return out


# rows

_UNARY: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda tl, x: tl.maximum(x, 0.0),
    "gelu": lambda tl, x: x * (tl.erf(x * (1 / sqrt(2.0))) + 1.0) * 0.5,
    "silu": lambda tl, x: x * tl.sigmoid(x),
    "exp": lambda tl, x: tl.exp(x),
    "tanh": lambda tl, x: tl.tanh(x),
    "neg": lambda tl, x: x * -1.0,
    "softmax": lambda tl, x: tl.softmax(x, axis=-1),
}
_BINARY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda tl, a, b: a + b,
    "sub": lambda tl, a, b: a - b,
    "mul": lambda tl, a, b: a * b,
    "div": lambda tl, a, b: a / b,
    "maximum": lambda tl, a, b: tl.maximum(a, b),
}
_REDUCE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda tl, x: tl.sum(x, axis=0),
    "max": lambda tl, x: tl.max(x, axis=0),
    "min": lambda tl, x: tl.min(x, axis=0),
}


def _unary(x: Any, y: Any, rows: int, columns: int, dtype: str, name: str, number: float, tl: Any) -> None:
    base = (tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)) * (rows * columns * itemsize(dtype))
    for row in range(rows):
        at = base + row * (columns * itemsize(dtype))
        tile = tl.load(x + at, shape=(columns,), dtype=dtype)
        tl.store(y + at, tile * number if name == "scale" else _UNARY[name](tl, tile))


def _binary(
    a: Any, b: Any, y: Any, rows: int, columns: int, dtype: str, name: str, one: bool, tl: Any
) -> None:
    base = (tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)) * (rows * columns * itemsize(dtype))
    for row in range(rows):
        at = base + row * (columns * itemsize(dtype))
        left = tl.load(a + at, shape=(columns,), dtype=dtype)
        right = tl.load(b if one else b + at, shape=(columns,), dtype=dtype)
        tl.store(y + at, _BINARY[name](tl, left, right))


def _normed(x: Any, w: Any, y: Any, rows: int, columns: int, dtype: str, eps: float, tl: Any) -> None:
    base = (tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)) * (rows * columns * itemsize(dtype))
    weight = tl.load(w, shape=(columns,), dtype=dtype).to("f32")
    for row in range(rows):
        at = base + row * (columns * itemsize(dtype))
        tile = tl.load(x + at, shape=(columns,), dtype=dtype).to("f32")
        mean = tl.sum(tile * tile, axis=0) * (1.0 / columns)
        tl.store(y + at, (tile * tl.rsqrt(mean + eps) * weight).to(dtype))


def _reduced(x: Any, y: Any, rows: int, columns: int, dtype: str, name: str, tl: Any) -> None:
    base = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)
    for row in range(rows):
        tile = tl.load(x + (base * rows + row) * (columns * itemsize(dtype)), shape=(columns,), dtype=dtype)
        tl.store(y + (base * rows + row) * itemsize(dtype), _REDUCE[name](tl, tile))


def _by_rows(x: Any, shape: tuple[int, ...] | None = None) -> tuple[Any, tuple[int, int], int, int]:
    """The tensor as a matrix whose rows are divided over PEs; those PEs; rows of each and columns."""
    columns = x.shape[-1] if x.ndim else 1
    rows = prod(x.shape[:-1])
    seats = _seats(x.context, rows)
    laid = relaid(x, shape=(rows, columns), dp=_policy("row_wise", seats))
    return laid, seats, rows // (seats[0] * seats[1]), columns


def _shaped(x: Any, shape: tuple[int, ...]) -> Any:
    """The same elements under another shape, on one PE where that is a copy anyway."""
    return x if tuple(x.shape) == tuple(shape) else relaid(x, shape=shape)


def unary(name: str, x: Any, number: float = 1.0) -> Any:
    """A function of every element (or of every row, as softmax)."""
    laid, seats, rows, columns = _by_rows(x)
    out = x.context.empty(laid.shape, dtype=x.dtype, dp=_policy("row_wise", seats))
    x.context.launch(name, _unary, laid, out, rows, columns, x.dtype, name, number)
    return _shaped(out, tuple(x.shape))


def scaled(x: Any, number: float) -> Any:
    return unary("scale", x, float(number))


def relu(x: Any) -> Any:
    return unary("relu", x)


def gelu(x: Any) -> Any:
    return unary("gelu", x)


def silu(x: Any) -> Any:
    return unary("silu", x)


def softmax(x: Any) -> Any:
    """Over the last dimension."""
    return unary("softmax", x)


def binary(name: str, a: Any, b: Any) -> Any:
    """A function of two tensors of one shape, or of a tensor and a row that goes with all of its rows."""
    if not hasattr(b, "shape"):
        if name == "mul":
            return scaled(a, b)
        b = a.context.full((a.shape[-1],), float(b), dtype=a.dtype)
    one = tuple(a.shape) != tuple(b.shape)
    if a.dtype != b.dtype or (one and prod(b.shape) != a.shape[-1]):
        raise OperationError(f"{name} of {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)} does not fit")
    laid, seats, rows, columns = _by_rows(a)
    if one:
        other = relaid(b, shape=(1, columns), dp=_policy("replicate", seats))
    else:
        other = relaid(b, shape=tuple(laid.shape), dp=_policy("row_wise", seats))
    out = a.context.empty(laid.shape, dtype=a.dtype, dp=_policy("row_wise", seats))
    a.context.launch(name, _binary, laid, other, out, rows, columns, a.dtype, name, one)
    return _shaped(out, tuple(a.shape))


def add(a: Any, b: Any) -> Any:
    return binary("add", a, b)


def mul(a: Any, b: Any) -> Any:
    return binary("mul", a, b)


def rms_norm(x: Any, weight: Any, eps: float = 1e-5) -> Any:
    """Every row divided by its root mean square, times ``weight``; in f32."""
    laid, seats, rows, columns = _by_rows(x)
    row = relaid(weight, shape=(1, columns), dp=_policy("replicate", seats))
    out = x.context.empty(laid.shape, dtype=x.dtype, dp=_policy("row_wise", seats))
    x.context.launch("rms_norm", _normed, laid, row, out, rows, columns, x.dtype, float(eps))
    return _shaped(out, tuple(x.shape))


def reduced(name: str, x: Any, dim: int) -> Any:
    """The sum, maximum or minimum over a dimension, which is gone then."""
    dim %= max(1, x.ndim)
    kept = tuple(extent for i, extent in enumerate(x.shape) if i != dim)
    if dim != x.ndim - 1:
        x = transposed(x, (*(i for i in range(x.ndim) if i != dim), dim))
    laid, seats, rows, columns = _by_rows(x)
    out = x.context.empty((prod(kept), 1), dtype=x.dtype, dp=_policy("row_wise", seats))
    x.context.launch(name, _reduced, laid, out, rows, columns, x.dtype, name)
    return relaid(out, shape=kept or (1,))


# attention and lookups


def _attend(
    q: Any, k: Any, v: Any, mask: Any, o: Any, heads: int, group: int, queries: int, keys: int, dim: int,
    block: int, dtype: str, tl: Any,
) -> None:  # fmt: skip
    size = itemsize(dtype)
    first = (tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)) * heads
    for h in range(heads):
        head = first + h
        key = tl.load(k + head // group * (keys * dim * size), shape=(keys, dim), dtype=dtype)
        value = tl.load(v + head // group * (keys * dim * size), shape=(keys, dim), dtype=dtype)
        for i in range(queries // block):
            at = (head * queries + i * block) * (dim * size)
            query = tl.load(q + at, shape=(block, dim), dtype=dtype)
            seen = tl.load(mask + i * (block * keys * size), shape=(block, keys), dtype=dtype)
            scores = tl.dot(query, tl.trans(key)).to("f32") * (1.0 / sqrt(dim)) + seen.to("f32")
            tl.store(o + at, tl.dot(tl.softmax(scores, axis=-1).to(dtype), value).to(dtype))


def attention(q: Any, k: Any, v: Any, *, heads: int, kv_heads: int | None = None, causal: bool = True) -> Any:
    """Attention of ``q`` [tokens, heads * dim] to ``k``, ``v`` [keys, kv_heads * dim], heads over the PEs."""
    shared = kv_heads or heads
    host, queries, keys = q.context, q.shape[0], k.shape[0]
    if heads % shared or q.shape[1] % heads or k.shape[1] * heads != q.shape[1] * shared:
        raise OperationError(
            f"{heads} heads over {shared} heads of keys do not fit {tuple(q.shape)} and {tuple(k.shape)}"
        )
    dim = q.shape[1] // heads
    seats = _seats(host, heads)

    def by_head(x: Any, count: int, dp: DPPolicy) -> Any:
        rows = x.shape[0]
        return relaid(
            x,
            shape=(count * rows, dim),
            dp=dp,
            change=lambda a: a.reshape(rows, count, dim).swapaxes(0, 1).reshape(count * rows, dim),
        )

    everywhere, split = _policy("replicate", seats), _policy("row_wise", seats)
    parts = by_head(q, heads, split), by_head(k, shared, everywhere), by_head(v, shared, everywhere)
    hidden = np.zeros((queries, keys), numpy_dtype(q.dtype))
    if causal:
        hidden[np.triu_indices(queries, keys - queries + 1, keys)] = -6e4
    mask = host.empty(hidden.shape, dtype=q.dtype, dp=everywhere).copy_(hidden)
    out = host.empty((heads * queries, dim), dtype=q.dtype, dp=split)
    block = max(b for b in range(1, min(QUERIES, queries) + 1) if queries % b == 0)
    each = heads // (seats[0] * seats[1])
    host.launch(
        "attention", _attend, *parts, mask, out, each, heads // shared, queries, keys, dim, block, q.dtype
    )
    return relaid(
        out,
        shape=(queries, heads * dim),
        change=lambda a: a.reshape(heads, queries, dim).swapaxes(0, 1).reshape(queries, heads * dim),
    )


def looked_up(table: Any, indices: Any, first: int) -> Any:
    """Rows of a table whose first row has number ``first``; zeros for numbers outside: a copy of rows."""
    host = table.context
    numbers = np.asarray(indices).reshape(-1)
    shape = (*np.shape(indices), table.shape[1])
    out = host.zeros((len(numbers), table.shape[1]), dtype=table.dtype)
    host.local_copy(out, out)
    if host.has_data:
        inside = (numbers >= first) & (numbers < first + table.shape[0])
        rows = np.where(inside[:, None], table.contents()[np.where(inside, numbers - first, 0)], 0)
        out.set_contents(rows)
    return _shaped(out, shape)
