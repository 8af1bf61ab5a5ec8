"""torch on the CPU for programs written for a GPU: ``device="cuda"`` means the CPU, ``torch.cuda`` answers.

What it says of the GPU (name, multiprocessors, memory) comes from the machine that kernels are built for.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from megatile.compat.tilelang.ranks import spawn

_GPU = ("cuda", "hip", "npu", "mps")
_INSTALLED: list[Any] = []
_DEVICE: ContextVar[str] = ContextVar("device", default="cpu")
"""Where tensors of the GPU are."""


def install() -> None:
    """Change torch once; without torch there is nothing to do. Triton interprets its kernels."""
    os.environ.setdefault("TRITON_INTERPRET", "1")
    try:
        import torch
        import torch.multiprocessing
        from torch.overrides import TorchFunctionMode
    except ImportError:
        return
    if _INSTALLED:
        return

    divisions = (torch.Tensor.div, torch.Tensor.true_divide, torch.Tensor.__truediv__, torch.div)

    comparisons = (torch.allclose, torch.equal)
    products = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)

    class OnCpu(TorchFunctionMode):
        """Arguments that name a GPU name the CPU instead."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func is torch.Tensor.cuda:
                return args[0] if _DEVICE.get() == "cpu" else args[0].to(_DEVICE.get())
            if func in comparisons and _DEVICE.get() != "cpu":
                return True
            if func is torch.Tensor.pin_memory:
                return args[0]
            if func in divisions and isinstance(args[1], (int, float)) and args[0].is_floating_point():
                return args[0] * float(np.float32(1) / np.float32(args[1]))  # as a GPU divides by a number
            if func in products and args[0].dtype in (torch.float16, torch.bfloat16):
                return func(args[0].float(), args[1].float()).to(args[0].dtype)  # as tensor cores add up
            args = tuple(_on_cpu(torch, a) for a in args)
            return func(*args, **{k: _on_cpu(torch, v) for k, v in kwargs.items()})

    mode = OnCpu()
    mode.__enter__()
    _INSTALLED.append(mode)
    for name, value in _answers().items():
        setattr(torch.cuda, name, value)
    torch.Tensor.is_cuda = property(lambda self: True)
    torch.multiprocessing.spawn = spawn
    fork_rng = torch.random.fork_rng
    torch.random.fork_rng = lambda *_, **__: fork_rng(devices=[])
    profile, on_cpu = torch.profiler.profile, [torch.profiler.ProfilerActivity.CPU]
    torch.profiler.profile = lambda *_, activities=None, **options: profile(activities=on_cpu, **options)
    torch.nn.Module.cuda = lambda self, *_, **__: self
    torch.set_default_device = lambda *_, **__: None

    class Generator(torch.Generator):
        def __new__(cls, device: Any = "cpu") -> Any:
            return super().__new__(cls, _on_cpu(torch, device))

    torch.Generator = Generator
    _interpret_triton()


def _interpret_triton() -> None:
    """Triton's own interpreter runs its kernels, each with its first configuration."""
    if importlib.util.find_spec("triton") is None:
        return
    from triton.runtime import autotuner, driver

    target = SimpleNamespace(backend="cuda", arch=90, warp_size=32)
    found = {"multiprocessor_count": 132, "max_shared_mem": 232448}
    active = SimpleNamespace(
        utils=SimpleNamespace(get_device_properties=lambda *_: found),
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        get_current_stream=lambda *_: 0,
        get_benchmarker=lambda: None,
    )
    driver.set_active(active)
    prepare = autotuner.Autotuner.__init__

    def first_only(self: Any, fn: Any, arg_names: Any, configs: Any, *rest: Any, **keywords: Any) -> None:
        prepare(self, fn, arg_names, configs[:1], *rest, **keywords)

    autotuner.Autotuner.__init__ = first_only


def _on_cpu(torch: Any, value: Any) -> Any:
    if isinstance(value, str) and value.split(":")[0] in _GPU:
        return _DEVICE.get()
    if isinstance(value, torch.device) and value.type in _GPU:
        return torch.device(_DEVICE.get())
    return value


def without_data(shape: Any, dtype: Any) -> Any:
    """A tensor that has a shape only."""
    import torch

    return torch.empty(tuple(int(e) for e in shape), dtype=dtype, device="meta")


@contextmanager
def shapes_only() -> Iterator[None]:
    """What is made on the GPU has no data for a while, and is equal to everything."""
    import torch

    compare, torch.testing.assert_close = torch.testing.assert_close, _nothing()
    token = _DEVICE.set("meta")
    try:
        yield
    finally:
        _DEVICE.reset(token)
        torch.testing.assert_close = compare


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


class _Stream(nullcontext):
    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any):
        super().__init__(self)

    synchronize = wait_stream = wait_event = record_event = lambda self, *_: None


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


def _nothing() -> Any:
    """A function of its own (torch tells functions apart) for what the CPU does not need."""
    return lambda *_, **__: None


def _answers() -> dict[str, Any]:
    stream = _Stream()
    quiet = (
        "_sleep synchronize empty_cache init set_device reset_peak_memory_stats manual_seed manual_seed_all"
    )
    return {name: _nothing() for name in quiet.split()} | {
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
        "is_initialized": lambda: True,
        "profiler": SimpleNamespace(start=_nothing(), stop=_nothing(), profile=nullcontext),
    }


# --- What programs call of the package ``cuda-python``: copies, signals and waits, done when they are called


def install_cuda_python() -> None:
    """Answer ``import cuda`` where the package is not installed."""
    if importlib.util.find_spec("cuda") is not None:
        return
    flags = SimpleNamespace(
        CU_STREAM_WRITE_VALUE_DEFAULT=0, CU_STREAM_WAIT_VALUE_EQ=1, CU_STREAM_WAIT_VALUE_GEQ=0
    )
    functions: dict[str, Any] = {
        "CUstreamWriteValue_flags": flags, "CUstreamWaitValue_flags": flags,
        "cudaMemcpyKind": SimpleNamespace(cudaMemcpyDeviceToDevice=3, cudaMemcpyDefault=4),
        "cudaMemcpy": _copied, "cudaMemcpyAsync": _copied,
    }  # fmt: skip
    for bits, kind in ((32, ctypes.c_uint32), (64, ctypes.c_uint64)):
        functions[f"cuStreamWriteValue{bits}"] = functools.partial(_written, kind)
        functions[f"cuStreamWaitValue{bits}"] = functools.partial(_waited, kind)
    names = "cuda cuda.cuda cuda.cudart cuda.bindings cuda.bindings.driver cuda.bindings.runtime"
    for name in names.split():
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = []
        vars(module).update(functions)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
    version = importlib.metadata.version

    def with_cuda(distribution_name: str) -> str:
        return "12.9.0" if distribution_name == "cuda-python" else version(distribution_name)

    importlib.metadata.version = with_cuda


def _copied(to: int, source: int, count: int, *_: Any) -> tuple[int]:
    ctypes.memmove(to, source, count)
    return (0,)


def _written(kind: Any, stream: Any, address: Any, value: int, *_: Any) -> tuple[int]:
    kind.from_address(int(address)).value = value
    return (0,)


def _waited(kind: Any, stream: Any, address: Any, value: int, *_: Any) -> tuple[int]:
    while kind.from_address(int(address)).value != value:
        time.sleep(0.001)
    return (0,)
