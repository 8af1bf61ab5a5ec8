"""Attention of blocks as operations on tiles: results with their log-sum-exp, the merge of two, gradients.

A *result* has the shape [..., batch, rows, heads, dim + 2]: outputs, and in the last two columns the
log-sum-exp of each row and its remainder, what rounding it to one number leaves, so that one tile carries all
and a log-sum-exp is as good after thousands of merges as after one. Queries are [..., batch, rows, heads,
dim]; keys and values stand together in one tile [..., 2, batch, columns, kv heads, dim]. Row i sees column j
where ``lower <= j - i <= upper``. Everything is computed in f32 (f64 for f64).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from megatile.core.basic_operations import Array, Operation, OperationError, Shape, register
from megatile.core.dtypes import accumulator, dtype, numpy_dtype

UNLIMITED = 1 << 30
"""A limit of a band that limits nothing."""
ROW_BLOCK = 512
"""Rows whose scores are in memory at once."""
BAND = ("lower", "scale", "upper")
LSE_COLUMNS = 2
"""Columns of a result after its outputs: the log-sum-exp and its remainder."""


def _wide(array: Array) -> Array:
    array = np.asarray(array)
    return array.astype(numpy_dtype(accumulator(dtype(array.dtype))), copy=False)


def _keys_and_values(kv: Array, heads: int) -> tuple[Array, Array]:
    """Return K and V as [..., batch, heads, columns, dim]; KV heads are repeated for groups of query
    heads."""
    kv = _wide(kv)
    if heads % kv.shape[-2]:
        raise OperationError(f"{heads} query heads cannot share {kv.shape[-2]} KV heads")
    kv = np.repeat(kv, heads // kv.shape[-2], axis=-2).swapaxes(-2, -3)
    return kv[..., 0, :, :, :, :], kv[..., 1, :, :, :, :]


def _scores(q: Array, k: Array, first: int, scale: float, lower: int, upper: int) -> Array:
    """[..., heads, rows, columns], hidden ones -inf; ``first``: the number of q's first row in the block."""
    scores = np.matmul(q, k.swapaxes(-1, -2)) * scale
    rows, columns = scores.shape[-2:]
    distance = np.arange(columns)[None, :] - np.arange(first, first + rows)[:, None]
    hidden = (distance < lower) | (distance > upper)
    if hidden.any():
        scores = np.where(hidden, np.array(-np.inf, scores.dtype), scores)
    return scores


def _finite(lse: Array) -> Array:
    """For rows that see nothing: a number whose difference from -inf is -inf, not NaN."""
    return np.where(np.isfinite(lse), lse, np.zeros((), lse.dtype))


def _exact_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded sum and the remainder that rounding left; none beside an infinity."""
    total = a + b
    of_b = total - a
    rest = (a - (total - of_b)) + (b - of_b)
    return total, np.where(np.isfinite(rest), rest, np.zeros((), rest.dtype))


def attention(
    q: Array, kv: Array, *old: Array, scale: float = 1.0, lower: int = -UNLIMITED, upper: int = UNLIMITED
) -> Array:
    """softmax(q kᵀ scale) v with its log-sum-exp, merged with an old result where one is given."""
    q = _wide(q)
    k, v = _keys_and_values(kv, q.shape[-2])
    queries = q.swapaxes(-2, -3)
    result = np.empty((*q.shape[:-1], q.shape[-1] + LSE_COLUMNS), dtype=q.dtype)
    with np.errstate(all="ignore"):
        for first in range(0, q.shape[-3], ROW_BLOCK):
            rows = slice(first, first + ROW_BLOCK)
            scores = _scores(queries[..., rows, :], k, first, scale, lower, upper)
            top = _finite(np.max(scores, axis=-1, keepdims=True, initial=-np.inf))
            powers = np.exp(scores - top)
            total = powers.sum(-1, keepdims=True)
            out = np.matmul(powers, v) / np.where(total > 0, total, np.ones((), total.dtype))
            block = np.concatenate([out, *_exact_sum(top, np.log(total))], axis=-1)
            result[..., rows, :, :] = block.swapaxes(-2, -3)
    return merge_results(old[0], result) if old else result


def merge_results(a: Array, b: Array) -> Array:
    """Return the result over the keys of both.

    The weights add up to one exactly, and the log-sum-exp keeps its remainder: when many parts are merged,
    what rounding does to it grows neither in the outputs nor in the gradients.
    """
    a, b = _wide(a), _wide(b)
    (_, lse_a, rest_a), (_, lse_b, rest_b) = columns_of(a), columns_of(b)
    with np.errstate(all="ignore"):
        ahead = (lse_b - lse_a) + (rest_b - rest_a)
        ahead = np.where(np.isneginf(lse_b), lse_b, ahead)  # where neither has seen a key, too
        out, lse, rest = columns_of(np.where(ahead > 0, b, a))
        light, _, _ = columns_of(np.where(ahead > 0, a, b))
        out = out + (light - out) / (1 + np.exp(abs(ahead)))
        lse, rest = _exact_sum(lse, rest + np.log1p(np.exp(-abs(ahead))))
    return np.concatenate([out, lse, rest], axis=-1)


def columns_of(result: Array) -> tuple[Array, Array, Array]:
    """Return outputs, log-sum-exps and their remainders."""
    return result[..., :-LSE_COLUMNS], result[..., -2:-1], result[..., -1:]


def _weights(
    q: Array, kv: Array, result: Array, d_out: Array, scale: float, lower: int, upper: int
) -> tuple[Array, Array, Array, Array, Array]:
    """Return queries, keys, gradients of outputs (heads before rows), probabilities, gradients of scaled
    scores."""
    q, d_out, result = (
        _wide(q).swapaxes(-2, -3),
        _wide(d_out).swapaxes(-2, -3),
        _wide(result).swapaxes(-2, -3),
    )
    k, v = _keys_and_values(kv, q.shape[-3])
    out, lse, rest = columns_of(result)
    with np.errstate(all="ignore"):
        weights = np.exp(_scores(q, k, 0, scale, lower, upper) - _finite(lse) - rest)
    delta = (d_out * out).sum(-1, keepdims=True)
    d_scores = weights * (np.matmul(d_out, v.swapaxes(-1, -2)) - delta) * scale
    return q, k, d_out, weights, d_scores


def gradient_of_queries(
    q: Array, kv: Array, result: Array, d_out: Array, *old: Array,
    scale: float = 1.0, lower: int = -UNLIMITED, upper: int = UNLIMITED,
) -> Array:  # fmt: skip
    """Return dQ of a block, given the result over all keys."""
    _, k, _, _, d_scores = _weights(q, kv, result, d_out, scale, lower, upper)
    d_q = np.matmul(d_scores, k).swapaxes(-2, -3)
    return d_q + _wide(old[0]) if old else d_q


def gradient_of_keys(
    q: Array, kv: Array, result: Array, d_out: Array, *old: Array,
    scale: float = 1.0, lower: int = -UNLIMITED, upper: int = UNLIMITED,
) -> Array:  # fmt: skip
    """Return dK and dV of a block, given the result over all keys."""
    queries, _, d_out, weights, d_scores = _weights(q, kv, result, d_out, scale, lower, upper)
    both = [np.matmul(x.swapaxes(-1, -2), y) for x, y in ((d_scores, queries), (weights, d_out))]
    d_kv = np.stack(both, axis=-5).swapaxes(-2, -3)
    heads = np.shape(kv)[-2]
    grouped = d_kv.reshape(*d_kv.shape[:-2], heads, d_kv.shape[-2] // heads, d_kv.shape[-1]).sum(-2)
    return grouped + _wide(old[0]) if old else grouped


def start(width: int) -> Array:
    """Return the result over no keys at all."""
    result = np.zeros(width, np.float32)
    result[-LSE_COLUMNS] = -np.inf
    return result


# --- shapes and work ------------------------------------------------------------------------------


def _check(q: Shape, kv: Shape) -> None:
    if len(q) < 4 or len(kv) < 5:
        raise OperationError(f"attention takes q of 4 and kv of 5 dimensions, not {len(q)} and {len(kv)}")


def _result_shape(q: Shape, kv: Shape, *_: Shape, **__: Any) -> Shape:
    _check(q, kv)
    return (*q[:-1], q[-1] + LSE_COLUMNS)


def _pairs(q: Shape, kv: Shape) -> Any:
    """Return elements of all q·k products of a block in which everything is visible."""
    return prod(q) * kv[-3]


# Per visible pair and dimension, forward multiplies twice (2 · 2 flops). Backward multiplies five times: the
# scores again, dP, dV, dK with the keys' gradients, dQ with the queries', as one fused kernel does.
_PER_PAIR: tuple[tuple[str, Callable[..., Array], int, Callable[..., Shape], int], ...] = (
    ("attention", attention, 2, _result_shape, 4),
    ("attention_grad_kv", gradient_of_keys, 4, lambda q, kv, *_, **__: tuple(kv), 8),
    ("attention_grad_q", gradient_of_queries, 4, lambda q, kv, *_, **__: tuple(q), 2),
)
"""Each has a twin ``<name>_add``, which takes in what stands in the destination already."""
register(
    Operation(
        name + suffix, meaning, operands + bool(suffix), "tensor", shape,
        lambda out, q, kv, *_, per_pair=per_pair, **__: per_pair * _pairs(q, kv),
        accumulates=bool(suffix), attributes=BAND,
    )
    for name, meaning, operands, shape, per_pair in _PER_PAIR
    for suffix in ("", "_add")
)  # fmt: skip
register(
    (
        Operation(
            "attention_merge", merge_results, 2, "vector", lambda a, b: tuple(a),
            lambda out, *_: 4 * prod(out),
        ),
        Operation(
            "attention_start", start, 0, "vector", lambda width: (width,), lambda out, **_: prod(out),
            attributes=("width",),
        ),
    )
)  # fmt: skip
