"""How long attention kernels take: prefill, decoding, latent attention (MLA), forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.timing.device import Device, Shape, every, some

SHARED_HEADS = 32
"""Frameworks with a kernel for heads that do not share keys take it beyond so many, too (TensorRT-LLM)."""
WIDE_HEADS = 256
"""FlashAttention 3 ends here; wider heads are FlashAttention 4's."""
BACKWARD = 2.5
"""Products of a backward pass (five) over those of a forward pass (two)."""


def types(dtype: str) -> tuple[str, str]:
    """Return the element types of compute and cache: ``bf16/f8e4m3`` names both, ``bf16`` is both."""
    compute, _, cache = dtype.partition("/")
    return compute, cache or compute


def attention(device: Device, shape: Shape, dtype: str) -> Any:
    """Attention of ``queries`` new tokens after ``context`` cached ones, keys and values put into the cache
    on the way; causal by default; a window limits how many keys back a query sees. ``ragged=1``: extents
    are arrays, and all of them are sequences of one launch."""
    decoding = is_decode(shape)
    if every(decoding):
        return _decode(device, shape, dtype)
    if not some(decoding) or _is_ragged(shape):
        return _prefill(device, shape, dtype)
    return device.x.where(decoding, _decode(device, shape, dtype), _prefill(device, shape, dtype))


def _is_ragged(shape: Shape) -> bool:
    return some(shape["ragged"])


def _prefill(device: Device, shape: Shape, dtype: str) -> Any:
    time = _attention(device, shape, dtype, f"prefill{_suffix(dtype)}")
    wide = shape["head_dim"] > WIDE_HEADS
    if not some(wide):
        return time
    return device.x.where(wide, _attention(device, shape, dtype, "prefill_wide"), time)


def _decode(device: Device, shape: Shape, dtype: str) -> Any:
    name = f"decode{_suffix(dtype)}"
    time = _attention(device, shape, dtype, name)
    wide = shape["head_dim"] > WIDE_HEADS
    if some(wide) and device.has("decode_wide"):
        return device.x.where(wide, _in_turn(device, shape, dtype), time)
    if not device.has(apart := f"{name}_heads"):
        return time
    return device.x.where(_apart(shape), _attention(device, shape, dtype, apart), time)


def _in_turn(device: Device, shape: Shape, dtype: str) -> Any:
    """Return the time of a kernel that takes up sequences and key heads one after another (``wave`` each)."""
    figures, keys = device.kernel("decode_wide"), shape["context"] + 1.0
    heads = device.x.where(shape["kv_heads"] > 0, shape["kv_heads"], shape["heads"])
    groups, stored = shape["batch"] * heads * 1.0, itemsize(types(dtype)[1])
    moved = groups * keys * 2 * stored * shape["head_dim"]
    if _is_ragged(shape):
        groups, moved = np.sum(groups), np.sum(moved)
    return figures.start_us + groups * figures.wave_us + moved / (device.bandwidth * figures.bandwidth) * 1e6


def _apart(shape: Shape) -> Any:
    """Return whether heads share no keys, or more of them share than one kernel takes together."""
    heads, keys = shape["heads"], shape["kv_heads"]
    return (keys == 0) | (heads == keys) | (heads > SHARED_HEADS * keys)


def _suffix(dtype: str) -> str:
    compute, cache = types(dtype)
    return "_f8" if itemsize(compute) == 1 else "_kv8" if itemsize(cache) == 1 else ""


def is_decode(shape: Shape) -> Any:
    return (shape["queries"] == 1) & (shape["context"] > 0)


def attention_kernels(device: Device, shape: Shape, dtype: str) -> tuple[str, ...]:
    wide = every(shape["head_dim"] > WIDE_HEADS)
    if not every(is_decode(shape)):
        return ("prefill_wide" if wide else f"prefill{_suffix(dtype)}",)
    name = f"decode{_suffix(dtype)}"
    if wide:
        return ("decode_wide",)
    return (f"{name}_heads" if device.has(f"{name}_heads") and every(_apart(shape)) else name,)


def _attention(device: Device, shape: Shape, dtype: str, name: str) -> Any:
    batch, queries, context, heads, kv_heads, dim, window = (
        shape[extent] * 1.0
        for extent in ("batch", "queries", "context", "heads", "kv_heads", "head_dim", "window")
    )
    figures, x = device.kernel(name), device.x
    compute, cache = types(dtype)
    kv_heads = x.where(kv_heads > 0, kv_heads, heads)
    together = heads / kv_heads if figures.packed else 1.0
    keys = context + queries
    reach = x.where(window > 0, x.minimum(window + 1, keys), keys)
    whole = x.minimum(x.maximum(reach - context, 0.0), queries)  # queries that see every key before them
    seen = (whole * context + whole * (whole + 1) / 2 + (queries - whole) * reach) / queries
    further = x.maximum(x.minimum(figures.rows / together, queries) - 1, 0.0)  # queries in a work-group
    columns = x.minimum(seen + further / 2 * (1 + (whole < queries)), keys)
    around = x.minimum(x.where(window > 0, 2 * window + 1, keys), keys)
    columns = x.where(shape["causal"] > 0, columns, around)
    groups = x.ceil(queries * together / figures.rows) * batch * (heads / together)
    rate = device.rate(compute) * figures.share
    group = 4 * figures.rows * columns * (dim + figures.softmax) / rate * 1e6
    stored = x.where(context > 0, itemsize(cache), max(2, itemsize(compute)))
    wide = max(2, itemsize(compute))
    moved = (
        batch * dim * (2 * wide * queries * heads + 2 * stored * kv_heads * x.minimum(keys, reach + queries))
    )
    again = 1 + (BACKWARD - 1) * (shape["backward"] > 0)
    cached = 2 * (wide + itemsize(cache)) * batch * dim * queries * kv_heads
    if _is_ragged(shape):
        total = np.sum(groups)
        groups, group = total, np.sum(groups * group) / total
        moved, cached, again = np.sum(moved), np.sum(cached), np.max(again)
    time = device.time(name, groups, group * again, moved * again)
    return device.issued(name, time + cached / (device.bandwidth * figures.bandwidth) * 1e6)


def mla(device: Device, shape: Shape, dtype: str) -> Any:
    """Latent attention. One query: heads share the cached latent of each token (absorbed projections). More:
    keys and values are expanded, and it is attention with as many key heads as heads."""
    decoding = is_decode(shape)
    if every(decoding):
        return _latent(device, shape, dtype)
    expanded = _expanded(device, shape, dtype)
    if not some(decoding):
        return expanded
    return device.x.where(decoding, _latent(device, shape, dtype), expanded)


def _latent(device: Device, shape: Shape, dtype: str) -> Any:
    batch, heads, latent, rope = (shape[extent] * 1.0 for extent in ("batch", "heads", "kv_lora", "rope"))
    compute, cache = types(dtype)
    name = "mla_kv8" if itemsize(cache) == 1 else "mla"
    figures, x = device.kernel(name), device.x
    keys = shape["context"] + shape["queries"] * 1.0
    groups = batch * x.ceil(heads / figures.rows)
    rate = device.rate(compute) * figures.share
    group = 2 * figures.rows * keys * (2 * latent + rope) / rate * 1e6
    read = groups * keys * (latent + rope) * itemsize(cache)
    moved = read + batch * heads * (2 * latent + rope) * max(2, itemsize(compute))
    if _is_ragged(shape):
        total = np.sum(groups)
        groups, group, moved = total, np.sum(groups * group) / total, np.sum(moved)
    return device.issued(name, device.time(name, groups, group, moved))


def _expanded(device: Device, shape: Shape, dtype: str) -> Any:
    dim = (shape["nope"] + shape["rope"] + shape["v"]) / 2  # of a product with keys, and one with values
    usual = {"kv_heads": shape["heads"], "window": 0, "causal": 1, "backward": 0}
    return _attention(device, {**shape, **usual, "head_dim": dim}, dtype, f"prefill{_suffix(dtype)}")


def mla_kernels(device: Device, shape: Shape, dtype: str) -> tuple[str, ...]:
    if not every(is_decode(shape)):
        return (f"prefill{_suffix(dtype)}",)
    return ("mla_kv8" if itemsize(types(dtype)[1]) == 1 else "mla",)
