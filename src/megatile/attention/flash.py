"""Which local kernel a call uses; the flash-attn package as one, on GPUs: bands become its windows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from megatile.attention.kernels import (
    SUPPORTED,
    Block,
    Blocked,
    CpuFlash,
    Gradients,
    Kernel,
    KernelOptions,
    Part,
    part_of,
)
from megatile.attention.schedules.bands import Band, Tile


def choose_kernel(q: Tensor, v: Tensor, options: KernelOptions) -> Kernel:
    """flash-attn on GPUs where it is installed, torch's own on CPUs, plain operations otherwise.

    Flash kernels scale scores after they hid some with -inf: a scale that is not above 0 would show those.
    """
    if options.scale > 0 and options.slopes is None and q.shape[-1] == v.shape[-1] and q.dtype in SUPPORTED:
        if q.device.type == "cpu":
            return CpuFlash()
        if flash_attention_available(q):
            return FlashAttention()
    return Blocked()


def flash_attention_available(q: Tensor) -> bool:
    """Whether flash-attn is installed and takes this tensor."""
    return q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and _interface() is not None


@cache
def _interface() -> Any:
    try:
        from flash_attn import flash_attn_interface
    except ImportError:
        return None
    return flash_attn_interface


def window_of(band: Band, rows: int, columns: int) -> tuple[int, int]:
    """The (left, right) window of flash-attn, which counts from the lower right corner; -1 is no limit.

    Only for bands of a visible part, where neither number can be negative otherwise.
    """
    corner = columns - rows
    left = -1 if band.lower is None else corner - band.lower
    right = -1 if band.upper is None else band.upper - corner
    return left, right


class FlashAttention:
    """``_flash_attn_forward`` and ``_flash_attn_backward`` of flash-attn 2; arguments are matched by name."""

    def divide(self, tile: Tile, rows: int, columns: int) -> Iterator[Part]:
        part = part_of(tile, (0, rows), (0, columns))
        if part is not None:
            yield part

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, tile: Tile, options: KernelOptions
    ) -> tuple[Tensor, Tensor]:
        window = window_of(tile.band, q.shape[1], k.shape[1])
        got = _call(
            _interface()._flash_attn_forward,
            q=q,
            k=k,
            v=v,
            return_softmax=False,
            **_common(options, window),
        )
        # Since 2.7: out, lse, …; before: out, q, k, v, out_padded, lse, ….
        return (got[0], got[1]) if len(got) == 4 else (got[0], got[5])

    def backward(self, block: Block, tile: Tile, options: KernelOptions) -> Gradients:
        d_q, d_k, d_v = (torch.empty_like(x) for x in (block.q, block.k, block.v))
        window = window_of(tile.band, block.q.shape[1], block.k.shape[1])
        _call(
            _interface()._flash_attn_backward,
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
        )
        return d_q, d_k, d_v


def _common(options: KernelOptions, window: tuple[int, int]) -> dict[str, Any]:
    return {
        "dropout_p": 0.0,
        "softmax_scale": options.scale,
        "causal": window == (-1, 0),
        "window_size": window,
        "window_size_left": window[0],
        "window_size_right": window[1],
        "softcap": 0.0,
        "alibi_slopes": None,
    }


def _call(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call with those arguments that this release of flash-attn knows."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in arguments.items() if name in known})
