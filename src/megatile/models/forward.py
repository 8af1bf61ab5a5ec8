"""A forward pass as a list of operators: embedding, layers as their library runs them, head and sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from megatile.models.batch import Batch
from megatile.models.config import Layer
from megatile.models.deployment import Deployment, stage_range
from megatile.models.operators import (
    WORD,
    Operator,
    Step,
    all_reduce,
    collective,
    gemm,
    layer_operators,
    norm,
    passes,
    step_of,
)
from megatile.models.torch_operators import eager_embedding, eager_head, eager_layer


def operators(d: Deployment, batch: Batch) -> list[Operator]:
    """Return every kernel and collective of a step on one device, over all pipeline stages."""
    step = step_of(d, batch)
    ways = Counter(d.peers(stage) for stage in range(d.pp - 1))
    sends = [_send(step, count, ranks) for ranks, count in sorted(ways.items())]
    return [*_embedding(step), *_layers(step, d.config.kinds), *sends, *_head(step)]


def stage_operators(d: Deployment, batch: Batch, stage: int) -> list[Operator]:
    """Return the kernels and collectives of one pipeline stage."""
    step, kinds = step_of(d, batch), Counter(d.config.layer(n) for n in stage_range(d, stage))
    first, last = stage == 0, stage == d.pp - 1
    end = _head(step) if last else [_send(step, 1, d.peers(stage))]
    return [*(_embedding(step) if first else []), *_layers(step, kinds), *end]


def _embedding(step: Step) -> list[Operator]:
    d = step.d
    if d.library == "torch":
        return list(eager_embedding(step))
    found = [passes("embedding", "head", 1, step.tokens * d.config.hidden * 2 * WORD)]
    return [*found, all_reduce(step, "embedding all-reduce", "head", 1)] if d.tp > 1 else found


def _layers(step: Step, kinds: Mapping[Layer, int]) -> list[Operator]:
    """Return the kernels of all layers; those of one kind are one block."""
    return [
        _with_scales(step.d, operator)._replace(block=number)
        for number, (layer, count) in enumerate(kinds.items(), 1)
        for operator in _layer(step, layer, count)
    ]


def _layer(step: Step, layer: Layer, count: int) -> Iterable[Operator]:
    """Return the kernels of ``count`` equal layers as the library runs them."""
    if step.d.library == "torch":
        return eager_layer(step, layer, count)
    return layer_operators(step, layer, count)


def _with_scales(d: Deployment, operator: Operator) -> Operator:
    """Return an fp8 product without its own quantisation where the kernel before it does that."""
    if operator.kernel == "gemm" and operator.dtype == "fp8" and d.engine.static_scales:
        return operator._replace(extents=(*operator.extents, ("quantised", 1)))
    return operator


def _send(step: Step, repeat: int, ranks: int) -> Operator:
    """Return the transfer of a stage's results to the next."""
    moved = step.tokens * step.d.config.hidden * WORD
    name = "send to the next stage" if ranks == 2 else "send to the next node"
    return collective("send_recv", name, "pipeline", repeat, ranks, moved)


def _head(step: Step) -> list[Operator]:
    """Return the final norm, logits of the last token of every request, and sampling."""
    d, c, rows = step.d, step.d.config, step.batch.requests
    if d.library == "torch":
        return list(eager_head(step))
    found = [
        norm(step, "final norm", "head", 1),
        gemm("logits", "head", 1, "bf16", rows, -(-c.vocab // d.tp), c.hidden),
    ]
    if d.tp > 1:
        found.append(collective("all_gather", "gather logits", "head", 1, d.tp, rows * c.vocab * WORD))
    found.append(passes("sampling", "head", 1, rows * c.vocab * 4 * 2, kernels=4))
    return found
