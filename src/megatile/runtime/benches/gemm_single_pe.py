"""One matrix product on one PE, streamed through its near memory tile by tile."""

from typing import Any

import numpy as np

M, N, K = 256, 256, 512


def kernel(a: Any, b: Any, c: Any, m: int, n: int, k: int, tl: Any) -> None:
    tl.composite(op="gemm", a=tl.ref(a, (m, k)), b=tl.ref(b, (k, n)), out_ptr=c, tile=(64, 64, 64))


def run(torch: Any) -> int:
    random = np.random.default_rng(0)
    left, right = (random.standard_normal(shape).astype(np.float16) for shape in ((M, K), (K, N)))
    a = torch.empty((M, K), dtype=torch.float16, name="a").copy_(left)
    b = torch.empty((K, N), dtype=torch.float16, name="b").copy_(right)
    c = torch.empty((M, N), dtype=torch.float16, name="c")
    torch.launch("gemm_single_pe", kernel, a, b, c, M, N, K)
    if not torch.has_data:
        print(" gemm_single_pe: times only")
        return 0
    worst = float(
        np.abs(c.numpy().astype(np.float32) - left.astype(np.float32) @ right.astype(np.float32)).max()
    )
    right_enough = worst <= 0.05
    print(
        f" gemm_single_pe {M}x{N}x{K}: {'OK' if right_enough else '[FAIL]'}, largest difference {worst:.3g}"
    )
    return int(not right_enough)
