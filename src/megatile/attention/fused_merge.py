"""One Triton kernel that takes a block of attention results in: everything is read and written once.

It does what ``merge._merge_rows`` does: a block's element is read, the result's is read and written. Sizes
and strides are whatever they are. With ``TRITON_INTERPRET=1`` it runs (slowly) on CPUs.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.jit import JITFunction

from megatile.core.cached import cached

TILE = 2048
"""Elements of one program: at least one row, of one head, with all of its columns."""


@triton.jit
def merge_kernel(  # type: ignore[no-untyped-def]  # Triton wants none
    block, block_lse, out, lse, rest, rows, heads,
    block_batch, block_row, block_head, block_column,
    block_lse_batch, block_lse_head, block_lse_row,
    out_batch, out_row, out_head, out_column,
    lse_batch, lse_head, lse_row,
    DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    head = (program % heads).to(tl.int64)
    tiles = tl.cdiv(rows, ROWS)
    batch = (program // heads // tiles).to(tl.int64)
    row = (program // heads % tiles * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    column = tl.arange(0, WIDTH)[None, :]
    here = row < rows

    # The larger log-sum-exp grows by log(1 + exp(-|apart|)), the share of the smaller one is less than half.
    new = tl.load(
        block_lse + batch * block_lse_batch + head * block_lse_head + row * block_lse_row, here, float("-inf")
    )
    at_lse = batch * lse_batch + head * lse_head + row * lse_row
    old = tl.load(lse + at_lse, here, float("-inf"))
    old_rest = tl.load(rest + at_lse, here, 0.0)
    seen = new != float("-inf")
    apart = tl.where(seen, new - old - old_rest, float("-inf"))
    ratio = tl.exp(-tl.abs(apart))
    share = ratio / (1.0 + ratio)

    inside = here[:, None] & (column < DIM)
    at_block = batch * block_batch + head * block_head + row[:, None] * block_row + column * block_column
    theirs = tl.load(block + at_block, inside & seen[:, None], 0.0).to(tl.float32)
    at_out = batch * out_batch + head * out_head + row[:, None] * out_row + column * out_column
    ours = tl.load(out + at_out, inside, 0.0)
    more = (apart > 0)[:, None]
    near = tl.where(more, theirs, ours)
    far = tl.where(more, ours, theirs)
    merged = near + share[:, None] * (far - near)

    # log(1 + x) = 2 artanh(x / (2 + x)), a series that is exact to the last digit for x up to 1.
    z = ratio / (2.0 + ratio)
    y = z * z
    series = 1 / 3 + y * (1 / 5 + y * (1 / 7 + y * (1 / 9 + y * (1 / 11 + y * (1 / 13 + y * (1 / 15))))))
    grown = 2.0 * (z + z * y * series) + tl.where(apart > 0, 0.0, old_rest)
    larger = tl.where(apart > 0, new, old)
    total = larger + grown
    moved = total - larger
    lost = (larger - (total - moved)) + (grown - moved)
    lost = tl.where(total == float("-inf"), 0.0, lost)

    tl.debug_barrier()  # several threads may have read what one of them now writes
    tl.store(out + at_out, merged, inside)
    tl.store(lse + at_lse, total, here)
    tl.store(rest + at_lse, lost, here)


INTERPRETED = not isinstance(merge_kernel, JITFunction)


def tile_of(dim: int) -> tuple[int, int]:
    """Return rows and columns of one program."""
    width = triton.next_power_of_2(dim)
    return max(1, TILE // width), width


def merge_rows(block_out: Tensor, block_lse: Tensor, out: Tensor, lse: Tensor, rest: Tensor) -> None:
    """Take a block into ``out`` [B, S, H, D], ``lse`` and ``rest`` [B, H, S] (of equal strides), in place."""
    batch, rows, heads, dim = out.shape
    if not out.numel():
        return
    height, width = tile_of(dim)
    programs = batch * heads * triton.cdiv(rows, height)
    with torch.cuda.device(out.device) if out.is_cuda else nullcontext():
        merge_kernel[(programs,)](
            block_out, block_lse, out, lse, rest,
            rows, heads,
            *block_out.stride(), *block_lse.stride(), *out.stride(), *lse.stride(),
            DIM=dim, WIDTH=width, ROWS=height, enable_fp_fusion=False,
        )  # fmt: skip


@cached()
def runs_on(device: torch.device) -> bool:
    """Return whether the kernel can be compiled and run on a device; tried once, said once where it
    cannot."""
    out, lse = torch.zeros(1, 1, 1, 1, device=device), torch.zeros(1, 1, 1, device=device)
    try:
        merge_rows(out.clone(), lse.clone(), out, lse, torch.zeros_like(lse))
    except Exception as error:
        warnings.warn(
            f"attention results are merged by torch's own kernels: Triton's did not run ({error})",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True
