"""A causal square as smaller squares on its diagonal and rectangles below them, for kernels that waste more.

torch's kernel for CPUs works on 512 keys at once, also where the mask hides most of them: of a square of 512
rows it computes all. Squares of one size share a call, as a batch; so do rectangles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from megatile.attention.chunks import Windows, joined
from megatile.attention.merge import merge_rows_f64
from megatile.core.cached import cached

SQUARE = 64
"""Rows of a square on the diagonal; a longer one costs more hidden pairs, a shorter one more calls."""
MIN_ROWS_DIVIDED = 3 * SQUARE
"""Rows of a causal square from which dividing it is faster than one call."""
Forward = Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor]]
Backward = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor, Tensor]]
"""Of d_out, q, out, k, v, lse and whether it is causal."""


class Below(NamedTuple):
    """Rectangles below the diagonal: their rows, and the columns that all of these see."""

    rows: Windows
    columns: Windows


def worth_dividing(q: Tensor, k: Tensor) -> bool:
    """Return whether a causal block [B, S, H, D] is a square that is faster in parts."""
    return q.shape[1] == k.shape[1] >= MIN_ROWS_DIVIDED


@cached(most=64)
def squares(length: int) -> list[Windows]:
    """Return the squares on the diagonal; a shorter one at the end stands alone."""
    count, rest = divmod(length, SQUARE)
    found = [Windows(0, count, SQUARE, SQUARE)] if count else []
    return found + ([Windows(count * SQUARE, 1, rest, rest)] if rest else [])


@cached(most=64)
def rectangles(length: int) -> list[Below]:
    """Return what is below the squares: every second run of ``size`` rows sees the run before it."""
    found, size = list[Below](), SQUARE
    while size < length:
        count, rest = divmod(length, 2 * size)
        if count:
            found.append(Below(Windows(size, count, size, 2 * size), Windows(0, count, size, 2 * size)))
        if rest > size:
            first = count * 2 * size
            rows = Windows(first + size, 1, rest - size, rest - size)
            found.append(Below(rows, Windows(first, 1, size, size)))
        size *= 2
    return found


def causal_forward(kernel: Forward, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output [B, S, H, D] and log-sum-exp [B, H, S] of a causal square."""
    batch, length = q.shape[:2]
    parts = [kernel(at.batched(q), at.batched(k), at.batched(v), True) for at in squares(length)]
    out = joined([_joined(out, batch) for out, _ in parts], 1)
    lse = joined([_joined(lse.transpose(1, 2), batch) for _, lse in parts], 1).transpose(1, 2).double()
    for rows, columns in rectangles(length):
        block, block_lse = kernel(rows.batched(q), columns.batched(k), columns.batched(v), False)
        block, block_lse = (x.unflatten(0, (batch, rows.count)) for x in (block, block_lse))
        merge_rows_f64(block, block_lse, rows.of(out, 1), rows.of(lse, 2).transpose(1, 2))
    return out, lse.to(out.dtype)


def causal_backward(
    kernel: Backward, d_out: Tensor, q: Tensor, out: Tensor, k: Tensor, v: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v of a causal square; ``lse`` is that over all keys."""
    batch, length = q.shape[:2]

    def part(rows: Windows, columns: Windows, causal: bool) -> tuple[Tensor, ...]:
        asking = rows.batched(d_out), rows.batched(q), rows.batched(out)
        return kernel(*asking, columns.batched(k), columns.batched(v), rows.batched_lse(lse), causal)

    parts = [part(at, at, True) for at in squares(length)]
    grads = [joined([_joined(x, batch) for x in each], 1) for each in zip(*parts, strict=True)]
    for rows, columns in rectangles(length):
        found = part(rows, columns, False)
        for grad, at, more in zip(grads, (rows, columns, columns), found, strict=True):
            at.of(grad, 1).add_(more.unflatten(0, (batch, at.count)))
    d_q, d_k, d_v = grads
    return d_q, d_k, d_v


def _joined(x: Tensor, batch: int) -> Tensor:
    """Return a batch of windows one after the other."""
    return x.unflatten(0, (batch, -1)).flatten(1, 2)
