"""The ``llama3`` functions: a pack cut into consecutive slices, whatever its documents are.

``llama3_flash_attn_prepare_cu_seqlens`` makes the boundaries of a rank's slice out of those of the pack; the
functions take these, and find the pack's again.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from megatile.attention.choice import uncompiled
from megatile.attention.errors import AttentionError
from megatile.attention.ownership import packed_lengths
from megatile.attention.schedules import Layout
from megatile.compat.ring_flash_attn.functions import TENSORS, attend_unpacked, make_function
from megatile.core.placement import split

_LOCAL = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "heads_k_stride", "local_k_slice")
_PREPARED: dict[tuple[Any, ...], tuple[int, ...]] = {}
"""The boundaries of packs, by those of a slice. Ranks that found different packs say so."""
MAX_PREPARED = 4096
"""Prepared batches that are remembered."""


@uncompiled
def llama3_flash_attn_prepare_cu_seqlens(
    cu_seqlens: Tensor, causal: bool, rank: int, world_size: int
) -> tuple[Tensor, Tensor, int, int, slice]:
    """Boundaries of the queries in a rank's slice of the pack, and of the keys they see; the longest of both,
    and where these keys are in the pack."""
    lengths, _ = packed_lengths(cu_seqlens)
    if not 0 <= rank < world_size:
        raise AttentionError(f"there is no rank {rank} among {world_size}")
    pieces = Layout("slices", world_size).pieces(lengths)[rank]
    queries = [piece.length for piece in pieces]
    keys = [piece.start + piece.length if causal else lengths[piece.sequence] for piece in pieces]
    starts = list(accumulate(lengths, initial=0))
    first = starts[pieces[0].sequence] if pieces else sum(split(sum(lengths), world_size)[:rank])
    where = slice(first, first + sum(keys))
    found = [torch.tensor([0, *accumulate(x)], dtype=cu_seqlens.dtype, device=cu_seqlens.device)
             for x in (queries, keys)]  # fmt: skip
    if len(_PREPARED) >= MAX_PREPARED:
        _PREPARED.clear()
    _PREPARED[_key(found[0], found[1], where)] = tuple(starts)
    return found[0], found[1], max(queries, default=0), max(keys, default=0), where


def _key(cu_seqlens_q: Any, cu_seqlens_k: Any, local_k_slice: Any) -> tuple[Any, ...]:
    lists = (tuple(map(int, x)) for x in (cu_seqlens_q, cu_seqlens_k))
    return *lists, local_k_slice.start, local_k_slice.stop


@uncompiled
def _attend(given: dict[str, Any]) -> Any:
    local = {name: given.pop(name) for name in _LOCAL}
    try:
        key = _key(local["cu_seqlens_q"], local["cu_seqlens_k"], local["local_k_slice"])
        given["cu_seqlens"] = _PREPARED[key]
    except (KeyError, TypeError, AttributeError, ValueError):
        given["cu_seqlens"] = (0, 1)
        given["_problem"] = (
            "cu_seqlens_q, cu_seqlens_k and local_k_slice must come from llama3_flash_attn_prepare_cu_seqlens"
        )
    return attend_unpacked(given, schedule="auto", layout="slices")


LLAMA3_FUNCTIONS = {
    f"llama3_flash_attn_varlen{packing}_func": make_function(
        f"llama3_flash_attn_varlen{packing}_func",
        f"Attention with {names}, [tokens, heads, dim] of a slice of packed sequences.",
        (*tensors, *_LOCAL),
        _attend,
    )
    for packing, (tensors, names) in TENSORS.items()
}
"""By name. ``heads_k_stride``, how many KV heads travel at once in the original, changes nothing."""
