"""Packages that references of TileLang's examples use and a CPU lacks, answered in NumPy and torch.

* Triton's interpreter keeps bf16 as bits and calculates with them as integers; here its bf16 are numbers.
* ``flash_attn`` needs a GPU; its functions for sequences of different lengths are torch's attention.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any

import numpy as np


def install() -> None:
    """Answer from now on."""
    _numbers_in_triton()
    if importlib.util.find_spec("flash_attn") is None:
        package, bert = ModuleType("flash_attn"), ModuleType("flash_attn.bert_padding")
        package.flash_attn_varlen_func = varlen_attention  # type: ignore[attr-defined]
        package.flash_attn_func = attention  # type: ignore[attr-defined]
        package.flash_attn_with_kvcache = cache_attention  # type: ignore[attr-defined]
        package.bert_padding = bert  # type: ignore[attr-defined]
        package.__path__ = []
        package.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None)
        bert.pad_input, bert.unpad_input = pad_input, unpad_input  # type: ignore[attr-defined]
        sys.modules |= {"flash_attn": package, "flash_attn.bert_padding": bert}


# --- flash_attn -----------------------------------------------------------------------------------------


def attention(q: Any, k: Any, v: Any, causal: bool = False, softmax_scale: Any = None, **_: Any) -> Any:
    """Attention of ``[batch, sequence, heads, dim]``; a causal mask ends at the last key."""
    import torch

    group = q.shape[2] // k.shape[2]
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float().repeat_interleave(group, 2))
    scores = scores * (softmax_scale or q.shape[-1] ** -0.5)
    if causal:
        rows, columns = scores.shape[-2:]
        after = torch.ones(rows, columns, dtype=torch.bool).triu(columns - rows + 1)
        scores = scores.masked_fill(after, float("-inf"))
    weights = torch.nan_to_num(torch.softmax(scores, -1))
    return torch.einsum("bhqk,bkhd->bqhd", weights, v.float().repeat_interleave(group, 2)).to(q.dtype)


def varlen_attention(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: Any = None,
    max_seqlen_k: Any = None, *_: Any, causal: bool = False, softmax_scale: Any = None, **__: Any,
) -> Any:  # fmt: skip
    """Attention of sequences that lie one after the other."""
    import torch

    bounds = (c[part].tolist() for c in (cu_seqlens_q, cu_seqlens_k) for part in (slice(-1), slice(1, None)))
    ends = zip(*bounds, strict=True)
    parts = [
        attention(q[None, a:b], k[None, c:d], v[None, c:d], causal, softmax_scale)[0] for a, b, c, d in ends
    ]
    return torch.cat(parts)


def cache_attention(
    q: Any, k_cache: Any, v_cache: Any, cache_seqlens: Any = None, block_table: Any = None, **keywords: Any
) -> Any:
    """Attention to so many keys of a cache, which may lie in pages."""
    import torch

    rows = []
    for i, length in enumerate(cache_seqlens.tolist()):
        k, v = (
            c[i] if block_table is None else c[block_table[i].long()].flatten(0, 1)
            for c in (k_cache, v_cache)
        )
        rows.append(attention(q[i : i + 1], k[None, :length], v[None, :length], **keywords))
    return torch.cat(rows)


def unpad_input(hidden: Any, mask: Any, *_: Any) -> tuple[Any, ...]:
    """The rows that the mask keeps, where they lie, where sequences begin, the longest, their lengths."""
    import torch

    lengths = mask.sum(-1, dtype=torch.int32)
    rows = torch.nonzero(mask.flatten()).flatten()
    begins = torch.nn.functional.pad(torch.cumsum(lengths, 0, dtype=torch.int32), (1, 0))
    return hidden.flatten(0, 1)[rows], rows, begins, int(lengths.max()), lengths


def pad_input(hidden: Any, rows: Any, batch: int, length: int) -> Any:
    result = hidden.new_zeros(batch * length, *hidden.shape[1:])
    result[rows] = hidden
    return result.unflatten(0, (batch, length))


# --- DeepEP ---------------------------------------------------------------------------------------------


def check_dispatch_layout(function: Any, tokens: int = 100, experts: int = 32, ranks: int = 4) -> None:
    """Compare with what DeepEP counts: tokens by rank and by expert, and which rank gets which."""
    import torch

    chosen = torch.topk(torch.rand(tokens, experts), 8).indices
    by_expert = torch.zeros(tokens, experts, dtype=torch.bool).scatter(1, chosen, True)
    by_rank = by_expert.reshape(tokens, ranks, -1).any(-1)
    wanted = by_rank.sum(0, dtype=torch.int32), by_expert.sum(0, dtype=torch.int32), by_rank
    for found, right in zip(function(chosen, experts, ranks), wanted, strict=True):
        assert torch.equal(found, right)


# --- Triton ---------------------------------------------------------------------------------------------


def _numbers_in_triton() -> None:
    """bf16 in Triton's interpreter: ml_dtypes' numbers in the place of bits."""
    if importlib.util.find_spec("triton") is None:
        return
    import ml_dtypes
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime import interpreter

    bf16 = np.dtype(ml_dtypes.bfloat16)
    plain, builder, handle = (
        interpreter._get_np_dtype,
        interpreter.InterpreterBuilder,
        interpreter.TensorHandle,
    )
    native = interpreter._interpreter

    def np_dtype(kind: Any) -> Any:
        return bf16 if getattr(kind, "scalar", kind) == tl.bfloat16 else plain(kind)

    through_bits = builder.create_fp_to_fp

    def cast(self: Any, source: Any, kind: Any, *rest: Any) -> Any:
        if tl.bfloat16 not in (source.dtype.scalar, kind.scalar) and rest:
            return through_bits(self, source, kind, *rest)
        return handle(source.data.astype(np_dtype(kind)), kind.scalar)

    product = builder.create_dot

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        wide = [handle(x.data.astype(np.float32), tl.float32) if x.data.dtype == bf16 else x for x in (a, b)]
        return product(self, *wide, *rest)

    class Native:
        """Loads and stores move bits."""

        def __getattr__(self, name: str) -> Any:
            return getattr(native, name)

        def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
            if dtype != bf16:
                return native.load(pointers, mask, other, dtype)
            return native.load(pointers, mask, other.view(np.uint16), np.dtype(np.uint16)).view(bf16)

        def store(self, pointers: Any, value: Any, mask: Any) -> Any:
            return native.store(pointers, value.view(np.uint16) if value.dtype == bf16 else value, mask)

    interpreter._get_np_dtype = np_dtype
    interpreter._interpreter = Native()
    builder.cast_impl = cast
    builder.create_fp_to_fp = cast
    builder.create_dot = dot
    for name in ("exp", "exp2", "log", "log2"):
        plain_function = getattr(tl, name)
        setattr(tl, name, _anywhere(plain_function, interpreter))
        setattr(libdevice, name, getattr(tl, name))  # device functions have no meaning on a CPU
        setattr(libdevice, f"fast_{name}f", getattr(tl, name))
    patch_tensor = interpreter._patch_lang_tensor

    def with_numbers(tensor: Any, *scope: Any) -> None:
        patch_tensor(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = with_numbers
    builder.get_bf16 = lambda self, value: handle(np.array([value], bf16), tl.bfloat16)


def _anywhere(function: Any, interpreter: Any) -> Any:
    """A function of Triton's language that modules may keep under a name of their own."""

    @functools.wraps(function)
    def call(x: Any, _semantic: Any = None) -> Any:
        return function(x, _semantic=_semantic or interpreter.interpreter_semantic)

    return call
