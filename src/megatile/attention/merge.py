"""Parts of attention become one: softmax over the union of their keys, from outputs and log-sum-exps.

On GPUs with Triton one kernel takes a block in (``fused_merge``), elsewhere torch's own operations do; the
arithmetic is the same. ``MEGATILE_ATTENTION_MERGE`` chooses, ``merge_form`` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from megatile.attention.chunks import Windows, rows_of
from megatile.attention.errors import AttentionError
from megatile.attention.schedules.division import Run
from megatile.attention.settings import setting
from megatile.runtime.torch_rules import merge_log_sums


def _merge_rows(block_out: Tensor, block_lse: Tensor, out: Tensor, lse: Tensor, rest: Tensor) -> None:
    """Take a block into ``out`` [B, S, H, D], ``lse`` and ``rest`` [B, H, S], in place."""
    share = merge_log_sums(lse, rest, block_lse)
    out.lerp_(block_out.to(out.dtype), share.transpose(-2, -1).unsqueeze(-1))


def merge_rows_f64(block_out: Tensor, block_lse: Tensor, out: Tensor, lse: Tensor) -> None:
    """Do the same with ``lse`` in f64, which needs no rest: a third of the operations.

    There may be further dimensions after the first.
    """
    share = (block_lse - lse).sigmoid_().nan_to_num_(0.0)  # neither has seen a key
    torch.logaddexp(lse, block_lse, out=lse)
    block = block_out if block_out.dtype == out.dtype else block_out.to(out.dtype)
    out.lerp_(block, share.to(out.dtype).transpose(-2, -1).unsqueeze(-1))


def merge_form(device: torch.device | str) -> str:
    """Return how results on a device are merged: ``fused`` (one Triton kernel) or ``torch`` (its
    operations)."""
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

    The log-sum-exp is in f64, or (in Triton's kernel) a pair of numbers: its value and what rounding left
    over. So thousands of merges are as exact as one.
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
        self._state: tuple[Tensor, ...] | None = None  # out [B, S, H, D]; lse, rest [B, H, S]
        self._merge: Callable[..., None] = _merge_rows
        if dtype == torch.float32 and merge_form(device) == "fused":
            from megatile.attention.fused_merge import merge_rows

            self._merge = merge_rows
        elif device.type != "mps":  # has no f64
            self._merge = merge_rows_f64

    def add(
        self, runs: Sequence[Run], block_out: Tensor, block_lse: Tensor, windows: Windows | None = None
    ) -> None:
        """Take in a block whose rows are these runs of local rows, one after the other; the same as
        ``windows``, where they are some."""
        if self._state is None:
            if list(runs) == [(0, self._shape[1])]:
                self._state = self._states(block_out.to(self._dtype), block_lse)
                return
            self._state = self._nothing()
        if windows is not None and windows.count > 1 and self._merge is merge_rows_f64:
            out, lse = (windows.of(x, dim) for x, dim in zip(self._state, (1, 2), strict=True))
            apart = (windows.count, windows.length)
            block = block_out.unflatten(1, apart), block_lse.unflatten(2, apart).transpose(1, 2)
            self._merge(*block, out, lse.transpose(1, 2))
        elif len(runs) > MAX_RUNS_MERGED_IN_PLACE:
            self._merge_apart(self._state, runs, block_out, block_lse)
        else:
            self._merge_runs(self._state, runs, block_out, block_lse)

    def _merge_runs(self, state: tuple[Tensor, ...], runs: Sequence[Run], out: Tensor, lse: Tensor) -> None:
        at = 0
        for run in runs:
            part = at, at + run[1] - run[0]
            self._merge(rows_of(out, part, 1), rows_of(lse, part, 2), *_rows_of_state(state, run))
            at = part[1]

    def _merge_apart(self, state: tuple[Tensor, ...], runs: Sequence[Run], out: Tensor, lse: Tensor) -> None:
        """Take many runs of rows out of the state, merge, and put them back."""
        rows = torch.cat([torch.arange(*run, device=out.device) for run in runs])
        here = state[0][:, rows], *(x[:, :, rows] for x in state[1:])
        self._merge(out, lse, *here)
        state[0][:, rows] = here[0]
        for whole, part in zip(state[1:], here[1:], strict=True):
            whole[:, :, rows] = part

    def _nothing(self) -> tuple[Tensor, ...]:
        batch, rows, heads, _ = self._shape
        out = torch.zeros(self._shape, dtype=self._dtype, device=self._device)
        return self._states(out, out.new_full((batch, heads, rows), float("-inf")))

    def _states(self, out: Tensor, lse: Tensor) -> tuple[Tensor, ...]:
        if self._merge is merge_rows_f64:
            return out, lse.to(torch.float64, memory_format=torch.contiguous_format)
        lse = lse.to(self._dtype).contiguous()
        return out, lse, torch.zeros_like(lse)

    def result(self, dtype: torch.dtype, sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return ``out`` [B, S, H, D] in ``dtype`` and ``lse`` [B, H, S]. ``sinks`` [H]: one more score for
        each row of a head, of a key whose value is 0."""
        if self._state is None:
            self._state = self._nothing()
        out, lse = self._state[0], self._state[1].to(self._dtype)
        if sinks is not None:
            whole = torch.logaddexp(lse, sinks.to(lse.dtype)[:, None].expand_as(lse))
            out, lse = out * torch.exp(lse - whole).transpose(1, 2).unsqueeze(-1), whole
        return out.to(dtype), lse


def _rows_of_state(state: tuple[Tensor, ...], run: Run) -> tuple[Tensor, ...]:
    return rows_of(state[0], run, 1), *(rows_of(x, run, 2) for x in state[1:])
