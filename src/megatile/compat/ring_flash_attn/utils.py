"""Parts that ring-flash-attention's functions are made of: merging results, sending around a ring."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from megatile.compat.hamilton import RingComm, _update_out_and_lse

__all__ = ["RingComm", "flatten_varlen_lse", "unflatten_varlen_lse", "update_out_and_lse"]


def update_out_and_lse(
    out: Tensor | None, lse: Tensor | None, block_out: Tensor, block_lse: Tensor, slice_: Any = None
) -> tuple[Tensor, Tensor]:
    """Take a block into ``out`` [B, S, H, D] and ``lse`` [B, S, H, 1]; into ``slice_`` of them in place.

    ``block_out`` [B, S, H, D] in any dtype, ``block_lse`` [B, H, S].
    """
    if out is None or lse is None or slice_ is None:
        if slice_ is not None:
            raise RuntimeError("the first update_out_and_lse takes no slice_: there is nothing to update yet")
        return _update_out_and_lse(out, lse, block_out, block_lse)
    out[slice_], lse[slice_] = _update_out_and_lse(out[slice_], lse[slice_], block_out, block_lse)
    return out, lse


def flatten_varlen_lse(lse: Tensor, cu_seqlens: Tensor) -> Tensor:
    """[sequences, heads, longest] → [heads, tokens]."""
    lengths = cu_seqlens.diff().tolist()
    return torch.cat([row[:, :length] for row, length in zip(lse, lengths, strict=True)], dim=1)


def unflatten_varlen_lse(lse: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
    """[tokens, heads, 1] → [sequences, heads, longest]; what is filled in is 0."""
    parts = lse.squeeze(-1).transpose(0, 1).split(cu_seqlens.diff().tolist(), dim=1)
    return torch.stack([torch.nn.functional.pad(x, (0, max_seqlen - x.shape[1])) for x in parts])
