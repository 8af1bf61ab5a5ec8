"""Attention of one block on one device, with its log-sum-exp, and its gradients.

Tensors are [B, S, H, D] (any strides), KV may have fewer heads (GQA), log-sum-exps are [B, H, S]. Sums
are taken in f32, for f64 in f64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from megatile.attention.causal import causal_backward, causal_forward, worth_dividing
from megatile.attention.mask_functions import MaskFunction
from megatile.attention.packed import CAUSAL, Batch, LargeDocument, Segment
from megatile.attention.schedules.bands import Band, MaskTile, Part, part_of
from megatile.runtime.torch_rules import wide

ROW_BLOCK = 256  # rows handled at once where a mask or scores are written to memory
MAX_SHARED_CALL_ELEMENTS = 2**15
"""Elements of a document that is copied to share a call: copying a larger one costs more than a call."""
SUPPORTED = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class KernelOptions:
    """What all blocks of a call share. ``slopes``: ALiBi, [H] or [B, H]; ``softcap``: scores s become
    softcap·tanh(s/softcap), 0 for none; ``mask``: a function of positions; ``first_head``: of this rank's."""

    scale: float
    slopes: Tensor | None = None
    deterministic: bool = False
    softcap: float = 0.0
    mask: MaskFunction | None = None
    first_head: int = 0

    @property
    def plain(self) -> bool:
        """Whether every kernel can do it."""
        return self.slopes is None and self.mask is None and not self.softcap


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which results of ``dtype`` are summed and merged."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class BackwardInputs(NamedTuple):
    """What the gradients of a block follow from: the results over all keys and the gradient of the output,
    also of the log-sum-exp where there is one (then :class:`Blocked` does the block)."""

    d_out: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    d_lse: Tensor | None = None


Gradients = tuple[Tensor, Tensor, Tensor]  # of q, k and v
Visible: TypeAlias = "MaskTile | Tensor"  # or the pairs that are hidden, [batch, rows, columns]


class BlockKernel(ABC):
    """``divide`` cuts a block into parts in which every row sees a key; ``forward`` and ``backward`` do one.

    ``kind`` says which blocks of queries of this ``width`` may share a call (None: one that is done alone).
    ``forward_many`` and ``backward_many`` do those of a batch, whose rows and columns they take out of
    [tokens, heads, dim] and [heads, tokens]: here by filling documents of similar size up to the longest.
    """

    @abstractmethod
    def divide(self, tile: MaskTile, rows: int, columns: int) -> Iterator[Part]: ...

    @abstractmethod
    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, visible: Visible, options: KernelOptions
    ) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def backward(self, block: BackwardInputs, visible: Visible, options: KernelOptions) -> Gradients: ...

    def kind(self, segment: Segment, width: int) -> Hashable:
        if (segment.rows + segment.columns) * width > MAX_SHARED_CALL_ELEMENTS:
            return LargeDocument.of(segment)
        return segment.rows.bit_length(), segment.columns.bit_length(), segment.band == CAUSAL

    def forward_many(
        self, q: Tensor, k: Tensor, v: Tensor, batch: Batch, options: KernelOptions
    ) -> tuple[Tensor, Tensor]:
        padding = batch.padding
        filled = batch.fill(q, True), batch.fill(k, False), batch.fill(v, False)
        out, lse = self.forward(*filled, padding.mask(q.device), options)
        return padding.strip(out, True), padding.strip(lse.transpose(1, 2), True).transpose(0, 1)

    def backward_many(self, block: BackwardInputs, batch: Batch, options: KernelOptions) -> Gradients:
        padding = batch.padding
        # Rows that are filled in have no gradient and weigh nothing.
        d_out = batch.fill(block.d_out, True, 0.0)
        lse = batch.fill(block.lse.transpose(0, 1), True, float("inf")).transpose(1, 2)
        q, out = batch.fill(block.q, True), batch.fill(block.out, True)
        k, v = batch.fill(block.k, False), batch.fill(block.v, False)
        d_lse = block.d_lse
        if d_lse is not None:
            d_lse = batch.fill(d_lse.transpose(0, 1), True, 0.0).transpose(1, 2)
        given = BackwardInputs(d_out, q, k, v, out, lse, d_lse)
        grads = self.backward(given, padding.mask(q.device), options)
        d_q, d_k, d_v = (padding.strip(x, rows) for x, rows in zip(grads, (True, False, False), strict=True))
        return d_q, d_k, d_v


def row_blocks(tile: MaskTile, rows: int, columns: int, size: int = ROW_BLOCK) -> Iterator[Part]:
    """Yield the visible part of each block of ``size`` rows."""
    for begin in range(0, rows, size):
        part = part_of(tile, (begin, min(rows, begin + size)), (0, columns))
        if part is not None:
            yield part


class CpuFlash(BlockKernel):
    """torch's flash attention for CPUs: what ``scaled_dot_product_attention`` calls, with its lse.

    It works in f32 also where tensors are narrower: in low precision its gradients would be summed in it.
    """

    def divide(self, tile: MaskTile, rows: int, columns: int) -> Iterator[Part]:
        whole = part_of(tile, (0, rows), (0, columns))
        if whole is None:
            return
        band = whole.tile.band
        if band.full or band == CAUSAL:
            yield whole
        elif band.lower is None and band.upper is not None:
            # Columns that every row sees, then a square causal rest: no mask has to be written.
            (top, bottom), (left, right) = whole.rows, whole.columns
            for columns_part in ((left, left + band.upper), (left + band.upper, right)):
                part = part_of(tile, (top, bottom), columns_part)
                if part is not None:
                    yield part
        else:
            yield from row_blocks(tile, rows, columns)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, visible: Visible, options: KernelOptions
    ) -> tuple[Tensor, Tensor]:
        q, k, v = wide(q), wide(k), wide(v)
        causal, mask = _cpu_mask(visible, q, k)

        def kernel(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
            inner = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                *inner, 0.0, causal, attn_mask=mask, scale=options.scale
            )
            return out.transpose(1, 2), lse

        if causal and worth_dividing(q, k):
            return causal_forward(kernel, q, k, v)
        return kernel(q, k, v, causal)

    def backward(self, block: BackwardInputs, visible: Visible, options: KernelOptions) -> Gradients:
        d_out, q, k, v, out = (wide(x) for x in block[:5])
        causal, mask = _cpu_mask(visible, q, k)

        def kernel(
            d_out: Tensor, q: Tensor, out: Tensor, k: Tensor, v: Tensor, lse: Tensor, causal: bool
        ) -> Gradients:
            inner = (x.transpose(1, 2) for x in (d_out, q, k, v, out))
            grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *inner, lse.contiguous(), 0.0, causal, attn_mask=mask, scale=options.scale
            )
            d_q, d_k, d_v = (g.transpose(1, 2) for g in grads)
            return d_q, d_k, d_v

        if causal and worth_dividing(q, k):
            return causal_backward(kernel, d_out, q, out, k, v, block.lse)
        return kernel(d_out, q, out, k, v, block.lse, causal)


def _cpu_mask(visible: Visible, q: Tensor, k: Tensor) -> tuple[bool, Tensor | None]:
    """Return whether the kernel's own causal mask will do, and the mask where it will not."""
    if isinstance(visible, MaskTile):
        band = visible.band
        if band.full or band == CAUSAL:
            return not band.full, None
        hidden = _hidden(torch.arange(k.shape[1])[None, :] - torch.arange(q.shape[1])[:, None], band)
    else:
        hidden = visible[:, None]
    mask = torch.zeros(hidden.shape, dtype=q.dtype)
    return False, mask.masked_fill_(hidden, float("-inf"))


def _hidden(distance: Tensor, band: Band) -> Tensor:
    hidden = torch.zeros(distance.shape, dtype=torch.bool, device=distance.device)
    if band.lower is not None:
        hidden |= distance < band.lower
    if band.upper is not None:
        hidden |= distance > band.upper
    return hidden


class Blocked(BlockKernel):
    """Plain tensor operations, some rows at a time: any device, any mask, ALiBi, softcap, any dim of v."""

    def divide(self, tile: MaskTile, rows: int, columns: int) -> Iterator[Part]:
        return row_blocks(tile, rows, columns)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, visible: Visible, options: KernelOptions
    ) -> tuple[Tensor, Tensor]:
        scores, _ = _scores(q, k, visible, options)
        lse = torch.logsumexp(scores, dim=-1)
        weights = _weights(scores, lse)
        out = torch.einsum("bhgij,bjhd->bihgd", weights, wide(v)).flatten(2, 3)
        return out, lse.flatten(1, 2)

    def backward(self, block: BackwardInputs, visible: Visible, options: KernelOptions) -> Gradients:
        d_out, q, k, v, out, lse, d_lse = block
        groups = (k.shape[2], q.shape[2] // k.shape[2])
        scores, slope = _scores(q, k, visible, options)
        weights = _weights(scores, lse.unflatten(1, groups))
        d_out, out, queries = (wide(x).unflatten(2, groups) for x in (d_out, out, q))
        delta = torch.einsum("bihgd,bihgd->bhgi", d_out, out).unsqueeze(-1)
        if d_lse is not None:
            delta = delta - d_lse.unflatten(1, groups).unsqueeze(-1)
        d_weights = torch.einsum("bihgd,bjhd->bhgij", d_out, wide(v))
        d_scores = weights * (d_weights - delta) * options.scale
        if slope is not None:
            d_scores = d_scores * slope
        d_q = torch.einsum("bhgij,bjhd->bihgd", d_scores, wide(k)).flatten(2, 3)
        d_k = torch.einsum("bhgij,bihgd->bjhd", d_scores, queries)
        d_v = torch.einsum("bhgij,bihgd->bjhd", weights, d_out)
        return d_q, d_k, d_v


def _weights(scores: Tensor, lse: Tensor) -> Tensor:
    """Return the softmax; 0 in rows that see no key."""
    return torch.exp(scores - lse.masked_fill(lse == float("-inf"), 0.0).unsqueeze(-1))


def _scores(q: Tensor, k: Tensor, visible: Visible, options: KernelOptions) -> tuple[Tensor, Tensor | None]:
    """[B, KV heads, queries per KV head, rows, columns], -inf where hidden; and the slope of the softcap."""
    groups, slope = (k.shape[2], q.shape[2] // k.shape[2]), None
    scores = torch.einsum("bihgd,bjhd->bhgij", wide(q).unflatten(2, groups), wide(k)) * options.scale
    if options.softcap:
        capped = torch.tanh(scores / options.softcap)
        scores, slope = capped * options.softcap, 1 - capped * capped
    if not isinstance(visible, MaskTile):
        return scores.masked_fill(visible[:, None, None], float("-inf")), slope
    rows = torch.arange(q.shape[1], device=q.device)[:, None]
    distance = torch.arange(k.shape[1], device=q.device)[None, :] - rows
    if options.slopes is not None:
        away = (visible.stride * distance + visible.offset).abs().to(scores.dtype)
        slopes = options.slopes.to(scores.dtype).unflatten(-1, groups)[..., None, None]
        scores = scores - slopes * away
    if not visible.band.full:
        scores = scores.masked_fill(_hidden(distance, visible.band), float("-inf"))
    if visible.hidden is not None:
        scores = scores.masked_fill(visible.hidden.unflatten(1, groups), float("-inf"))
    return scores, slope
