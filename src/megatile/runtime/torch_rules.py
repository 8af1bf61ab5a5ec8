"""The torch rule of every operation: what a command does to the tensors of a real process.

    @rule("add")
    def add(a, b): ...

A rule takes the operands (tensors) and the attributes, computes as wide as the NumPy meaning in ``core``,
and leaves the final rounding to ``assign``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megatile.core.attention_operations import UNLIMITED, columns_of
from megatile.core.dtypes import numpy_dtype
from megatile.core.operations import OPERATIONS
from megatile.core.registry import Registry
from megatile.plan.compute import padded

Rule = Callable[..., Tensor]
RULES: Registry[Rule] = Registry("operations with a torch rule")
DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}


def rule(name: str) -> Callable[[Rule], Rule]:
    return RULES.register(name)


def wide(x: Tensor) -> Tensor:
    """Return floats below f32 as f32."""
    if x.dtype in (torch.float32, torch.float64) or not x.is_floating_point():
        return x
    return x.float()


def accumulated(x: Tensor) -> Tensor:
    """Return the type in which sums are taken: f32 or f64 for floats, i32 for small integers."""
    if x.is_floating_point():
        return wide(x)
    return x if x.dtype == torch.int64 else x.to(torch.int32)


def assign(target: Tensor, value: Tensor) -> None:
    """``target[...] = value``, rounded once; floats beyond an integer type's range are clipped."""
    if value.is_floating_point() and not target.is_floating_point() and target.dtype != torch.bool:
        limits = torch.iinfo(target.dtype)
        value = torch.nan_to_num(torch.trunc(value)).clamp(limits.min, limits.max)
    target.copy_(value)


def compute(name: str, target: Tensor, sources: Sequence[Tensor], attributes: Mapping[str, Any]) -> None:
    """``target = operation(sources)``, rounded once; shapes fit as in ``plan.compute``."""
    if name in ("gemm", "gemm_add"):  # matrices of tiles with further axes, of extent 1
        sources = [s.reshape(s.shape[-2:]) for s in sources]
    if not OPERATIONS[name].attributes and name not in ("copy", "cast"):
        sources = [padded(s, target.ndim, 0) for s in sources]
    result = RULES[name](*sources, **attributes)
    same = result.numel() == target.numel() and result.shape != target.shape
    assign(target, result.reshape(target.shape) if same else result)


# --- elementwise ----------------------------------------------------------------------------------


def _narrow_safe(function: Callable[..., Tensor]) -> Rule:
    """Types of 8 bits have no arithmetic of their own in torch."""

    def meaning(*operands: Tensor) -> Tensor:
        tiny = any(x.dtype in (torch.float8_e4m3fn, torch.float8_e5m2) for x in operands)
        return function(*(map(wide, operands) if tiny else operands))

    return meaning


def _divide(a: Tensor, b: Tensor) -> Tensor:
    if a.is_floating_point() or b.is_floating_point():
        return torch.true_divide(a, b)
    return torch.where(
        b == 0, torch.zeros_like(a), torch.div(a, torch.where(b == 0, 1, b), rounding_mode="floor")
    )


_PLAIN: dict[str, Callable[..., Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": _divide,
    "maximum": torch.maximum, "minimum": torch.minimum, "neg": torch.neg, "abs": torch.abs,
    "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "eq": torch.eq, "ne": torch.ne,
    "clamp": lambda x, low, high: torch.minimum(torch.maximum(x, low), high),
    "where": lambda c, a, b: torch.where(c.to(torch.bool), a, b),
    "copy": lambda x: x, "cast": lambda x: x, "transpose": lambda x: x.transpose(-1, -2),
}  # fmt: skip
_WIDE: dict[str, Callable[..., Tensor]] = {
    "pow": torch.pow, "fma": lambda a, b, c: a * b + c, "floor": torch.floor, "ceil": torch.ceil,
    "exp": torch.exp, "exp2": torch.exp2, "log": torch.log, "log2": torch.log2, "sqrt": torch.sqrt,
    "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh, "erf": torch.erf, "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
}  # fmt: skip
for _name, _function in _PLAIN.items():
    RULES.add(_name, _narrow_safe(_function))
for _name, _function in _WIDE.items():
    RULES.add(_name, lambda *xs, _function=_function: _function(*map(wide, xs)))


# --- reductions, matrices, making -----------------------------------------------------------------

_REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin,
    "absmax": lambda x, **o: torch.amax(x.abs(), **o), "abssum": lambda x, **o: torch.sum(x.abs(), **o),
}  # fmt: skip


def _reduction(function: Callable[..., Tensor]) -> Rule:
    return lambda x, axis=-1, keepdims=False: function(accumulated(x), dim=axis, keepdim=keepdims)


for _name, _function in _REDUCTIONS.items():
    RULES.add(_name, _reduction(_function))


@rule("cumsum")
def running_sum(x: Tensor, axis: int = -1, reverse: bool = False) -> Tensor:
    x = accumulated(x)
    return torch.cumsum(x.flip(axis), axis).flip(axis) if reverse else torch.cumsum(x, axis)


RULES.add("softmax", lambda x, axis=-1: torch.softmax(wide(x), dim=axis))
RULES.add("fill", lambda value=0: torch.tensor(value))
RULES.add("library_kernel", OPERATIONS["library_kernel"].meaning)  # refuses: it has a time and no data


@rule("gemm")
@rule("gemm_add")
def gemm(a: Tensor, b: Tensor, *old: Tensor, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    a, b = accumulated(a), accumulated(b)
    product = torch.matmul(
        a.transpose(-1, -2) if transpose_a else a, b.transpose(-1, -2) if transpose_b else b
    )
    return product + accumulated(old[0]) if old else product


# --- attention ------------------------------------------------------------------------------------


def _hidden(rows: int, columns: int, lower: int, upper: int) -> Tensor | None:
    if lower <= 1 - rows and upper >= columns - 1:
        return None
    distance = torch.arange(columns)[None, :] - torch.arange(rows)[:, None]
    return (distance < lower) | (distance > upper)


def _heads_first(q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v as [batch, heads, rows or columns, dim] in f32 or f64."""
    keys = accumulated(kv).repeat_interleave(q.shape[-2] // kv.shape[-2], dim=-2).transpose(-2, -3)
    return accumulated(q).transpose(-2, -3), keys[0], keys[1]


def _scores(q: Tensor, k: Tensor, scale: float, lower: int, upper: int) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) * scale
    hidden = _hidden(scores.shape[-2], scores.shape[-1], lower, upper)
    return scores if hidden is None else scores.masked_fill(hidden, float("-inf"))


@rule("attention")
@rule("attention_add")
def attention(
    q: Tensor, kv: Tensor, *old: Tensor, scale: float = 1.0, lower: int = -UNLIMITED, upper: int = UNLIMITED
) -> Tensor:
    queries, k, v = _heads_first(q, kv)
    scores = _scores(queries, k, scale, lower, upper)
    top = _finite(scores.amax(dim=-1, keepdim=True)) if scores.shape[-1] else scores.new_zeros(1)
    powers = torch.exp(scores - top)
    total = powers.sum(dim=-1, keepdim=True)
    out = torch.matmul(powers, v) / torch.where(total > 0, total, 1.0)
    result = torch.cat([out, *_exact_sum(top, total.log())], dim=-1).transpose(-2, -3)
    return merge(old[0], result) if old else result


def _finite(lse: Tensor) -> Tensor:
    return torch.where(lse.isfinite(), lse, 0.0)


def _exact_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rounded sum and the remainder that rounding left; none beside an infinity."""
    total = a + b
    of_b = total - a
    return total, _finite((a - (total - of_b)) + (b - of_b))


def merge_log_sums(lse: Tensor, rest: Tensor, block: Tensor, block_rest: Tensor | None = None) -> Tensor:
    """Take the log-sum-exps of a block into ``lse + rest``, in place; returns the block's share of each row.

    What rounding takes from ``lse`` stays in ``rest``, so that thousands of merges are as exact as one. A
    share is 0 where neither has seen a key.
    """
    apart = (block - lse).sub_(rest)
    if block_rest is not None:
        apart += block_rest
    kept = rest * (apart <= 0) if block_rest is None else torch.where(apart > 0, block_rest, rest)
    larger = torch.maximum(lse, block)
    share = torch.sigmoid(apart).nan_to_num_(0.0)
    more = kept.sub_(torch.nn.functional.logsigmoid(apart.abs_())).nan_to_num_(0.0)
    torch.add(larger, more, out=lse)
    moved = lse - larger
    torch.add(larger - (lse - moved), more - moved, out=rest).nan_to_num_(0.0)
    return share


@rule("attention_merge")
def merge(a: Tensor, b: Tensor) -> Tensor:
    result = a.clone()
    (out, lse, rest), (block, *sums) = columns_of(result), columns_of(b)
    out.lerp_(block, merge_log_sums(lse, rest, *sums))
    return result


def _gradients(
    q: Tensor, kv: Tensor, result: Tensor, d_out: Tensor, scale: float, lower: int, upper: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    queries, k, v = _heads_first(q, kv)
    out, lse, rest = columns_of(accumulated(result).transpose(-2, -3))
    grad = accumulated(d_out).transpose(-2, -3)
    weights = torch.exp(_scores(queries, k, scale, lower, upper) - _finite(lse) - rest)
    delta = (grad * out).sum(-1, keepdim=True)
    d_scores = weights * (torch.matmul(grad, v.transpose(-1, -2)) - delta) * scale
    return queries, k, grad, weights, d_scores


@rule("attention_grad_q")
@rule("attention_grad_q_add")
def gradient_of_queries(
    q: Tensor, kv: Tensor, result: Tensor, d_out: Tensor, *old: Tensor,
    scale: float = 1.0, lower: int = -UNLIMITED, upper: int = UNLIMITED,
) -> Tensor:  # fmt: skip
    _, k, _, _, d_scores = _gradients(q, kv, result, d_out, scale, lower, upper)
    d_q = torch.matmul(d_scores, k).transpose(-2, -3)
    return d_q + old[0] if old else d_q


@rule("attention_grad_kv")
@rule("attention_grad_kv_add")
def gradient_of_keys(
    q: Tensor, kv: Tensor, result: Tensor, d_out: Tensor, *old: Tensor,
    scale: float = 1.0, lower: int = -UNLIMITED, upper: int = UNLIMITED,
) -> Tensor:  # fmt: skip
    queries, _, grad, weights, d_scores = _gradients(q, kv, result, d_out, scale, lower, upper)
    both = [torch.matmul(x.transpose(-1, -2), y) for x, y in ((d_scores, queries), (weights, grad))]
    d_kv = torch.stack(both).transpose(-2, -3)
    d_kv = d_kv.unflatten(-2, (kv.shape[-2], d_kv.shape[-2] // kv.shape[-2])).sum(-2)
    return d_kv + old[0] if old else d_kv


# --- what has no form of its own in torch ----------------------------------------------------------

_NAMES = {kind: name for name, kind in DTYPES.items()}


def _array(x: Tensor) -> Any:
    """Return a tensor's elements as NumPy has them, types that torch alone knows included."""
    if x.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        raw = x.contiguous().view(torch.int16 if x.dtype == torch.bfloat16 else torch.uint8).numpy()
        return raw.view(numpy_dtype(_NAMES[x.dtype]))
    return x.numpy()


def _by_numpy(name: str) -> Rule:
    """Return the meaning in ``core``, on the same memory; narrow floats come back as f32, which holds
    them."""

    def meaning(*operands: Tensor, **attributes: Any) -> Tensor:
        found = np.require(OPERATIONS[name].meaning(*map(_array, operands), **attributes), None, ["C", "W"])
        return torch.from_numpy(found if found.dtype.kind in "fiub" else found.astype(np.float32))

    return meaning


for _name in (
    "attention_start",
    "iota",
    "nest",
    "pad",
    *(f"{r}_onto" for r in ("sum", "max", "min", "prod", "absmax", "abssum")),
):
    RULES.add(_name, _by_numpy(_name))
