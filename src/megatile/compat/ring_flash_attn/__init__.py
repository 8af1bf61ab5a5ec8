"""Names and signatures of the ring-flash-attention package, for code that was written against it.

``ring_`` expects consecutive tokens per rank, ``zigzag_ring_`` the zig-zag layout, ``stripe_`` striped
tokens. In their ``varlen`` functions every packed sequence is divided evenly over the ranks and
``cu_seqlens`` counts *local* tokens; ``llama3_`` cuts the whole pack into consecutive slices.
"""

from __future__ import annotations

from megatile.compat.ring_flash_attn.adapters import substitute_hf_flash_attn, update_ring_flash_attn_params
from megatile.compat.ring_flash_attn.functions import FUNCTIONS
from megatile.compat.ring_flash_attn.llama3 import (
    LLAMA3_FUNCTIONS,
    llama3_flash_attn_prepare_cu_seqlens,
)

globals().update(FUNCTIONS)
globals().update(LLAMA3_FUNCTIONS)
__all__ = [
    *FUNCTIONS,
    *LLAMA3_FUNCTIONS,
    "llama3_flash_attn_prepare_cu_seqlens",
    "substitute_hf_flash_attn",
    "update_ring_flash_attn_params",
]
