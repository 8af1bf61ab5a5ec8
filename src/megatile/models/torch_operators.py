"""A layer as torch's eager mode runs it: every operator of the module's code is a kernel of its own.

What ``mt.torch_estimate`` sees of such a module; ``library="torch"`` prices the same without the module.
"""

from __future__ import annotations

from collections.abc import Iterator

from megatile.models.config import Layer
from megatile.models.operators import WORD, Operator, Step, all_reduce, core_attention, gemm, passes

WIDE = 4
"""Bytes of f32, in which norms compute."""


def eager_layer(step: Step, layer: Layer, count: int) -> Iterator[Operator]:
    """Yield the kernels of ``count`` dense layers with grouped-query attention."""
    d, c, tokens, part = step.d, step.d.config, step.tokens, "attention"
    heads, kv_heads, kind = c.heads // d.tp, d.kv_heads, d.attention_dtype
    yield _norm(step, "input norm", part, count)
    for name, width in (("query", heads), ("key", kv_heads), ("value", kv_heads)):
        yield gemm(f"{name} projection", part, count, kind, tokens, width * c.head_dim, c.hidden)
    # Of queries and of keys: times cosine, half negated, joined, times sine, added.
    rotated = tokens * (heads + kv_heads) * c.head_dim
    yield passes("rotary", part, count, 10 * rotated * WORD, kernels=10)
    yield from core_attention(step, layer, count, heads)
    yield passes("contiguous outputs", part, count, 2 * tokens * heads * c.head_dim * WORD)
    yield gemm("output projection", part, count, kind, tokens, c.hidden, heads * c.head_dim)
    if d.tp > 1:
        yield all_reduce(step, "attention all-reduce", part, count)
    yield passes("residual", part, count, 3 * tokens * c.hidden * WORD)
    part, width = "feed-forward", -(-c.inner // d.tp)
    yield _norm(step, "post-attention norm", part, count)
    for name in ("gate", "up") if c.gated else ("up",):
        yield gemm(f"{name} projection", part, count, kind, tokens, width, c.hidden)
    yield passes("activation", part, count, 2 * tokens * width * WORD)
    if c.gated:
        yield passes("gating", part, count, 3 * tokens * width * WORD)
    yield gemm("down projection", part, count, kind, tokens, c.hidden, width)
    if d.tp > 1:
        yield all_reduce(step, "feed-forward all-reduce", part, count)
    yield passes("feed-forward residual", part, count, 3 * tokens * c.hidden * WORD)


def _norm(step: Step, name: str, part: str, count: int) -> Operator:
    """To f32, squared, averaged, one added, its root, scaled, to 16 bits, weighted: eight kernels."""
    element = (WORD + WIDE) + 2 * WIDE + WIDE + 2 * WIDE + (WIDE + WORD) + 2 * WORD
    return passes(name, part, count, element * step.tokens * step.d.config.hidden, kernels=8)
