"""What files that test launch program share."""

from __future__ import annotations

import megatile.language as T


@T.program
def turned(y: T.Tensor((2, 3), "f32")):
    """Warps of each block meet, in whichever process the block is."""
    with T.Kernel(block=2, warp=3), T.Scale("block") as (b, _), T.Scale("warp") as (w, n):
        inbox, mine = (T.alloc((1,), "f32", level="l1") for _ in range(2))
        T.fill(mine, 10 * b + w)
        T.copy(inbox, mine, dst=(w + 1) % n)
        T.barrier()
        T.copy(y[b, w : w + 1], inbox)
