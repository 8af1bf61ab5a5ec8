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
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from megatile.compat.tilelang.ranks import spawn
from megatile.core.errors import MegatileError

_GPU = ("cuda", "hip", "npu", "mps")
_DEVICE: ContextVar[str] = ContextVar("device", default="cpu")
"""Where tensors of the GPU are."""


class NotComparedError(MegatileError, AssertionError):
    """A decision that depends on a comparison of tensors without values."""


class NotCompared:
    """The result of comparing tensors without values: neither true nor false."""

    def __bool__(self) -> bool:
        raise NotComparedError(
            "tensors without values were not compared", advice="compare tensors that were computed"
        )


@dataclass
class Comparisons:
    """How many comparisons were skipped because their tensors have no values."""

    skipped: int = 0

    def skip(self) -> NotCompared:
        self.skipped += 1
        return NotCompared()

    def __str__(self) -> str:
        return f"not compared: {self.skipped} comparison{'s' * (self.skipped != 1)} of tensors without values"


@contextmanager
def on_cpu() -> Iterator[Comparisons]:
    """Let torch's GPU be the CPU while the block runs; Triton interprets its kernels.

    Without torch nothing is changed.
    """
    comparisons = Comparisons()
    with ExitStack() as changes:
        interpret = {"TRITON_INTERPRET": os.environ.get("TRITON_INTERPRET", "1")}
        changes.enter_context(patch.dict(os.environ, interpret))
        changes.enter_context(_cuda_python())
        if importlib.util.find_spec("torch") is not None:
            _change_torch(changes, comparisons)
        yield comparisons


def _change_torch(changes: ExitStack, comparisons: Comparisons) -> None:
    """Change torch until ``changes`` is closed."""
    import torch
    import torch.multiprocessing
    import torch.profiler
    from torch.overrides import TorchFunctionMode

    divisions = (torch.Tensor.div, torch.Tensor.true_divide, torch.Tensor.__truediv__, torch.div)
    comparing = (torch.allclose, torch.equal)
    products = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)

    def valueless(*tensors: Any) -> bool:
        return any(isinstance(t, torch.Tensor) and t.is_meta for t in tensors)

    class OnCpu(TorchFunctionMode):
        """Arguments that name a GPU name the CPU instead."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func is torch.Tensor.cuda:
                return args[0] if _DEVICE.get() == "cpu" else args[0].to(_DEVICE.get())
            if func in comparing and valueless(*args, *kwargs.values()):
                return comparisons.skip()
            if func is torch.Tensor.pin_memory:
                return args[0]
            if func in divisions and isinstance(args[1], (int, float)) and args[0].is_floating_point():
                return args[0] * float(np.float32(1) / np.float32(args[1]))  # as a GPU divides by a number
            if func in products and args[0].dtype in (torch.float16, torch.bfloat16):
                return func(args[0].float(), args[1].float()).to(args[0].dtype)  # as tensor cores add up
            args = tuple(_on_cpu(torch, a) for a in args)
            return func(*args, **{k: _on_cpu(torch, v) for k, v in kwargs.items()})

    class Generator(torch.Generator):
        def __new__(cls, device: Any = "cpu") -> Any:
            return super().__new__(cls, _on_cpu(torch, device))

    assert_close, fork_rng = torch.testing.assert_close, torch.random.fork_rng
    profile, on_cpu = torch.profiler.profile, [torch.profiler.ProfilerActivity.CPU]

    def compare(actual: Any, expected: Any, *arguments: Any, **options: Any) -> None:
        if valueless(actual, expected):
            comparisons.skip()
        else:
            assert_close(actual, expected, *arguments, **options)

    def profiled(*_: Any, activities: Any = None, **options: Any) -> Any:
        return profile(activities=on_cpu, **options)

    changes.enter_context(OnCpu())
    changes.enter_context(patch.multiple(torch.cuda, create=True, **_answers()))
    for owner, name, value in (
        (torch.Tensor, "is_cuda", property(lambda self: True)),
        (torch.multiprocessing, "spawn", spawn),
        (torch.random, "fork_rng", lambda *_, **__: fork_rng(devices=[])),
        (torch.profiler, "profile", profiled),
        (torch.nn.Module, "cuda", lambda self, *_, **__: self),
        (torch, "set_default_device", _nothing()),
        (torch, "Generator", Generator),
        (torch.testing, "assert_close", compare),
    ):
        changes.enter_context(patch.object(owner, name, value))
    if importlib.util.find_spec("triton") is not None:
        _interpret_triton(changes)


def _interpret_triton(changes: ExitStack) -> None:
    """Triton's own interpreter runs its kernels, each with its first configuration."""
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
    name = "_active" if hasattr(driver, "_active") else "active"  # by Triton's version
    changes.enter_context(patch.object(driver, name, active))
    prepare = autotuner.Autotuner.__init__

    def first_only(self: Any, fn: Any, arg_names: Any, configs: Any, *rest: Any, **keywords: Any) -> None:
        prepare(self, fn, arg_names, configs[:1], *rest, **keywords)

    changes.enter_context(patch.object(autotuner.Autotuner, "__init__", first_only))


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
    """Let what is made on the GPU have no values while the block runs."""
    token = _DEVICE.set("meta")
    try:
        yield
    finally:
        _DEVICE.reset(token)


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
        "mem_get_info": lambda *_: tuple(
            os.sysconf(name) * os.sysconf("SC_PAGE_SIZE") for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES")
        ),
        "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "is_initialized": lambda: True,
        "profiler": SimpleNamespace(start=_nothing(), stop=_nothing(), profile=nullcontext),
    }


# --- What programs call of the package ``cuda-python``: copies, signals and waits, done when they are called


@contextmanager
def _cuda_python() -> Iterator[None]:
    """Answer ``import cuda`` while the block runs, also where the package is installed: it needs a GPU."""
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
    names = "cuda cuda.cuda cuda.cudart cuda.bindings cuda.bindings.driver cuda.bindings.runtime".split()
    made = {name: ModuleType(name) for name in names}
    for name, module in made.items():
        module.__path__ = []
        vars(module).update(functions)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(made[parent], child, module)
    version = importlib.metadata.version

    def with_cuda(distribution_name: str) -> str:
        return "12.9.0" if distribution_name == "cuda-python" else version(distribution_name)

    def ours() -> list[str]:
        return [name for name in sys.modules if name.split(".")[0] == "cuda"]

    before = {name: sys.modules.pop(name) for name in ours()}
    sys.modules.update(made)
    try:
        with patch.object(importlib.metadata, "version", with_cuda):
            yield
    finally:
        for name in ours():
            del sys.modules[name]
        sys.modules.update(before)


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
