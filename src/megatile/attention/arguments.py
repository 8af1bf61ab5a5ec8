"""What one rank was given: checked by itself, and written down to be compared with the other ranks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from megatile.attention.agreement import Record, checksum
from megatile.attention.kernels import SUPPORTED
from megatile.attention.schedules import Mask, Schedule
from megatile.core.errors import did_you_mean

_TENSOR_LAYOUTS = {"BSND": (0, 1, 2, 3), "BNSD": (0, 2, 1, 3), "SBND": (1, 0, 2, 3)}

# Fields of a record that must not differ between ranks.
SAME = (
    "batch",
    "query heads",
    "KV heads",
    "head dim",
    "value dim",
    "dtype",
    "mask",
    "schedule",
    "softmax_scale",
    "cu_seqlens",
    "alibi_slopes",
)


def find_problem(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window_size: Sequence[int],
    dropout_p: float,
    slopes: Tensor | None,
    layout: str,
    packed: bool,
) -> str | None:
    """What is wrong with one rank's arguments, in one sentence, or None."""
    dims = 3 if packed else 4
    if layout not in _TENSOR_LAYOUTS and not packed:
        return f"there is no tensor layout '{layout}' ({did_you_mean(layout, _TENSOR_LAYOUTS)})"
    if any(x.dim() != dims for x in (q, k, v)):
        names = "[tokens, heads, dim]" if packed else f"four dimensions ({layout})"
        return f"q, k and v need {names}, got shapes {[tuple(x.shape) for x in (q, k, v)]}"
    if len({x.dtype for x in (q, k, v)}) > 1 or q.dtype not in SUPPORTED:
        found = sorted({str(x.dtype).removeprefix("torch.") for x in (q, k, v)})
        return f"q, k and v must share one dtype of float32, bfloat16 and float16, got {', '.join(found)}"
    if dropout_p:
        return "dropout inside divided attention is not supported, use dropout_p=0"
    if len(window_size) != 2 or any(int(w) != w or w < -1 for w in window_size):
        return f"window_size is (left, right) with -1 for no limit, got {tuple(window_size)}"
    inner_q, inner_k, inner_v = (to_inner(x, layout, packed) for x in (q, k, v))
    if inner_k.shape[:3] != inner_v.shape[:3] or inner_q.shape[0] != inner_k.shape[0]:
        return f"batch, length and heads of k and v must agree, got {tuple(k.shape)} and {tuple(v.shape)}"
    if inner_q.shape[3] != inner_k.shape[3]:
        return f"q and k need the same head dim, got {inner_q.shape[3]} and {inner_k.shape[3]}"
    heads, kv_heads = inner_q.shape[2], inner_k.shape[2]
    if not kv_heads or heads % kv_heads:
        return f"the {heads} query heads are no multiple of the {kv_heads} KV heads"
    if slopes is not None and (slopes.dim() not in (1, 2) or slopes.shape[-1] != heads):
        return f"alibi_slopes must be [heads] or [batch, heads] for {heads} heads, got {tuple(slopes.shape)}"
    return None


def make_record(
    problem: str | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    schedule: Schedule | None,
    scale: float,
    cu_seqlens: Any,
    slopes: Tensor | None,
) -> Record:
    """The fields that ranks compare; with MEGATILE_ATTENTION_DEBUG=1 a checksum of the keys too."""
    if problem is not None:
        return {}
    debug = os.environ.get("MEGATILE_ATTENTION_DEBUG", "0") not in ("", "0")
    return {
        "batch": q.shape[0],
        "query heads": q.shape[2],
        "KV heads": k.shape[2],
        "head dim": q.shape[3],
        "value dim": v.shape[3],
        "dtype": str(q.dtype).removeprefix("torch."),
        "mask": [mask.left, mask.right],
        "schedule": schedule.name if schedule else None,
        "softmax_scale": scale,
        "cu_seqlens": None if cu_seqlens is None else _digest(cu_seqlens),
        "alibi_slopes": None if slopes is None else _digest(slopes),
        "query tokens": q.shape[1],
        "key tokens": k.shape[1],
        "checksum": checksum(k) if debug and k.numel() else None,
    }


def _digest(values: Any) -> str:
    text = str([x.tolist() if isinstance(x, Tensor) else x for x in values])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def to_inner(x: Tensor, layout: str, packed: bool = False) -> Tensor:
    """As the engine wants it: batch, sequence, heads, dim."""
    return x.unsqueeze(0) if packed else x.permute(_TENSOR_LAYOUTS[layout])


def from_inner_order(layout: str) -> list[int]:
    """The permutation back from batch, sequence, heads, dim."""
    order = _TENSOR_LAYOUTS[layout]
    return [order.index(i) for i in range(4)]
