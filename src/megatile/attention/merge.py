"""Parts of attention become one: softmax over the union of their keys, from outputs and log-sum-exps."""

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
    block_out, block_lse = _like_results(block_out, block_lse)
    if out is None or lse is None:
        return block_out, block_lse
    return torch.lerp(out, block_out, _weight(lse, block_lse)), torch.logaddexp(lse, block_lse)


def _like_results(block_out: Tensor, block_lse: Tensor) -> tuple[Tensor, Tensor]:
    return block_out.to(torch.float32), block_lse.to(torch.float32).transpose(-2, -1).unsqueeze(-1)


def _weight(lse: Tensor, block_lse: Tensor) -> Tensor:
    """The block's share of each row; not a number only where neither has seen a key."""
    return torch.sigmoid(block_lse - lse).nan_to_num_(0.0)


class Accumulator:
    """The result of one rank's queries while keys arrive: f32, rows without any key are 0 with lse -inf."""

    def __init__(self, batch: int, rows: int, heads: int, dim: int, device: torch.device):
        self._shape, self._device = (batch, rows, heads, dim), device
        self._out: Tensor | None = None
        self._lse: Tensor | None = None

    def add(self, runs: Sequence[Run], block_out: Tensor, block_lse: Tensor) -> None:
        """Take in a block whose rows are these runs of local rows, one after the other."""
        if self._out is None and list(runs) == [(0, self._shape[1])]:
            self._out, self._lse = _update_out_and_lse(None, None, block_out, block_lse)
            return
        whole_out, whole_lse = self._state()
        at = 0
        for begin, end in runs:
            part = slice(at, at + end - begin)
            out, lse = whole_out[:, begin:end], whole_lse[:, begin:end]
            new_out, new_lse = _like_results(block_out[:, part], block_lse[:, :, part])
            out.lerp_(new_out, _weight(lse, new_lse))
            torch.logaddexp(lse, new_lse, out=lse)
            at += end - begin

    def _state(self) -> tuple[Tensor, Tensor]:
        if self._out is None or self._lse is None:
            self._out = torch.zeros(self._shape, dtype=torch.float32, device=self._device)
            self._lse = torch.full((*self._shape[:3], 1), float("-inf"), device=self._device)
        return self._out, self._lse

    def result(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """``out`` [B, S, H, D] in ``dtype`` and ``lse`` [B, H, S] in f32."""
        out, lse = self._state()
        return out.to(dtype), lse.squeeze(-1).transpose(1, 2).contiguous()
