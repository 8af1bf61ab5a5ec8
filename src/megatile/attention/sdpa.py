"""Existing models unchanged: inside this context torch's own attention works on divided sequences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from megatile.attention.functional import hamilton_attention
from megatile.attention.schedules import Layout, Schedule


@contextmanager
def sequence_parallel_attention(
    *,
    group: Any = None,
    schedule: str | Schedule = "auto",
    machine: Any = None,
    layout: str | Layout | None = None,
) -> Iterator[None]:
    """Make ``torch.nn.functional.scaled_dot_product_attention`` sequence-parallel over ``group``.

    Give the model each rank's part of the sequence (:func:`shard_sequence`, and :func:`position_ids` for its
    positions); ``layout`` says how it is divided, if not as the schedule does.
    Queries and keys must be of the same divided sequence; masks other than ``is_causal`` are
    refused. The replacement holds for the whole process while the context is open; code that took the
    function out of its module before (``from torch.nn.functional import …``) is not changed.
    """
    original = F.scaled_dot_product_attention

    def divided(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        return hamilton_attention(
            query,
            key,
            value,
            group=group,
            causal=is_causal,
            softmax_scale=scale,
            dropout_p=dropout_p,
            schedule=schedule,
            machine=machine,
            layout="BNSD" if layout is None else ("BNSD", layout),
            _problem=_problem(query, key, attn_mask, is_causal, enable_gqa),
        )

    shortcut = torch.backends.mha.get_fastpath_enabled()
    F.scaled_dot_product_attention = divided
    torch.backends.mha.set_fastpath_enabled(False)  # of torch's own layers, which goes around the function
    try:
        yield
    finally:
        F.scaled_dot_product_attention = original
        torch.backends.mha.set_fastpath_enabled(shortcut)


def _problem(query: Any, key: Any, attn_mask: Any, is_causal: bool, enable_gqa: bool) -> str | None:
    """Return what cannot be divided. It is reported to all ranks, like any other mistake."""
    if attn_mask is not None:
        return "attn_mask cannot be divided over ranks: use is_causal, or hamilton_attention with window_size"
    if not all(isinstance(x, Tensor) and x.dim() == 4 for x in (query, key)):
        return None  # hamilton_attention says it
    if is_causal and query.shape[-2] != key.shape[-2]:
        return "is_causal with different lengths of query and key is ambiguous when divided"
    if query.shape[1] != key.shape[1] and not enable_gqa:
        return "fewer KV heads need enable_gqa=True"
    return None
