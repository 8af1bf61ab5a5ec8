"""Ulysses: a group of ranks exchanges parts of the sequence for parts of the heads, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megatile.attention.communication import Communicator
from megatile.core.placement import split


@dataclass(frozen=True)
class HeadExchange:
    """``lengths[j]``: the tokens of rank j of the group; ``index``: this rank's place in it."""

    communicator: Communicator
    index: int
    lengths: tuple[int, ...]

    @property
    def width(self) -> int:
        return len(self.lengths)

    def own_heads(self, heads: int) -> slice:
        """Return which of all heads this rank takes."""
        sizes = split(heads, self.width)
        begin = sum(sizes[: self.index])
        return slice(begin, begin + sizes[self.index])

    def start(self, x: Tensor, heads: int, to_heads: bool) -> Callable[[], Tensor]:
        """Send the parts of a tensor; what is returned waits for the others' and puts them together.

        ``to_heads``: [B, own tokens, H, D] → [B, all tokens of the group, own heads, D]; else the inverse.
        ``heads`` is the number of heads of all ranks together.
        """
        batch, dim, sizes = x.shape[0], x.shape[3], split(heads, self.width)
        own = self.lengths[self.index]
        if to_heads:
            parts, joined = x.split(sizes, dim=2), 1
            wanted = [(length, sizes[self.index]) for length in self.lengths]
        else:
            parts, joined = x.split(list(self.lengths), dim=1), 2
            wanted = [(own, size) for size in sizes]
        flat = [part.reshape(-1) for part in parts]
        others = [j for j in range(self.width) if j != self.index]
        pending = self.communicator.exchange(
            {j: flat[j] for j in others},
            {j: batch * wanted[j][0] * wanted[j][1] * dim for j in others},
            flat[self.index],
            "the exchange of heads",
        )

        def finish() -> Tensor:
            received = {**pending.wait(), self.index: flat[self.index]}
            return torch.cat([received[j].view(batch, *shape, dim) for j, shape in enumerate(wanted)], joined)

        return finish


def exchange_heads(
    exchanges: Sequence[HeadExchange], tensors: Sequence[Tensor], heads: Sequence[int], to_heads: bool
) -> tuple[Tensor, ...]:
    """Return several tensors at once, all in flight before the first is awaited; differentiable."""
    results: tuple[Tensor, ...] = _Exchange.apply(tuple(exchanges), tuple(heads), to_heads, *tensors)
    return results


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        exchanges: tuple[HeadExchange, ...], heads: tuple[int, ...], to_heads: bool, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        return _together(exchanges, heads, to_heads, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.exchanges, ctx.heads, ctx.to_heads = inputs[:3]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        contiguous = [grad.contiguous() for grad in grads]
        return None, None, None, *_together(ctx.exchanges, ctx.heads, not ctx.to_heads, contiguous)


def _together(
    exchanges: Sequence[HeadExchange], heads: Sequence[int], to_heads: bool, tensors: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    started = [e.start(x, h, to_heads) for e, x, h in zip(exchanges, tensors, heads, strict=True)]
    return tuple(finish() for finish in started)
