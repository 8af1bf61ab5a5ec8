"""What one rank was given: checked by itself, and written down to be compared with the other ranks."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import isfinite
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megatile.attention.block_kernels import SUPPORTED, KernelOptions
from megatile.attention.errors import AttentionError
from megatile.attention.merge import merge_form
from megatile.attention.ownership import packed_lengths
from megatile.attention.schedules import Layout, Schedule
from megatile.attention.schedules.pieces import LAYOUTS
from megatile.attention.settings import problem_of_settings
from megatile.core.cached import cached
from megatile.core.errors import did_you_mean
from megatile.runtime.agreement import Agreement, Members, Record

_TENSOR_LAYOUTS = {"BSND": (0, 1, 2, 3), "BNSD": (0, 2, 1, 3), "SBND": (1, 0, 2, 3)}
NO_WINDOW = (-1, -1)

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
    "cycles",
    "division",
    "machine",
    "gather",
    "gradient",
    "softmax_scale",
    "cu_seqlens",
    "cu_seqlens_padded",
    "alibi_slopes",
    "softcap",
    "sinks",
    "mask_mod",
)


def as_autocast(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """Inside ``torch.autocast``: in its dtype, as torch's own attention does."""
    if not torch._C._is_any_autocast_enabled():
        return q, k, v
    kind = q.device.type if isinstance(q, Tensor) else "meta"
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return q, k, v
    wanted = torch.get_autocast_dtype(kind)
    casts = [isinstance(x, Tensor) and x.dtype in SUPPORTED for x in (q, k, v)]
    q, k, v = (x.to(wanted) if cast else x for x, cast in zip((q, k, v), casts, strict=True))
    return q, k, v


def find_problem(
    q: Any,
    k: Any,
    v: Any,
    causal: Any,
    window_size: Any,
    dropout_p: float,
    slopes: Any,
    layout: str,
    cu_seqlens: Any = None,
    scale: Any = None,
) -> str | None:
    """Return what is wrong with one rank's arguments, in one sentence, or None.

    Nothing may raise here: the other ranks would wait for this one.
    """
    packed = cu_seqlens is not None
    return (
        _problem_of_tensors(q, k, v, layout, packed)
        or _problem_of_options(causal, window_size, dropout_p, cu_seqlens, scale)
        or _problem_of_shapes(q, k, v, slopes, layout, packed)
        or _problem_of_merges(q)
    )


def problem_between_ranks(*tensors: Tensor) -> str | None:
    """Return what works on one rank alone, but cannot be sent to others."""
    problem = problem_of_settings()
    if problem:
        return problem
    if any(x.is_meta for x in tensors):
        return "tensors of the device 'meta' have no data that ranks could exchange"
    if any(torch._C._functorch.is_batchedtensor(x) for x in tensors):
        return "torch.vmap cannot reach into other processes, use the batch dimension of q, k and v"
    return None


def _problem_of_tensors(q: Any, k: Any, v: Any, layout: str, packed: bool) -> str | None:
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        return f"q, k and v must be tensors, got {', '.join(type(x).__name__ for x in (q, k, v))}"
    if not packed and (not isinstance(layout, str) or layout not in _TENSOR_LAYOUTS):
        return f"there is no tensor layout '{layout}' ({_meant(str(layout))})"
    if not q.dim() == k.dim() == v.dim() == (3 if packed else 4):
        names = "[tokens, heads, dim]" if packed else f"four dimensions ({layout})"
        return f"q, k and v need {names}, got shapes {[tuple(x.shape) for x in (q, k, v)]}"
    if not q.dtype == k.dtype == v.dtype or q.dtype not in SUPPORTED:
        found = sorted({str(x.dtype).removeprefix("torch.") for x in (q, k, v)})
        known = "float32, bfloat16, float16 and float64"
        return f"q, k and v must share one dtype of {known}, got {', '.join(found)}"
    if not (q.is_cpu and k.is_cpu and v.is_cpu) and not q.device == k.device == v.device:
        return f"q, k and v must be on one device, got {', '.join(str(x.device) for x in (q, k, v))}"
    if not q.layout == k.layout == v.layout == torch.strided:
        return f"q, k and v must be dense tensors, got {', '.join(str(x.layout) for x in (q, k, v))}"
    return None


def _meant(layout: str) -> str:
    """Others write H for the number of heads, which is N here."""
    meant = layout.upper().replace("H", "N")
    return f"did you mean '{meant}'?" if meant in _TENSOR_LAYOUTS else did_you_mean(layout, _TENSOR_LAYOUTS)


def _problem_of_options(
    causal: Any, window_size: Any, dropout_p: Any, cu_seqlens: Any, scale: Any
) -> str | None:
    if not (causal is None or isinstance(causal, (int, np.bool_))):
        return f"causal is True or False, got {type(causal).__name__}"
    if dropout_p is not None and (not isinstance(dropout_p, (int, float, Real)) or dropout_p):
        return "dropout inside divided attention is not supported, use dropout_p=0"
    pair = isinstance(window_size, (tuple, list)) and len(window_size) == 2
    if not pair or not (_is_side(window_size[0]) and _is_side(window_size[1])):
        return f"window_size is (left, right) with -1 for no limit, got {window_size}"
    if scale is not None and not _is_finite(scale):
        found = scale if isinstance(scale, float) else type(scale).__name__
        return f"softmax_scale must be a finite number, got {found}"
    try:
        if cu_seqlens is not None:
            packed_lengths(cu_seqlens)
    except AttentionError as error:
        return str(error)
    return None


def _is_side(found: Any) -> bool:
    return isinstance(found, (int, Integral)) and int(found) >= -1


def _is_finite(number: Any) -> bool:
    try:
        return isinstance(number, Real) and isfinite(number)
    except OverflowError:
        return False


def _problem_of_shapes(q: Tensor, k: Tensor, v: Tensor, slopes: Any, layout: str, packed: bool) -> str | None:
    if slopes is None and q.shape == k.shape == v.shape and q.numel():
        return None
    order = None if packed else _TENSOR_LAYOUTS[layout]
    shape_q, shape_k, shape_v = _inner_shape(q, order), _inner_shape(k, order), _inner_shape(v, order)
    if shape_k[:3] != shape_v[:3]:
        return f"batch, length and heads of k and v must agree, got {tuple(k.shape)} and {tuple(v.shape)}"
    if shape_q[0] != shape_k[0]:
        return f"q and k must agree in batch, got {shape_q[0]} and {shape_k[0]}"
    if shape_q[3] != shape_k[3]:
        return f"q and k need the same head dim, got {shape_q[3]} and {shape_k[3]}"
    heads, kv_heads = shape_q[2], shape_k[2]
    if not kv_heads or heads % kv_heads:
        return f"the {heads} query heads are not a multiple of the {kv_heads} KV heads"
    if slopes is None:
        return None
    shape = tuple(slopes.shape) if isinstance(slopes, Tensor) else type(slopes).__name__
    if shape not in ((heads,), (shape_q[0], heads)):
        return f"alibi_slopes must be [heads] or [batch, heads] for {heads} heads, got {shape}"
    if slopes.requires_grad and torch.is_grad_enabled():
        return "alibi_slopes have no gradient here, give alibi_slopes.detach()"
    return None


def _problem_of_merges(q: Tensor) -> str | None:
    if not os.environ.get("MEGATILE_ATTENTION_MERGE"):
        return None  # what is chosen by itself always works
    try:
        merge_form(q.device)
    except AttentionError as error:
        return str(error)
    return None


def mask_text(causal: bool, window_size: Sequence[int]) -> str:
    """Return the mask in words; two ranks with different words may also divide sequences differently."""
    sides = int(window_size[0]), int(window_size[1])
    window = "" if sides == NO_WINDOW else f" with window_size {sides}"
    return ("causal" if causal else "full") + window


def make_record(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: str,
    schedule: Schedule | None,
    options: KernelOptions,
    cu_seqlens: Any,
) -> Record:
    """Return the fields that ranks compare."""
    return {
        "batch": q.shape[0],
        "query heads": q.shape[2],
        "KV heads": k.shape[2],
        "head dim": q.shape[3],
        "value dim": v.shape[3],
        "dtype": str(q.dtype).removeprefix("torch."),
        "mask": mask,
        "schedule": schedule.name if schedule else None,
        "cycles": _cycles(schedule) if schedule else None,
        "division": _division(schedule) if schedule else None,
        "softmax_scale": options.scale,
        "cu_seqlens": None if cu_seqlens is None else boundaries_text(cu_seqlens),
        "alibi_slopes": None if options.slopes is None else _digest(options.slopes),
        "query tokens": q.shape[1],
        "key tokens": k.shape[1],
    }


def checksum(x: Tensor) -> str | None:
    """Return a number that differs between tensors with different values, in practice; None for constants."""
    values = x.detach().double()
    if not x.numel() or bool((values == values.flatten()[0]).all()):
        return None
    return f"{values.sum().item():.12e}/{values.abs().sum().item():.12e}"


def refuse_unsharded(records: Sequence[Record]) -> None:
    """Raise if two ranks hold the same keys: a whole sequence was given where a rank's own part belongs."""
    seen: dict[str, list[int]] = defaultdict(list)
    for rank, record in enumerate(records):
        if record.get("checksum"):
            seen[record["checksum"]].append(rank)
    for ranks in seen.values():
        if len(ranks) > 1:
            names = ", ".join(map(str, ranks))
            raise AttentionError(
                f"ranks {names} hold the same keys: the sequence was not divided",
                advice="give each rank its own part, e.g. shard_sequence(k, causal=…), or pass layout= "
                "if equal keys are meant",
            )


def refuse_unknown(records: Sequence[Record]) -> None:
    """Raise if one rank cannot know that its tokens are those that the schedule expects."""
    for rank, record in enumerate(records):
        if record.get("unknown"):
            raise AttentionError(f"rank {rank}: {record['unknown']}")


def agreed(
    members: Members,
    record: Record,
    problem: str | None,
    x: Any,
    same: tuple[str, ...] = SAME,
    details: Callable[[], Record] | None = None,
    signature: str | None = None,
) -> Agreement:
    """Return the records of all ranks; a problem or a difference on one of them is an error on all."""
    return members.agree(record, problem, device_of(x), same, checks(), True, details, signature)


def checks() -> bool:
    """Return whether ranks compare their arguments, and insist on knowing how tokens are divided."""
    return os.environ.get("MEGATILE_ATTENTION_CHECK") != "0"


def read_layout(layout: Any) -> tuple[str, str | Layout | None, str | None]:
    """Return the order of dimensions, how the tokens are divided (None: as the schedule does), and what is
    wrong."""
    pair = list(layout) if isinstance(layout, (tuple, list)) else [layout]
    division = [x for x in pair if isinstance(x, Layout) or (isinstance(x, str) and x in LAYOUTS)]
    order = [x for x in pair if x not in division]
    if len(division) > 1 or len(order) > 1 or not pair:
        return "BSND", None, f"layout is an order of dimensions, a division of tokens or both, got {layout!r}"
    return order[0] if order else "BSND", division[0] if division else None, None


def device_of(x: Any) -> torch.device:
    """Return where ranks compare their arguments, also if this one was given no tensor."""
    return x.device if isinstance(x, Tensor) and not x.is_meta else torch.device("cpu")


def _digest(values: Any) -> str:
    text = str([x.tolist() if isinstance(x, Tensor) else x for x in values])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def boundaries_text(cu_seqlens: Any) -> str:
    lengths_q, lengths_kv = packed_lengths(cu_seqlens)
    keys = "" if lengths_q == lengths_kv else f" and {sum(lengths_kv)} keys"
    digest = _digest((lengths_q, lengths_kv))
    return f"{len(lengths_q)} sequences of {sum(lengths_q)} tokens{keys} ({digest})"


@cached(most=64)
def _cycles(schedule: Schedule) -> str | None:
    """Two schedules of one name may have been given different cycles."""
    cycles = getattr(schedule.routes, "cycles", None)
    return None if cycles is None else _digest(cycles)


def _division(schedule: Schedule) -> str:
    """The same holds for how they divide sequences and heads."""
    return f"{schedule.full_layout}, causal {schedule.causal_layout}, {schedule.heads} for the heads"


def _inner_shape(x: Tensor, order: tuple[int, int, int, int] | None) -> tuple[int, ...]:
    shape = x.shape
    return (
        (1, *shape) if order is None else (shape[order[0]], shape[order[1]], shape[order[2]], shape[order[3]])
    )


def to_inner(x: Tensor, layout: str, packed: bool = False) -> Tensor:
    """As the engine wants it: batch, sequence, heads, dim."""
    if packed:
        return x.unsqueeze(0)
    return x if layout == "BSND" else x.permute(_TENSOR_LAYOUTS[layout])


def from_inner_order(layout: str) -> list[int]:
    """Return the permutation back from batch, sequence, heads, dim."""
    order = _TENSOR_LAYOUTS[layout]
    return [order.index(i) for i in range(4)]
