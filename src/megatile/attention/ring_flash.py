"""Names and signatures of the ring-flash-attention package, for code that was written against it.

``ring_`` expects consecutive tokens per rank, ``zigzag_ring_`` the zig-zag layout, ``stripe_`` striped
tokens. In the ``varlen`` functions every packed sequence is divided evenly over the ranks and ``cu_seqlens``
counts *local* tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from megatile.attention.agreement import Members
from megatile.attention.errors import AttentionError
from megatile.attention.functional import hamilton_attention

Function = Callable[..., Any]


def _attend(
    schedule: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Any,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    alibi_slopes: Tensor | None,
    deterministic: bool,
    return_attn_probs: bool,
    group: Any,
) -> Any:
    if cu_seqlens is not None:
        boundaries = cu_seqlens.tolist() if hasattr(cu_seqlens, "tolist") else cu_seqlens
        cu_seqlens = [int(x) * Members(group).size for x in boundaries]
    out, lse = hamilton_attention(
        q,
        k,
        v,
        group=group,
        causal=causal,
        softmax_scale=softmax_scale,
        window_size=window_size,
        dropout_p=dropout_p,
        alibi_slopes=alibi_slopes,
        cu_seqlens=cu_seqlens,
        schedule=schedule,
        return_lse=True,
        deterministic=deterministic,
    )
    return (out, lse, None) if return_attn_probs else out


def _separate(schedule: str) -> Function:
    def function(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        group: Any = None,
    ) -> Any:
        rest = (
            dropout_p,
            softmax_scale,
            causal,
            window_size,
            alibi_slopes,
            deterministic,
            return_attn_probs,
            group,
        )
        return _attend(schedule, q, k, v, None, *rest)

    return function


def _varlen(schedule: str) -> Function:
    def function(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens: Any,
        max_seqlen: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        group: Any = None,
    ) -> Any:
        rest = (
            dropout_p,
            softmax_scale,
            causal,
            window_size,
            alibi_slopes,
            deterministic,
            return_attn_probs,
            group,
        )
        return _attend(schedule, q, k, v, cu_seqlens, *rest)

    return function


def _kvpacked(separate: Function) -> Function:
    def function(q: Tensor, kv: Tensor, *args: Any, **kwargs: Any) -> Any:
        k, v = _unpacked(kv, 2)
        return separate(q, k, v, *args, **kwargs)

    return function


def _qkvpacked(separate: Function) -> Function:
    def function(qkv: Tensor, *args: Any, **kwargs: Any) -> Any:
        return separate(*_unpacked(qkv, 3), *args, **kwargs)

    return function


def _unpacked(x: Tensor, parts: int) -> list[Tensor]:
    """Split the third dimension from the end: [..., parts, heads, dim]."""
    if x.dim() < 4 or x.shape[-3] != parts:
        raise AttentionError(f"packed tensors have {parts} parts before heads and dim, got {tuple(x.shape)}")
    return list(x.unbind(-3))


def _named(name: str, function: Function, what: str) -> Function:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{what} See the module's text for the layout of tokens."
    return function


def _family(prefix: str, schedule: str) -> dict[str, Function]:
    separate, varlen = _separate(schedule), _varlen(schedule)
    members = {
        f"{prefix}_func": (separate, "Attention with q, k and v [batch, tokens, heads, dim]."),
        f"{prefix}_kvpacked_func": (_kvpacked(separate), "The same with kv [batch, tokens, 2, heads, dim]."),
        f"{prefix}_qkvpacked_func": (
            _qkvpacked(separate),
            "The same with qkv [batch, tokens, 3, heads, dim].",
        ),
        f"{prefix}_varlen_func": (varlen, "Packed sequences: q, k and v [tokens, heads, dim]."),
        f"{prefix}_varlen_kvpacked_func": (
            _kvpacked(varlen),
            "Packed sequences with kv [tokens, 2, heads, dim].",
        ),
        f"{prefix}_varlen_qkvpacked_func": (
            _qkvpacked(varlen),
            "Packed sequences with qkv [tokens, 3, heads, dim].",
        ),
    }
    return {name: _named(name, function, what) for name, (function, what) in members.items()}


FUNCTIONS: dict[str, Function] = {
    **_family("ring_flash_attn", "ring"),
    **_family("zigzag_ring_flash_attn", "zigzag"),
    **{name: f for name, f in _family("stripe_flash_attn", "striped").items() if "varlen" not in name},
}
globals().update(FUNCTIONS)
__all__ = list(FUNCTIONS)
