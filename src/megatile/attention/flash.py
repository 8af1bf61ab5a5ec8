"""Which local kernel a call uses; the flash-attn package as one, on GPUs: bands become its windows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from megatile.attention.block_kernels import (
    SUPPORTED,
    BackwardInputs,
    Blocked,
    BlockKernel,
    CpuFlash,
    Gradients,
    KernelOptions,
    Visible,
)
from megatile.attention.packed import Batch, Segment
from megatile.attention.schedules.bands import Band, MaskTile, Part, part_of
from megatile.core.cached import cached


def choose_kernel(q: Tensor, v: Tensor, options: KernelOptions) -> BlockKernel:
    """flash-attn on GPUs where it is installed, torch's own on CPUs, plain operations otherwise.

    Flash kernels scale scores after they hid some with -inf: a scale that is not above 0 would show those.
    """
    simple = options.scale > 0 and q.shape[-1] == v.shape[-1] and q.dtype in SUPPORTED
    if simple and options.plain and q.device.type == "cpu":
        return CpuFlash()
    capped = replace(options, softcap=0.0).plain and _knows_softcap()
    if simple and (options.plain or capped) and flash_attention_available(q):
        return FlashAttention()
    return Blocked()


def flash_attention_available(q: Tensor) -> bool:
    """Return whether flash-attn is installed and takes this tensor."""
    return q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and _interface() is not None


def _knows_softcap() -> bool:
    """Since 2.6."""
    found = _interface()
    return found is not None and "softcap" in inspect.signature(found._flash_attn_forward).parameters


@cached()
def _interface() -> Any:
    try:
        from flash_attn import flash_attn_interface
    except ImportError:
        return None
    return flash_attn_interface


def window_of(band: Band, rows: int, columns: int) -> tuple[int, int]:
    """Return the (left, right) window of flash-attn, which counts from the lower right corner; -1 is no
    limit.

    Only for bands of a visible part, where neither number can be negative otherwise.
    """
    corner = columns - rows
    left = -1 if band.lower is None else corner - band.lower
    right = -1 if band.upper is None else band.upper - corner
    return left, right


class FlashAttention(BlockKernel):
    """``_flash_attn_forward`` and ``_flash_attn_backward`` of flash-attn 2; arguments are matched by name."""

    def divide(self, tile: MaskTile, rows: int, columns: int) -> Iterator[Part]:
        part = part_of(tile, (0, rows), (0, columns))
        if part is not None:
            yield part

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, visible: Visible, options: KernelOptions
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(visible, MaskTile)
        window = window_of(visible.band, q.shape[1], k.shape[1])
        return _forward("_flash_attn_forward", q, k, v, options, window)

    def backward(self, block: BackwardInputs, visible: Visible, options: KernelOptions) -> Gradients:
        assert isinstance(visible, MaskTile)
        window = window_of(visible.band, block.q.shape[1], block.k.shape[1])
        return _backward("_flash_attn_backward", block, options, window)

    def kind(self, segment: Segment, width: int = 0) -> tuple[int, int]:
        return window_of(segment.band, segment.rows, segment.columns)

    def forward_many(
        self, q: Tensor, k: Tensor, v: Tensor, batch: Batch, options: KernelOptions
    ) -> tuple[Tensor, Tensor]:
        taken = batch.take(q, True), batch.take(k, False), batch.take(v, False)
        lengths, window = _lengths(batch, q.device), self.kind(batch.segments[0])
        return _forward("_flash_attn_varlen_forward", *taken, options, window, **lengths)

    def backward_many(self, block: BackwardInputs, batch: Batch, options: KernelOptions) -> Gradients:
        d_out, q, k, v, out = (
            batch.take(x, rows) for x, rows in zip(block[:5], (True, True, False, False, True), strict=True)
        )
        lse = batch.take(block.lse.transpose(0, 1), True).transpose(0, 1)
        lengths, window = _lengths(batch, q.device), self.kind(batch.segments[0])
        taken = BackwardInputs(d_out, q, k, v, out, lse)
        return _backward("_flash_attn_varlen_backward", taken, options, window, **lengths)


def _forward(
    name: str, q: Tensor, k: Tensor, v: Tensor, options: KernelOptions, window: tuple[int, int], **more: Any
) -> tuple[Tensor, Tensor]:
    common = _common(options, window)
    got = _call(getattr(_interface(), name), q=q, k=k, v=v, return_softmax=False, **common, **more)
    # Since 2.7: out, lse, …; before: out, q, k, v, out_padded, lse, ….
    return (got[0], got[1]) if len(got) == 4 else (got[0], got[5])


def _backward(
    name: str, block: BackwardInputs, options: KernelOptions, window: tuple[int, int], **more: Any
) -> Gradients:
    d_q, d_k, d_v = (torch.empty_like(x) for x in (block.q, block.k, block.v))
    _call(
        getattr(_interface(), name),
        dout=block.d_out,
        q=block.q,
        k=block.k,
        v=block.v,
        out=block.out,
        softmax_lse=block.lse.contiguous(),
        dq=d_q,
        dk=d_k,
        dv=d_v,
        deterministic=options.deterministic,
        rng_state=None,
        **_common(options, window),
        **more,
    )
    return d_q, d_k, d_v


def _lengths(batch: Batch, device: torch.device) -> dict[str, Any]:
    """Return boundaries and longest documents, as the varlen functions want them."""
    found: dict[str, Any] = {}
    for name, lengths in zip("qk", zip(*(s[:2] for s in batch.segments), strict=True), strict=True):
        ends = [0, *accumulate(lengths)]
        found[f"cu_seqlens_{name}"] = torch.tensor(ends, dtype=torch.int32, device=device)
        found[f"max_seqlen_{name}"] = max(lengths)
    return found


def _common(options: KernelOptions, window: tuple[int, int]) -> dict[str, Any]:
    return {
        "dropout_p": 0.0,
        "softmax_scale": options.scale,
        "causal": window == (-1, 0),
        "window_size": window,
        "window_size_left": window[0],
        "window_size_right": window[1],
        "softcap": options.softcap,
        "alibi_slopes": None,
    }


def _call(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call with those arguments that this release of flash-attn knows."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in arguments.items() if name in known})
