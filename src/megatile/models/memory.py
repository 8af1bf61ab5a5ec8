"""Memory of one device: weights, KV cache, activations and workspace, and what would make them fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from megatile.core.quantities import format_bytes
from megatile.core.rows import HasRows
from megatile.core.tables import text_table
from megatile.models.config import Layer
from megatile.models.deployment import Deployment, check_division, stage_range
from megatile.models.schemes import SCHEMES, ModelError

ACTIVATION_WIDTHS = 2
"""Copies of the widest intermediate result that live at once beside the residual stream."""


@dataclass(frozen=True)
class Memory(HasRows):
    """Bytes on one device; ``limit`` is what the engine may use of ``capacity``."""

    capacity: int
    limit: int
    weights: int
    cache: int
    activations: int
    workspace: int
    token_bytes: float
    """Bytes of cache that one more token of one request takes, far from any window."""
    words: str = ""

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.activations + self.workspace

    @property
    def fits(self) -> bool:
        return self.total <= self.limit

    @property
    def cache_room(self) -> int:
        """Bytes that are left for the KV cache."""
        return max(0, self.limit - self.weights - self.activations - self.workspace)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each part."""
        parts = {"weights": self.weights, "KV cache": self.cache, "activations": self.activations,
                 "workspace": self.workspace, "total": self.total, "limit": self.limit}  # fmt: skip
        return [{"part": name, "bytes": size, "share": size / self.capacity} for name, size in parts.items()]

    def __repr__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        return f"Memory({format_bytes(self.total)} of {format_bytes(self.limit)} a device: {verdict})"

    def __str__(self) -> str:
        rows = [(r["part"], format_bytes(r["bytes"]), f"{r['share']:.1%}") for r in self.rows()]
        return f"{self!r}\n{text_table(('part', 'size', 'of the device'), rows)}"


def weights_of(d: Deployment, stage: int | None = None) -> int:
    """Return the bytes of weights on a device of a pipeline stage; ``None``: of the largest."""
    if stage is None:
        return max(weights_of(d, s) for s in {0, d.pp - 1})
    c, total = d.config, 0.0
    for number in stage_range(d, stage):
        layer = c.layer(number)
        total += _attention_bytes(d) + _feed_forward_bytes(d, layer) + 2 * c.hidden * 2
    vocabulary = c.vocab * c.hidden * 2 / d.tp
    if stage == 0:
        total += vocabulary
    if stage == d.pp - 1 and not (c.tied and d.pp == 1):
        total += vocabulary
    return round(total)


def _attention_bytes(d: Deployment) -> float:
    c = d.config
    if c.latent:
        shared = c.hidden * (c.kv_lora + c.rope_dim + c.q_lora)
        return d.weight_bytes(shared + (c.attention_parameters - shared) / d.tp, d.attention_dtype)
    own = c.hidden * c.head_dim * (2 * c.heads / d.tp + 2 * d.kv_heads)
    return d.weight_bytes(own, d.attention_dtype)


def _feed_forward_bytes(d: Deployment, layer: Layer) -> float:
    c = d.config
    matrices = 3 if c.gated else 2
    if not layer.experts:
        return d.weight_bytes(matrices * c.hidden * c.inner / d.tp, d.attention_dtype)
    routed = matrices * c.hidden * c.expert_inner * c.experts / (d.tp * d.attention_dp)
    shared = matrices * c.hidden * c.shared_inner / d.tp
    return d.weight_bytes(routed + shared, d.dtype) + c.hidden * c.experts * 2


def cache_bytes(d: Deployment, tokens: int) -> float:
    """Return the bytes of KV cache that a request of so many tokens takes on one device."""
    total = 0.0
    for layer, count in d.config.kinds.items():
        kept = min(tokens, layer.window) if layer.window else tokens
        total += count * kept
    return total * layer_token_bytes(d) / d.pp / d.cp


def layer_token_bytes(d: Deployment) -> float:
    """Return the bytes of KV cache of one token in one layer on one device."""
    c = d.config
    if c.latent:
        return (c.kv_lora + c.rope_dim) * d.kv_bytes
    return 2 * d.kv_heads * c.head_dim * d.kv_bytes


def memory(d: Deployment, *, requests: int = 1, context: int = 0, step_tokens: int | None = None) -> Memory:
    """Return the memory of one device with so many requests of ``context`` tokens in the cache."""
    for name, value in (("requests", requests), ("context", context)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**12:
            raise ModelError(f"{name} must be a non-negative integer, got {value!r}")
    c, capacity = d.config, d.memory_bytes
    tokens = d.engine.token_budget if step_tokens is None else step_tokens
    tokens = -(-tokens // d.cp)
    wide = max(c.hidden, (c.inner * 2) // d.tp, (c.heads + 2 * c.kv_heads) * c.head_dim // d.tp)
    logits = min(tokens, max(1, requests)) * c.vocab // d.tp * 4
    activations = tokens * (2 * c.hidden + ACTIVATION_WIDTHS * wide) * 2 + logits
    own = -(-requests // d.attention_dp)
    full = sum(count for layer, count in c.kinds.items() if not layer.window)
    return Memory(
        capacity,
        int(capacity * d.engine.memory_share),
        weights_of(d),
        round(own * cache_bytes(d, context)),
        round(activations),
        round(d.engine.workspace_gb * 1e9),
        full * layer_token_bytes(d) / d.pp / d.cp,
        d.words(),
    )


def require_fit(
    d: Deployment, found: Memory, requests: int, context: int, step_tokens: int | None = None
) -> None:
    """Raise the breakdown and the smallest change that fits, if the model does not fit."""
    if found.fits:
        return
    parts = ", ".join(f"{r['part']} {format_bytes(r['bytes'])}" for r in found.rows()[:4])
    raise ModelError(
        f"{d.config.name} ({d.words()}) needs {format_bytes(found.total)} of the {format_bytes(found.limit)} "
        f"that '{d.hda.name}' has for it on a device: {parts}",
        advice=smallest_change(d, requests, context, step_tokens),
    )


def smallest_change(d: Deployment, requests: int, context: int, step_tokens: int | None = None) -> str:
    """Return the smallest change with which a model that does not fit would fit."""

    def fits(changed: Deployment, fewer: int) -> bool:
        return memory(changed, requests=fewer, context=context, step_tokens=step_tokens).fits

    def most(changed: Deployment) -> int:
        room = memory(changed, requests=requests, context=context, step_tokens=step_tokens).cache_room
        return int(room / max(1.0, cache_bytes(changed, context))) * changed.attention_dp

    changes, users = list(_changes(d)), most(d)
    fewer_users = f"at most {users} requests" if 1 <= users < requests else ""
    for words, changed in changes:
        if fits(changed, requests):
            return f"{words}, or {fewer_users}" if fewer_users else words
    if fewer_users:
        return fewer_users
    fewer = [(most(changed), words) for words, changed in changes]
    if fewer and max(fewer)[0] >= 1:
        users, words = max(fewer, key=lambda one: one[0])
        return f"{words} and at most {users} requests"
    return "no division over this machine's devices fits; use devices with more memory"


def _changes(d: Deployment) -> Iterator[tuple[str, Deployment]]:
    """Yield changes in the order in which people make them: more devices, a narrower cache, narrower weights,
    and more devices with each of these."""
    narrower: list[tuple[str, Any]] = []
    if d.kv_dtype != "fp8":
        narrower.append(("kv_dtype", "fp8"))
    narrower += [("dtype", k) for k in ("fp8", "int4") if SCHEMES[k].bits < SCHEMES[d.dtype].bits]
    devices: list[tuple[str, Any]] = []
    for name in ("tp", "pp"):
        value = getattr(d, name) * 2
        while value <= d.hda.count("device"):
            devices.append((name, value))
            value *= 2
    singles = [(one,) for one in (*devices, *(n for n in narrower if n != ("dtype", "int4")))]
    pairs = [(one, more) for more in narrower for one in devices]
    for change in (*singles, *pairs, *([(("dtype", "int4"),)] if ("dtype", "int4") in narrower else [])):
        changed = replace(d, **dict(change))
        try:
            check_division(changed)
        except ModelError:
            continue
        yield " and ".join(f"{name.replace('_', '-')} {value}" for name, value in change), changed
