"""Which names of ``megatile.attention`` come from elsewhere, and where they are defined. Light: no torch."""

from __future__ import annotations

_FORWARDS = [
    f"{name}{suffix}"
    for name in (
        "ring_attention_forward_flash_attn",
        "zigzag_ring_attention_forward_flash_attn",
        "hamilton_attention_forward_full_flash_attn",
        "hamilton_attention_forward_causal_flash_attn",
        "hamilton_attention_forward_full_flash_attn_two_nodes",
        "hamilton_attention_forward_causal_flash_attn_two_nodes",
    )
    for suffix in ("", "_profile")
]
_RING_FLASH = [
    f"{prefix}{kind}{packing}_func"
    for prefix in ("ring_flash_attn", "zigzag_ring_flash_attn", "stripe_flash_attn")
    for kind in ("", "_varlen")
    for packing in ("", "_kvpacked", "_qkvpacked")
    if not (prefix == "stripe_flash_attn" and kind)
]
NAMES = {
    **dict.fromkeys([*_FORWARDS, "A2AComm", "RingComm", "_update_out_and_lse"], "megatile.compat.hamilton"),
    **dict.fromkeys(_RING_FLASH, "megatile.compat.ring_flash_attn"),
}
