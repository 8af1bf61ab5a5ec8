"""Topology-aware sequence parallelism: exact attention of sequences divided over ranks.

    from megatile.attention import hamilton_attention, shard_sequence

    q, k, v = (shard_sequence(x, causal=True) for x in (q, k, v))     # in every process
    out = hamilton_attention(q, k, v, causal=True)

Decompositions and schedules need no torch; the functions on tensors do, and import it when first used.
"""

from __future__ import annotations

from typing import Any

from megatile.core.public import PublicNames

_NAMES = {
    "megatile.collectives.decompositions": "calculate_in_mapping_circle calculate_inter_node_mapping "
    "calculate_intra_node_in_mapping_two_nodes calculate_intra_node_out_mapping_two_nodes "
    "calculate_out_mapping_circle calculate_source_rank_per_iter gen_hamilton_circle "
    "gen_hamilton_circle_two_nodes gen_hamilton_path_local",
    "megatile.attention.schedules": "Layout Mask Schedule make_schedule schedule_names",
    "megatile.attention.errors": "AttentionError",
    "megatile.runtime.errors": "MissingTorchError PeerError",
    "megatile.attention.functional": "hamilton_attention",
    "megatile.attention.sharding": "position_ids shard_sequence unshard_sequence",
    "megatile.attention.mask_functions": "MaskFunction document_mask",
    "megatile.attention.sdpa": "sequence_parallel_attention",
    "megatile.attention.chunked": "kv_chunks",
}
_public = PublicNames(__name__, {name: place for place, names in _NAMES.items() for name in names.split()})


def __getattr__(name: str) -> Any:
    try:
        return _public(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "torch":
            raise
        from megatile.runtime.errors import MissingTorchError

        raise MissingTorchError(f"{name} needs torch: pip install 'megatile[torch]'") from error


def __dir__() -> list[str]:
    return sorted(_public.places())
