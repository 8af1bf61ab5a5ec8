"""What a forward pass is made of: every kernel and collective of one step, once, for all that times it.

The closed sum (``step.py``) and the Plan (``plans.py``) both read this list, so they cannot disagree about
what is done. Extents are of one device; a collective has its ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from megatile.models.batch import Batch
from megatile.models.config import Layer
from megatile.models.deployment import Deployment, stage_range

WORD = 2
"""Bytes of an activation."""
SKEW = 101
"""Power-law exponent, in hundredths, of how often experts are chosen, as the open rows have it."""
EXPERT_KERNELS = {("vllm", "mxfp4"): "mxfp4_marlin"}
"""Engines that multiply experts of a scheme by other kernels than its own (vLLM on Hopper: Marlin's)."""
Extents = tuple[tuple[str, int], ...]


class Operator(NamedTuple):
    """One kernel of a step: ``repeat`` times the kernel ``kernel`` with these extents."""

    name: str
    part: str
    """Of which part of the model: ``attention``, ``feed-forward``, ``experts``, ``head``, …"""
    repeat: int
    kernel: str
    dtype: str
    extents: Extents
    kv_dtype: str = ""
    """Of attention: the type of the cache."""
    block: int = 0
    """Which run of equal layers it belongs to; operators outside layers have 0."""

    @property
    def communicates(self) -> bool:
        return "ranks" in dict(self.extents) or self.kernel in ("moe_dispatch", "moe_combine")


class Step(NamedTuple):
    """What one device of a pipeline stage does in a step: its batch, and the tokens of its experts."""

    d: Deployment
    batch: Batch
    tokens: int
    """New tokens on this device."""
    expert_tokens: int
    """New tokens of the devices that share the experts."""


def step_of(d: Deployment, batch: Batch) -> Step:
    """Return the work of one device: its share of the requests and, with ``cp``, of the tokens."""
    own = batch.share(d.attention_dp * d.dp)
    tokens = max(1, -(-own.tokens // d.cp))
    return Step(d, own, tokens, tokens * d.attention_dp)


def operators(d: Deployment, batch: Batch) -> list[Operator]:
    """Return every kernel and collective of a step on one device, over all pipeline stages."""
    step = step_of(d, batch)
    sends = [_send(step, d.pp - 1)] if d.pp > 1 else []
    return [*_embedding(step), *_layers(step, d.config.kinds), *sends, *_head(step)]


def stage_operators(d: Deployment, batch: Batch, stage: int) -> list[Operator]:
    """Return the kernels and collectives of one pipeline stage."""
    step, kinds = step_of(d, batch), Counter(d.config.layer(n) for n in stage_range(d, stage))
    first, last = stage == 0, stage == d.pp - 1
    end = _head(step) if last else [_send(step, 1)]
    return [*(_embedding(step) if first else []), *_layers(step, kinds), *end]


def _embedding(step: Step) -> list[Operator]:
    d = step.d
    found = [_passes("embedding", "head", 1, step.tokens * d.config.hidden * 2 * WORD)]
    return [*found, _all_reduce(step, "embedding all-reduce", "head", 1)] if d.tp > 1 else found


def _layers(step: Step, kinds: Mapping[Layer, int]) -> list[Operator]:
    """Return the kernels of all layers; those of one kind are one block."""
    return [
        _with_scales(step.d, operator)._replace(block=number)
        for number, (layer, count) in enumerate(kinds.items(), 1)
        for operator in layer_operators(step, layer, count)
    ]


def _with_scales(d: Deployment, operator: Operator) -> Operator:
    """Return an fp8 product without its own quantisation where the kernel before it does that."""
    if operator.kernel == "gemm" and operator.dtype == "fp8" and d.engine.static_scales:
        return operator._replace(extents=(*operator.extents, ("quantised", 1)))
    return operator


def _send(step: Step, repeat: int) -> Operator:
    """Return the transfer of a stage's results to the next."""
    moved = step.tokens * step.d.config.hidden * WORD
    return _collective("send_recv", "send to the next stage", "pipeline", repeat, 2, moved)


def layer_operators(step: Step, layer: Layer, count: int) -> list[Operator]:
    """Return the kernels of ``count`` equal layers."""
    attend = _latent if step.d.config.latent else _attention
    return [*attend(step, layer, count), *_feed_forward(step, layer, count)]


def _passes(name: str, part: str, count: int, moved: float, kernels: int = 1) -> Operator:
    """An element-wise kernel that reads and writes so many bytes."""
    return Operator(
        name, part, count, "elementwise", "bf16", (("bytes", max(1, int(moved))), ("kernels", kernels))
    )


def _gemm(name: str, part: str, count: int, dtype: str, m: int, n: int, k: int) -> Operator:
    return Operator(name, part, count, "gemm", dtype, (("m", m), ("n", max(1, n)), ("k", max(1, k))))


def _all_reduce(step: Step, name: str, part: str, count: int) -> Operator:
    return _collective("all_reduce", name, part, count, step.d.tp, step.tokens * step.d.config.hidden * WORD)


def _collective(kernel: str, name: str, part: str, count: int, ranks: int, moved: int) -> Operator:
    return Operator(name, part, count, kernel, "bf16", (("ranks", ranks), ("bytes", max(1, moved))))


def _norm(step: Step, name: str, part: str, count: int) -> Operator:
    """Residual addition and normalisation in one kernel: two reads and two writes."""
    return _passes(name, part, count, 4 * step.tokens * step.d.config.hidden * WORD)


def _attention(step: Step, layer: Layer, count: int) -> Iterator[Operator]:
    d, c, tokens = step.d, step.d.config, step.tokens
    part = "attention"
    heads, width = c.heads // d.tp, (c.heads // d.tp + 2 * d.kv_heads) * c.head_dim
    yield _norm(step, "input norm", part, count)
    yield _gemm("qkv projection", part, count, d.attention_dtype, tokens, width, c.hidden)
    rotated = (heads + d.kv_heads) * c.head_dim
    yield _passes("rotary", part, count, 2 * tokens * rotated * WORD)
    if c.qk_norm:
        yield _passes("query and key norm", part, count, 2 * tokens * rotated * WORD, kernels=2)
    yield from _core(step, layer, count, heads)
    yield _gemm("output projection", part, count, d.attention_dtype, tokens, c.hidden, heads * c.head_dim)
    if d.tp > 1:
        yield _all_reduce(step, "attention all-reduce", part, count)


def _core(step: Step, layer: Layer, count: int, heads: int) -> Iterator[Operator]:
    """Attention proper: decoding requests in one kernel, prompts of equal lengths in one each."""
    d, c = step.d, step.d.config
    common = (("heads", heads), ("kv_heads", d.kv_heads), ("head_dim", c.head_dim), ("window", layer.window))
    for name, shape in attention_shapes(step):
        yield Operator(name, "attention", count, "attention", "bf16", (*shape, *common), d.kv_dtype)
    if d.cp > 1:
        moved = 2 * step.tokens * d.cp * d.kv_heads * c.head_dim * WORD
        yield _collective("all_gather", "keys and values of the context", "attention", count, d.cp, moved)


def attention_shapes(step: Step) -> Iterator[tuple[str, Extents]]:
    """Yield the kernels of attention: name, and batch, queries and context of each."""
    d, groups = step.d, step.batch.groups
    decoding = [g for g in groups if g.new == 1 and g.cached]
    if decoding:
        count = sum(g.requests for g in decoding)
        context = sum(g.requests * g.cached for g in decoding) // (count * d.cp)
        yield "decode attention", (("batch", count), ("queries", 1), ("context", max(1, context)))
    for g in groups:
        if g.new > 1 or not g.cached:
            queries = max(1, -(-g.new // d.cp))
            # A device's queries lie over the whole sequence: on average they see half of the new tokens.
            context = g.cached + (g.new - queries) // 2
            yield "prefill attention", (("batch", g.requests), ("queries", queries), ("context", context))


def _latent(step: Step, layer: Layer, count: int) -> Iterator[Operator]:
    """Multi-head latent attention: decoding in the latent space, prompts with expanded keys and values."""
    d, c, tokens, part = step.d, step.d.config, step.tokens, "attention"
    heads, kind = c.heads // d.tp, d.attention_dtype
    yield _norm(step, "input norm", part, count)
    down = c.q_lora + c.kv_lora + c.rope_dim if c.q_lora else c.kv_lora + c.rope_dim
    yield _gemm("down projections", part, count, kind, tokens, down, c.hidden)
    if c.q_lora:
        yield _passes("latent norms", part, count, 2 * tokens * down * WORD)
    yield _gemm("query projection", part, count, kind, tokens, heads * c.head_dim, c.q_lora or c.hidden)
    yield _passes("rotary", part, count, 2 * tokens * (heads + 1) * c.rope_dim * WORD)
    common = (
        ("heads", heads),
        ("kv_lora", c.kv_lora),
        ("rope", c.rope_dim),
        ("nope", c.nope_dim),
        ("v", c.v_dim),
    )
    for name, shape in attention_shapes(step):
        new = dict(shape)["batch"] * dict(shape)["queries"]
        if name.startswith("decode"):
            yield _gemm("absorb queries", part, count, "bf16", new * heads, c.kv_lora, c.nope_dim)
        else:
            wide = heads * (c.nope_dim + c.v_dim)
            yield _gemm("expand keys and values", part, count, kind, new, wide, c.kv_lora)
        yield Operator(name, part, count, "mla", "bf16", (*shape, *common), d.kv_dtype)
        if name.startswith("decode"):
            yield _gemm("expand outputs", part, count, "bf16", new * heads, c.v_dim, c.kv_lora)
    yield _gemm("output projection", part, count, kind, tokens, c.hidden, heads * c.v_dim)
    if d.tp > 1:
        yield _all_reduce(step, "attention all-reduce", part, count)


def _feed_forward(step: Step, layer: Layer, count: int) -> Iterator[Operator]:
    d, c = step.d, step.d.config
    if layer.experts:
        yield from _experts(step, count)
        return
    part = "feed-forward"
    yield _norm(step, "post-attention norm", part, count)
    yield from _mlp(step, part, count, c.inner, d.attention_dtype)
    if d.tp > 1:
        yield _all_reduce(step, "feed-forward all-reduce", part, count)


def _mlp(step: Step, part: str, count: int, inner: int, dtype: str, said: str = "") -> Iterator[Operator]:
    d, c, tokens = step.d, step.d.config, step.tokens
    width = -(-inner // d.tp)
    wide = 2 * width if c.gated else width
    yield _gemm(
        f"{said}gate and up projection" if c.gated else "up projection",
        part,
        count,
        dtype,
        tokens,
        wide,
        c.hidden,
    )
    yield _passes(f"{said}activation", part, count, tokens * (wide + width) * WORD)
    yield _gemm(f"{said}down projection", part, count, dtype, tokens, c.hidden, width)


def _experts(step: Step, count: int) -> Iterator[Operator]:
    d, c, part = step.d, step.d.config, "experts"
    yield _norm(step, "post-attention norm", part, count)
    yield _gemm("router", part, count, "bf16", step.tokens, c.experts, c.hidden)
    yield _passes("choose experts", part, count, step.tokens * c.experts * 4)
    if c.shared_inner:
        yield from _mlp(step, part, count, c.shared_inner, d.attention_dtype, "shared ")
    if d.attention_dp > 1:
        moved = step.expert_tokens * c.hidden * WORD
        yield _collective("all_gather", "tokens to experts", part, count, d.tp * d.attention_dp, moved)
    extents = (
        ("tokens", step.expert_tokens), ("hidden", c.hidden), ("inner", c.expert_inner), ("topk", c.topk),
        ("experts", c.experts), ("tensor_parallel", d.expert_tp), ("expert_parallel", d.ep), ("skew", SKEW),
    )  # fmt: skip
    yield Operator(
        "experts", part, count, "moe", EXPERT_KERNELS.get((d.engine.name, d.dtype), d.dtype), extents
    )
    if d.attention_dp > 1:
        moved = step.expert_tokens * c.hidden * WORD
        yield _collective("reduce_scatter", "results of experts", part, count, d.tp * d.attention_dp, moved)
    elif d.tp > 1:
        yield _all_reduce(step, "experts all-reduce", part, count)


def _head(step: Step) -> list[Operator]:
    """Final norm, logits of the last token of every request, and sampling."""
    d, c, rows = step.d, step.d.config, step.batch.requests
    found = [
        _norm(step, "final norm", "head", 1),
        _gemm("logits", "head", 1, "bf16", rows, -(-c.vocab // d.tp), c.hidden),
    ]
    if d.tp > 1:
        found.append(_collective("all_gather", "gather logits", "head", 1, d.tp, rows * c.vocab * WORD))
    found.append(_passes("sampling", "head", 1, rows * c.vocab * 4 * 2, kernels=4))
    return found
