"""The same functions as in ``utils``, where ring-flash-attention has Triton kernels."""

from __future__ import annotations

from megatile.compat.ring_flash_attn.utils import flatten_varlen_lse, unflatten_varlen_lse

__all__ = ["flatten_varlen_lse", "unflatten_varlen_lse"]
