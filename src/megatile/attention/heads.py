"""Ulysses: a group of ranks exchanges parts of the sequence for parts of the heads, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megatile.attention.communication import Communicator
from megatile.attention.schedules.pieces import split


@dataclass(frozen=True)
class HeadExchange:
    """``lengths[j]``: the tokens of rank j of the group; ``index``: this rank's place in it."""

    communicator: Communicator
    index: int
    lengths: tuple[int, ...]

    @property
    def width(self) -> int:
        return len(self.lengths)

    def to_heads(self, x: Tensor) -> Tensor:
        """[B, own tokens, H, D] → [B, all tokens of the group, own heads, D]; differentiable."""
        result: Tensor = _Exchange.apply(x, self, True, x.shape[2])
        return result

    def to_tokens(self, x: Tensor, heads: int) -> Tensor:
        """The inverse; ``heads`` is the number of heads of all ranks together."""
        result: Tensor = _Exchange.apply(x, self, False, heads)
        return result

    def own_heads(self, heads: int) -> slice:
        """Which of all heads this rank takes."""
        sizes = split(heads, self.width)
        begin = sum(sizes[: self.index])
        return slice(begin, begin + sizes[self.index])

    def _scatter(self, x: Tensor, heads: int) -> Tensor:
        batch, dim, sizes = x.shape[0], x.shape[3], split(heads, self.width)
        parts = x.split(sizes, dim=2)
        wanted = [(length, sizes[self.index]) for length in self.lengths]
        received = self._swap(list(parts), [batch * s * h * dim for s, h in wanted])
        return torch.cat(
            [r.view(batch, s, h, dim) for r, (s, h) in zip(received, wanted, strict=True)], dim=1
        )

    def _gather(self, x: Tensor, heads: int) -> Tensor:
        batch, dim, sizes = x.shape[0], x.shape[3], split(heads, self.width)
        parts = x.split(list(self.lengths), dim=1)
        own = self.lengths[self.index]
        received = self._swap(list(parts), [batch * own * h * dim for h in sizes])
        return torch.cat([r.view(batch, own, h, dim) for r, h in zip(received, sizes, strict=True)], dim=2)

    def _swap(self, parts: list[Tensor], sizes: list[int]) -> list[Tensor]:
        flat = [part.reshape(-1) for part in parts]
        others = [j for j in range(self.width) if j != self.index]
        pending = self.communicator.exchange(
            {j: flat[j] for j in others},
            {j: sizes[j] for j in others},
            flat[self.index],
            "the exchange of heads",
        )
        received = pending.wait()
        return [flat[j] if j == self.index else received[j] for j in range(self.width)]


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: HeadExchange, to_heads: bool, heads: int) -> Tensor:
        ctx.exchange, ctx.to_heads, ctx.heads = exchange, to_heads, heads
        return exchange._scatter(x, heads) if to_heads else exchange._gather(x, heads)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (grad,) = grads
        exchange: HeadExchange = ctx.exchange
        back = exchange._gather if ctx.to_heads else exchange._scatter
        return back(grad.contiguous(), ctx.heads), None, None, None
