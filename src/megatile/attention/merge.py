"""Partial results of attention become one: softmax over a union of keys from the parts' outputs and
log-sum-exps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megatile.attention.schedules.division import Run


def _update_out_and_lse(
    out: Tensor | None, lse: Tensor | None, block_out: Tensor, block_lse: Tensor
) -> tuple[Tensor, Tensor]:
    """Take a block into the result so far. ``out`` [B, S, H, D] and ``lse`` [B, S, H, 1] are kept in f32.

    ``block_out`` [B, S, H, D] in any dtype and ``block_lse`` [B, H, S]. The sigmoid form neither overflows
    nor loses digits when one part dominates; rows that have seen no key yet (lse -inf) take the block as it
    is.
    """
    block_out = block_out.to(torch.float32)
    block_lse = block_lse.to(torch.float32).transpose(-2, -1).unsqueeze(-1)
    if out is None or lse is None:
        return block_out, block_lse
    weight = torch.sigmoid(block_lse - lse)
    weight = torch.where(torch.isneginf(block_lse), torch.zeros_like(weight), weight)
    return out - weight * (out - block_out), torch.logaddexp(lse, block_lse)


class Accumulator:
    """The result of one rank's queries while keys arrive: f32, rows without any key are 0 with lse -inf."""

    def __init__(self, batch: int, rows: int, heads: int, dim: int, device: torch.device):
        self.out = torch.zeros(batch, rows, heads, dim, dtype=torch.float32, device=device)
        self.lse = torch.full((batch, rows, heads, 1), float("-inf"), dtype=torch.float32, device=device)

    def add(self, runs: Sequence[Run], block_out: Tensor, block_lse: Tensor) -> None:
        """Take in a block whose rows are these runs of local rows, one after the other."""
        at = 0
        for begin, end in runs:
            part = slice(at, at + end - begin)
            out, lse = _update_out_and_lse(
                self.out[:, begin:end], self.lse[:, begin:end], block_out[:, part], block_lse[:, :, part]
            )
            self.out[:, begin:end] = out
            self.lse[:, begin:end] = lse
            at += end - begin

    def result(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """``out`` [B, S, H, D] in ``dtype`` and ``lse`` [B, H, S] in f32."""
        return self.out.to(dtype), self.lse.squeeze(-1).transpose(1, 2).contiguous()
