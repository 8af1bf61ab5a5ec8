"""Topology-aware sequence parallelism: exact attention of sequences divided over ranks.

    from megatile.attention import hamilton_attention, shard_sequence

    q, k, v = (shard_sequence(x, causal=True) for x in (q, k, v))     # in every process
    out = hamilton_attention(q, k, v, causal=True)

Decompositions and schedules need no torch; the functions on tensors do, and import it when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HERE = "megatile.attention"
_DECOMPOSITIONS = (
    "calculate_in_mapping_circle",
    "calculate_inter_node_mapping",
    "calculate_intra_node_in_mapping_two_nodes",
    "calculate_intra_node_out_mapping_two_nodes",
    "calculate_out_mapping_circle",
    "calculate_source_rank_per_iter",
    "gen_hamilton_circle",
    "gen_hamilton_circle_two_nodes",
    "gen_hamilton_path_local",
)
_SCHEDULES = ("Layout", "Mask", "Schedule", "make_schedule", "schedule_names")
_ERRORS = ("AttentionError", "MissingTorchError", "PeerError")
_FORWARDS = tuple(
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
)
_RING_FLASH = tuple(
    f"{prefix}{kind}{packing}_func"
    for prefix in ("ring_flash_attn", "zigzag_ring_flash_attn", "stripe_flash_attn")
    for kind in ("", "_varlen")
    for packing in ("", "_kvpacked", "_qkvpacked")
    if not (prefix == "stripe_flash_attn" and kind)
)
_TORCH = {
    "functional": ("hamilton_attention",),
    "sharding": ("position_ids", "shard_sequence", "unshard_sequence"),
    "sdpa": ("sequence_parallel_attention",),
    "merge": ("_update_out_and_lse",),
    "communication": ("A2AComm", "RingComm"),
    "chunked": ("kv_chunks",),
    "forwards": _FORWARDS,
    "ring_flash": _RING_FLASH,
}
_PLACES = {
    **dict.fromkeys(_DECOMPOSITIONS, "megatile.collectives.decompositions"),
    **dict.fromkeys(_SCHEDULES, f"{_HERE}.schedules"),
    **dict.fromkeys(_ERRORS, f"{_HERE}.errors"),
    **{name: f"{_HERE}.{module}" for module, names in _TORCH.items() for name in names},
}
__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    try:
        value = getattr(import_module(_PLACES[name]), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "torch":
            raise
        from megatile.attention.errors import MissingTorchError

        raise MissingTorchError(f"{name} needs torch: pip install 'megatile[torch]'") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
