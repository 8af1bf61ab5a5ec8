"""The functions and classes that the Hamilton attention authors published, with their signatures.

The forward functions return ``(out, lse)``: ``out`` like q, ``lse`` [batch, heads, tokens] in f32. The
``_profile`` variants add a dictionary with ``total_time``, ``comm_total_time`` (starting and awaiting
communication) and ``comp_total_time`` in milliseconds. ``dropout_p`` must be 0. For training use
:func:`megatile.attention.hamilton_attention`; the functions with lists of KV chunks have no gradient.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from operator import index
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatile.attention.arguments import device_of
from megatile.attention.chunked import run_chunks
from megatile.attention.communication import Communicator, Pending, choose_transport, post_messages
from megatile.attention.errors import AttentionError
from megatile.attention.functional import hamilton_attention
from megatile.attention.profile import Profile
from megatile.collectives.decompositions import (
    cycles_from_mappings,
    gen_hamilton_circle,
    gen_hamilton_circle_two_nodes,
)
from megatile.compat.ring_flash_attn.functions import layout_of
from megatile.core.arguments import no_none
from megatile.core.errors import MegatileError
from megatile.runtime.agreement import Members
from megatile.runtime.failures import wait_for_all
from megatile.runtime.torch_rules import merge_log_sums

Mapping = Sequence[Sequence[Any]]
Group = Any  # a process group, or None for the default one
Result = tuple[Tensor, Tensor]


def ring_attention_forward_flash_attn(
    process_group: Group,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None,
    dropout_p: float = 0,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    *,
    world_size: int | None = None,
    _profile: Profile | None = None,
) -> Result:
    """Ring attention: each rank holds consecutive tokens, KV goes around one ring."""
    given = {"causal": causal, "softmax_scale": softmax_scale, "window_size": window_size}
    return _whole("ring", process_group, world_size, q, k, v, _profile, dropout_p=dropout_p, **given)


def zigzag_ring_attention_forward_flash_attn(
    process_group: Group,
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
    world_size: int | None = None,
    _profile: Profile | None = None,
) -> Result:
    """Ring attention with the zig-zag layout, which balances causal work."""
    given = {"causal": causal, "softmax_scale": softmax_scale, "window_size": window_size}
    given |= {"alibi_slopes": alibi_slopes, "deterministic": deterministic}
    return _whole("zigzag", process_group, world_size, q, k, v, _profile, dropout_p=dropout_p, **given)


def hamilton_attention_forward_full_flash_attn(
    process_group: Group,
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
    members = Members(process_group, AttentionError)
    cycles = _read(lambda: _cycles(members.size, world_size, looping, out_mapping, in_mapping))
    return run_chunks(members, cycles, q, k, v, softmax_scale0, dropout_p, False, layout, _profile)


def hamilton_attention_forward_causal_flash_attn(
    process_group: Group,
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
    members = Members(process_group, AttentionError)
    cycles = _read(lambda: _cycles(members.size, world_size, looping, out_mapping, in_mapping))
    return run_chunks(members, cycles, q, k, v, softmax_scale0, dropout_p, True, layout, _profile)


def _over_nodes(causal: bool) -> Callable[..., Result]:
    def function(
        process_group: Group,
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
        world_size: int | None = None,
        _profile: Profile | None = None,
    ) -> Result:
        members = Members(process_group, AttentionError)
        tables = inter_out_mapping, inter_in_mapping, out_mapping, in_mapping
        cycles = _read(lambda: _node_cycles(members.size, world_size, *tables))
        return run_chunks(members, cycles, q, k, v, softmax_scale0, dropout_p, causal, layout, _profile)

    kind = "causal" if causal else "full"
    layout = "in zig-zag layout (see :func:`kv_chunks`)" if causal else "with one chunk per cycle"
    function.__name__ = function.__qualname__ = f"hamilton_attention_forward_{kind}_flash_attn_two_nodes"
    function.__doc__ = f"""{kind.capitalize()} attention over (m-K_m-m)^u {layout}.

    Paths inside nodes are closed through the NICs; any number of nodes. Without mappings they are generated,
    for nodes of ``LOCAL_WORLD_SIZE`` ranks if that is set, else as ``gen_hamilton_circle_two_nodes(n)``.
    """
    return function


hamilton_attention_forward_full_flash_attn_two_nodes = _over_nodes(causal=False)
hamilton_attention_forward_causal_flash_attn_two_nodes = _over_nodes(causal=True)


def _profiled(function: Callable[..., Result]) -> Callable[..., tuple[Tensor, Tensor, dict[str, float]]]:
    @wraps(function)
    def profiled(
        process_group: Any, q: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor, dict[str, float]]:
        profile = Profile(device_of(q))
        with profile.span("total"):
            out, lse = function(process_group, q, *args, _profile=profile, **kwargs)
        times = {"total_time": "total", "comm_total_time": "communication", "comp_total_time": "computation"}
        return out, lse, {name: 1e3 * profile.seconds(kind) for name, kind in times.items()}

    profiled.__name__ = profiled.__qualname__ = f"{function.__name__}_profile"
    profiled.__doc__ = f"{function.__name__}, and its times in milliseconds."
    return profiled


globals().update(
    {
        f"{function.__name__}_profile": _profiled(function)
        for function in (
            ring_attention_forward_flash_attn,
            zigzag_ring_attention_forward_flash_attn,
            hamilton_attention_forward_full_flash_attn,
            hamilton_attention_forward_causal_flash_attn,
            hamilton_attention_forward_full_flash_attn_two_nodes,
            hamilton_attention_forward_causal_flash_attn_two_nodes,
        )
    }
)


@no_none
def _update_out_and_lse(
    out: Tensor | None, lse: Tensor | None, block_out: Tensor, block_lse: Tensor
) -> tuple[Tensor, Tensor]:
    """Take a block into the result so far. ``out`` [B, S, H, D] and ``lse`` [B, S, H, 1] are kept in f32.

    ``block_out`` [B, S, H, D] in any dtype and ``block_lse`` [B, H, S]. Rows that have seen no key yet (lse
    -inf) take the block as it is.
    """
    block_out = block_out.to(torch.float32)
    block_lse = block_lse.to(torch.float32).transpose(-2, -1).unsqueeze(-1)
    if out is None or lse is None:
        return block_out, block_lse
    lse = lse.clone()
    share = merge_log_sums(lse, torch.zeros_like(lse), block_lse)
    return torch.lerp(out, block_out, share), lse


class RingComm:
    """Send to the next rank of a ring and receive from the previous one. None is the default group."""

    def __init__(self, process_group: Group = None):
        members = Members(process_group, AttentionError)
        self.group, self.rank, self.world_size = members.group, members.rank, members.size
        self._noted: list[tuple[Callable[..., Any], Tensor, int]] = []
        self._works: list[tuple[Any, int | None]] = []

    def send_recv(self, to_send: Tensor, recv_tensor: Tensor | None = None) -> Tensor:
        """Note both transfers for :meth:`commit` and :meth:`wait`. Returns the receiving tensor."""
        result = torch.empty_like(to_send) if recv_tensor is None else recv_tensor
        if self.world_size == 1:
            result.copy_(to_send)
            return result
        self._noted.append((dist.isend, to_send.contiguous(), (self.rank + 1) % self.world_size))
        self._noted.append((dist.irecv, result, (self.rank - 1) % self.world_size))
        return result

    def send_recv_kv(
        self, k: Tensor, v: Tensor, k_buffer: Tensor | None = None, v_buffer: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Both of k and v, started at once."""
        next_k, next_v = self.send_recv(k, k_buffer), self.send_recv(v, v_buffer)
        self.commit()
        return next_k, next_v

    def commit(self) -> None:
        """Start what was noted."""
        if self._works:
            raise AttentionError(
                "the previous transfers of this RingComm were not awaited", advice="call wait()"
            )
        if self.group is not None:
            self._works = post_messages(self.group, self._noted, "a ring exchange")

    def wait(self) -> None:
        """Wait for what was started."""
        if self.group is not None:
            wait_for_all(self._works, self.group, "a ring exchange")
        self._noted, self._works = [], []


class A2AComm:
    """Every rank sends one tensor to every rank. None is the default group."""

    def __init__(self, process_group: Group = None):
        members = Members(process_group, AttentionError)
        self.group, self.rank, self.world_size = members.group, members.rank, members.size
        self._pending: tuple[Pending, list[Tensor]] | None = None

    def all_to_all(self, send_tensors: list[Tensor], recv_tensors: list[Tensor]) -> None:
        """Start; ``recv_tensors[p]`` holds what rank p sent to this one after :meth:`wait`."""
        if len(send_tensors) != self.world_size or len(recv_tensors) != self.world_size:
            raise AttentionError(f"all_to_all needs one tensor per rank, {self.world_size} of each kind")
        recv_tensors[self.rank].copy_(send_tensors[self.rank])
        others = [p for p in range(self.world_size) if p != self.rank]
        sends = {p: send_tensors[p].reshape(-1) for p in others}
        sizes = {p: recv_tensors[p].numel() for p in others}
        transport = choose_transport(self.group, dense=True)
        pending = Communicator(self.group, transport).exchange(
            sends, sizes, send_tensors[self.rank], "an all-to-all"
        )
        self._pending = (pending, recv_tensors)

    def wait(self) -> None:
        """Wait until everything has arrived."""
        if self._pending is not None:
            pending, targets = self._pending
            for peer, flat in pending.wait().items():
                targets[peer].copy_(flat.view_as(targets[peer]))
        self._pending = None


def _whole(
    schedule: str,
    group: Group,
    world_size: int | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    profile: Profile | None,
    **options: Any,
) -> Result:
    problem = _size_problem(world_size, Members(group, AttentionError).size)
    options |= {"schedule": schedule, "return_lse": True, "_profile": profile, "_problem": problem}
    options["layout"] = "BSND", layout_of(schedule, options["causal"])
    out, lse = hamilton_attention(q, k, v, group=group, **options)
    return out, lse


def _size_problem(world_size: int | None, ranks: int) -> str | None:
    if world_size is None or world_size == ranks:
        return None
    return f"world_size is {world_size}, but the group has {ranks} ranks"


def _read(cycles: Callable[[], list[list[int]]]) -> list[list[int]] | str:
    """Cycles from tables, or what is wrong with them: reported to all ranks, none waits for this one."""
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
    _check_tables(ranks, world_size, out_mapping, in_mapping)
    if looping is not None:
        return [list(cycle) for cycle in looping]
    return cycles_from_mappings(out_mapping) if out_mapping is not None else gen_hamilton_circle(ranks)


def _node_cycles(
    ranks: int,
    world_size: int | None,
    inter_out: Sequence[Any] | None,
    inter_in: Sequence[Any] | None,
    out_mapping: Mapping | None,
    in_mapping: Mapping | None,
) -> list[list[int]]:
    _check_tables(ranks, world_size, out_mapping, in_mapping)
    if out_mapping is not None and inter_out is not None:
        return cycles_from_mappings(out_mapping, inter_out, ranks)
    if out_mapping is not None or inter_out is not None or inter_in is not None:
        raise AttentionError("give both out_mapping and inter_out_mapping, or neither")
    inside = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    known = inside and ranks % inside == 0 and inside < ranks
    return gen_hamilton_circle_two_nodes(ranks, ranks // inside if known else None)


def _check_tables(
    ranks: int, world_size: int | None, out_mapping: Mapping | None, in_mapping: Mapping | None
) -> None:
    problem = _size_problem(world_size, ranks)
    if problem is not None:
        raise AttentionError(problem)
    if out_mapping is None or in_mapping is None:
        return
    if [list(row) for row in in_mapping] != [list(column) for column in zip(*out_mapping, strict=True)]:
        raise AttentionError("in_mapping must be the transpose of out_mapping")
