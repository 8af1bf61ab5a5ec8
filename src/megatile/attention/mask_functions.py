"""Masks as functions of positions, the way ``flex_attention`` takes them: evaluated block by block.

    documents = document_mask(ids)                             # ids [tokens] or [batch, tokens] of the whole
    out = hamilton_attention(q, k, v, mask_mod=documents)

A function gets the index of batch, head, query and key as tensors that broadcast against each other, and
returns which pairs are visible. Positions are those of the whole sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from megatile.attention.errors import AttentionError
from megatile.attention.schedules.bands import Part, part_of
from megatile.core.arguments import no_none

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class MaskFunction:
    """A mask function that counts ``blocks`` on this rank, those that are ``empty`` (skipped) or ``full``.

    ``block_size``: rows and columns of a block.
    """

    @no_none
    def __init__(self, mask_mod: MaskMod, block_size: int = 128):
        self.mask_mod, self.block_size = mask_mod, block_size
        self.blocks = self.empty = self.full = 0

    @classmethod
    def of(cls, mask: Any) -> MaskFunction | None:
        """From a function, a MaskFunction or torch's BlockMask, which has one."""
        if mask is None or isinstance(mask, cls):
            return mask
        found = getattr(mask, "mask_mod", mask)
        if not callable(found):
            raise AttentionError(f"mask_mod is a function (b, h, q, kv) -> bool, got {type(mask).__name__}")
        return cls(found)

    @property
    def name(self) -> str:
        return getattr(self.mask_mod, "__qualname__", type(self.mask_mod).__name__)

    def parts(
        self, part: Part, at: tuple[int, int], like: Tensor, first_head: int, counted: bool
    ) -> Iterator[Part]:
        """Yield the blocks of a part in which something is visible, with what is hidden in them.

        ``at``: the positions of row 0 and column 0; ``like`` has the batch and heads, [B, S, H, D].
        """
        (top, bottom), (left, right), tile = part
        size, stride = self.block_size, tile.stride
        for row in range(top, bottom, size):
            for column in range(left, right, size):
                rows = row - top, min(row + size, bottom) - top
                columns = column - left, min(column + size, right) - left
                inner = part_of(tile, rows, columns)
                self.blocks += counted
                if inner is None:
                    self.empty += counted
                    continue
                (r0, r1), (c0, c1), band = inner
                q = torch.arange(r0 + top, r1 + top, device=like.device) * stride + at[0]
                kv = torch.arange(c0 + left, c1 + left, device=like.device) * stride + at[1]
                seen = self._seen(q, kv, like, first_head)
                found = Part((r0 + top, r1 + top), (c0 + left, c1 + left), band)
                if bool(seen.all()):
                    self.full += counted
                    yield found
                elif not bool(seen.any()):
                    self.empty += counted
                else:
                    yield found._replace(tile=band._replace(hidden=~seen))

    def _seen(self, q: Tensor, kv: Tensor, like: Tensor, first_head: int) -> Tensor:
        batch, heads = like.shape[0], like.shape[2]
        b = torch.arange(batch, device=like.device)[:, None, None, None]
        h = torch.arange(first_head, first_head + heads, device=like.device)[None, :, None, None]
        try:
            found = self.mask_mod(b, h, q[:, None], kv[None, :])
            return (
                torch.as_tensor(found, device=like.device)
                .to(torch.bool)
                .expand(batch, heads, len(q), len(kv))
            )
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise AttentionError(
                f"mask function '{self.name}' failed for {len(q)} queries and {len(kv)} keys: {error}",
                advice="it gets indices (b, h, q, kv) that broadcast; positions are of the whole sequence",
            ) from error


@no_none
def document_mask(ids: Tensor) -> MaskMod:
    """Return a mask function: tokens see their own document. ``ids``: [tokens] or [batch, tokens] of the
    whole."""

    def same_document(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return ids[q] == ids[kv] if ids.dim() == 1 else ids[b, q] == ids[b, kv]

    return same_document
