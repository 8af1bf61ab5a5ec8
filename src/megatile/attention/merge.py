"""Parts of attention become one: softmax over the union of their keys, from outputs and log-sum-exps.

On GPUs with Triton one kernel takes a block in (``fused_merge``), elsewhere torch's own operations do; the
arithmetic is the same. ``MEGATILE_ATTENTION_MERGE`` chooses, ``merge_form`` tells.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megatile.attention.errors import AttentionError
from megatile.attention.schedules.division import Run
from megatile.attention.settings import setting
from megatile.runtime.torch_rules import merge_log_sums


def _merge_rows(block_out: Tensor, block_lse: Tensor, out: Tensor, lse: Tensor, rest: Tensor) -> None:
    """Take a block into ``out`` [B, S, H, D], ``lse`` and ``rest`` [B, H, S], in place."""
    share = merge_log_sums(lse, rest, block_lse)
    out.lerp_(block_out.to(out.dtype), share.transpose(-2, -1).unsqueeze(-1))


def merge_form(device: torch.device | str) -> str:
    """How results on a device are merged: ``fused`` (one Triton kernel) or ``torch`` (its operations)."""
    device = torch.device(device)
    asked = setting("MERGE")
    if asked == "torch" or (not asked and device.type != "cuda"):
        return "torch"
    try:
        from megatile.attention import fused_merge
    except ImportError as error:
        if not asked:
            return "torch"
        raise AttentionError(
            f"MEGATILE_ATTENTION_MERGE=fused needs Triton: {error}",
            advice="pip install triton, or unset the variable",
        ) from error
    if not asked:
        return "fused" if fused_merge.runs_on(device) else "torch"
    if device.type != "cuda" and not fused_merge.INTERPRETED:
        raise AttentionError(
            f"MEGATILE_ATTENTION_MERGE=fused is for GPUs, these tensors are on '{device}'",
            advice="unset the variable, or set TRITON_INTERPRET=1 to try the kernel slowly on a CPU",
        )
    return "fused"


MAX_RUNS_MERGED_IN_PLACE = 8  # of rows that are merged where they are; more are taken out and put back


class Accumulator:
    """The result of one rank's queries while keys arrive: rows without any key are 0 with lse -inf.

    The log-sum-exp is a pair of numbers (its value and what rounding left over), so that thousands of merges
    are as exact as one.
    """

    def __init__(
        self,
        batch: int,
        rows: int,
        heads: int,
        dim: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ):
        self._shape, self._device, self._dtype = (batch, rows, heads, dim), device, dtype
        self._state: tuple[Tensor, Tensor, Tensor] | None = None  # out [B, S, H, D]; lse, rest [B, H, S]
        self._merge = _merge_rows
        if dtype == torch.float32 and merge_form(device) == "fused":
            from megatile.attention.fused_merge import merge_rows

            self._merge = merge_rows

    def add(self, runs: Sequence[Run], block_out: Tensor, block_lse: Tensor) -> None:
        """Take in a block whose rows are these runs of local rows, one after the other."""
        block_lse = block_lse.to(self._dtype)
        if self._state is None and list(runs) == [(0, self._shape[1])]:
            lse = block_lse.contiguous()
            self._state = block_out.to(self._dtype), lse, torch.zeros_like(lse)
            return
        out, lse, rest = self._started()
        if len(runs) > MAX_RUNS_MERGED_IN_PLACE:
            rows = torch.cat([torch.arange(*run, device=out.device) for run in runs])
            here = out[:, rows], lse[:, :, rows], rest[:, :, rows]
            self._merge(block_out, block_lse, *here)
            out[:, rows], lse[:, :, rows], rest[:, :, rows] = here
            return
        at = 0
        for begin, end in runs:
            block = slice(at, at + end - begin)
            here = out[:, begin:end], lse[:, :, begin:end], rest[:, :, begin:end]
            self._merge(block_out[:, block], block_lse[:, :, block], *here)
            at += end - begin

    def _started(self) -> tuple[Tensor, Tensor, Tensor]:
        if self._state is None:
            batch, rows, heads, _ = self._shape
            out = torch.zeros(self._shape, dtype=self._dtype, device=self._device)
            lse = torch.full((batch, heads, rows), float("-inf"), dtype=self._dtype, device=self._device)
            self._state = out, lse, torch.zeros_like(lse)
        return self._state

    def result(self, dtype: torch.dtype, sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``out`` [B, S, H, D] in ``dtype`` and ``lse`` [B, H, S]. ``sinks`` [H]: one more score for each row
        of a head, of a key whose value is 0."""
        out, lse, _ = self._started()
        if sinks is not None:
            whole = torch.logaddexp(lse, sinks.to(lse.dtype)[:, None].expand_as(lse))
            out, lse = out * torch.exp(lse - whole).transpose(1, 2).unsqueeze(-1), whole
        return out.to(dtype), lse
