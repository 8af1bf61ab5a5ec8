"""What a forward pass is made of: every kernel and collective of one step, once, for all that times it.

The closed sum (``step.py``) and the Plan (``plans.py``) both read this list, so they cannot disagree about
what is done. Extents are of one device; a collective has its ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from megatile.models.batch import Batch
from megatile.models.config import Layer
from megatile.models.deployment import Deployment
from megatile.timing.formulas import tensor_engine

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
    """The part of the model: ``attention``, ``feed-forward``, ``experts``, ``head``, …"""
    repeat: int
    kernel: str
    dtype: str
    extents: Extents
    kv_dtype: str = ""
    """Of attention: the type of the cache."""
    block: int = 0
    """Which run of equal layers it belongs to; operators outside layers have 0."""

    @property
    def kernels(self) -> int:
        """Kernels that one execution launches."""
        return self.extents[-1][1] if self.kernel == "elementwise" else 1

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


def layer_operators(step: Step, layer: Layer, count: int) -> list[Operator]:
    """Return the kernels of ``count`` equal layers."""
    attend = _latent if step.d.config.latent else _attention
    return [*attend(step, layer, count), *_feed_forward(step, layer, count)]


def passes(name: str, part: str, count: int, moved: float, kernels: int = 1) -> Operator:
    """Return an element-wise kernel that reads and writes so many bytes."""
    return Operator(
        name, part, count, "elementwise", "bf16", (("bytes", max(1, int(moved))), ("kernels", kernels))
    )


def gemm(name: str, part: str, count: int, dtype: str, m: int, n: int, k: int) -> Operator:
    return Operator(name, part, count, "gemm", dtype, (("m", m), ("n", max(1, n)), ("k", max(1, k))))


def all_reduce(step: Step, name: str, part: str, count: int) -> Operator:
    return collective("all_reduce", name, part, count, step.d.tp, step.tokens * step.d.config.hidden * WORD)


def collective(kernel: str, name: str, part: str, count: int, ranks: int, moved: int) -> Operator:
    return Operator(name, part, count, kernel, "bf16", (("ranks", ranks), ("bytes", max(1, moved))))


def norm(step: Step, name: str, part: str, count: int) -> Operator:
    """Return residual addition and normalisation in one kernel: two reads and two writes."""
    return passes(name, part, count, 4 * step.tokens * step.d.config.hidden * WORD)


def _attention(step: Step, layer: Layer, count: int) -> Iterator[Operator]:
    d, c, tokens = step.d, step.d.config, step.tokens
    part = "attention"
    heads, width = c.heads // d.tp, (c.heads // d.tp + 2 * d.kv_heads) * c.head_dim
    yield norm(step, "input norm", part, count)
    yield gemm("qkv projection", part, count, d.attention_dtype, tokens, width, c.hidden)
    rotated = (heads + d.kv_heads) * c.head_dim
    yield passes("rotary", part, count, 2 * tokens * rotated * WORD)
    if c.qk_norm:
        yield passes("query and key norm", part, count, 2 * tokens * rotated * WORD, kernels=2)
    if c.qk_norm_whole and d.tp > 1:
        yield collective("all_reduce", "sums of norms", part, count, d.tp, 2 * tokens * 4)
    yield from core_attention(step, layer, count, heads)
    yield gemm("output projection", part, count, d.attention_dtype, tokens, c.hidden, heads * c.head_dim)
    if d.tp > 1:
        yield all_reduce(step, "attention all-reduce", part, count)


def core_attention(step: Step, layer: Layer, count: int, heads: int) -> Iterator[Operator]:
    """Attention proper: decoding requests in one kernel, prompts of equal lengths in one each."""
    d, c = step.d, step.d.config
    common = (("heads", heads), ("kv_heads", d.kv_heads), ("head_dim", c.head_dim), ("window", layer.window))
    for name, shape in attention_shapes(step):
        yield Operator(name, "attention", count, "attention", "bf16", (*shape, *common), d.kv_dtype)
    if d.cp > 1:
        moved = 2 * step.tokens * d.cp * d.kv_heads * c.head_dim * WORD
        yield collective("all_gather", "keys and values of the context", "attention", count, d.cp, moved)


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
    yield norm(step, "input norm", part, count)
    down = c.q_lora + c.kv_lora + c.rope_dim if c.q_lora else c.kv_lora + c.rope_dim
    yield gemm("down projections", part, count, kind, tokens, down, c.hidden)
    if c.q_lora:
        yield passes("latent norms", part, count, 2 * tokens * down * WORD)
    yield gemm("query projection", part, count, kind, tokens, heads * c.head_dim, c.q_lora or c.hidden)
    yield passes("rotary", part, count, 2 * tokens * (heads + 1) * c.rope_dim * WORD)
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
            yield gemm("absorb queries", part, count, "bf16", new * heads, c.kv_lora, c.nope_dim)
        else:
            wide = heads * (c.nope_dim + c.v_dim)
            yield gemm("expand keys and values", part, count, kind, new, wide, c.kv_lora)
        yield Operator(name, part, count, "mla", "bf16", (*shape, *common), d.kv_dtype)
        if name.startswith("decode"):
            yield gemm("expand outputs", part, count, "bf16", new * heads, c.v_dim, c.kv_lora)
    yield gemm("output projection", part, count, kind, tokens, c.hidden, heads * c.v_dim)
    if d.tp > 1:
        yield all_reduce(step, "attention all-reduce", part, count)


def _feed_forward(step: Step, layer: Layer, count: int) -> Iterator[Operator]:
    d, c = step.d, step.d.config
    if layer.experts:
        yield from _experts(step, count)
        return
    part = "feed-forward"
    yield norm(step, "post-attention norm", part, count)
    yield from _mlp(step, part, count, c.inner, d.attention_dtype)
    if d.tp > 1:
        yield all_reduce(step, "feed-forward all-reduce", part, count)


def _mlp(step: Step, part: str, count: int, inner: int, dtype: str, said: str = "") -> Iterator[Operator]:
    d, c, tokens = step.d, step.d.config, step.tokens
    width = -(-inner // d.tp)
    wide = 2 * width if c.gated else width
    yield gemm(
        f"{said}gate and up projection" if c.gated else "up projection",
        part,
        count,
        dtype,
        tokens,
        wide,
        c.hidden,
    )
    yield passes(f"{said}activation", part, count, tokens * (wide + width) * WORD)
    yield gemm(f"{said}down projection", part, count, dtype, tokens, c.hidden, width)


def _expert_kernels(d: Deployment) -> str:
    """Return the scheme whose kernels multiply experts; tensor engines with 4-bit types need no others."""
    native = tensor_engine(d.hda).rate("f4e2m1") is not None
    return d.dtype if native else EXPERT_KERNELS.get((d.engine.name, d.dtype), d.dtype)


def _experts(step: Step, count: int) -> Iterator[Operator]:
    d, c, part = step.d, step.d.config, "experts"
    yield norm(step, "post-attention norm", part, count)
    yield gemm("router", part, count, "bf16", step.tokens, c.experts, c.hidden)
    yield passes("choose experts", part, count, step.tokens * c.experts * 4)
    if c.shared_inner:
        yield from _mlp(step, part, count, c.shared_inner, d.attention_dtype, "shared ")
    extents = (
        ("tokens", step.expert_tokens), ("hidden", c.hidden), ("inner", c.expert_inner), ("topk", c.topk),
        ("experts", c.experts), ("tensor_parallel", d.expert_tp), ("expert_parallel", d.ep), ("skew", SKEW),
    )  # fmt: skip
    experts = Operator("experts", part, count, "moe", _expert_kernels(d), extents)
    yield from with_exchange(step, count, [experts])


def with_exchange(step: Step, count: int, experts: Iterable[Operator]) -> Iterator[Operator]:
    """Yield the kernels of experts between the collectives that bring tokens to them and results back."""
    d, part, moved = step.d, "experts", step.expert_tokens * step.d.config.hidden * WORD
    if d.attention_dp > 1:
        yield collective("all_gather", "tokens to experts", part, count, d.tp * d.attention_dp, moved)
    yield from experts
    if d.attention_dp > 1:
        yield collective("reduce_scatter", "results of experts", part, count, d.tp * d.attention_dp, moved)
    elif d.tp > 1:
        yield all_reduce(step, "experts all-reduce", part, count)
