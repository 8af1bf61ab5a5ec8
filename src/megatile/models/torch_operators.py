"""A forward pass as torch's eager mode runs transformers' modules: every operation is a kernel of its own.

What ``mt.torch_estimate`` sees of such a module; ``library="torch"`` prices the same without the module:
attention by SDPA over a cache that grows by concatenation, latent attention with expanded keys and values,
experts as grouped products, logits of all tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from megatile.models.config import Layer
from megatile.models.operators import (
    WORD,
    Operator,
    Step,
    all_reduce,
    attention_shapes,
    collective,
    core_attention,
    gemm,
    passes,
    with_exchange,
)

WIDE = 4
"""Bytes of f32, in which norms and routers compute."""
INDEX = 8
"""Bytes of an index."""


class Routing(NamedTuple):
    """How a model chooses experts: kernels after the router, and what is computed in f32."""

    kernels: int
    wide_router: bool = False
    wide_rows: bool = True
    """Whether the weights of a token's experts are f32, and so their weighted rows."""


ROUTINGS = {
    **dict.fromkeys(("DeepseekV3ForCausalLM", "KimiK2ForCausalLM", "Glm4MoeForCausalLM"), Routing(16, True)),
    "DeepseekV2ForCausalLM": Routing(3, True),
    **dict.fromkeys(("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"), Routing(6, wide_rows=False)),
}
"""By architecture: sigmoids, the best groups and the best of these, or a softmax; others as Mixtral."""
COVERED = frozenset(
    f"{name}ForCausalLM"
    for name in (
        "Llama", "Mistral", "Mixtral", "Gemma", "Qwen2", "Qwen3", "Qwen3Moe", "DeepseekV2", "DeepseekV3",
        "KimiK2", "Glm4Moe", "Phi3",
    )
)  # fmt: skip
"""Architectures whose kernels were compared with those of transformers; others run more of them (masks of
windows, sinks, norms after each part) than are counted here."""
UNCOVERED_ERROR = 1.8
"""Of the others: modules of Gemma 2 take 2.8 times what is counted, of gpt-oss 1.2 to 1.8, of Gemma 3 1.5."""
COMPLEX_ROTARY = ("DeepseekV2ForCausalLM",)
"""Architectures that rotate pairs as complex numbers: to f32, times, to 16 bits."""


def eager_embedding(step: Step) -> Iterator[Operator]:
    """Yield rows of the table, and the cosines and sines of every position."""
    yield passes("embedding", "head", 1, step.tokens * step.d.config.hidden * 2 * WORD)
    longest = max(g.new for g in step.batch.groups)
    width = step.d.config.rope_dim or step.d.config.head_dim
    yield passes("rotary tables", "head", 1, 10 * longest * width * WIDE, kernels=10)


def eager_head(step: Step) -> Iterator[Operator]:
    """Final norm, and logits of every token."""
    d, c, rows = step.d, step.d.config, step.tokens
    yield _norm("final norm", "head", 1, rows * c.hidden)
    yield gemm("logits", "head", 1, "bf16", rows, -(-c.vocab // d.tp), c.hidden)
    if d.tp > 1:
        yield collective("all_gather", "gather logits", "head", 1, d.tp, rows * c.vocab * WORD)
        yield passes("join logits", "head", 1, 2 * rows * c.vocab * WORD)


def eager_layer(step: Step, layer: Layer, count: int) -> Iterator[Operator]:
    """Yield the kernels of ``count`` equal layers."""
    c = step.d.config
    yield _norm("input norm", "attention", count, step.tokens * c.hidden)
    yield from (_latent if c.latent else _grouped)(step, layer, count)
    if step.d.tp > 1:
        yield all_reduce(step, "attention all-reduce", "attention", count)
    yield passes("residual", "attention", count, 3 * step.tokens * c.hidden * WORD)
    part = "experts" if layer.experts else "feed-forward"
    yield _norm("post-attention norm", part, count, step.tokens * c.hidden)
    yield from _experts(step, count) if layer.experts else _mlp(step, part, count, c.inner)
    yield passes(f"{part} residual", part, count, 3 * step.tokens * c.hidden * WORD)


def _norm(name: str, part: str, count: int, elements: int) -> Operator:
    """To f32, squared, averaged, one added, its root, scaled, to 16 bits, weighted: eight kernels."""
    element = (WORD + WIDE) + 2 * WIDE + WIDE + 2 * WIDE + (WIDE + WORD) + 2 * WORD
    return passes(name, part, count, element * elements, kernels=8)


def _grouped(step: Step, layer: Layer, count: int) -> Iterator[Operator]:
    """Attention with grouped queries."""
    d, c, tokens, part = step.d, step.d.config, step.tokens, "attention"
    heads, kv_heads, kind = c.heads // d.tp, d.kv_heads, d.attention_dtype
    for name, width in (("query", heads), ("key", kv_heads), ("value", kv_heads)):
        yield gemm(f"{name} projection", part, count, kind, tokens, width * c.head_dim, c.hidden)
        if c.qk_norm and name != "value":
            yield _norm(f"{name} norm", part, count, tokens * width * c.head_dim)
    # Of queries and of keys: times cosine, half negated, joined, times sine, added.
    rotated = tokens * (heads + kv_heads) * c.head_dim
    yield passes("rotary", part, count, 10 * rotated * WORD, kernels=10)
    yield passes("join cache", part, count, 4 * _context(step) * kv_heads * c.head_dim * WORD, kernels=2)
    yield from core_attention(step, layer, count, heads)
    yield from _output(step, count, heads * c.head_dim)


def _latent(step: Step, layer: Layer, count: int) -> Iterator[Operator]:
    """Latent attention: keys and values of the whole context are expanded, then attention as usual."""
    d, c, tokens, part = step.d, step.d.config, step.tokens, "attention"
    heads, kind, context = c.heads // d.tp, d.attention_dtype, _context(step)
    if c.q_lora:
        yield gemm("query down projection", part, count, kind, tokens, c.q_lora, c.hidden)
        yield _norm("query norm", part, count, tokens * c.q_lora)
    yield gemm("query projection", part, count, kind, tokens, heads * c.head_dim, c.q_lora or c.hidden)
    yield gemm("latent projection", part, count, kind, tokens, c.kv_lora + c.rope_dim, c.hidden)
    yield _norm("latent norm", part, count, tokens * c.kv_lora)
    # Of queries and of the key: four products of halves, a difference, a sum, joined.
    words, kernels = (10, 6) if c.architecture in COMPLEX_ROTARY else (9, 14)
    yield passes("rotary", part, count, words * tokens * (heads + 1) * c.rope_dim * WORD, kernels)
    yield passes("join cache", part, count, 2 * context * (c.kv_lora + c.rope_dim) * WORD, kernels=2)
    yield passes("join queries", part, count, 2 * tokens * heads * c.head_dim * WORD)
    expanded = heads * (c.nope_dim + c.v_dim)
    yield gemm("expand keys and values", part, count, kind, context, expanded, c.kv_lora)
    yield passes("join keys", part, count, 2 * context * heads * c.head_dim * WORD, kernels=2)
    common = (("heads", heads), ("kv_heads", heads), ("head_dim", c.head_dim))
    for name, shape in attention_shapes(step):
        yield Operator(name, part, count, "attention", "bf16", (*shape, *common), d.kv_dtype)
    yield from _output(step, count, heads * c.v_dim)


def _output(step: Step, count: int, width: int) -> Iterator[Operator]:
    d, c, part = step.d, step.d.config, "attention"
    if any(g.new > 1 for g in step.batch.groups):  # heads of several tokens come in another order
        yield passes("contiguous outputs", part, count, 2 * step.tokens * width * WORD)
    yield gemm("output projection", part, count, d.attention_dtype, step.tokens, c.hidden, width)


def _context(step: Step) -> int:
    """Return tokens of all requests in the cache after the step."""
    return max(1, -(-step.batch.context // step.d.cp))


def _mlp(step: Step, part: str, count: int, inner: int, said: str = "") -> Iterator[Operator]:
    d, c, tokens = step.d, step.d.config, step.tokens
    width, kind = -(-inner // d.tp), d.attention_dtype
    for name in ("gate", "up") if c.gated else ("up",):
        yield gemm(f"{said}{name} projection", part, count, kind, tokens, width, c.hidden)
    yield passes(f"{said}activation", part, count, 2 * tokens * width * WORD)
    if c.gated:
        yield passes(f"{said}gating", part, count, 3 * tokens * width * WORD)
    yield gemm(f"{said}down projection", part, count, kind, tokens, c.hidden, width)
    if d.tp > 1:
        yield all_reduce(step, f"{said}feed-forward all-reduce", part, count)


def _experts(step: Step, count: int) -> Iterator[Operator]:
    c, tokens, part = step.d.config, step.tokens, "experts"
    routing = ROUTINGS.get(c.architecture, Routing(5))
    if routing.wide_router:
        moved = (WORD + WIDE) * c.hidden * (tokens + c.experts)
        yield passes("router inputs", part, count, moved, kernels=2)
    dtype = "f32" if routing.wide_router else "bf16"
    yield gemm("router", part, count, dtype, tokens, c.experts, c.hidden)
    yield passes("choose experts", part, count, 4 * tokens * c.experts * WIDE, kernels=routing.kernels)
    yield from with_exchange(step, count, _products(step, count))
    if c.shared_inner:
        yield from _mlp(step, part, count, c.shared_inner, "shared ")
        yield passes("add shared", part, count, 3 * tokens * c.hidden * WORD)


def _products(step: Step, count: int) -> Iterator[Operator]:
    """Yield rows of each expert in a row, two grouped products, and the weighted sum of each token's rows."""
    d, c, tokens, part = step.d, step.d.config, step.expert_tokens, "experts"
    rows = max(1, tokens * c.topk // d.ep)
    inner = max(1, c.expert_inner // d.expert_tp)
    yield passes("sort tokens", part, count, 16 * rows * INDEX, kernels=7)
    yield passes("permute", part, count, 2 * rows * c.hidden * WORD)
    wide = 2 * inner if c.gated else inner
    yield _product("gate and up projections", count, step, rows, wide, c.hidden)
    yield passes("activation", part, count, 2 * rows * inner * WORD)
    if c.gated:
        yield passes("gating", part, count, 3 * rows * inner * WORD)
    yield _product("down projections", count, step, rows, c.hidden, inner)
    wide = WIDE if ROUTINGS.get(c.architecture, Routing(5)).wide_rows else WORD
    moved = (WORD + 3 * wide) * rows + wide * (rows + tokens) + (WIDE + WORD) * tokens * (wide > WORD)
    yield passes("weigh and sum", part, count, moved * c.hidden, kernels=4 if wide > WORD else 3)


def _product(name: str, count: int, step: Step, m: int, n: int, k: int) -> Operator:
    groups = max(1, step.d.config.experts // step.d.ep)
    extents = (("m", m), ("n", n), ("k", k), ("groups", groups))
    return Operator(name, "experts", count, "grouped_gemm", step.d.dtype, extents)
