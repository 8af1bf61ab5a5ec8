"""All of attention by torch's own function, on one device."""

from __future__ import annotations

import torch
from torch import Tensor


def attend_by_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: str,
    causal: bool,
    window_size: tuple[int, int],
    scale: float | None,
) -> Tensor | None:
    """Return all of attention by torch's own function, on one device; None where that cannot do it.

    It calls the same kernel as ``CpuFlash``, and costs little else: short sequences notice that.
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
    if q.dtype in (torch.float32, torch.float64):
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
