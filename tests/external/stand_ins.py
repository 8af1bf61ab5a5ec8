"""What test files written for GPUs need on a CPU: names of packages, devices and backends that stand in."""

from __future__ import annotations

import importlib
import sys
import types
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

ALIASES = {
    "ring_flash_attn": ("megatile.compat.ring_flash_attn", ("utils", "triton_utils")),
    "yunchang": ("megatile.compat.yunchang", ("kernels",)),
}


def install(compiled: bool) -> None:
    """Put all of them in place, in this process; ``compiled``: the test will compile."""
    for name, (ours, parts) in ALIASES.items():
        sys.modules[name] = importlib.import_module(ours)
        for part in parts:
            sys.modules[f"{name}.{part}"] = importlib.import_module(f"{ours}.{part}")
    sys.modules["flash_attn"] = _flash_attn()
    initialise = dist.init_process_group
    dist.init_process_group = lambda *_, **__: initialise("gloo")
    if compiled:  # what is imported from now on sees the proxy
        torch.compile(lambda x: x.sin(), backend="aot_eager")(
            torch.ones(1, requires_grad=True)
        ).sum().backward()
    sys.modules["torch"] = _proxy()


class _OfDevices(type):
    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, torch.device)


class Device(metaclass=_OfDevices):
    """``torch.device`` without GPUs."""

    def __new__(cls, named: Any) -> Any:
        return torch.device("cpu" if str(named).startswith("cuda") else named)


def _proxy() -> types.ModuleType:
    """torch as the test file sees it: GPUs are CPUs and bf16 is f32. torch itself keeps its own names."""

    class Proxy(types.ModuleType):
        bfloat16 = torch.float32

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        device = Device

        @staticmethod
        def compile(function: Any) -> Any:
            return torch.compile(function, backend="aot_eager")

    for name in ("max_memory_allocated", "reset_peak_memory_stats", "set_device", "synchronize"):
        setattr(torch.cuda, name, lambda *_, **__: 0)
    return Proxy("torch")


def _flash_attn() -> types.ModuleType:
    """flash-attn's functions by torch's kernel for CPUs, for whole sequences."""

    def attend(q: Any, k: Any, v: Any, causal: bool, scale: float | None) -> tuple[Any, Any]:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *(x.transpose(1, 2) for x in (q, k, v)), 0.0, causal, scale=scale
        )
        return out.transpose(1, 2), lse

    def flash_attn_func(
        q: Any, k: Any, v: Any, softmax_scale: Any = None, causal: bool = False, **more: Any
    ) -> Any:
        _plain(more)
        out, lse = attend(q, k, v, causal, softmax_scale)
        return (out, lse, None) if more.get("return_attn_probs") else out

    def flash_attn_varlen_func(
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens: Any,
        *_: Any,
        softmax_scale: Any = None,
        causal: bool = False,
        **more: Any,
    ) -> Any:
        _plain(more)
        ends = cu_seqlens.tolist()
        parts = [attend(*(x[None, a:b] for x in (q, k, v)), causal, softmax_scale)
                 for a, b in pairwise(ends)]  # fmt: skip
        out, lse = torch.cat([x[0][0] for x in parts]), torch.cat([x[1][0] for x in parts], -1)
        return (out, lse, None) if more.get("return_attn_probs") else out

    found = types.ModuleType("flash_attn")
    found.flash_attn_func = flash_attn_func  # type: ignore[attr-defined]
    found.flash_attn_qkvpacked_func = lambda qkv, **o: flash_attn_func(*qkv.unbind(-3), **o)  # type: ignore[attr-defined]
    found.flash_attn_varlen_func = flash_attn_varlen_func  # type: ignore[attr-defined]
    found.flash_attn_varlen_qkvpacked_func = (  # type: ignore[attr-defined]
        lambda qkv, cu_seqlens, longest, **o: flash_attn_varlen_func(
            *qkv.unbind(-3), cu_seqlens, longest, **o
        )
    )
    return found


def _plain(more: dict[str, Any]) -> None:
    """The stand-in has no windows, slopes, caps or dropout: a test that asks for them must not pass."""
    for name, nothing in (
        ("window_size", (-1, -1)),
        ("alibi_slopes", None),
        ("softcap", 0.0),
        ("dropout_p", 0),
    ):
        assert more.get(name, nothing) == nothing, f"the stand-in of flash-attn has no {name}"
