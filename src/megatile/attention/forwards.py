"""Forward functions with explicit chunks and routing tables.

All return ``(out, lse)``: ``out`` like q, ``lse`` [batch, heads, tokens] in f32. The ``_profile`` variants
add the seconds of the whole call, of communication (starting and awaiting it) and of computation.
``dropout_p`` must be 0. For training use :func:`megatile.attention.hamilton_attention`; the functions with
lists of KV chunks have no gradient.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from operator import index
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from megatile.attention.agreement import Members
from megatile.attention.arguments import device_of
from megatile.attention.chunked import run_chunks
from megatile.attention.errors import AttentionError
from megatile.attention.functional import hamilton_attention
from megatile.attention.profile import Profile
from megatile.collectives.decompositions import (
    cycles_from_mappings,
    gen_hamilton_circle,
    gen_hamilton_circle_two_nodes,
)
from megatile.core.errors import MegatileError

Mapping = Sequence[Sequence[Any]]
Result = tuple[Tensor, Tensor]


def ring_attention_forward_flash_attn(
    process_group: dist.ProcessGroup,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None,
    dropout_p: float = 0,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    *,
    _profile: Profile | None = None,
) -> Result:
    """Ring attention: each rank holds consecutive tokens, KV goes around one ring."""
    options = _Whole(process_group, causal, softmax_scale, window_size, dropout_p)
    return _whole("ring", q, k, v, options, _profile)


def zigzag_ring_attention_forward_flash_attn(
    process_group: dist.ProcessGroup,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None,
    dropout_p: float = 0,
    causal: bool = True,
    window_size: tuple[int, int] = (-1, -1),
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    *,
    _profile: Profile | None = None,
) -> Result:
    """Ring attention with the zig-zag layout, which balances causal work."""
    options = _Whole(
        process_group, causal, softmax_scale, window_size, dropout_p, alibi_slopes, deterministic
    )
    return _whole("zigzag", q, k, v, options, _profile)


def hamilton_attention_forward_full_flash_attn(
    process_group: dist.ProcessGroup,
    q: Tensor,
    k: list[Tensor],
    v: list[Tensor],
    softmax_scale0: float | None,
    dropout_p: float = 0,
    world_size: int | None = None,
    looping: Sequence[Sequence[int]] | None = None,
    out_mapping: Mapping | None = None,
    in_mapping: Mapping | None = None,
    layout: str = "BSND",
    *,
    _profile: Profile | None = None,
) -> Result:
    """Full attention over the cycles of K_n: ``k[c]`` and ``v[c]`` are the rank's chunk c, one per cycle."""
    members = Members(process_group)
    cycles = _read(lambda: _cycles(members.size, world_size, looping, out_mapping, in_mapping))
    return run_chunks(members, cycles, q, k, v, softmax_scale0, dropout_p, False, layout, _profile)


def hamilton_attention_forward_causal_flash_attn(
    process_group: dist.ProcessGroup,
    q: Tensor,
    k: list[Tensor],
    v: list[Tensor],
    softmax_scale0: float | None,
    dropout_p: float = 0,
    world_size: int | None = None,
    looping: Sequence[Sequence[int]] | None = None,
    out_mapping: Mapping | None = None,
    in_mapping: Mapping | None = None,
    source_rank_per_iter: Sequence[Any] | None = None,
    layout: str = "BSND",
    *,
    _profile: Profile | None = None,
) -> Result:
    """Causal attention over the cycles of K_n in zig-zag layout.

    Chunk c consists of sub-slice c of the rank's first block and sub-slice c of its second
    (:func:`kv_chunks`). ``source_rank_per_iter`` follows from the cycles and may be left out.
    """
    members = Members(process_group)
    cycles = _read(lambda: _cycles(members.size, world_size, looping, out_mapping, in_mapping))
    return run_chunks(members, cycles, q, k, v, softmax_scale0, dropout_p, True, layout, _profile)


def _over_nodes(causal: bool) -> Callable[..., Result]:
    def function(
        process_group: dist.ProcessGroup,
        q: Tensor,
        k: list[Tensor],
        v: list[Tensor],
        softmax_scale0: float | None,
        dropout_p: float = 0,
        inter_in_mapping: Sequence[Any] | None = None,
        inter_out_mapping: Sequence[Any] | None = None,
        out_mapping: Mapping | None = None,
        in_mapping: Mapping | None = None,
        layout: str = "BSND",
        *,
        _profile: Profile | None = None,
    ) -> Result:
        members = Members(process_group)
        tables = inter_out_mapping, inter_in_mapping, out_mapping, in_mapping
        cycles = _read(lambda: _node_cycles(members.size, *tables))
        return run_chunks(members, cycles, q, k, v, softmax_scale0, dropout_p, causal, layout, _profile)

    kind = "causal" if causal else "full"
    layout = "in zig-zag layout (see :func:`kv_chunks`)" if causal else "with one chunk per cycle"
    function.__name__ = function.__qualname__ = f"hamilton_attention_forward_{kind}_flash_attn_two_nodes"
    function.__doc__ = f"""{kind.capitalize()} attention over (m-K_m-m)^u {layout}.

    Paths inside nodes are closed through the NICs; any number of nodes. Without mappings they are generated,
    for nodes of ``LOCAL_WORLD_SIZE`` ranks if that is set, else for two nodes.
    """
    return function


hamilton_attention_forward_full_flash_attn_two_nodes = _over_nodes(causal=False)
hamilton_attention_forward_causal_flash_attn_two_nodes = _over_nodes(causal=True)


def _profiled(function: Callable[..., Result]) -> Callable[..., tuple[Tensor, Tensor, float, float, float]]:
    """The same function that also returns the seconds in total, in communication and in computation."""

    @wraps(function)
    def profiled(
        process_group: Any, q: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor, float, float, float]:
        profile = Profile(device_of(q))
        with profile.span("total"):
            out, lse = function(process_group, q, *args, _profile=profile, **kwargs)
        total, communication, computation = map(profile.seconds, ("total", "communication", "computation"))
        return out, lse, total, communication, computation

    profiled.__name__ = profiled.__qualname__ = f"{function.__name__}_profile"
    return profiled


ring_attention_forward_flash_attn_profile = _profiled(ring_attention_forward_flash_attn)
zigzag_ring_attention_forward_flash_attn_profile = _profiled(zigzag_ring_attention_forward_flash_attn)
hamilton_attention_forward_full_flash_attn_profile = _profiled(hamilton_attention_forward_full_flash_attn)
hamilton_attention_forward_causal_flash_attn_profile = _profiled(hamilton_attention_forward_causal_flash_attn)
hamilton_attention_forward_full_flash_attn_two_nodes_profile = _profiled(
    hamilton_attention_forward_full_flash_attn_two_nodes
)
hamilton_attention_forward_causal_flash_attn_two_nodes_profile = _profiled(
    hamilton_attention_forward_causal_flash_attn_two_nodes
)


class _Whole(NamedTuple):
    """Options of the functions that take whole tensors of k and v."""

    group: Any
    causal: bool
    softmax_scale: float | None
    window_size: tuple[int, int]
    dropout_p: float
    alibi_slopes: Tensor | None = None
    deterministic: bool = False


def _whole(
    schedule: str, q: Tensor, k: Tensor, v: Tensor, options: _Whole, profile: Profile | None
) -> Result:
    out, lse = hamilton_attention(
        q, k, v, **options._asdict(), schedule=schedule, return_lse=True, _profile=profile
    )
    return out, lse


def _read(cycles: Callable[[], list[list[int]]]) -> list[list[int]] | str:
    """Cycles from tables, or what is wrong with those: all ranks are told, none may wait for this one."""
    try:
        return [[index(rank) for rank in cycle] for cycle in cycles()]
    except MegatileError as error:
        return str(error)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        return f"looping and mappings are tables of ranks: {error}"


def _cycles(
    ranks: int,
    world_size: int | None,
    looping: Sequence[Sequence[int]] | None,
    out_mapping: Mapping | None,
    in_mapping: Mapping | None,
) -> list[list[int]]:
    if world_size is not None and world_size != ranks:
        raise AttentionError(f"world_size is {world_size}, but the group has {ranks} ranks")
    _check_transposed(out_mapping, in_mapping)
    if looping is not None:
        return [list(cycle) for cycle in looping]
    return cycles_from_mappings(out_mapping) if out_mapping is not None else gen_hamilton_circle(ranks)


def _node_cycles(
    ranks: int,
    inter_out: Sequence[Any] | None,
    inter_in: Sequence[Any] | None,
    out_mapping: Mapping | None,
    in_mapping: Mapping | None,
) -> list[list[int]]:
    _check_transposed(out_mapping, in_mapping)
    if out_mapping is not None and inter_out is not None:
        return cycles_from_mappings(out_mapping, inter_out, ranks)
    if out_mapping is not None or inter_out is not None or inter_in is not None:
        raise AttentionError("give both out_mapping and inter_out_mapping, or neither")
    inside = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    nodes = ranks // inside if inside and ranks % inside == 0 and inside < ranks else 2
    return gen_hamilton_circle_two_nodes(ranks, nodes)


def _check_transposed(out_mapping: Mapping | None, in_mapping: Mapping | None) -> None:
    if out_mapping is None or in_mapping is None:
        return
    if [list(row) for row in in_mapping] != [list(column) for column in zip(*out_mapping, strict=True)]:
        raise AttentionError("in_mapping must be the transpose of out_mapping")
