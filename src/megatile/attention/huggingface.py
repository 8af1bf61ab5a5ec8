"""Models of transformers on divided sequences: an attention function for them, and a rank's part of a batch.

    register_attention("megatile", group=group)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="megatile")
    batch = shard_batch({"input_ids": ids, "labels": ids}, group=group)      # whole tensors on every rank
    loss = model(**batch, use_cache=False).loss                              # this rank's part of the loss

The losses of all ranks add up to that of one process, and so do their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from megatile.attention.errors import AttentionError
from megatile.attention.functional import hamilton_attention
from megatile.attention.schedules import Layout, Schedule
from megatile.attention.sharding import position_ids, shard_sequence
from megatile.runtime.errors import MissingTorchError

IGNORED = -100
"""The label of tokens that have no part in the loss."""


def register_attention(
    name: str = "megatile",
    *,
    group: Any = None,
    schedule: str | Schedule = "auto",
    machine: Any = None,
    layout: str | Layout | None = None,
    boundaries: Callable[[], Any] | None = None,
) -> None:
    """Put sequence-parallel attention into transformers' ``ALL_ATTENTION_FUNCTIONS`` under ``name``.

    Packed sequences: their boundaries in the whole pack are what the model's call says as ``cu_seq_lens_q``
    (:func:`shard_batch` does), or what ``boundaries`` returns.
    """
    try:
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    except ImportError as error:
        raise MissingTransformersError(
            "register_attention needs transformers: pip install transformers"
        ) from error

    def attention(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        dropout: float = 0.0,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        is_causal: bool | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        causal = bool(getattr(module, "is_causal", True)) if is_causal is None else is_causal
        packed = kwargs.get("cu_seq_lens_q") if boundaries is None else boundaries()
        problem = None
        if attention_mask is not None:
            problem = "attention_mask cannot be divided over ranks: pack sequences instead of padding them"
        elif packed is not None and query.shape[0] != 1:
            problem = f"packed sequences need a batch of 1, got {query.shape[0]}"
        window = (sliding_window - 1, 0 if causal else sliding_window - 1) if sliding_window else (-1, -1)
        tensors = [query, key, value]
        order: str | None = "BNSD"
        if packed is not None:
            tensors, order = [x[0].transpose(0, 1) for x in tensors], None
        out = hamilton_attention(
            *tensors,
            group=group,
            causal=causal,
            softmax_scale=scaling,
            dropout_p=dropout,
            window_size=window,
            cu_seqlens=packed,
            schedule=schedule,
            machine=machine,
            layout=[x for x in (order, layout) if x is not None] or "BSND",
            softcap=softcap or 0.0,
            sinks=kwargs.get("s_aux"),
            _problem=problem,
        )
        return (out[None] if packed is not None else out.transpose(1, 2)), None

    ALL_ATTENTION_FUNCTIONS[name] = attention
    # As with flash attention: a mask that only says "causal" is none, others arrive and are refused.
    ALL_MASK_ATTENTION_FUNCTIONS[name] = ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"]


class MissingTransformersError(MissingTorchError):
    """transformers is not installed."""


def shard_batch(
    batch: Mapping[str, Any],
    *,
    group: Any = None,
    schedule: str | Schedule = "auto",
    layout: str | Layout | None = None,
) -> dict[str, Any]:
    """Return this rank's part of a batch of whole sequences, [batch, tokens] on every rank, for a causal
    model.

    ``labels`` become ``shift_labels`` (already shifted, so that no shard misses its next token) with
    ``num_items_in_batch``, the count of all labels: the losses of the ranks are parts of one sum.
    ``position_ids`` that begin again at 0 are packed sequences, each divided by itself: their boundaries are
    added as ``cu_seq_lens_q`` and ``cu_seq_lens_k``. Other tensors as long as ``input_ids`` are divided too.
    """
    if (
        "input_ids" not in batch
        or not isinstance(batch["input_ids"], Tensor)
        or batch["input_ids"].dim() != 2
    ):
        raise AttentionError("a batch needs input_ids [batch, tokens]")
    shape = batch["input_ids"].shape
    given = batch.get("position_ids")
    ends = None if given is None else boundaries_of(given, shape[0])
    place: dict[str, Any] = {"group": group, "causal": True, "schedule": schedule, "layout": layout}
    place["cu_seqlens"] = ends
    found: dict[str, Any] = {}
    for name, value in batch.items():
        if name == "attention_mask" and isinstance(value, Tensor):
            if not bool(value.all()):
                raise AttentionError(
                    "attention_mask hides padding, which cannot be divided", advice="pack sequences instead"
                )
        elif name == "labels":
            shifted = torch.nn.functional.pad(value[..., 1:], (0, 1), value=IGNORED)  # as models do it
            found["shift_labels"] = shard_sequence(shifted, **place)
            found["labels"] = found["shift_labels"]  # models compute a loss only where there are labels
            found["num_items_in_batch"] = int((shifted != IGNORED).sum())
        elif name == "position_ids":
            continue
        else:
            along = isinstance(value, Tensor) and value.dim() >= 2 and value.shape[:2] == shape
            found[name] = shard_sequence(value, **place) if along else value
    found["position_ids"] = position_ids(shape[1], **place)[None].expand(shape[0], -1)
    if ends is not None:
        found["cu_seq_lens_q"] = found["cu_seq_lens_k"] = torch.tensor(ends, dtype=torch.int32)
    return found


def boundaries_of(ids: Tensor, batch: int) -> list[int] | None:
    """Return where packed sequences begin and end, from positions; None for one sequence."""
    begins = (ids == 0).nonzero()[:, -1].tolist() if ids.dim() == 1 or len(ids) == 1 else []
    if ids.dim() == 2 and len(ids) > 1:
        begins = [0] if bool((ids == torch.arange(ids.shape[1], device=ids.device)).all()) else []
    ends = [*begins, ids.shape[-1]]
    expected = torch.cat([torch.arange(b - a) for a, b in pairwise(ends)] or [torch.arange(0)])
    if not begins or begins[0] != 0 or not bool((ids.flatten(0, -2)[-1:].cpu() == expected).all()):
        raise AttentionError(
            "position_ids must count from 0 in each packed sequence, and a pack is a batch of 1"
        )
    if len(begins) > 1 and batch != 1:
        raise AttentionError(f"packed sequences need a batch of 1, got {batch}")
    return ends if len(begins) > 1 else None
