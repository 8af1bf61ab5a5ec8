"""yunchang's layers: heads are exchanged inside Ulysses groups, KV travels around rings between them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from megatile.attention.arguments import agreed
from megatile.attention.communication import Communicator, choose_transport
from megatile.attention.errors import AttentionError
from megatile.attention.functional import hamilton_attention
from megatile.attention.heads import HeadExchange, exchange_heads
from megatile.compat.yunchang.groups import PROCESS_GROUP
from megatile.compat.yunchang.kernels import AttnType
from megatile.core.errors import did_you_mean
from megatile.runtime.agreement import Members

LAYOUTS = {
    "basic": "contiguous",
    "zigzag": "zigzag",
    "strip": "striped",
    "basic_pytorch": "contiguous",
    "basic_flashinfer": "contiguous",
    "basic_npu": "contiguous",
}
"""How the rings of yunchang divide tokens."""
_SCHEDULES = {"contiguous": "ring", "zigzag": "zigzag", "striped": "striped"}


class SequenceParallelAttention(torch.nn.Module):
    """What all layers share: [batch, tokens, heads, dim], as much of it as a rank has."""

    ulysses_pg: Any
    ring_pg: Any
    layout: str

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        *args: Any,
    ) -> Tensor:
        """The output alone, as yunchang's layers return it."""
        options = {
            "dropout_p": dropout_p,
            "softmax_scale": softmax_scale,
            "causal": causal,
            "window_size": window_size,
            "softcap": softcap,
            "deterministic": deterministic,
        }
        return self._attend(query, key, value, alibi_slopes, options)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor | None, options: dict[str, Any]
    ) -> Tensor:
        """Exchange heads, attend around the ring, exchange back."""
        members = Members(self.ulysses_pg, AttentionError)
        heads, exchanges = (q.shape[-2], k.shape[-2], v.shape[-2]), list[HeadExchange]()
        if members.size > 1:
            problem = _problem(q, k, v, members.size)
            record = {} if problem else {"shape": [list(x.shape) for x in (q, k, v)], "dtype": str(q.dtype)}
            agreed(members, record, problem, q, ("shape", "dtype"))
            communicator = Communicator(members.group, choose_transport(members.group, dense=True))
            exchanges = [
                HeadExchange(communicator, members.rank, (x.shape[1],) * members.size) for x in (q, k, v)
            ]
            q, k, v = exchange_heads(exchanges, (q, k, v), heads, to_heads=True)
            slopes = None if slopes is None else slopes[..., exchanges[0].own_heads(heads[0])]
        layout = "BSND", self.layout
        schedule = _SCHEDULES[self.layout]
        out: Tensor = hamilton_attention(
            q, k, v, group=self.ring_pg, schedule=schedule, layout=layout, alibi_slopes=slopes, **options
        )
        if exchanges:
            (out,) = exchange_heads(exchanges[:1], (out,), heads[:1], to_heads=False)
        return out


def _problem(q: Any, k: Any, v: Any, ranks: int) -> str | None:
    if not all(isinstance(x, Tensor) and x.dim() == 4 for x in (q, k, v)):
        return "query, key and value are tensors [batch, tokens, heads, dim]"
    for x in (q, k):
        if x.shape[2] % ranks:
            return f"{x.shape[2]} heads cannot be divided over the {ranks} ranks of a Ulysses group"
    return None


class LongContextAttention(SequenceParallelAttention):
    """Attention of what ``EXTRACT_FUNC_DICT[ring_impl_type]`` gives each rank.

    The other arguments of yunchang's layer choose nothing: dimensions are [batch, tokens, heads, dim], the
    kernel is the device's.
    """

    def __init__(
        self,
        scatter_idx: int = 2,
        gather_idx: int = 1,
        ring_impl_type: str = "basic",
        use_pack_qkv: bool = False,
        use_sync: bool = False,
        attn_type: AttnType = AttnType.FA,
        attn_processor: Any = None,
    ) -> None:
        super().__init__()
        if ring_impl_type not in LAYOUTS:
            raise AttentionError(
                f"there is no ring '{ring_impl_type}'", advice=did_you_mean(ring_impl_type, LAYOUTS)
            )
        if PROCESS_GROUP.ULYSSES_PG is None or PROCESS_GROUP.RING_PG is None:
            raise AttentionError("there are no process groups yet", advice="call set_seq_parallel_pg first")
        self.ulysses_pg, self.ring_pg = PROCESS_GROUP.ULYSSES_PG, PROCESS_GROUP.RING_PG
        self.layout = LAYOUTS[ring_impl_type]


class LongContextAttentionQKVPacked(LongContextAttention):
    """The same for qkv [batch, tokens, 3, heads, dim]."""

    def __init__(
        self,
        scatter_idx: int = 3,
        gather_idx: int = 1,
        ring_impl_type: str = "basic",
        use_sync: bool = False,
        attn_type: AttnType = AttnType.FA,
    ) -> None:
        super().__init__(ring_impl_type=ring_impl_type)

    def forward(  # type: ignore[override]
        self,
        qkv: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        *args: Any,
    ) -> Tensor:
        options = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic
        return super().forward(*qkv.unbind(2), *options, return_attn_probs)


class UlyssesAttention(SequenceParallelAttention):
    """Heads exchanged inside one group (None: all ranks), consecutive tokens per rank."""

    def __init__(
        self,
        sequence_process_group: Any = None,
        scatter_idx: int = 2,
        gather_idx: int = 1,
        use_sync: bool = False,
        attn_type: AttnType = AttnType.FA,
    ) -> None:
        super().__init__()
        self.spg = sequence_process_group

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor | None, options: dict[str, Any]
    ) -> Tensor:
        place = {"group": self.spg, "schedule": "ulysses", "layout": "contiguous"}
        out: Tensor = hamilton_attention(q, k, v, alibi_slopes=slopes, **place, **options)
        return out
