"""Names and signatures of the yunchang package (long-context-attention): Ulysses and rings together.

set_seq_parallel_pg(ulysses_degree, ring_degree, rank, world_size)
attention = LongContextAttention(ring_impl_type="zigzag")
parts = [EXTRACT_FUNC_DICT["zigzag"](x, rank, world_size, rd=…, ud=…) for x in (q, k, v)]
out = attention(*parts, causal=True)
"""

from __future__ import annotations

from megatile.compat.ring_flash_attn.functions import FUNCTIONS
from megatile.compat.yunchang.groups import PROCESS_GROUP, set_seq_parallel_pg
from megatile.compat.yunchang.kernels import AttnType
from megatile.compat.yunchang.layers import (
    LAYOUTS,
    LongContextAttention,
    LongContextAttentionQKVPacked,
    UlyssesAttention,
)
from megatile.compat.yunchang.shards import (
    EXTRACT_FUNC_DICT,
    basic_extract_local,
    stripe_extract_local,
    zigzag_extract_local,
)

_PREFIXES = {"contiguous": "ring", "zigzag": "zigzag_ring", "striped": "stripe"}
RING_IMPL_DICT, RING_IMPL_QKVPACKED_DICT = (
    {name: FUNCTIONS[f"{_PREFIXES[layout]}_flash_attn{packing}_func"] for name, layout in LAYOUTS.items()}
    for packing in ("", "_qkvpacked")
)
globals().update(FUNCTIONS)

__all__ = [
    *FUNCTIONS,
    "EXTRACT_FUNC_DICT",
    "PROCESS_GROUP",
    "RING_IMPL_DICT",
    "RING_IMPL_QKVPACKED_DICT",
    "AttnType",
    "LongContextAttention",
    "LongContextAttentionQKVPacked",
    "UlyssesAttention",
    "basic_extract_local",
    "set_seq_parallel_pg",
    "stripe_extract_local",
    "zigzag_extract_local",
]
