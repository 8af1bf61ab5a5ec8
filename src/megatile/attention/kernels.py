"""Attention of one block on one device, with its log-sum-exp, and its gradients.

Tensors are [B, S, H, D] (any strides), KV may have fewer heads (GQA), log-sum-exps are [B, H, S] in f32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from megatile.attention.schedules.bands import (
    Band,
    Tile,
    limited,
    moved,
    visible_columns,
    visible_rows,
)

ROW_BLOCK = 256  # rows handled at once where a mask or scores are written to memory
SUPPORTED = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class KernelOptions:
    """What all blocks of a call share. ``slopes``: ALiBi, [H] or [B, H]."""

    scale: float
    slopes: Tensor | None = None
    deterministic: bool = False


class Part(NamedTuple):
    """A rectangle of a block that a kernel does in one go: rows and columns from..to."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    tile: Tile


class Block(NamedTuple):
    """What the gradients of a block follow from: the results over all keys and the gradient of the output."""

    d_out: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor


Gradients = tuple[Tensor, Tensor, Tensor]  # of q, k and v


class Kernel(Protocol):
    """``divide`` cuts a block into parts in which every row sees a key; the others do one part."""

    def divide(self, tile: Tile, rows: int, columns: int) -> Iterator[Part]: ...

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, tile: Tile, options: KernelOptions
    ) -> tuple[Tensor, Tensor]: ...

    def backward(self, block: Block, tile: Tile, options: KernelOptions) -> Gradients: ...


def part_of(tile: Tile, rows: tuple[int, int], columns: tuple[int, int]) -> Part | None:
    """The visible rectangle of a tile inside these rows and columns, or None."""
    for _ in range(2):  # cutting columns can free rows and the other way round
        height, width = rows[1] - rows[0], columns[1] - columns[0]
        if height <= 0 or width <= 0:
            return None
        band = moved(tile.band, rows[0], columns[0])
        first, end = visible_rows(band, height, width)
        left, right = visible_columns(band, height, width)
        rows, columns = (rows[0] + first, rows[0] + end), (columns[0] + left, columns[0] + right)
    height, width = rows[1] - rows[0], columns[1] - columns[0]
    if height <= 0 or width <= 0:
        return None
    band = limited(moved(tile.band, rows[0], columns[0]), height, width)
    return Part(rows, columns, Tile(band, tile.stride, tile.offset + tile.stride * (columns[0] - rows[0])))


def row_blocks(tile: Tile, rows: int, columns: int, size: int = ROW_BLOCK) -> Iterator[Part]:
    """The visible part of each block of ``size`` rows."""
    for begin in range(0, rows, size):
        part = part_of(tile, (begin, min(rows, begin + size)), (0, columns))
        if part is not None:
            yield part


class CpuFlash:
    """torch's flash attention for CPUs: what ``scaled_dot_product_attention`` calls, with its lse.

    It works in f32, whatever the tensors are: in low precision its gradients would be summed in it.
    """

    def divide(self, tile: Tile, rows: int, columns: int) -> Iterator[Part]:
        whole = part_of(tile, (0, rows), (0, columns))
        if whole is None:
            return
        band = whole.tile.band
        if band.full or band == (None, 0):
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
        self, q: Tensor, k: Tensor, v: Tensor, tile: Tile, options: KernelOptions
    ) -> tuple[Tensor, Tensor]:
        q, k, v = (x.float() for x in (q, k, v))
        causal, mask = _cpu_mask(tile.band, q, k)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *(x.transpose(1, 2) for x in (q, k, v)), 0.0, causal, attn_mask=mask, scale=options.scale
        )
        return out.transpose(1, 2), lse

    def backward(self, block: Block, tile: Tile, options: KernelOptions) -> Gradients:
        tensors = [x.float() for x in block[:5]]
        causal, mask = _cpu_mask(tile.band, tensors[1], tensors[2])
        inner = (x.transpose(1, 2) for x in tensors)
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *inner, block.lse.contiguous(), 0.0, causal, attn_mask=mask, scale=options.scale
        )
        d_q, d_k, d_v = (g.transpose(1, 2) for g in grads)
        return d_q, d_k, d_v


def _cpu_mask(band: Band, q: Tensor, k: Tensor) -> tuple[bool, Tensor | None]:
    if band.full:
        return False, None
    if band == (None, 0):
        return True, None
    distance = torch.arange(k.shape[1])[None, :] - torch.arange(q.shape[1])[:, None]
    mask = torch.zeros(distance.shape, dtype=q.dtype)
    return False, mask.masked_fill_(_hidden(distance, band), float("-inf"))


def _hidden(distance: Tensor, band: Band) -> Tensor:
    hidden = torch.zeros(distance.shape, dtype=torch.bool, device=distance.device)
    if band.lower is not None:
        hidden |= distance < band.lower
    if band.upper is not None:
        hidden |= distance > band.upper
    return hidden


class Blocked:
    """Plain tensor operations in f32, some rows at a time: any device, any mask, ALiBi, any dim of v."""

    def divide(self, tile: Tile, rows: int, columns: int) -> Iterator[Part]:
        return row_blocks(tile, rows, columns)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, tile: Tile, options: KernelOptions
    ) -> tuple[Tensor, Tensor]:
        scores = _scores(q, k, tile, options)
        lse = torch.logsumexp(scores, dim=-1)
        weights = torch.exp(scores - lse.unsqueeze(-1))
        out = torch.einsum("bhgij,bjhd->bihgd", weights, v.float()).flatten(2, 3)
        return out, lse.flatten(1, 2)

    def backward(self, block: Block, tile: Tile, options: KernelOptions) -> Gradients:
        d_out, q, k, v, out, lse = block
        groups = (k.shape[2], q.shape[2] // k.shape[2])
        scores = _scores(q, k, tile, options)
        weights = torch.exp(scores - lse.unflatten(1, groups).unsqueeze(-1))
        d_out, out, queries = (x.float().unflatten(2, groups) for x in (d_out, out, q))
        delta = torch.einsum("bihgd,bihgd->bhgi", d_out, out).unsqueeze(-1)
        d_weights = torch.einsum("bihgd,bjhd->bhgij", d_out, v.float())
        d_scores = weights * (d_weights - delta) * options.scale
        d_q = torch.einsum("bhgij,bjhd->bihgd", d_scores, k.float()).flatten(2, 3)
        d_k = torch.einsum("bhgij,bihgd->bjhd", d_scores, queries)
        d_v = torch.einsum("bhgij,bihgd->bjhd", weights, d_out)
        return d_q, d_k, d_v


def _scores(q: Tensor, k: Tensor, tile: Tile, options: KernelOptions) -> Tensor:
    """[B, KV heads, queries per KV head, rows, columns] in f32, -inf where hidden."""
    groups = (k.shape[2], q.shape[2] // k.shape[2])
    scores = torch.einsum("bihgd,bjhd->bhgij", q.float().unflatten(2, groups), k.float()) * options.scale
    rows = torch.arange(q.shape[1], device=q.device)[:, None]
    distance = torch.arange(k.shape[1], device=q.device)[None, :] - rows
    if options.slopes is not None:
        away = (tile.stride * distance + tile.offset).abs().float()
        slopes = options.slopes.float().unflatten(-1, groups)[..., None, None]
        scores = scores - slopes * away
    if not tile.band.full:
        scores = scores.masked_fill(_hidden(distance, tile.band), float("-inf"))
    return scores


def attend_by_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: str,
    causal: bool,
    window_size: tuple[int, int],
    scale: float | None,
) -> Tensor | None:
    """All of attention by torch's own function, on one device; None where that cannot do it.

    It calls the same kernel as :class:`CpuFlash`, and costs little else: short sequences notice that.
    """
    if window_size != (-1, -1) or not q.is_cpu or q.size(3) != v.size(3) or not (q.numel() and k.numel()):
        return None
    if scale is not None and scale <= 0:  # see flash.choose_kernel
        return None
    if layout == "BSND":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    elif layout == "SBND":
        q, k, v = q.permute(1, 2, 0, 3), k.permute(1, 2, 0, 3), v.permute(1, 2, 0, 3)
    if causal and q.size(2) != k.size(2):
        return None
    options = {"scale": scale, "enable_gqa": q.size(1) != k.size(1)}
    if q.dtype == torch.float32:
        out = _torch_attention(q, k, v, None, 0.0, bool(causal), **options)
    else:  # see CpuFlash
        with torch.autocast("cpu", enabled=False):
            wide = (x.float() for x in (q, k, v))
            out = _torch_attention(*wide, None, 0.0, bool(causal), **options).to(q.dtype)
    if layout == "BNSD":
        return out
    return out.transpose(1, 2) if layout == "BSND" else out.permute(2, 0, 1, 3)


# Not from torch.nn.functional, whose function may be ours (see sdpa.py).
_torch_attention = torch._C._nn.scaled_dot_product_attention
