"""Models of transformers with ``attn_implementation="flash_attention_2"``, on slices of a pack."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from megatile.attention.errors import AttentionError
from megatile.attention.huggingface import register_attention
from megatile.attention.ownership import packed_lengths
from megatile.runtime.agreement import Members

_PARAMETERS: dict[str, Any] = {}


def update_ring_flash_attn_params(cu_seqlens: Tensor, process_group: Any) -> None:
    """Say the boundaries of the packed sequences that the next steps have, of all ranks together."""
    packed_lengths(cu_seqlens)
    Members(process_group, AttentionError)
    _PARAMETERS["cu_seqlens"] = cu_seqlens


def substitute_hf_flash_attn(process_group: Any, heads_k_stride: int = 1) -> None:
    """From now on ``flash_attention_2`` of transformers is attention of consecutive slices, one per rank.

    ``heads_k_stride`` changes nothing here.
    """
    register_attention(
        "flash_attention_2",
        group=process_group,
        layout="slices",
        boundaries=lambda: _PARAMETERS["cu_seqlens"],
    )
