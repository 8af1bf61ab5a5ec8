"""torch on the CPU for programs written for a GPU: ``device="cuda"`` means the CPU, ``torch.cuda`` answers.

What it says of the GPU (name, multiprocessors, memory) comes from the machine that kernels are built for.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

_GPU = ("cuda", "hip", "npu", "mps")
_INSTALLED: list[Any] = []


def install() -> None:
    """Change torch once; without torch there is nothing to do."""
    try:
        import torch
        from torch.overrides import TorchFunctionMode
    except ImportError:
        return
    if _INSTALLED:
        return

    class OnCpu(TorchFunctionMode):
        """Arguments that name a GPU name the CPU instead."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func is torch.Tensor.cuda:
                return args[0]
            if func is torch.Tensor.pin_memory:
                return args[0]
            args = tuple(_on_cpu(torch, a) for a in args)
            return func(*args, **{k: _on_cpu(torch, v) for k, v in kwargs.items()})

    mode = OnCpu()
    mode.__enter__()
    _INSTALLED.append(mode)
    for name, value in _answers(torch).items():
        setattr(torch.cuda, name, value)
    torch.Tensor.is_cuda = property(lambda self: True)  # type: ignore[assignment,method-assign]
    torch.nn.Module.cuda = lambda self, *_, **__: self  # type: ignore[assignment,method-assign,misc]
    torch.set_default_device = lambda *_, **__: None  # type: ignore[assignment]


def _on_cpu(torch: Any, value: Any) -> Any:
    if isinstance(value, str) and value.split(":")[0] in _GPU:
        return "cpu"
    if isinstance(value, torch.device) and value.type in _GPU:
        return torch.device("cpu")
    return value


class _Event:
    """The clock of the CPU where a GPU has events."""

    def __init__(self, *_: Any, **__: Any):
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """Work is done when its call returns."""

    def elapsed_time(self, other: _Event) -> float:
        return max((other.at - self.at) * 1e3, 1e-6)


class _Stream:
    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any):
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    wait_stream = wait_event = record_event = lambda self, *_: None


def properties() -> Any:
    """What torch says of a device, from the machine."""
    from megatile.compat.tilelang.source import current_machine

    machine = current_machine()
    count = machine.count("block") // max(machine.count("device"), 1) if machine.count("device") else 1
    return SimpleNamespace(
        name=machine.name, major=9, minor=0, multi_processor_count=count, total_memory=80 << 30, warp_size=32,
        gcnArchName="", L2_cache_size=50 << 20, shared_memory_per_multiprocessor=228 << 10,
        max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536,
    )  # fmt: skip


def _answers(torch: Any) -> dict[str, Any]:
    def nothing(*_: Any, **__: Any) -> None:
        """The CPU needs none of it."""

    answers: dict[str, Any] = dict.fromkeys(
        ("synchronize", "empty_cache", "init", "set_device", "reset_peak_memory_stats", "manual_seed", "manual_seed_all"),
        nothing,
    )
    stream = _Stream()
    return answers | {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_name": lambda *_: properties().name,
        "get_device_properties": lambda *_: properties(),
        "Event": _Event,
        "Stream": _Stream,
        "stream": lambda *_: stream,
        "device": lambda *_: stream,
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "manual_seed": lambda seed: torch.manual_seed(seed),
        "manual_seed_all": lambda seed: torch.manual_seed(seed),
        "is_initialized": lambda: True,
        "nvtx": SimpleNamespace(range_start=nothing, range_end=nothing, range_push=nothing, range_pop=nothing),
        "profiler": SimpleNamespace(start=nothing, stop=nothing),
    }
